"""Who may call what, asked of a real server method by method."""

import hashlib
import logging

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from replaysvc import access
from replaysvc.access import MAY, Access, Role
from replaysvc.activity import request_id
from replaysvc.errors import UnauthenticatedError
from replaysvc.rpc import auth
from replaysvc.rpc.auth import AuthInterceptor, caller
from replaysvc.rpc.server import FRAMES, SERVICE
from replaysvc.v1 import replay_pb2 as pb

WRITER, LEARNER, VIEWER, ADMIN = Role
MAKERS, LOOKERS, LEARNERS, WRITERS = {WRITER, LEARNER, ADMIN}, {LEARNER, VIEWER, ADMIN}, {LEARNER, ADMIN}, {WRITER, ADMIN}
EXPECTED = {
    "CreateTable": MAKERS, "GetTable": set(Role), "ListTables": LOOKERS, "DeleteTable": {ADMIN}, "OpenSession": WRITERS,
    "Append": WRITERS, "Sample": LEARNERS, "UpdatePriorities": LEARNERS, "SetLimiter": LEARNERS, "DeleteEpisodes": {ADMIN},
    "TableStats": set(Role), "Activity": LOOKERS, "SetCapacity": {ADMIN}, "ListEpisodes": LOOKERS, "ReadEpisode": LOOKERS,
    "PutParams": MAKERS, "GetParams": set(Role),
    "Snapshot": {ADMIN}, "Compact": {ADMIN}, "SampleLarge": LEARNERS, "OpenShared": LEARNERS,
}  # fmt: skip
"""Written down a second time, so that a slip in one of them shows."""

METHODS: dict[str, MethodDescriptor] = {
    f"/{SERVICE}/{method.name}": method for method in pb.DESCRIPTOR.services_by_name["ReplayService"].methods
}
KINDS = {path: (method.client_streaming, method.server_streaming) for path, method in METHODS.items()}
KINDS |= {f"/{FRAMES}/Sample": (False, False), f"/{FRAMES}/SampleLarge": (False, True)}
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@pytest.fixture
def tokens(tmp_path):
    """Secrets by role, and their file."""
    secrets = {}
    for role in Role:
        secrets[role], lines = access.new_token(f"the-{role}", role)
        access.append_token(tmp_path / "tokens.toml", lines)
    return secrets, tmp_path / "tokens.toml"


@pytest.fixture
def guarded(serve, tokens):
    """A server that asks for tokens, as a channel to it."""
    with grpc.insecure_channel(serve(access=Access(tokens[1])).address) as channel:
        yield channel


def call(channel, path, metadata, kind=(False, False), data=b""):
    """Calls any method with one message; returns status, sentence, error name."""
    many, streamed = kind
    method = getattr(channel, f"{'stream' if many else 'unary'}_{'stream' if streamed else 'unary'}")(path)
    try:
        answer = method(iter([data]) if many else data, metadata=metadata, timeout=30)
        if streamed:
            list(answer)
    except grpc.RpcError as error:
        names = [value for key, value in error.trailing_metadata() or () if key == "replaysvc-error"]
        return error.code(), error.details(), *names
    return grpc.StatusCode.OK, ""


def bearer(secret):
    return (("authorization", f"Bearer {secret}"),)


def test_every_method_has_its_roles():
    assert set(MAY) == {path.rpartition("/")[2] for path in KINDS}
    assert {method: set(roles) for method, roles in MAY.items()} == EXPECTED
    assert auth.OPEN == "/grpc.health.v1.Health/Check"


@pytest.mark.parametrize("path", KINDS)
def test_each_method_is_for_its_roles_and_for_nobody_else(guarded, tokens, path):
    method = path.rpartition("/")[2]
    for metadata in ((), bearer("wrong"), bearer(hashlib.sha256(tokens[0][ADMIN].encode()).hexdigest())):
        status, sentence, *names = call(guarded, path, metadata, KINDS[path])
        assert (status, names) == (grpc.StatusCode.UNAUTHENTICATED, ["UnauthenticatedError"])
        assert sentence.startswith("authorization: expected a token")
    for role, secret in tokens[0].items():
        status, sentence, *names = call(guarded, path, bearer(secret), KINDS[path])
        if role in EXPECTED[method]:
            assert status not in REFUSED, (role, sentence)
            continue
        assert (status, names) == (grpc.StatusCode.PERMISSION_DENIED, ["PermissionDeniedError"]), role
        assert sentence == f"{method}: expected the role {' or '.join(sorted(EXPECTED[method]))}, found {role} (of the-{role})"


def test_method_without_roles_is_refused_to_everyone(guarded, tokens, monkeypatch):
    monkeypatch.delitem(MAY, "GetTable")
    for secret in tokens[0].values():
        status, sentence, _ = call(guarded, f"/{SERVICE}/GetTable", bearer(secret))
        assert status == grpc.StatusCode.PERMISSION_DENIED
        assert "nobody may call it" in sentence


@pytest.mark.parametrize("path", [f"/{SERVICE}/NoSuch", "/other.Service/Append", "/", f"/{FRAMES}/Append"])
def test_unknown_method_is_told_to_those_alone_who_are_known(guarded, tokens, path):
    assert call(guarded, path, ())[0] == grpc.StatusCode.UNAUTHENTICATED
    assert call(guarded, path, bearer(tokens[0][ADMIN]))[0] == grpc.StatusCode.UNIMPLEMENTED


