"""`replaysvc fsck`, `snapshot`, `restore` and `compact`: what they say, and how they end."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

import replay_client
import replaysvc as package
from replay_client import TableConfig
from replaysvc.storage.pages import Pages
from tests.builders import SCALARS, write_episodes
from tests.processes import ServiceProcess


@pytest.fixture
def store(tmp_path):
    with package.open(tmp_path / "store") as replay:
        write_episodes(replay.create_table("t", SCALARS), [3, 5, 7])
    return tmp_path / "store"


def damage(path):
    """Changes a bit of the first chunk."""
    file = min(path.glob("tables/t/seg-*/data.mdb"))
    with Pages(file) as pages:
        item = next(pages.items(b"chunks"))
    data = bytearray(file.read_bytes())
    data[item.offset + 70] ^= 1
    file.write_bytes(data)


# -- fsck -----------------------------------------------------------------------------------------------------------------


def test_fsck_of_a_whole_store_ends_with_0(store, replaysvc):
    done = replaysvc("fsck", "store")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{store}: clean; 1 tables, 1 segments, 3 chunks, ")
    told = json.loads(replaysvc("fsck", "store", "--json").stdout)
    assert (told["status"], told["findings"], told["chunks"], told["path"]) == (0, [], 3, str(store))


def test_fsck_of_damage_ends_with_2_then_with_1_when_it_is_repaired_then_with_0(store, replaysvc):
    damage(store)
    done = replaysvc("fsck", "store")
    assert done.returncode == 2
    place = "tables/t/seg-00000000000000000000"
    first, last = done.stdout.splitlines()
    assert first == f"damage: {place}: chunk 0: its checksum does not match its bytes"
    assert "1 findings of damage left" in last
    told = json.loads(replaysvc("fsck", "store", "--json").stdout)
    assert (told["status"], [(one["severity"], one["place"]) for one in told["findings"]]) == (2, [("damage", place)])
    done = replaysvc("fsck", "store", "--repair")
    assert done.returncode == 1
    assert "  repaired: moved to quarantine/t-seg-00000000000000000000; " in done.stdout
    assert "1 findings of damage, all repaired" in done.stdout.splitlines()[-1]
    assert replaysvc("fsck", "store").returncode == 0
    assert json.loads(replaysvc("stats", "store", "t", "--json").stdout)[0]["steps"] in (12, 15)  # if no older version is whole


def test_fsck_of_what_cannot_be_checked_ends_with_3(tmp_path, replaysvc):
    done = replaysvc("fsck", "absent")
    assert (done.returncode, done.stdout, done.stderr) == (
        3, "", f"replaysvc: cannot check: store {tmp_path}/absent: expected a store or a snapshot, found nothing\n"
    )  # fmt: skip
    with ServiceProcess(tmp_path / "store"):
        done = replaysvc("fsck", "store", "--repair", "--json")
    assert (done.returncode, json.loads(done.stdout)["cannot"]) == (
        3, f"store {tmp_path}/store: another process has it open; stop it first"
    )  # fmt: skip


def test_only_the_first_findings_of_a_place_are_printed_and_all_are_in_the_json(tmp_path, replaysvc):
    with package.open(tmp_path / "store") as replay:
        write_episodes(replay.create_table("t", SCALARS, TableConfig(chunk_steps=1)), [30])
    (file,) = (tmp_path / "store").glob("tables/t/seg-*/data.mdb")
    file.write_bytes(file.read_bytes().replace(b"RPC1\x01\0\0\0", b"RPC1\x02\0\0\0"))
    lines = replaysvc("fsck", "store").stdout.splitlines()
    assert len(lines) == 22
    assert lines[20] == "damage: tables/t/seg-00000000000000000000: and more; --json tells all"
    assert len(json.loads(replaysvc("fsck", "store", "--json").stdout)["findings"]) == 30


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(store, tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "replaysvc", "fsck", "store"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    done = subprocess.run(
        command, cwd=tmp_path, stderr=follower, stdout=subprocess.PIPE, timeout=60, check=False, env=environment
    )
    os.close(follower)
    drawn = os.read(leader, 1 << 16)
    os.close(leader)
    assert done.returncode == 0
    assert b"checking" in drawn
    assert b"checking" not in done.stdout


# -- snapshot and restore -------------------------------------------------------------------------------------------------


def test_snapshot_of_a_service_is_restored_and_served(tmp_path, replaysvc):
    with ServiceProcess(tmp_path / "store", "--snapshot-dir", str(tmp_path / "snapshots")) as service:
        with replay_client.connect(service.address) as client:
            write_episodes(client.create_table("t", SCALARS), [3, 5])
            done = replaysvc("snapshot", service.address, "monday")
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("snapshot monday: complete, ")
            write_episodes(client.table("t"), [9])
        done = replaysvc("restore", "snapshots/monday", "restored", "--verify")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"store {tmp_path}/restored: ")
        assert "every checksum holds" in done.stdout
    assert replaysvc("fsck", "restored").returncode == 0
    assert replaysvc("fsck", "snapshots/monday").returncode == 0
    with ServiceProcess(tmp_path / "restored") as service, replay_client.connect(service.address) as client:
        assert client.table("t").stats().steps == 8


def test_snapshot_of_a_store_directory_is_made_and_told_in_json(store, tmp_path, replaysvc):
    told = json.loads(replaysvc("snapshot", "store", tmp_path / "copy", "--json").stdout)
    assert (told["snapshot"], told["seconds"] >= 0) == (str(tmp_path / "copy"), True)
    told = json.loads(replaysvc("restore", "copy", "restored", "--json").stdout)
    assert (told["path"], told["verified"]) == (str(tmp_path / "restored"), False)
    assert json.loads(replaysvc("stats", "restored", "t", "--json").stdout)[0]["steps"] == 15


def test_snapshot_that_is_damaged_is_not_restored(store, tmp_path, replaysvc, refused):
    replaysvc("snapshot", "store", tmp_path / "copy")
    damage(tmp_path / "copy")
    status, sentence = refused("restore", "copy", "restored", "--verify")
    assert status == 3
    assert sentence.startswith(f"snapshot {tmp_path}/copy: tables/t/seg-00000000000000000000")
    assert not (tmp_path / "restored").exists()


def test_what_is_no_snapshot_or_already_there_is_refused(store, tmp_path, refused):
    assert refused("restore", "absent", "restored") == (
        3, f"snapshot {tmp_path}/absent: expected a directory, found nothing"
    )  # fmt: skip
    status, sentence = refused("restore", "store", "restored")
    assert (status, "expected a MANIFEST.json in it, found none" in sentence) == (3, True)
    status, sentence = refused("snapshot", "store", "store/copy")
    assert (status, "expected a place outside of the store" in sentence) == (3, True)


def test_service_without_a_directory_for_snapshots_refuses_them(tmp_path, refused):
    with ServiceProcess(tmp_path / "store") as service:
        status, sentence = refused("snapshot", service.address, "monday")
    assert (status, "has no snapshot_dir (`serve --snapshot-dir`)" in sentence) == (5, True)


# -- compact --------------------------------------------------------------------------------------------------------------


def test_compact_tells_of_each_table_what_the_disk_got_back_on_both_doors(tmp_path, replaysvc):
    with package.open(tmp_path / "store") as replay:
        table = replay.create_table("t", SCALARS)
        write_episodes(table, [40] * 4)
        table.delete_episodes([0, 1])
        replay.create_table("other", SCALARS)
    told = json.loads(replaysvc("compact", "store", "--json").stdout)
    assert told["freed_bytes"].keys() == {"other", "t"}
    assert all(freed >= 0 for freed in told["freed_bytes"].values())
    with ServiceProcess(tmp_path / "store") as service:
        done = replaysvc("compact", service.address, "t")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"table t: [\d.]+ MiB freed, [\d.]+ MiB left\n", done.stdout)
    assert replaysvc("fsck", "store").returncode == 0


def test_compact_of_a_table_that_does_not_exist_is_refused(store, refused):
    status, sentence = refused("compact", "store", "absent")
    assert (status, sentence) == (5, "table 'absent' does not exist; there are ['t']")
