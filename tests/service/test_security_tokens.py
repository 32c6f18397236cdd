"""The tokens file: what it takes, when a change of it holds, and how tokens are made."""

import hashlib
import hmac
import logging
import os
import pickle
import stat

import grpc
import pytest

from replay_client import ClientConfig, Tls, UnauthenticatedError
from replay_client.connection import Connection, error_of
from replay_client.credentials import Token
from replaysvc import access
from replaysvc.access import Access, Identity, Refusals, Role, append_token, new_token
from replaysvc.errors import InvalidRequestError, PermissionDeniedError, SpecMismatchError, UnavailableError
from tests.builders import SCALARS
from tests.service.checks import write_numbered

SOME = "0" * 64
ENTRY = f'[[token]]\nname = "a"\nrole = "writer"\nsha256 = "{SOME}"\n'


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tokens.toml"


def make(file, name="a", role=Role.WRITER):
    secret, lines = new_token(name, role)
    append_token(file, lines)
    return secret


def write(file, text):
    file.write_text(text)
    file.chmod(0o600)


def write_and_flush(writer):
    write_numbered(writer, 5, 5)
    writer.flush(30)


def is_known(known, secret):
    try:
        known.identify(secret)
    except UnauthenticatedError:
        return False
    return True


def test_token_is_long_random_and_not_in_the_file(file):
    made = {make(file) for _ in range(20)}
    assert len(made) == 20
    assert all(len(secret) == 43 for secret in made)  # 256 bits, six a letter
    text = file.read_text()
    assert not any(secret in text for secret in made)
    assert all(hashlib.sha256(secret.encode()).hexdigest() in text for secret in made)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_token_stands_for_its_name_and_role(file):
    secrets = {role: make(file, f"the-{role}", role) for role in Role}
    known = Access(file)
    for role, secret in secrets.items():
        assert known.identify(secret) == Identity(f"the-{role}", role)
    for wrong in ("", "x", secrets[Role.ADMIN][:-1], secrets[Role.ADMIN] + "x", secrets[Role.ADMIN].swapcase(), "\udcff"):
        assert not is_known(known, wrong)
    assert not is_known(Access(), secrets[Role.ADMIN])


def test_every_token_is_compared_in_constant_time(file, monkeypatch):
    secrets, compared = [make(file, f"n{i}") for i in range(5)], []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    known = Access(file)
    known.identify(secrets[0])
    assert compared == [hashlib.sha256(secret.encode()).digest() for secret in secrets]


def test_change_of_the_file_holds_from_the_next_call(file):
    first = make(file)
    known = Access(file)
    assert is_known(known, first)
    second = make(file, "b")
    assert is_known(known, second)
    write(file, file.read_text().replace(hashlib.sha256(first.encode()).hexdigest(), SOME))  # of the same size
    assert (is_known(known, first), is_known(known, second)) == (False, True)
    file.unlink()
    third = make(file, "c")
    assert (is_known(known, second), is_known(known, third)) == (False, True)
    write(file, "")
    assert not is_known(known, third)


def test_change_within_the_tick_of_the_file_system_is_seen(file):
    """A second change may leave time, size and inode as they were: files changed just now are read again."""
    secret = make(file)
    changed_at = file.stat().st_mtime_ns
    clock = [changed_at / 1e9 + 0.001]
    known = Access(file, clock=lambda: clock[0])
    assert is_known(known, secret)
    write(file, file.read_text().replace(hashlib.sha256(secret.encode()).hexdigest(), SOME))
    os.utime(file, ns=(changed_at, changed_at))
    assert not is_known(known, secret)


def test_file_that_has_not_changed_for_long_is_not_read_again(file, monkeypatch):
    secret = make(file)
    known = Access(file, clock=lambda: file.stat().st_mtime + 100)
    read = []
    monkeypatch.setattr(access, "_read", read.append)
    assert is_known(known, secret)
    assert read == []


