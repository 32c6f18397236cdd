"""`replaysvc serve`: its one line, its end, and every way in which it refuses to start."""

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import replay_client
from replay_client import UnavailableError
from tests.builders import SCALARS, write_episodes
from tests.processes import ServiceProcess

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


def test_address_of_all_interfaces_needs_insecure(tmp_path, refused):
    status, sentence = refused("serve", "--data", "store", "--port", "0", "--host", "0.0.0.0")
    assert status == 2
    assert sentence.startswith("setting host: expected an address of this machine alone, found 0.0.0.0; ")
    assert "--insecure" in sentence
    assert list(tmp_path.iterdir()) == []
    with (
        ServiceProcess(tmp_path / "store", "--host", "0.0.0.0", "--insecure") as service,
        replay_client.connect(service.address) as client,
    ):
        assert client.tables() == []


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
    assert sentence == f"store {tmp_path}/store: expected format version 2, found 999"
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
