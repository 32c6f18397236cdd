"""What a server counts of its calls, and the ids of requests, asked of a real server."""

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from replay_client import connect
from replaysvc import TableConfig, access
from replaysvc.access import Access, Role
from replaysvc.activity import Activity, request_id
from replaysvc.errors import (
    CapacityError,
    ConfigurationError,
    LimitedError,
    NotReadyError,
    UnauthenticatedError,
    WaitTimeoutError,
    WriterFencedError,
)
from replaysvc.options import Limiter
from replaysvc.rpc import admission
from replaysvc.rpc.server import FRAMES, SERVICE, Server
from replaysvc.rpc.status import is_wait
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc
from tests.builders import SCALARS, make_table, write_episodes
from tests.waiting import wait_until


@pytest.fixture
def activity():
    return Activity()


@pytest.fixture
def server(replay, activity):
    server = Server(replay, "127.0.0.1:0", activity=activity)
    server.start()
    yield server
    server.stop(5.0)


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.address, options=[("grpc.max_receive_message_length", 64 << 20)]) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    return replay_pb2_grpc.ReplayServiceStub(channel)


@pytest.fixture
def guarded(replay, activity, tmp_path):
    """A server that asks for tokens, and the secret of a learner `the-learner`."""
    secret, lines = access.new_token("the-learner", Role.LEARNER)
    access.append_token(tmp_path / "tokens.toml", lines)
    server = Server(replay, "127.0.0.1:0", access=Access(tmp_path / "tokens.toml"), activity=activity)
    server.start()
    yield server, secret
    server.stop(5.0)


def counted(activity):
    return {key: sum(view.counts) for key, view in activity.calls().seconds.items()}


def wait_for(activity, expected):
    """Waits for a count, which a caller's answer may come before."""
    wait_until(lambda: counted(activity) == expected)


def metadata_of(call):
    return [value for key, value in call.trailing_metadata() if key == "x-request-id"]


def test_each_call_is_counted_once_with_its_outcome_and_bytes(stub, activity):
    stub.ListTables(pb.ListTablesRequest(), timeout=30)
    wait_for(activity, {("ListTables", "OK"): 1})
    with pytest.raises(grpc.RpcError):
        stub.GetTable(pb.GetTableRequest(name="nosuch"), timeout=30)
    wait_for(activity, {("ListTables", "OK"): 1, ("GetTable", "NOT_FOUND"): 1})
    calls = activity.calls()
    assert calls.received_bytes == pb.ListTablesRequest().ByteSize() + pb.GetTableRequest(name="nosuch").ByteSize()
    assert calls.sent_bytes == 0  # an empty list, and an error
    assert all(0 < view.total < 30 for view in calls.seconds.values())
    assert calls.refused == {}


def test_streamed_calls_are_counted_with_all_their_pieces(stub, activity):
    data = bytes(5 << 20)
    pieces = [pb.PutParamsRequest(name="p", version=1, size=len(data), piece=data[: 1 << 20])]
    pieces += [pb.PutParamsRequest(piece=data[start : start + (1 << 20)]) for start in range(1 << 20, len(data), 1 << 20)]
    stub.PutParams(iter(pieces), timeout=30)
    answers = list(stub.GetParams(pb.GetParamsRequest(name="p", newer_than=-1), timeout=30))
    wait_for(activity, {("PutParams", "OK"): 1, ("GetParams", "OK"): 1})
    calls = activity.calls()
    asked = pb.GetParamsRequest(name="p", newer_than=-1).ByteSize()
    assert calls.received_bytes == sum(piece.ByteSize() for piece in pieces) + asked
    assert calls.sent_bytes == sum(answer.ByteSize() for answer in answers)
    assert len(answers) == 2
    wait_until(lambda: activity.answers().keys() == {"PutParams", "GetParams"})
    assert [sum(view.counts) for view in activity.answers().values()] == [1, 1]


def test_large_request_in_pieces_is_counted_whole(replay, activity, server, channel):
    make_table(replay, [3])
    request = pb.DeleteEpisodesRequest(table="t", episode_ids=range(2**50, 2**50 + 200_000)).SerializeToString()
    pieces = [request[start : start + (1 << 20)] for start in range(0, len(request), 1 << 20)]
    assert len(pieces) > 1
    metadata = (("replaysvc-bytes", str(len(request))),)
    channel.stream_unary(f"/{SERVICE}/DeleteEpisodes")(iter(pieces), metadata=metadata, timeout=30)
    wait_for(activity, {("DeleteEpisodes", "OK"): 1})
    assert activity.calls().received_bytes == len(request)


def test_failure_of_ours_counts_as_internal(stub, activity, replay, monkeypatch):
    def broken():
        raise ValueError("a slip")

    monkeypatch.setattr(replay, "tables", broken)
    with pytest.raises(grpc.RpcError):
        stub.ListTables(pb.ListTablesRequest(), timeout=30)
    wait_for(activity, {("ListTables", "INTERNAL"): 1})