def test_file_that_breaks_keeps_the_tokens_and_is_told_once(file, caplog):
    secret = make(file)
    known = Access(file)
    good = file.read_text()
    for breaking in (lambda: write(file, good + "[[token"), lambda: file.chmod(0o666), file.unlink):
        breaking()
        caplog.clear()
        assert all(is_known(known, secret) for _ in range(5))
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert "the tokens that were read before stay in force" in record.getMessage()
    write(file, "")
    assert not is_known(known, secret)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[token", "expected TOML, found: "),
        ("\x00", "expected TOML, found: "),
        (ENTRY + ENTRY, "expected each sha256 once, found one twice"),
        (ENTRY + "[other]", r"expected up to 1000 \[\[token\]\] and nothing else, found 'other'"),
        ("token = 1", r"expected up to 1000 \[\[token\]\] and nothing else, found something else"),
        ("token = [1]", "token 1: expected name, role and sha256, found int"),
        ("[[token]]\nname = 'a'", r"token 1: expected name, role and sha256, found \['name'\]"),
        (ENTRY + "secret = 'x'", r"token 1: expected name, role and sha256, found \["),
        (ENTRY.replace('"a"', '"a\\nb"'), "token 1, name: expected 1 to 64 letters"),
        (ENTRY.replace('"a"', "7"), "token 1, name: expected 1 to 64 letters"),
        (ENTRY.replace("writer", "root"), "token 1, role: expected writer, learner, viewer, admin, found 'root'"),
        (ENTRY.replace('"writer"', "[]"), r"token 1, role: expected writer, learner, viewer, admin, found \[\]"),
        (ENTRY.replace(SOME, "0" * 63), "token 1, sha256: expected 64 hexadecimal digits, found another value"),
        (ENTRY.replace(f'"{SOME}"', "7"), "token 1, sha256: expected 64 hexadecimal digits, found another value"),
        ("#" * (1 << 21), "expected at most 1048576 bytes, found more"),
        ("[[token]]\n" * 1001, r"expected up to 1000 \[\[token\]\] and nothing else, found something else"),
    ],
)
def test_broken_file_is_refused_with_one_sentence(file, text, sentence):
    write(file, text)
    with pytest.raises(InvalidRequestError, match=f"^tokens file .*tokens.toml: {sentence}") as caught:
        Access(file)
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidRequestError):
        append_token(file, ENTRY)
    assert file.read_text() == text


def test_file_that_is_none_or_that_others_may_write_is_refused(file, tmp_path):
    with pytest.raises(InvalidRequestError, match="cannot be read: No such file"):
        Access(file)
    with pytest.raises(InvalidRequestError, match="cannot be read: Is a directory"):
        Access(tmp_path)
    make(file)
    for mode in (0o620, 0o602):
        file.chmod(mode)
        with pytest.raises(InvalidRequestError, match="others may write it"):
            Access(file)


def test_file_that_others_may_read_is_warned_of(file, caplog):
    make(file)
    Access(file)
    assert caplog.records == []
    file.chmod(0o644)
    Access(file)
    assert "others on this machine can read it" in caplog.text


def test_token_is_not_written_through_a_link(file, tmp_path):
    (tmp_path / "target").write_text("")
    (tmp_path / "target").chmod(0o600)
    file.symlink_to(tmp_path / "target")
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        append_token(file, ENTRY)
    assert (tmp_path / "target").read_text() == ""


@pytest.mark.parametrize("name", ["", "..", "a..b", "a b", 'a"', "a\nb", "a" * 65, "-a", "/a"])
def test_name_of_a_token_is_a_plain_one(name):
    with pytest.raises(SpecMismatchError, match="^name: "):
        new_token(name, Role.ADMIN)


