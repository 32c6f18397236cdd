"""What samplers keep beside the segments: replaced whole, and no obstacle when it is lost."""

import errno
import os

import pytest

from replaysvc.codec import checksum
from replaysvc.errors import CapacityError, StorageError
from replaysvc.storage import System
from replaysvc.storage.state import STATE_MAGIC, pack_file, unpack_file
from tests.store_builders import Troubled, append, check, make_table, reopen


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def files(path):
    return path / "tables" / "t" / "state"


def test_state_is_read_back_also_after_a_restart(path):
    store, table = make_table(path)
    assert (table.state_names(), table.read_state("one")) == ([], None)
    table.write_state("one", b"first")
    table.write_states({"one": b"second", "b-2_x.y": b"", "Z": bytes(100_000)})
    for _ in range(2):
        assert table.state_names() == ["Z", "b-2_x.y", "one"]
        assert [table.read_state(name) for name in table.state_names()] == [bytes(100_000), b"", b"second"]
        store.close()
        store, table, _ = reopen(path)
    assert {file.stat().st_mode & 0o777 for file in files(path).iterdir()} == {0o600}
    store.close()


def test_dropped_state_is_gone_and_dropping_it_again_is_fine(path):
    store, table = make_table(path)
    table.drop_state("one")
    table.write_states({"one": b"1", "two": b"2"})
    table.drop_state("one")
    table.drop_state("one")
    assert (table.state_names(), table.read_state("one"), table.read_state("two")) == (["two"], None, b"2")
    store.close()


@pytest.mark.parametrize("name", ["", ".hidden", "../table.json", "a/b", "-x", "a b", "a\n", "x" * 129])
def test_names_that_are_no_plain_file_names_are_refused(path, name):
    store, table = make_table(path)
    for call in (
        lambda: table.write_states({"good": b"", name: b""}),
        lambda: table.read_state(name),
        lambda: table.drop_state(name),
    ):
        with pytest.raises(ValueError, match="expected at most 128 letters"):
            call()
    assert table.state_names() == []
    table.write_state("x" * 128, b"longest")
    assert table.read_state("x" * 128) == b"longest"
    store.close()


def test_many_files_cost_one_sync_each_and_one_of_each_directory(path):
    synced = []

    class Watched(System):
        def write_file(self, path, data):
            synced.append("file")
            super().write_file(path, data)

        def fsync_directory(self, path):
            synced.append(path.name)
            super().fsync_directory(path)

    store, table = make_table(path, system=Watched())
    table.write_state("0", b"")
    synced.clear()
    table.write_states({str(number): b"%d" % number for number in range(20)})
    assert synced == ["file"] * 20 + ["state", "tmp"]
    synced.clear()
    table.drop_state("0")
    table.write_states({})
    assert synced == ["state"]
    store.close()


def test_first_state_makes_its_directory_durable(path):
    class Watched(Troubled):
        synced = ()

        def fsync_directory(self, path):
            self.synced = (*self.synced, path)
            super().fsync_directory(path)

    disk = Watched()
    store, table = make_table(path, system=disk)
    disk.synced = ()
    table.write_state("one", b"")
    assert disk.synced == (path / "tables" / "t", files(path), path / "tmp")
    store.close()


GOOD = pack_file(STATE_MAGIC, b"priorities")
DAMAGE = {
    "empty": b"",
    "header only": GOOD[:24],
    "cut header": GOOD[:23],
    "cut": GOOD[:-1],
    "longer": GOOD + b"!",
    "bit of the data": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "bit of the checksum": GOOD[:16] + bytes([GOOD[16] ^ 1]) + GOOD[17:],
    "other magic": pack_file(b"RPD1", b"priorities"),
    "zeros": bytes(len(GOOD)),
}


def newer(version):
    """A whole file of another version, its checksum right."""
    body = GOOD[:4] + version.to_bytes(4, "little") + GOOD[8:16]
    return body + checksum(body, b"priorities").to_bytes(8, "little") + b"priorities"


@pytest.mark.parametrize("content", [*DAMAGE.values(), newer(2)], ids=[*DAMAGE, "newer version"])
def test_damaged_or_unknown_state_reads_as_none_is_logged_and_can_be_replaced(path, content, caplog):
    store, table = make_table(path)
    append(table, 0, 3)
    table.write_states({"one": b"priorities", "other": b"queue"})
    store.close()
    assert (files(path) / "one").read_bytes() == GOOD == newer(1)
    (files(path) / "one").write_bytes(content)
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    assert (table.read_state("one"), table.read_state("other")) == (None, b"queue")
    assert "state/one is damaged or of an unknown version" in caplog.text
    table.write_state("one", b"anew")
    assert table.read_state("one") == b"anew"
    store.close()


def test_every_bit_of_a_small_file_is_under_the_checksum():
    for place in range(len(GOOD)):
        for bit in range(8):
            assert unpack_file(STATE_MAGIC, GOOD[:place] + bytes([GOOD[place] ^ (1 << bit)]) + GOOD[place + 1 :]) is None
    assert unpack_file(STATE_MAGIC, GOOD) == b"priorities"


def test_state_that_cannot_be_read_or_listed_counts_as_missing(path, caplog):
    store, table = make_table(path)
    files(path).mkdir()
    (files(path) / "one").mkdir()
    assert table.read_state("one") is None
    assert "state/one cannot be read" in caplog.text
    (files(path) / "one").rmdir()
    files(path).rmdir()
    files(path).write_bytes(b"no directory")
    assert table.state_names() == []
    assert "state cannot be listed" in caplog.text
    store.close()


@pytest.mark.parametrize("number, raised", [(errno.ENOSPC, CapacityError), (errno.EIO, StorageError)])
@pytest.mark.parametrize("at", ["write_file state-t+two", "state.written", "replace one"])
def test_state_for_which_there_is_no_room_leaves_the_old_one_and_nothing_in_tmp(path, at, number, raised):
    disk = Troubled()
    store, table = make_table(path, system=disk)
    table.write_states({"one": b"old", "two": b"old"})
    disk.error, disk.at = OSError(number, os.strerror(number)), at
    with pytest.raises(raised, match=os.strerror(number)):
        table.write_states({"one": b"new", "two": b"new"})
    assert [table.read_state(name) for name in ("one", "two")] == [b"old", b"old"]
    assert list((path / "tmp").iterdir()) == []
    disk.error = None
    table.write_states({"one": b"new", "two": b"new"})
    assert [table.read_state(name) for name in ("one", "two")] == [b"new", b"new"]
    store.close()


def test_drop_that_fails_says_so(path):
    disk = Troubled()
    store, table = make_table(path, system=disk)
    table.write_state("one", b"1")
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "fsync_directory state"
    with pytest.raises(StorageError, match="Input/output error"):
        table.drop_state("one")
    store.close()


def test_state_does_not_keep_older_releases_out(path):
    store, table = make_table(path)
    table.write_state("one", b"1")
    store.close()
    assert b'"min_reader": 1' in (path / "FORMAT").read_bytes()


def test_tables_have_states_of_their_own(path):
    store, table = make_table(path)
    other = store.create_table("t-o", {}, segment_bytes=1 << 17)
    table.write_state("o-x", b"of t")
    other.write_state("x", b"of t-o")
    assert (table.read_state("o-x"), other.read_state("x"), table.read_state("x")) == (b"of t", b"of t-o", None)
    store.close()
