"""`replaysvc serve`: its one line, its end, and every way in which it refuses to start."""

import json
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replay_client
from replay_client import UnavailableError
from replaysvc.access import Role, append_token, new_token
from replaysvc.cli import app
from tests.builders import SCALARS, write_episodes
from tests.processes import ServiceProcess
from tests.service.certificates import issue, make_ca

DROP_PRIVILEGES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
    if os.geteuid() == 0 and libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
        sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Runs Python as a user to whom file permissions apply, which they do not to root."""


def content(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns mode, time of change and bytes of everything under `path`, and of itself."""
    found = {}
    for entry in sorted([path, *path.rglob("*")]):
        status = entry.lstat()
        data = entry.read_bytes() if entry.is_file() else b""
        found[str(entry.relative_to(path))] = (status.st_mode, status.st_mtime_ns, data)
    return found


def make_store(path: Path) -> None:
    with ServiceProcess(path) as service, replay_client.connect(service.address) as client:
        write_episodes(client.create_table("t", SCALARS), [3])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_and_keeps_what_it_has(tmp_path, number):
    with ServiceProcess(tmp_path / "store") as service:
        with replay_client.connect(service.address) as client:
            write_episodes(client.create_table("t", SCALARS), [3])
        service.signal(number)
        assert (service.wait(), service.printed) == (0, "")
    log = (tmp_path / "store.log").read_text()
    assert f"stopping at {number.name}" in log
    assert "Traceback" not in log
    with ServiceProcess(tmp_path / "store") as service, replay_client.connect(service.address) as client:
        assert client.table("t").read_episode(0)["observation"].tolist() == [0, 1, 2, 3]


def test_stops_although_a_client_waits_for_data(tmp_path):
    config = replay_client.ClientConfig(reconnect_timeout_s=0)
    with (
        ServiceProcess(tmp_path / "store") as service, replay_client.connect(service.address, config=config) as client,
        ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        waiting = pool.submit(client.create_table("t", SCALARS).sample, 1, timeout_s=60)
        assert service.terminate() == 0
        assert isinstance(waiting.exception(timeout=30), UnavailableError)


TLS = ("--tls-certificate", "{}/server.pem", "--tls-key", "{}/server.key")
CLIENT_CA, TOKENS = ("--tls-client-ca", "{}/ca.pem"), ("--tokens-file", "{}/tokens.toml")
NOBODY, PLAIN = "nobody is asked who they are", "tokens and data travel unencrypted"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """A directory with certificates and a tokens file."""
    folder = tmp_path_factory.mktemp("secrets")
    issue(make_ca(folder), "server", "DNS:localhost")
    append_token(folder / "tokens.toml", new_token("a", Role.ADMIN)[1])
    return folder


def filled(options, secrets):
    return [option.format(secrets) for option in options]


@pytest.mark.parametrize(
    ("options", "why"), [((), f"{NOBODY}, in plain text"), (TLS, NOBODY), (TOKENS, PLAIN)], ids=["none", "tls", "tokens"]
)
@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "[::]", "192.0.2.1", "somewhere", "localhost.example.org", "127.1", "::ffff:127.0.0.1"]
)
def test_address_that_others_reach_is_refused_unprotected(tmp_path, monkeypatch, secrets, options, why, host):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", "--data", "store", "--port", "0", "--host", host, *filled(options, secrets)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"replaysvc: setting host: expected an address of this machine alone, found {host}, where {why}; for others, give tls_"
    )
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_refusal_of_an_address_is_that_of_the_command(tmp_path, refused):
    status, sentence = refused("serve", "--data", "store", "--port", "0", "--host", "0.0.0.0")
    assert status == 2
    assert sentence.startswith("setting host: expected an address of this machine alone, found 0.0.0.0")
    assert sentence.endswith("or --insecure")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), TLS, TOKENS], ids=["none", "tls", "tokens"])
def test_insecure_opens_an_address_with_one_warning_whatever_is_logged(tmp_path, secrets, options):
    with ServiceProcess(
        tmp_path / "store", "--host", "0.0.0.0", "--insecure", "--log-level", "error", *filled(options, secrets)
    ) as service:
        log = service.log.read_text()
    assert log.startswith(f"replaysvc: WARNING: 0.0.0.0:{service.port} is open to whoever reaches it: ")
    assert log.endswith(" (--insecure)\n")
    with ServiceProcess(tmp_path / "store", "--host", "0.0.0.0", "--insecure", *filled(options, secrets)) as service:
        assert service.log.read_text().count(f"0.0.0.0:{service.port} is open to whoever reaches it: ") == 1


@pytest.mark.parametrize("options", [TLS + TOKENS, TLS + CLIENT_CA, TLS + CLIENT_CA + TOKENS], ids=["tokens", "ca", "both"])
def test_address_that_others_reach_is_fine_with_tls_and_known_callers(tmp_path, secrets, options):
    with ServiceProcess(tmp_path / "store", "--host", "0.0.0.0", *filled(options, secrets)) as service:
        assert "WARNING" not in service.log.read_text()


