"""`replaysvc tables` and `replaysvc stats`, on a service and on a store that none has open."""

import json
import time

import pytest

import replay_client
import replaysvc as package
from replay_client import Limiter, TableConfig
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
    assert "0 of 10 steps" in done.stdout
    done = replaysvc("stats", service.address, "short")
    assert done.returncode == 0
    assert ["steps", "1,203"] in [line.replace("│", " ").split() for line in done.stdout.splitlines()]


def test_empty_store_has_no_tables(tmp_path, replaysvc):
    package.open(tmp_path / "store").close()
    assert json.loads(replaysvc("tables", "store", "--json").stdout) == []
    assert replaysvc("tables", "store").returncode == 0


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


@pytest.mark.parametrize("target", ["absent", "7777", "localhost:http", ".", ""])
def test_target_that_is_neither_is_refused_and_nothing_made(tmp_path, refused, target):
    assert refused("stats", target) == (2, f"TARGET: expected host:port or a store directory, found {target!r}")
    assert list(tmp_path.iterdir()) == []


def test_version(replaysvc):
    done = replaysvc("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"replaysvc {package.__version__}\n", "")


def test_demo_cannot_go_on_with_no_run(refused):
    status, sentence = refused("demo", "--resume")
    assert status == 2
    assert sentence.startswith("option --resume: expected --dir")