def test_call_that_its_caller_gave_up_counts_as_cancelled(stub, replay, activity):
    replay.put_params("p", bytes(40 << 20), version=1)
    call = stub.GetParams(pb.GetParamsRequest(name="p", newer_than=-1), timeout=60)
    next(call)
    call.cancel()
    wait_for(activity, {("GetParams", "CANCELLED"): 1})


def test_call_that_found_no_data_is_a_wait_and_one_that_never_will_is_not(stub, replay, activity):
    make_table(replay, [3], limiter=Limiter(min_steps=10))
    for table in ("t", "t", "nosuch"):
        with pytest.raises(grpc.RpcError):
            stub.Sample(pb.SampleRequest(table=table, batch_size=8), timeout=30)
    with pytest.raises(grpc.RpcError):
        stub.Snapshot(pb.SnapshotRequest(name="s"), timeout=30)  # there is no directory for snapshots
    code = NotReadyError.grpc_status
    wait_for(activity, {("Sample", code): 2, ("Sample", "NOT_FOUND"): 1, ("Snapshot", code): 1})
    assert activity.calls().waits == {"Sample": 2}


@pytest.mark.parametrize(
    ("error", "method", "wait"),
    [
        (NotReadyError, "Sample", True), (LimitedError, "Append", True), (WaitTimeoutError, "Sample", True),
        (WaitTimeoutError, "SampleLarge", True), (WaitTimeoutError, "Append", False), (ConfigurationError, "Sample", False),
        (WriterFencedError, "Append", False), (CapacityError, "Append", False), (TimeoutError, "Sample", False),
    ],
)  # fmt: skip
def test_the_class_of_an_error_tells_whether_its_call_waited(error, method, wait):
    assert is_wait(error("why"), method) is wait


def test_unknown_methods_count_as_other(channel, activity):
    for path in (f"/{SERVICE}/NoSuch", "/other.Service/Method", f"/{FRAMES}/NoSuch"):
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(path)(b"", timeout=30)
    wait_for(activity, {("other", "UNIMPLEMENTED"): 3})


def test_refused_calls_are_counted_apart(guarded, activity):
    server, secret = guarded
    with grpc.insecure_channel(server.address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.RpcError):
                stub.ListTables(pb.ListTablesRequest(), metadata=metadata, timeout=30)
        with pytest.raises(grpc.RpcError):
            stub.DeleteTable(pb.DeleteTableRequest(name="t"), metadata=(("authorization", f"Bearer {secret}"),), timeout=30)
        stub.ListTables(pb.ListTablesRequest(), metadata=(("authorization", f"Bearer {secret}"),), timeout=30)
    wait_for(activity, {("ListTables", "OK"): 1})
    assert activity.calls().refused == {"UNAUTHENTICATED": 2, "PERMISSION_DENIED": 1}


def test_learner_without_a_name_is_known_by_its_connection(server, activity, replay):
    make_table(replay, [30])
    with connect(server.address) as client:
        for _ in range(3):
            client.table("t").sample(8)
    (learner,) = activity.learners()
    assert re.fullmatch(r"127\.0\.0\.1:[0-9]+", learner.name)
    assert (learner.table, learner.sampler, learner.items, learner.batches) == ("t", "uniform", 24, 3)
    assert learner.mean_s > 0
    assert (learner.waited_share, learner.last_wait) == (0.0, "")


def test_learner_with_a_token_is_known_by_its_name(guarded, activity, replay):
    server, secret = guarded
    make_table(replay, [30])
    for _ in range(2):  # over two connections
        with connect(server.address, token=secret) as client:
            client.table("t").sample(8, sampler="uniform")
    assert [(learner.name, learner.items) for learner in activity.learners()] == [("the-learner", 16)]


def test_batches_of_one_answer_are_counted_one_by_one(stub, activity, replay):
    make_table(replay, [30])
    transitions = pb.Transitions(n_step=1, gamma=0.9)
    stub.Sample(pb.SampleRequest(table="t", batch_size=8, batches=4, transitions=transitions), timeout=30)
    (learner,) = activity.learners()
    assert (learner.items, learner.batches) == (32, 4)


def test_learner_that_gets_nothing_is_known_with_what_it_waits_for(server, activity, replay):
    make_table(replay, [3], limiter=Limiter(min_steps=10))
    with connect(server.address) as client, pytest.raises(NotReadyError):
        client.table("t").sample(8, timeout_s=0.3)
    (learner,) = activity.learners()
    assert (learner.items, learner.batches) == (0, 0)
    assert "3 of 10" in learner.last_wait
    assert learner.waited_share >= 0.25


def test_batch_that_came_after_a_wait_was_waited_for(server, activity, replay):
    make_table(replay, [3], limiter=Limiter(min_steps=10))
    with connect(server.address) as client, ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(client.table("t").sample, 8, timeout_s=60)
        wait_until(lambda: replay.engine("t").counted().waiting["sample"] == 1)
        write_episodes(replay.table("t"), [10])
        assert len(drawn.result()) == 8
    (learner,) = activity.learners()
    (calls,) = [view.total for key, view in activity.calls().seconds.items() if key == ("Sample", "OK")]
    assert learner.batches == 1
    assert 0 < learner.waited_share <= 1
    assert learner.mean_s < calls


