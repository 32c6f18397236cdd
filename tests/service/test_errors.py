"""What the engine raises is what the client raises, whatever kind of call it went through."""

import logging
import re

import grpc
import pytest

from replay_client.connection import error_of
from replaysvc import TableConfig
from replaysvc.errors import ERRORS, NotFoundError, SpecMismatchError, StorageError
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc
from tests.builders import SCALARS, write_episodes

CALLS = {  # one of each kind: what is called, and what within the store it ends in
    "unary": (lambda client: client.tables(), "tables"),
    "frame": (lambda client: client.table("t").sample(4), "engine"),
    "streamed request": (lambda client: client.put_params("p", b"x", version=1), "put_params"),
    "streamed response": (lambda client: client.get_params("p"), "get_params"),
}


def raising(error):
    def call(*args, **kwargs):
        raise error

    return call


@pytest.fixture
def client(serve, connect):
    client = connect(f"127.0.0.1:{serve().port}", reconnect_timeout_s=0.0)
    write_episodes(client.create_table("t", SCALARS, TableConfig(chunk_steps=2)), [5])
    return client


def error_from(call, client):
    with pytest.raises(Exception) as info:
        call(client)
    return info.value


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_each_error_of_the_engine_arrives_as_the_same_class_with_its_sentence(client, replay, monkeypatch, name):
    sentence = f"{name}: expected a good day, found größe 'x', with 50 % of\nthe rest: expected nothing"
    error = SpecMismatchError("a: b", "c, found d", "e") if name == "SpecMismatchError" else ERRORS[name](sentence)
    monkeypatch.setattr(replay, "tables", raising(error))
    arrived = error_from(lambda client: client.tables(), client)
    assert type(arrived) is ERRORS[name]
    assert str(arrived) == str(error)


def test_fields_of_a_spec_mismatch_arrive(client, replay, monkeypatch):
    monkeypatch.setattr(replay, "tables", raising(SpecMismatchError("action", "shape (2,)", "shape (3,)")))
    arrived = error_from(lambda client: client.tables(), client)
    assert (arrived.field, arrived.expected, arrived.found) == ("action", "shape (2,)", "shape (3,)")


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_errors_arrive_through_every_kind_of_call(client, replay, monkeypatch, kind):
    call, method = CALLS[kind]
    client.put_params("p", b"", version=0)
    monkeypatch.setattr(replay, method, raising(NotFoundError("no such thing")))
    arrived = error_from(call, client)
    assert type(arrived) is NotFoundError
    assert str(arrived) == "no such thing"


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_unexpected_exception_tells_the_client_a_number_and_the_log_the_cause(client, replay, monkeypatch, caplog, kind):
    call, method = CALLS[kind]
    client.put_params("p", b"", version=0)
    monkeypatch.setattr(replay, method, raising(ValueError("the secret inside")))
    with caplog.at_level(logging.ERROR, "replaysvc.rpc.status"):
        arrived = error_from(call, client)
    assert type(arrived) is StorageError
    number = re.fullmatch(r"internal error ([0-9a-f]{12}); the server's log has the cause", str(arrived)).group(1)
    record = next(record for record in caplog.records if number in record.getMessage())
    assert "the secret inside" in str(record.exc_info[1])


@pytest.mark.parametrize("peer", ["ipv6:%5B::1%5D:59758", "ipv6:[::1]:59758"])
def test_peers_in_sentences_of_the_network_are_as_people_write_them(peer):
    class Lost(grpc.RpcError):
        code, trailing_metadata = (lambda _: grpc.StatusCode.UNAVAILABLE), (lambda _: ())

        def details(self):
            return f"failed to connect to {peer}"

    assert str(error_of(Lost(), "[::1]:59758")) == "no server answers at [::1]:59758 (failed to connect to ipv6:[::1]:59758)"


def test_error_midway_through_a_streamed_response_arrives(client, replay, monkeypatch):
    table = client.table("t")

    def pieces(*args):
        yield [b"chunk"]
        raise NotFoundError("the rest was removed")

    monkeypatch.setattr(replay.engine("t"), "episode_chunks", pieces)
    with pytest.raises(NotFoundError, match="the rest was removed"):
        table.read_episode(0)


@pytest.mark.parametrize("text", ["x", "ä", "\U0001f600"])
def test_sentence_too_long_for_the_wire_is_shortened_and_keeps_its_class(client, replay, monkeypatch, text):
    monkeypatch.setattr(replay, "tables", raising(NotFoundError(f"begin {text * 100_000} end")))
    arrived = error_from(lambda client: client.tables(), client)
    assert type(arrived) is NotFoundError
    assert str(arrived).startswith(f"begin {text}")
    assert str(arrived).endswith(f"{text} end")
    assert " ... " in str(arrived)


def test_unknown_error_name_of_a_newer_server_is_still_an_error_of_this_project():
    class Future:
        def code(self):
            return grpc.StatusCode.UNKNOWN

        def details(self):
            return "the moon is full"

        def trailing_metadata(self):
            return (("replaysvc-error", "LunarError"),)

    assert str(error_of(Future(), "host:1")) == "the moon is full"


REQUESTS = {
    "GetTable": pb.GetTableRequest(name="nosuch"),
    "DeleteTable": pb.DeleteTableRequest(name="nosuch"),
    "OpenSession": pb.OpenSessionRequest(table="nosuch", session_id=bytes(16)),
    "Append": pb.AppendRequest(table="nosuch", session_id=bytes(16), chunks=[pb.AppendChunk(chunk=b"x")]),
    "Sample": pb.SampleRequest(table="nosuch", batch_size=1),
    "TableStats": pb.TableStatsRequest(table="nosuch"),
    "Activity": pb.ActivityRequest(table="nosuch"),
    "SetCapacity": pb.SetCapacityRequest(table="nosuch"),
    "ListEpisodes": pb.ListEpisodesRequest(table="nosuch"),
    "ReadEpisode": pb.ReadEpisodeRequest(table="nosuch"),
    "GetParams": pb.GetParamsRequest(name="nosuch"),
}


@pytest.mark.parametrize("method", sorted(REQUESTS))
def test_each_method_says_which_table_it_does_not_find(serve, method):
    with grpc.insecure_channel(f"127.0.0.1:{serve().port}") as channel:
        answer = getattr(replay_pb2_grpc.ReplayServiceStub(channel), method)
        with pytest.raises(grpc.RpcError) as info:
            list(answer(REQUESTS[method])) if method in ("ReadEpisode", "GetParams") else answer(REQUESTS[method])
    error = error_of(info.value, "")
    assert type(error) is NotFoundError
    assert "'nosuch'" in str(error)
    assert info.value.code() is grpc.StatusCode.NOT_FOUND