def test_revoked_token_is_refused_and_a_writer_with_it_ends(file, serve, replay, secured):
    secret, admin = make(file, "actor", Role.WRITER), make(file, "ops", Role.ADMIN)
    server = serve(access=Access(file))
    actor, ops = secured(server.address, secret), secured(server.address, admin)
    table = actor.create_table("t", SCALARS)
    with pytest.raises(PermissionDeniedError, match="^DeleteTable: expected the role admin, found writer"):
        actor.delete_table("t")
    writer = table.writer()
    write_numbered(writer, 0, 5)
    writer.flush()
    write(file, "\n".join(file.read_text().partition("\n\n")[2:]))  # the second token alone
    with pytest.raises(UnauthenticatedError):
        actor.table("t")
    with pytest.raises(UnauthenticatedError):
        write_and_flush(writer)
    assert ops.table("t").stats().steps == 5


@pytest.fixture
def secured():
    """Makes clients with a token; all are closed at the end, whatever their writers have left."""
    import replay_client

    clients = []

    def connect(address, token, **options):
        clients.append(replay_client.connect(address, token=token, config=ClientConfig(reconnect_timeout_s=60), **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def test_client_shows_its_token_to_nobody_else(file, serve, secured, caplog):
    secret = make(file, "ops", Role.ADMIN)
    key = b"-----BEGIN PRIVATE KEY-----\nTOPSECRET"
    with caplog.at_level(logging.DEBUG):
        client = secured(serve(access=Access(file)).address, secret)
        client.create_table("t", SCALARS)
        copy = pickle.loads(pickle.dumps(client))
        assert copy.tables() == ["t"]
        copy.close()
    texts = [caplog.text, repr(client), str(client), repr(client.connection), repr(vars(client.connection))]
    texts += [repr(client.__reduce__()), repr(client.connection.__reduce__()), repr(Token(secret)), str(Token(secret))]
    tls = Tls(root_certificates=key, private_key=key, certificate_chain=key)
    texts += [repr(tls), str(tls), repr(Connection("localhost:1", secret, tls, ClientConfig()).__reduce__())]
    assert [text for text in texts if secret in text or "TOPSECRET" in text] == []


@pytest.mark.parametrize("token", ["", "a b", "a\n", "\na", "ä", "\x7f", "x" * 1025, 7, b"x"])
def test_token_that_is_none_is_refused_unshown(secured, token):
    with pytest.raises(SpecMismatchError, match="^token: expected 1 to 1024 printable ASCII") as caught:
        secured("localhost:1", token)
    assert "a b" not in str(caught.value)


def test_token_goes_to_another_machine_under_tls_alone(secured):
    with pytest.raises(SpecMismatchError, match="^token: expected tls with it"):
        secured("192.0.2.1:1", "x")
    secured("192.0.2.1:1", "x", tls=Tls())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"root_certificates": "text"}, "tls.root_certificates: expected the bytes of a PEM file, found other str"),
        (
            {"root_certificates": b"/path/to/ca.pem"},
            "tls.root_certificates: expected the bytes of a PEM file, found other bytes",
        ),
        ({"private_key": b"-----BEGIN"}, "tls: expected private_key and certificate_chain together, found one of them"),
        ({"certificate_chain": b"-----BEGIN"}, "tls: expected private_key and certificate_chain together, found one of them"),
    ],
)
def test_tls_of_other_things_is_refused(options, sentence):
    with pytest.raises(SpecMismatchError) as caught:
        Tls(**options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, UnauthenticatedError),
        (grpc.StatusCode.PERMISSION_DENIED, PermissionDeniedError),
    ],
)
def test_refusals_of_a_proxy_are_permanent_errors_too(status, error):
    class Refusal(grpc.RpcError):
        code, details, trailing_metadata = (lambda _: status), (lambda _: "go away"), (lambda _: ())

    found = error_of(Refusal(), "the server")
    assert type(found) is error
    assert not isinstance(found, UnavailableError)


def test_refusals_are_logged_one_in_ten_seconds_with_the_count_of_others(caplog):
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for second in range(25):
        now[0] = second
        for _ in range(3):
            refusals.note("peer\nforged", "method\x1b[2J" + "x" * 10_000, UnauthenticatedError("no"))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition("(and ")[2].partition(" ")[0] for line in lines] == ["", "29", "29"]
    assert all("\n" not in line and "\x1b" not in line and len(line) < 400 for line in lines)