def test_method_of_a_service_that_is_not_ours_is_refused(serve, tokens):
    """As reflection would be, if someone added it."""
    server = serve(access=Access(tokens[1]))
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"secrets")
    server._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("other.Service", {"Append": handler}),))
    with grpc.insecure_channel(server.address) as channel:
        status, *_ = call(channel, "/other.Service/Append", bearer(tokens[0][ADMIN]))
    assert status == grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "SECRET")],
        [("authorization", "Basic SECRET")],
        [("authorization", "Bearer  SECRET")],
        [("authorization", "Bearer SECRET"), ("authorization", "Bearer SECRET")],
        [("authorization-bin", b"Bearer SECRET")],
        [("x-authorization", "Bearer SECRET")],
    ],
    ids=str,
)
def test_token_that_is_not_shown_as_it_should_be_is_refused(guarded, tokens, metadata):
    secret = tokens[0][ADMIN]
    shown = [(key, value if isinstance(value, bytes) else value.replace("SECRET", secret)) for key, value in metadata]
    status, sentence, *_ = call(guarded, f"/{SERVICE}/ListTables", shown)
    assert status == grpc.StatusCode.UNAUTHENTICATED
    assert secret not in sentence


def test_scheme_is_known_in_any_case(guarded, tokens):
    assert call(guarded, f"/{SERVICE}/ListTables", (("authorization", f"bEARER {tokens[0][VIEWER]}"),))[0] == grpc.StatusCode.OK


def test_huge_metadata_is_refused_and_the_server_goes_on(guarded, tokens):
    for metadata in (bearer("x" * 20_000), [(f"key-{i}", "x" * 100) for i in range(1000)]):
        assert call(guarded, f"/{SERVICE}/ListTables", metadata)[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert call(guarded, f"/{SERVICE}/ListTables", bearer(tokens[0][VIEWER]))[0] == grpc.StatusCode.OK


def test_health_is_open_and_tells_nothing_but_itself(guarded):
    health = health_pb2_grpc.HealthStub(guarded)
    for service in ("", SERVICE):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert answer == health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
    for method in ("Watch", "List"):
        assert call(guarded, f"/grpc.health.v1.Health/{method}", ())[0] == grpc.StatusCode.UNIMPLEMENTED


def test_handlers_know_who_calls(serve, tokens, monkeypatch, replay):
    seen = []
    tables = replay.tables

    def noted():
        if request_id.get():  # else it is what looks at the store all the time
            seen.append(caller.get())
        return tables()

    monkeypatch.setattr(replay, "tables", noted)
    for options, metadata in (({"access": Access(tokens[1])}, bearer(tokens[0][VIEWER])), ({}, ())):
        with grpc.insecure_channel(serve(**options).address) as channel:
            assert call(channel, f"/{SERVICE}/ListTables", metadata)[0] == grpc.StatusCode.OK
    assert seen == [access.Identity("the-viewer", VIEWER), access.ANYONE]


def test_callers_are_asked_before_anything_else(serve, monkeypatch):
    made, make = [], grpc.server
    monkeypatch.setattr(grpc, "server", lambda *args, **options: made.append(options["interceptors"]) or make(*args, **options))
    serve(access=Access())
    serve()
    (guarded, free) = made
    assert isinstance(guarded[0], AuthInterceptor)
    assert guarded[1:]
    assert not any(isinstance(interceptor, AuthInterceptor) for interceptor in free)


def test_refused_message_is_not_even_read():
    class Context:
        peer = staticmethod(lambda: "peer")
        set_trailing_metadata = abort = staticmethod(lambda *_: None)

    def messages():
        pytest.fail("a message was read")
        yield b""

    class Details:
        method, invocation_metadata = f"/{SERVICE}/PutParams", ()

    interceptor = AuthInterceptor(Access(), (SERVICE, FRAMES), certificates=False)
    handler = interceptor.intercept_service(lambda _: pytest.fail("others were asked"), Details)
    assert (handler.request_streaming, handler.request_deserializer) == (True, None)
    with pytest.raises(UnauthenticatedError):
        handler.stream_stream(messages(), Context)


def test_refused_message_is_not_parsed(guarded, tokens):
    """The handler that refuses has no parser at all; a message that none could parse is refused for its caller alone."""
    garbage = b"\xff" * 1000
    assert call(guarded, f"/{SERVICE}/Append", (), data=garbage)[0] == grpc.StatusCode.UNAUTHENTICATED
    assert call(guarded, f"/{SERVICE}/Append", bearer(tokens[0][VIEWER]), data=garbage)[0] == grpc.StatusCode.PERMISSION_DENIED
    assert call(guarded, f"/{SERVICE}/Append", bearer(tokens[0][WRITER]), data=garbage)[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_refusals_are_logged_without_the_token_and_not_one_by_one(guarded, tokens, caplog):
    with caplog.at_level(logging.DEBUG):
        for attempt in range(50):
            call(guarded, f"/{SERVICE}/Append", bearer(f"guess-{attempt}"))
            call(guarded, f"/{SERVICE}/DeleteTable", bearer(tokens[0][WRITER]))
    lines = [record.getMessage() for record in caplog.records if record.name == "replaysvc.access"]
    assert len(lines) == 1
    assert "guess" not in caplog.text
    assert not any(secret in caplog.text for secret in tokens[0].values())