def test_names_of_tables_and_samplers_that_do_not_exist_are_not_kept(stub, activity, replay):
    make_table(replay, [30])
    for table, sampler in (("nosuch", "uniform"), ("t", "nosuch")):
        with pytest.raises(grpc.RpcError):
            stub.Sample(pb.SampleRequest(table=table, batch_size=8, sampler=sampler, timeout_s=0.1), timeout=30)
    assert activity.learners() == []


def test_request_id_of_the_caller_comes_back_and_is_known_within(stub, replay, monkeypatch):
    seen, tables = [], replay.tables
    monkeypatch.setattr(replay, "tables", lambda: seen.append(request_id.get()) or tables())
    _, call = stub.ListTables.with_call(pb.ListTablesRequest(), metadata=(("x-request-id", "run-7.step_3"),), timeout=30)
    assert metadata_of(call) == ["run-7.step_3"]
    _, call = stub.ListTables.with_call(pb.ListTablesRequest(), metadata=(("x-request-id", "two words"),), timeout=30)
    (made,) = metadata_of(call)
    assert re.fullmatch("[0-9a-f]{12}", made)
    _, call = stub.ListTables.with_call(pb.ListTablesRequest(), timeout=30)
    assert metadata_of(call) == []  # it was not asked for
    assert seen[:2] == ["run-7.step_3", made]
    assert re.fullmatch("[0-9a-f]{12}", seen[2])
    assert seen[2] != made
    assert request_id.get() == ""


def test_request_id_comes_with_errors_streams_and_refusals(stub, guarded):
    asked = (("x-request-id", "mine"),)
    with pytest.raises(grpc.RpcError) as missing:
        stub.GetTable(pb.GetTableRequest(name="nosuch"), metadata=asked, timeout=30)
    assert metadata_of(missing.value) == ["mine"]
    with pytest.raises(grpc.RpcError) as unnamed:
        stub.GetTable(pb.GetTableRequest(name="nosuch"), timeout=30)
    assert re.fullmatch("[0-9a-f]{12}", *metadata_of(unnamed.value))
    call = stub.GetParams(pb.GetParamsRequest(name="nosuch"), metadata=asked, timeout=30)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert metadata_of(call) == ["mine"]
    with grpc.insecure_channel(guarded[0].address) as channel, pytest.raises(grpc.RpcError) as refused:
        replay_pb2_grpc.ReplayServiceStub(channel).ListTables(pb.ListTablesRequest(), metadata=asked, timeout=30)
    assert metadata_of(refused.value) == ["mine"]
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_lines_of_the_log_about_a_call_carry_its_id(guarded, replay, monkeypatch, activity):
    """Those about a failure within, and about a refusal: what writes the log asks for the id when a line is made."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append((record.name, request_id.get()))

    handler = Keep()
    logging.getLogger("replaysvc").addHandler(handler)
    try:
        server, secret = guarded
        monkeypatch.setattr(replay, "tables", lambda: 1 / 0)
        with grpc.insecure_channel(server.address) as channel:
            stub = replay_pb2_grpc.ReplayServiceStub(channel)
            for number, shown in enumerate((secret, "wrong")):
                metadata = (("authorization", f"Bearer {shown}"), ("x-request-id", f"call-{number}"))
                with pytest.raises(grpc.RpcError) as failed:
                    stub.ListTables(pb.ListTablesRequest(), metadata=metadata, timeout=30)
                if number == 0:
                    assert failed.value.details() == "internal error call-0; the server's log has the cause"
    finally:
        logging.getLogger("replaysvc").removeHandler(handler)
    assert lines == [("replaysvc.rpc.status", "call-0"), ("replaysvc.access", "call-1")]


def test_server_says_how_loaded_it_is(server, replay, activity):
    make_table(replay, [3], limiter=Limiter(min_steps=10))
    assert server.load() == ({"append": 0, "sample": 0, "transfer": 0, "control": 0}, 0)
    with connect(server.address) as client:
        waiting = threading.Thread(target=lambda: client.table("t").sample(2, timeout_s=60))
        waiting.start()
        wait_until(lambda: server.load()[0]["sample"] == 1)
        assert server.load()[1] >= admission.ANSWER_LEAST_BYTES
        write_episodes(replay.table("t"), [10])
        waiting.join()
    wait_until(lambda: server.load() == ({"append": 0, "sample": 0, "transfer": 0, "control": 0}, 0))


def test_server_says_whether_it_serves(replay):
    server = Server(replay, "127.0.0.1:0")
    assert server.status == "starting"
    server.start()
    assert server.status == "serving"
    seen = []
    stop = server._server.stop
    server._server.stop = lambda grace: seen.append(server.status) or stop(grace)
    server.stop(1.0)
    assert (seen, server.status) == (["draining"], "draining")


def test_unauthenticated_client_of_ours_is_told_so(guarded):
    with connect(guarded[0].address) as client, pytest.raises(UnauthenticatedError):
        client.create_table("t", SCALARS, TableConfig())