@pytest.mark.parametrize("options", [(), TLS, TOKENS, ("--insecure",)], ids=["none", "tls", "tokens", "insecure"])
def test_address_of_this_machine_needs_nothing(tmp_path, secrets, options):
    with ServiceProcess(tmp_path / "store", *filled(options, secrets)) as service:
        assert "WARNING" not in service.log.read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (TLS[:2], "setting tls_certificate: expected tls_key with it, found none"),
        (TLS[2:], "setting tls_key: expected tls_certificate with it, found none"),
        (CLIENT_CA, "setting tls_client_ca: expected tls_certificate and tls_key with it, found none"),
        ((*TLS[:3], "{}/ca.key"), "setting tls_certificate and tls_key: expected usable PEM files, found "),
        ((*TLS, "--tls-client-ca", "{}/absent"), "setting tls_client_ca: expected usable PEM files, found "),
        (("--tokens-file", "{}/absent"), "tokens file "),
        (("--tokens-file", "{}/ca.pem"), "tokens file "),
    ],
)
def test_broken_protection_is_refused_before_anything_is_touched(tmp_path, refused, secrets, options, sentence):
    status, found = refused("serve", "--data", "store", "--port", "0", *filled(options, secrets))
    assert status == 2
    assert found.startswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_commands_show_tokens_and_are_told_what_is_wrong_with_them(tmp_path, secrets, replaysvc, refused):
    secret, lines = new_token("b", Role.VIEWER)
    (tmp_path / "b.token").write_text(secret + "\n")
    (tmp_path / "guess.token").write_text("guess\n")
    shutil.copy(secrets / "tokens.toml", tmp_path)
    append_token(tmp_path / "tokens.toml", lines)
    with ServiceProcess(tmp_path / "store", "--tokens-file", str(tmp_path / "tokens.toml"), *filled(TLS, secrets)) as service:
        target, ca = f"localhost:{service.port}", str(secrets / "ca.pem")
        for command in ("tables", "stats"):
            assert replaysvc(command, target, "--token-file", "b.token", "--tls-ca", ca, "--json").stdout == "[]\n"
            assert replaysvc(command, target, "--json", token_file="b.token", tls_ca=ca).stdout == "[]\n"
        unknown = (5, "authorization: expected a token that this service knows, found another")
        assert refused("tables", target, token_file="guess.token", tls_ca=ca) == unknown
        assert refused("tables", target, tls_ca=ca) == (5, "authorization: expected a token, found none")
        status, sentence = refused("tables", target, token_file="b.token")
        assert (status, sentence) == (4, f"the server at {target} speaks TLS: give --tls-ca")
        status, sentence = refused("tables", target, tls_ca=make_ca(tmp_path, "other"), token_file="b.token")
        assert (status, sentence) == (4, f"the certificate of the server at {target} is not signed by a CA in --tls-ca")
    assert refused("tables", target, token_file="absent") == (
        2, "option --token-file: absent cannot be read: No such file or directory"
    )  # fmt: skip
    assert refused("tables", "192.0.2.1:1", token_file="b.token") == (
        2, "option --token-file: expected --tls-ca with it, since the host is not this machine, found no tls"
    )  # fmt: skip
    for option in ("--tls-key", "--tls-certificate", "--tls-ca"):
        status, sentence = refused("tables", target, option, "b.token")
        assert (status, sentence.partition(":")[0], "tls." in sentence) == (2, f"option {option}", False)
    status, sentence = refused("tables", target, "--tls-key", secrets / "ca.key")
    assert (status, sentence.partition(":")[0]) == (2, "options --tls-key and --tls-certificate")
    (tmp_path / "two.token").write_text(f"{secret} {secret}\n")
    status, sentence = refused("tables", target, token_file="two.token")
    assert status == 2
    assert sentence.startswith("token: expected 1 to 1024 printable ASCII characters")
    assert secret not in sentence


def test_service_that_wants_a_client_certificate_says_which_options_give_it(tmp_path, secrets, refused):
    with ServiceProcess(tmp_path / "store", *filled(TLS + CLIENT_CA, secrets)) as service:
        target = f"localhost:{service.port}"
        assert refused("tables", target, tls_ca=secrets / "ca.pem") == (
            4, f"the server at {target} asks for a client certificate, found none; give --tls-certificate and --tls-key"
        )  # fmt: skip


def test_tokens_file_without_tokens_is_warned_of(tmp_path):
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    with ServiceProcess(tmp_path / "store", "--tokens-file", str(tokens)) as service:
        assert f"tokens file {tokens}: 0 tokens: nobody may call" in service.log.read_text()


