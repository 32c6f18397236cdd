"""TLS with real certificates: who gets through, what a certificate allows, and how soon a mistake is told."""

import logging
import shutil
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import replay_client
from replay_client import PermissionDeniedError, UnauthenticatedError, UnavailableError
from replaysvc.access import MAY, Access, Role, append_token, new_token
from replaysvc.errors import InvalidRequestError
from replaysvc.rpc.server import FRAMES
from replaysvc.rpc.tls import TlsFiles
from tests.builders import SCALARS, write_episodes
from tests.service.certificates import issue, make_ca, tls_of
from tests.service.test_security_roles import KINDS, REFUSED, call

HOST = ("DNS:localhost", "IP:127.0.0.1")
SOON_S = 45.0  # a refusal at once takes far less on any machine; one after `reconnect_timeout_s` takes a minute


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return make_ca(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(ca):
    return issue(ca, "server", *HOST)


@pytest.fixture
def secure(serve, pair, ca):
    """Starts a server with TLS; `mutual` asks clients for certificates of the same CA."""

    def start(*, mutual=False, **options):
        files = TlsFiles(certificate=pair[0], key=pair[1], client_ca=ca if mutual else None)
        return serve(tls=files, **options)

    return start


@pytest.fixture
def connect():
    """Makes clients that ride out a minute without a server; all are closed at the end."""
    clients = []

    def make(server, **options):
        clients.append(replay_client.connect(f"localhost:{server.port}", **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def refusal(client):
    """Returns the sentence with which a client gives up, which it must do soon."""
    began = time.monotonic()
    with pytest.raises(UnavailableError) as caught:
        client.tables()
    assert time.monotonic() - began < SOON_S
    return str(caught.value).replace(client.connection.address, "ADDRESS")


def test_data_goes_both_ways_under_tls(secure, connect, ca):
    table = connect(secure(), tls=tls_of(ca)).create_table("t", SCALARS)
    write_episodes(table, [3, 4])
    assert table.sample(8).reward.shape == (8,)
    assert table.stats().steps == 7


def test_tokens_under_tls(secure, connect, ca, tmp_path):
    secret, lines = new_token("ops", Role.ADMIN)
    append_token(tmp_path / "tokens.toml", lines)
    server = secure(access=Access(tmp_path / "tokens.toml"))
    assert connect(server, tls=tls_of(ca), token=secret).tables() == []
    with pytest.raises(UnauthenticatedError, match="found none"):
        connect(server, tls=tls_of(ca)).tables()
    with pytest.raises(UnauthenticatedError, match="found another"):
        connect(server, tls=tls_of(ca), token="guess").tables()


def test_client_without_tls_is_told_at_once(secure, connect):
    assert refusal(connect(secure())) == "the server at ADDRESS speaks TLS: connect with tls=Tls(root_certificates=...)"
    assert refusal(connect(secure(mutual=True))) == (
        "the server at ADDRESS speaks TLS: connect with tls=Tls(root_certificates=...)"
    )


def test_client_with_tls_is_told_at_once_of_a_server_without(serve, connect, ca):
    assert (
        refusal(connect(serve(), tls=tls_of(ca)))
        == "the server at ADDRESS does not speak TLS, expected it to since tls is given"
    )


def test_server_of_another_ca_is_not_believed(secure, connect, tmp_path):
    server, sentence = secure(), "the certificate of the server at ADDRESS is not signed by a CA in tls.root_certificates"
    assert refusal(connect(server, tls=tls_of(make_ca(tmp_path, "other")))) == sentence
    assert refusal(connect(server, tls=replay_client.Tls())) == sentence


def test_server_of_another_host_is_not_believed(serve, connect, ca):
    certificate, key = issue(ca, "elsewhere", "DNS:elsewhere.example.org")
    server = serve(tls=TlsFiles(certificate=certificate, key=key))
    assert refusal(connect(server, tls=tls_of(ca))) == (
        "the certificate of the server at ADDRESS is for another host, found one for DNS:elsewhere.example.org"
    )


def test_client_certificate_is_asked_for(secure, connect, ca, tmp_path):
    server = secure(mutual=True)
    stranger = issue(make_ca(tmp_path, "other"), "stranger", "URI:replaysvc://role/stranger/admin")
    asks = "the server at ADDRESS asks for a client certificate, found"
    assert refusal(connect(server, tls=tls_of(ca))) == f"{asks} none in tls"
    assert refusal(connect(server, tls=tls_of(ca, stranger))) == f"{asks} one that it does not accept in tls"


def test_client_key_that_does_not_fit_is_told_at_once(secure, connect, ca, pair):
    certificate, _ = issue(ca, "one", "URI:replaysvc://role/one/admin")
    client = connect(secure(mutual=True), tls=tls_of(ca, (certificate, pair[1])))
    assert refusal(client) == "tls: expected PEM of certificates and a key that belong together, found others"


def test_server_that_is_away_is_waited_for_as_ever(secure, ca):
    server = secure()
    server.stop()
    config = replay_client.ClientConfig(reconnect_timeout_s=0.5)
    with (
        replay_client.connect(f"localhost:{server.port}", tls=tls_of(ca), config=config) as client,
        pytest.raises(UnavailableError, match="^no server answers at"),
    ):
        client.tables()


def test_server_that_changes_to_tls_is_waited_for_by_who_knows_it(serve, secure, pair, replay):
    """What a client that had answers before meets is taken for a restart, whatever it looks like."""
    server = serve()
    config = replay_client.ClientConfig(reconnect_timeout_s=0.5)
    with replay_client.connect(server.address, config=config) as client:
        assert client.tables() == []
        server.stop()
        serve(server.port, tls=TlsFiles(certificate=pair[0], key=pair[1]))
        with pytest.raises(UnavailableError, match="^no server answers at"):
            client.tables()


@pytest.mark.parametrize("role", Role)
def test_role_of_a_certificate_is_that_of_its_uri(secure, ca, role):
    client = issue(ca, f"the-{role}", f"URI:replaysvc://role/the-{role}/{role}", "URI:spiffe://example.org/x", "DNS:x")
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), client[1].read_bytes(), client[0].read_bytes())
    with grpc.secure_channel(f"localhost:{secure(mutual=True).port}", credentials) as channel:
        for path, kind in KINDS.items():
            method = path.rpartition("/")[2]
            status, sentence, *_ = call(channel, path, (), kind)
            if role in MAY[method]:
                assert status not in REFUSED, (path, sentence)
            else:
                assert status == grpc.StatusCode.PERMISSION_DENIED, (path, sentence)
                assert sentence.endswith(f"found {role} (of the-{role})")
        assert call(channel, f"/{FRAMES}/NoSuch", ())[0] == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("DNS:localhost",),
        ("URI:replaysvc://role/a/root",),
        ("URI:replaysvc://role/a/admin/",),
        ("URI:replaysvc://role//admin",),
        ("URI:xreplaysvc://role/a/admin",),
        ("URI:https://example.org/replaysvc://role/a/admin",),
        ("URI:replaysvc://role/a/writer", "URI:replaysvc://role/a/admin"),
        ("email:replaysvc@role",),
    ],
    ids=str,
)
def test_certificate_without_one_role_is_refused(secure, connect, ca, names):
    client = issue(ca, "nobody", *names)
    with pytest.raises(UnauthenticatedError, match="^certificate: expected one URI replaysvc://role/NAME/ROLE"):
        connect(secure(mutual=True), tls=tls_of(ca, client)).tables()


