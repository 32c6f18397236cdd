"""`replaysvc tables` and `replaysvc stats`, on a service and on a store that none has open."""

import errno
import json
import time
from pathlib import Path

import pytest
import typer

import replay_client
import replaysvc as package
from replay_client import Limiter, TableConfig
from replaysvc import cli
from tests.builders import SCALARS, write_episodes
from tests.processes import ServiceProcess


@pytest.fixture
def service(tmp_path):
    with ServiceProcess(tmp_path / "store") as service, replay_client.connect(service.address) as client:
        write_episodes(client.create_table("short", SCALARS), [3, 1200])
        client.create_table("waiting", SCALARS, TableConfig(limiter=Limiter(min_steps=10)))
        yield service


def test_json_is_the_same_from_the_service_and_from_its_store(service, replaysvc):
    asked = json.loads(replaysvc("stats", service.address, "--json").stdout)
    assert [(row["name"], row["steps"], row["episodes"], row["ready"]) for row in asked] == [
        ("short", 1203, 2, True), ("waiting", 0, 0, False)
    ]  # fmt: skip
    assert json.loads(replaysvc("stats", service.address, "short", "--json").stdout) == asked[:1]
    assert json.loads(replaysvc("tables", service.address, "--json").stdout) == asked
    service.terminate()
    kept = ("name", "steps", "episodes", "chunks", "stored_bytes", "disk_bytes", "raw_bytes", "next_position", "waiting_for")
    opened = json.loads(replaysvc("stats", "store", "--json").stdout)
    assert [[row[name] for name in kept] for row in opened] == [[row[name] for name in kept] for row in asked]


def test_tables_for_people_show_steps_and_what_is_waited_for(service, replaysvc):
    done = replaysvc("tables", service.address)
    rows = [line for line in done.stdout.splitlines() if "short" in line or "waiting" in line]
    assert done.returncode == 0
    assert "1,203" in rows[0]
    assert "ready" in rows[0]
    assert "sampling waits: 0 of 10 steps" in done.stdout
    done = replaysvc("stats", service.address, "short")
    assert done.returncode == 0
    assert ["steps", "1,203"] in [line.replace("│", " ").split() for line in done.stdout.splitlines()]


def test_empty_store_has_no_tables(tmp_path, replaysvc):
    package.open(tmp_path / "store").close()
    assert json.loads(replaysvc("tables", "store", "--json").stdout) == []
    for command in ("tables", "stats", "compact"):
        done = replaysvc(command, "store")
        assert (done.returncode, done.stdout, done.stderr) == (0, "no tables\n", "")
    assert json.loads(replaysvc("compact", "store", "--json").stdout) == {"freed_bytes": {}}


def test_unknown_table_is_refused(service, refused):
    status, sentence = refused("stats", service.address, "absent")
    assert status == 5
    assert sentence == "table 'absent' does not exist; there are ['short', 'waiting']"


def test_store_that_a_service_has_open_is_refused_with_the_way_out(service, refused, tmp_path):
    status, sentence = refused("tables", "store")
    assert status == 3
    assert sentence == f"store {tmp_path}/store: another process has it open; if that is a service, give its host:port"


def test_address_without_a_service_is_refused(service, refused):
    address = service.address
    service.terminate()
    started_at = time.monotonic()
    status, sentence = refused("tables", address)
    assert status == 4
    assert sentence.startswith(f"no server answers at {address}")
    assert time.monotonic() - started_at < 15  # it rides out a restart for 2 s; the rest is for a busy machine


@pytest.mark.parametrize("target", ["absent", "7777", "localhost:http", ""])
def test_target_that_is_neither_is_refused_and_nothing_made(tmp_path, refused, target):
    sentence = f"TARGET: expected host:port or a store directory, found {target!r}, which does not exist"
    assert refused("stats", target) == (3, sentence)
    assert list(tmp_path.iterdir()) == []


def test_target_that_is_no_store_is_refused_with_what_it_is(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for target, what in [("empty", "is empty"), (".", "is no store: it has no file FORMAT"), ("file", "is no directory")]:
        assert refused("tables", target) == (
            3, f"TARGET: expected host:port or a store directory, found {target!r}, which {what}"
        )  # fmt: skip
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


@pytest.mark.parametrize("target", ["http://localhost:1", "tcp:localhost:1", "user@localhost:1"])
def test_address_that_is_more_than_host_and_port_is_refused_at_once(refused, target):
    assert refused("tables", target) == (2, f"address: expected host:port, found {target!r}")


@pytest.mark.parametrize("command", [("tables",), ("stats",), ("compact",)], ids="".join)
def test_snapshot_is_no_store_to_look_into_and_stays_as_it_is(tmp_path, refused, command):
    with package.open(tmp_path / "store") as replay:
        write_episodes(replay.create_table("t", SCALARS), [3])
        replay.snapshot(tmp_path / "copy")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*")}
    assert refused(*command, "copy") == (3, "TARGET: copy is a snapshot; `replaysvc restore` makes a store of it")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*")} == before


def test_version(replaysvc):
    done = replaysvc("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"replaysvc {package.__version__}\n", "")


def test_demo_cannot_go_on_with_no_run(refused):
    status, sentence = refused("demo", "--resume")
    assert status == 2
    assert sentence.startswith("option --resume: expected --dir")


LONG = "a" * 5000


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("tables", LONG), 3), (("stats", LONG), 3), (("compact", f"/{LONG}"), 3), (("restore", LONG, "store"), 3),
        (("serve", "--data", LONG), 3), (("serve", "--data", "store", "--config", LONG), 2),
        (("tables", "\udcff:77"), 2), (("tables", "localhost:\u00b2"), 2),
    ],
)  # fmt: skip
def test_a_target_that_no_file_system_and_no_network_takes_is_refused_in_a_sentence(refused, arguments, status):
    found, sentence = refused(*arguments)
    assert found == status
    assert LONG[:50] in sentence or "expected host:port" in sentence


def test_a_directory_that_may_not_be_looked_into_is_refused_in_a_sentence(tmp_path, monkeypatch, capsys):
    """Root may look into all of them, so the file system's answer is played."""

    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(typer.Exit) as ended, cli.failures(), cli.opened(str(tmp_path)):
        pass
    assert ended.value.exit_code == 3
    assert capsys.readouterr().err == f"replaysvc: '{tmp_path}/MANIFEST.json' cannot be used: Permission denied\n"