@pytest.mark.parametrize("inside", ["store", "store/snapshots", "store/../store/x"])
def test_snapshots_within_the_store_are_refused_at_the_start(tmp_path, refused, inside):
    status, sentence = refused("serve", "--data", "store", "--port", "0", "--snapshot-dir", inside)
    assert (status, sentence) == (
        2, f"setting snapshot_dir: expected a directory outside of the store store, found {inside}"
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_what_commands_show_is_no_setting_of_the_service(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLAYSVC_TOKEN_FILE", "b.token")
    monkeypatch.setenv("REPLAYSVC_TLS_CA", "ca.pem")
    ServiceProcess(tmp_path / "store").start().terminate()


def test_options_beat_variables_beat_the_file(tmp_path, replaysvc):
    """Told by which of three stores is refused: none of them is one."""
    for name in ("of-file", "of-variable", "of-option"):
        (tmp_path / name).write_text("")
    (tmp_path / "settings.toml").write_text("data = 'of-file'\nport = 0")

    def chosen(*arguments, **settings):
        done = replaysvc("serve", *arguments, **settings)
        assert done.returncode == 3, done.stderr
        return done.stderr.split()[2].rpartition("/")[2].rstrip(":")

    assert chosen("--config", "settings.toml") == "of-file"
    assert chosen(config="settings.toml") == "of-file"
    assert chosen(config="settings.toml", data="of-variable") == "of-variable"
    assert chosen("--data", "of-option", config="settings.toml", data="of-variable") == "of-option"


def test_store_is_needed(tmp_path, refused):
    assert refused("serve") == (
        2, "setting data: expected the directory of the store (--data DIR or REPLAYSVC_DATA), found none"
    )  # fmt: skip


def test_wrong_setting_is_refused_before_anything_is_touched(tmp_path, refused):
    (tmp_path / "settings.toml").write_text("prot = 1")
    status, sentence = refused("serve", "--data", "store", "--config", "settings.toml")
    assert status == 2
    assert sentence.startswith("setting prot: unknown; there are data, host, port")
    status, sentence = refused("serve", "--data", "store", recent_cache_bytes="1")
    assert status == 2
    assert sentence.startswith("setting recent_cache_bytes: expected a whole number from 1048576")
    assert not (tmp_path / "store").exists()


def test_port_in_use_is_refused_and_no_store_made(tmp_path, refused):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, sentence = refused("serve", "--data", "store", "--port", port)
    assert status == 4
    assert sentence == f"address 127.0.0.1:{port}: cannot be bound: Address already in use"
    assert list(tmp_path.iterdir()) == []


def test_address_of_another_machine_is_refused_and_no_store_made(tmp_path, refused):
    status, sentence = refused("serve", "--data", "store", "--port", "0", "--host", "192.0.2.1", "--insecure")
    assert status == 4
    assert sentence.startswith("address 192.0.2.1:0: cannot be bound: ")
    assert list(tmp_path.iterdir()) == []


def test_path_that_is_a_file_is_refused_and_kept(tmp_path, refused):
    (tmp_path / "store").write_text("precious")
    status, sentence = refused("serve", "--data", "store", "--port", "0")
    assert (status, sentence) == (3, f"store {tmp_path}/store: expected a directory, found a file")
    assert (tmp_path / "store").read_text() == "precious"


def test_path_below_a_file_is_refused(tmp_path, refused):
    (tmp_path / "file").write_text("precious")
    status, sentence = refused("serve", "--data", "file/store", "--port", "0")
    assert (status, sentence) == (3, f"store {tmp_path}/file/store: cannot be used: Not a directory")


def test_directory_with_other_files_is_refused_and_kept(tmp_path, refused):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter-1").write_text("precious")
    before = content(tmp_path / "thesis")
    status, sentence = refused("serve", "--data", "thesis", "--port", "0")
    assert (status, sentence) == (3, f"store {tmp_path}/thesis: expected a store or an empty directory, found other files")
    assert content(tmp_path / "thesis") == before


def test_store_of_another_format_is_refused_and_kept(tmp_path, refused):
    make_store(tmp_path / "store")
    marker = tmp_path / "store/FORMAT"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 999, "min_reader": 999}))
    before = content(tmp_path / "store")
    status, sentence = refused("serve", "--data", "store", "--port", "0")
    assert status == 3
    assert sentence == f"store {tmp_path}/store: expected format version 3, found 999"
    assert content(tmp_path / "store") == before


def test_second_service_on_a_store_is_refused_and_the_first_goes_on(tmp_path, refused):
    with ServiceProcess(tmp_path / "store") as service, replay_client.connect(service.address) as client:
        table = client.create_table("t", SCALARS)
        write_episodes(table, [3])
        before = content(tmp_path / "store")
        status, sentence = refused("serve", "--data", "store", "--port", "0")
        assert (status, sentence) == (3, f"store {tmp_path}/store: another process has it open")
        assert content(tmp_path / "store") == before
        write_episodes(table, [4])
        assert table.stats().steps == 7


@pytest.mark.parametrize("kind", ["an empty directory", "a store", "in a directory"])
def test_directory_that_is_not_writable_is_refused_and_kept(tmp_path, refused, kind):
    (tmp_path / "home").mkdir()
    path = tmp_path / "home/store" if kind == "in a directory" else tmp_path / "home"
    if kind == "a store":
        make_store(path)
    (tmp_path / "home").chmod(0o500)
    before = content(tmp_path / "home")
    status, sentence = refused("serve", "--data", path, "--port", "0", launcher=("-c", DROP_PRIVILEGES))
    assert status == 3
    assert sentence in (f"store {path}: the directory is not writable", f"store {path}: cannot be used: Permission denied")
    assert content(tmp_path / "home") == before
