"""Reflection: off unless asked for, for those who may look, and no way to keep others from being served."""

import threading
from contextlib import ExitStack

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from replaysvc import access
from replaysvc.access import Access, Role
from replaysvc.activity import Activity
from replaysvc.rpc import reflection
from replaysvc.rpc.server import HEALTH, SERVICE, Server
from replaysvc.rpc.tls import TlsFiles
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc
from tests.service.certificates import issue, make_ca
from tests.waiting import wait_until

LIST = reflection_pb2.ServerReflectionRequest(list_services="")


@pytest.fixture
def start(replay):
    """Starts servers, stopped at the end."""
    with ExitStack() as servers:

        def start(**options):
            server = Server(replay, "127.0.0.1:0", **{"reflection": True} | options)
            server.start()
            servers.callback(server.stop, 1.0)
            return server

        yield start


@pytest.fixture
def channel(start):
    with grpc.insecure_channel(start().address) as channel:
        yield channel


def info(channel, requests=(LIST,), metadata=()):
    """Calls the method; returns the names of services in its answers."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    answers = stub.ServerReflectionInfo(iter(requests), metadata=metadata, timeout=30)
    return [service.name for answer in answers for service in answer.list_services_response.service]


@pytest.fixture
def idle():
    """Makes calls that ask once and then stay."""
    enough = threading.Event()

    def requests():
        yield LIST
        enough.wait(60)

    def call(channel, metadata=()):
        return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(requests(), metadata=metadata, timeout=60)

    yield call
    enough.set()


def test_it_is_off_unless_it_is_asked_for(start):
    with grpc.insecure_channel(start(reflection=False).address) as channel, pytest.raises(grpc.RpcError) as refused:
        info(channel)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_tools_learn_all_methods_and_their_messages(channel):
    assert info(channel) == sorted([HEALTH, "grpc.reflection.v1alpha.ServerReflection", SERVICE])
    database = ProtoReflectionDescriptorDatabase(channel)
    file = database.FindFileContainingSymbol(SERVICE)
    (service,) = [service for service in file.service if service.name == "ReplayService"]
    assert {method.name for method in service.method} == {
        method.name for method in pb.DESCRIPTOR.services_by_name["ReplayService"].methods
    }
    assert any(message.name == "SampleRequest" for message in file.message_type)


def test_two_may_ask_at_once_and_a_third_is_told_so(channel, idle):
    calls = [idle(channel), idle(channel)]
    assert all(next(call).list_services_response.service for call in calls)
    with pytest.raises(grpc.RpcError) as refused:
        info(channel)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "try again" in refused.value.details()
    calls[0].cancel()
    wait_until(lambda: SERVICE in answers(channel))


def answers(channel):
    try:
        return info(channel)
    except grpc.RpcError:
        return []


def test_a_crowd_of_callers_leaves_refusals_and_all_other_calls_alone(start, idle, tmp_path):
    """Eight times as many as gRPC's own threads, which they would fill, under tokens, whose refusals need these."""
    secret, lines = access.new_token("looks", Role.VIEWER)
    access.append_token(tmp_path / "tokens.toml", lines)
    server = start(access=Access(tmp_path / "tokens.toml"))
    metadata = (("authorization", f"Bearer {secret}"),)
    with grpc.insecure_channel(server.address) as channel:
        calls = [idle(channel, metadata) for _ in range(30)]
        service = replay_pb2_grpc.ReplayServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            service.ListTables(pb.ListTablesRequest(), timeout=3)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        service.ListTables(pb.ListTablesRequest(), metadata=metadata, timeout=3)
        wait_until(lambda: sum(call.done() for call in calls) >= 28, timeout_s=3)


def test_the_time_of_a_call_is_limited(start, idle, monkeypatch):
    assert reflection._CALL_S == 5.0
    monkeypatch.setattr(reflection, "_CALL_S", 0.2)
    activity = Activity()
    with grpc.insecure_channel(start(activity=activity).address) as channel, pytest.raises(grpc.RpcError) as ended:
        list(idle(channel))
    assert ended.value.code() == grpc.StatusCode.CANCELLED
    wait_until(lambda: ("ServerReflectionInfo", "CANCELLED") in activity.calls().seconds)


@pytest.mark.parametrize("role", Role)
def test_with_tokens_it_is_for_those_who_may_look(start, tmp_path, role):
    secret, lines = access.new_token("somebody", role)
    access.append_token(tmp_path / "tokens.toml", lines)
    with grpc.insecure_channel(start(access=Access(tmp_path / "tokens.toml")).address) as channel:
        with pytest.raises(grpc.RpcError) as unknown:
            info(channel)
        assert unknown.value.code() == grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", f"Bearer {secret}"),)
        if role is Role.WRITER:
            with pytest.raises(grpc.RpcError) as refused:
                info(channel, metadata=metadata)
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
            assert "admin or learner or viewer" in refused.value.details()
        else:
            assert SERVICE in info(channel, metadata=metadata)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.WRITER])
def test_with_certificates_it_is_for_those_who_may_look_and_on_its_own_threads(start, tmp_path, role):
    ca = make_ca(tmp_path)
    certificate, key = issue(ca, "server", "DNS:localhost", "IP:127.0.0.1")
    own, own_key = issue(ca, "client", f"URI:replaysvc://role/somebody/{role}")
    server = start(tls=TlsFiles(certificate=certificate, key=key, client_ca=ca))
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), own_key.read_bytes(), own.read_bytes())
    with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
        if role is Role.WRITER:
            with pytest.raises(grpc.RpcError) as refused:
                info(channel)
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
        else:
            assert SERVICE in info(channel)
            assert any(thread.name.startswith("replaysvc-reflection") for thread in threading.enumerate())