def test_certificate_of_the_server_is_no_role(secure, connect, ca, pair):
    with pytest.raises(UnauthenticatedError):
        connect(secure(mutual=True), tls=tls_of(ca, pair)).tables()


def test_token_decides_where_both_are_shown(secure, connect, ca, tmp_path):
    secret, lines = new_token("looker", Role.VIEWER)
    append_token(tmp_path / "tokens.toml", lines)
    server = secure(mutual=True, access=Access(tmp_path / "tokens.toml"))
    tls = tls_of(ca, issue(ca, "writer", "URI:replaysvc://role/writer/writer"))
    assert connect(server, tls=tls, token=secret).tables() == []
    with pytest.raises(PermissionDeniedError, match=r"found viewer \(of looker\)"):
        connect(server, tls=tls, token=secret).create_table("t", SCALARS)
    with pytest.raises(PermissionDeniedError, match=r"found writer \(of writer\)"):
        connect(server, tls=tls).tables()
    with pytest.raises(UnauthenticatedError, match="found another"):
        connect(server, tls=tls, token="guess").create_table("t", SCALARS)


def test_health_under_tls(secure, ca):
    credentials = grpc.ssl_channel_credentials(ca.read_bytes())
    with grpc.secure_channel(f"localhost:{secure(access=Access()).port}", credentials) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_new_certificate_is_used_without_a_restart(serve, connect, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = make_ca(tmp_path / "old"), make_ca(tmp_path / "new")
    certificate, key = issue(old, "server", *HOST)
    server = serve(tls=TlsFiles(certificate=certificate, key=key))
    assert connect(server, tls=tls_of(old)).tables() == []

    new_certificate, new_key = issue(new, "server", *HOST)
    shutil.copy(new_key, key)  # half of the exchange
    assert connect(server, tls=tls_of(old)).tables() == []
    shutil.copy(new_certificate, certificate)
    assert connect(server, tls=tls_of(new)).tables() == []
    refusal(connect(server, tls=tls_of(old)))
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.endswith("the certificate that was read before stays in use")
    key.unlink()
    assert connect(server, tls=tls_of(new)).tables() == []


def test_new_client_ca_is_used_without_a_restart(serve, connect, ca, pair, tmp_path):
    other = make_ca(tmp_path, "other")
    shutil.copy(ca, tmp_path / "clients.pem")
    server = serve(tls=TlsFiles(certificate=pair[0], key=pair[1], client_ca=tmp_path / "clients.pem"))
    first, second = issue(ca, "first", "URI:replaysvc://role/first/viewer"), issue(other, "b", "URI:replaysvc://role/b/viewer")
    assert connect(server, tls=tls_of(ca, first)).tables() == []
    shutil.copy(other, tmp_path / "clients.pem")
    assert connect(server, tls=tls_of(ca, second)).tables() == []
    refusal(connect(server, tls=tls_of(ca, first)))


def test_files_that_are_no_certificates_are_refused_with_one_sentence(ca, pair, tmp_path):
    (tmp_path / "no.pem").write_text("no")
    for files, sentence in (
        ({"certificate": pair[0], "key": ca.with_suffix(".key")}, "they do not belong together"),
        ({"certificate": tmp_path / "no.pem", "key": pair[1]}, "they do not belong together, are no PEM"),
        ({"certificate": tmp_path / "absent.pem", "key": pair[1]}, "No such file"),
        ({"certificate": pair[0], "key": pair[1], "client_ca": tmp_path / "no.pem"}, "are no PEM"),
        ({"certificate": pair[0], "key": pair[1], "client_ca": tmp_path / "absent.pem"}, "No such file"),
    ):
        with pytest.raises(
            InvalidRequestError, match=f"^setting tls_.*: expected usable PEM files, found .*{sentence}"
        ) as caught:
            TlsFiles(**files).credentials()
        assert "\n" not in str(caught.value)


def test_key_that_others_may_read_is_warned_of(pair, tmp_path, caplog):
    shutil.copy(pair[1], tmp_path / "server.key")
    for mode in (0o600, 0o400):
        (tmp_path / "server.key").chmod(mode)
        TlsFiles(certificate=pair[0], key=tmp_path / "server.key").credentials()
        assert caplog.records == []
    (tmp_path / "server.key").chmod(0o640)
    TlsFiles(certificate=pair[0], key=tmp_path / "server.key").credentials()
    assert "others on this machine can read it" in caplog.text
