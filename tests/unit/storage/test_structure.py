"""LMDB is given no file over which it would end the process; what it is given it gets whole."""

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from replaysvc.errors import ChunkCorruptError
from replaysvc.storage.pages import Pages
from replaysvc.storage.records import pack_meta
from replaysvc.storage.structure import check_structure
from tests.store_builders import BIG, append, append_each, check, entry, index, make_table, reopen, segments
from tests.unit.storage.test_damage import change, key_of

GOLDEN = Path(__file__).parents[2] / "golden"
MANY = 300  # chunks of small size: trees of two levels


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def with_trees_of_two_levels(path):
    store, table = make_table(path, segment_bytes=1 << 22)
    for start in range(0, MANY, 60):
        append(table, start, start + 60)
    store.close()
    return segments(path)[0] / "data.mdb"


def depths(file):
    environment = lmdb.open(str(file.parent), max_dbs=8, map_size=1 << 28, readonly=True, lock=False)
    with environment.begin() as transaction:
        found = [
            transaction.stat(environment.open_db(name, transaction, create=False))["depth"]
            for name in (b"index", b"chunks", b"episodes", b"meta")
        ]
    environment.close()
    return found


# -- nothing wrong --------------------------------------------------------------------------------------------------------


def test_whole_files_pass(path, tmp_path):
    file = with_trees_of_two_levels(path)
    assert depths(file) == [2, 2, 2, 1]
    check_structure(file)
    store, table, loaded = reopen(path)
    check(table, loaded, MANY)
    store.close()
    store, table = make_table(tmp_path / "other")
    append_each(table, 0, 7)
    store.create_table("empty", {}, segment_bytes=1 << 20).load()
    store.close()
    for file in (tmp_path / "other").rglob("data.mdb"):
        check_structure(file)


@pytest.mark.parametrize("name", ["store_v1", "store_v2", "store_v3"])
def test_golden_files_pass(name):
    files = list((GOLDEN / name).rglob("data.mdb"))
    assert files
    for file in files:
        check_structure(file)


def test_files_with_pages_given_back_pass(path):
    """Marks of sessions come and go, and records are written over, so that pages are free and used again."""
    store, table = make_table(path, segment_bytes=1 << 22)
    for k in range(60):
        table.append(index(k, k + 1), [b"x" * 100], [entry(k // 3)], {b"session %8d" % (k % 7 * 1000 + i): k for i in range(9)})
    store.close()
    file = segments(path)[0] / "data.mdb"
    environment = lmdb.open(str(file.parent), max_dbs=8, map_size=1 << 28, readonly=True, lock=False)
    with environment.begin() as transaction:
        assert environment.info()["last_txnid"] > 60
        assert transaction.stat()["entries"] == 5
    environment.close()
    check_structure(file)


# -- damage ---------------------------------------------------------------------------------------------------------------


def cut(file):
    os.truncate(file, file.stat().st_size - 4096)


def poke(offset, content):
    def damage(file):
        with file.open("r+b") as stream:
            stream.seek(offset)
            stream.write(content)

    return damage


def meta_of(file):
    """Offset of the meta page that counts."""
    data = file.read_bytes()
    return 4096 * (struct.unpack_from("<Q", data, 4096 + 144)[0] > struct.unpack_from("<Q", data, 144)[0])


def root_of(file, name):
    """The page of a named tree's description and the offset in it."""
    data = file.read_bytes()
    main = struct.unpack_from("<Q", data, meta_of(file) + 40 + 48 + 40)[0]
    at = data.index(name, main * 4096, main * 4096 + 4096) + len(name)
    return at


@pytest.mark.parametrize(
    "field, value", [(4, 1), (6, 9), (6, 0), (40, 1), (40, 1 << 40), (40, 2)], ids=str
)  # flags, depth, root
def test_tree_that_is_described_wrong_is_noticed(path, field, value):
    file = with_trees_of_two_levels(path)
    size = 8 if field == 40 else 2
    poke(root_of(file, b"index") + field, value.to_bytes(size, "little"))(file)
    with pytest.raises(ChunkCorruptError, match=f"segment {file.parent}: "):
        check_structure(file)


def with_trees_of_one_page(path):
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    return segments(path)[0] / "data.mdb"


def page_of(file, name):
    return struct.unpack_from("<Q", file.read_bytes(), root_of(file, name) + 40)[0]


@pytest.mark.parametrize("kind", [0, 1, 4, 8, 0x22, 0x42])
def test_page_of_another_kind_is_noticed(path, kind):
    file = with_trees_of_one_page(path)
    page = page_of(file, b"index")
    poke(4096 * page + 10, kind.to_bytes(2, "little"))(file)
    with pytest.raises(ChunkCorruptError, match=rf"page {page}: expected page {page} of kind 2, found {page} of {kind}"):
        check_structure(file)


def test_page_of_another_tree_is_noticed_though_it_says_that_it_is_this_one(path):
    file = with_trees_of_one_page(path)
    page, other = page_of(file, b"index"), page_of(file, b"meta")
    strange = bytearray(file.read_bytes()[4096 * other : 4096 * other + 4096])
    strange[:8] = page.to_bytes(8, "little")
    poke(4096 * page, bytes(strange))(file)
    with pytest.raises(ChunkCorruptError, match=f"page {page}: expected keys of 8 bytes, found others"):
        check_structure(file)


@pytest.mark.parametrize("size", [0, 100, 4096, 5000])
def test_file_without_its_meta_pages_is_noticed(path, size):
    file = with_trees_of_two_levels(path)
    os.truncate(file, size)
    with pytest.raises(ChunkCorruptError, match="meta page"):
        check_structure(file)


def test_page_size_that_cannot_be_is_noticed(path):
    file = with_trees_of_two_levels(path)
    poke(40, (1 << 31).to_bytes(4, "little"))(file)
    with pytest.raises(ChunkCorruptError, match="page size of 2147483648"):
        check_structure(file)


def test_cut_file_is_noticed(path):
    file = with_trees_of_two_levels(path)
    os.truncate(file, 8192)
    with pytest.raises(ChunkCorruptError, match=r"expected a file of at least \d+ bytes, found 8192"):
        check_structure(file)


def test_list_of_free_pages_that_is_wrong_is_noticed(path):
    file = with_trees_of_two_levels(path)
    data = file.read_bytes()
    root = struct.unpack_from("<Q", data, meta_of(file) + 40 + 40)[0]
    offset = 4096 * root + struct.unpack_from("<H", data, 4096 * root + 16)[0] + 16  # of the first list: its count
    count = struct.unpack_from("<Q", data, offset)[0]
    assert 0 < count < 100
    for at, value in ((offset, count + 1), (offset, 1 << 50), (offset + 8, 1), (offset + 8, 1 << 50), (offset + 16, 1 << 20)):
        poke(at, value.to_bytes(8, "little"))(file)
        with pytest.raises(ChunkCorruptError, match="a list of free pages is wrong"):
            check_structure(file)
        file.write_bytes(data)
    check_structure(file)


SWEEP = """
import os, shutil, sys
from pathlib import Path
import numpy as np
from replaysvc.errors import ReplayError
from replaysvc.storage import segment
from tests.store_builders import BIG, append, chunk, open_store, segments

if sys.argv[2] == "unchecked":
    segment.check_structure = lambda file: None
original, path = Path(sys.argv[1]), Path(sys.argv[1] + "-copy")
rng = np.random.default_rng(0)
data = (segments(original)[0] / "data.mdb").read_bytes()
pages = len(data) // 4096
quarantined = 0
for page in range(pages):
    at = slice(4096 * page, 4096 * page + 4096)
    other = 4096 * int(rng.integers(2, pages))
    flipped = bytearray(data[at])
    flipped[int(rng.integers(0, 64))] ^= 1 << int(rng.integers(0, 8))
    moved = bytearray(data[other : other + 4096])
    moved[:8] = data[at][:8]
    for damage in (bytes(4096), rng.bytes(4096), data[other : other + 4096], bytes(moved), bytes(flipped)):
        shutil.copytree(original, path)
        file = segments(path)[0] / "data.mdb"
        file.write_bytes(data[: at.start] + damage + data[at.stop :])
        store = open_store(path)
        table = store.tables()["t"]
        stop = table.load().next_chunk_id
        quarantined += table.quarantined_segments
        for read in (lambda: table.read(np.arange(300)), lambda: [table.read_episode_entry(k) for k in range(100)],
                     lambda: append(table, 300, 306) if stop == 300 else None):
            try:
                read()
            except ReplayError:
                pass
        store.close()
        shutil.rmtree(path)
print(pages, quarantined)
"""


def sweep(path, mode):
    return subprocess.run(
        [sys.executable, "-c", SWEEP, str(path), mode],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_no_damaged_page_of_deep_trees_ends_the_process(path):
    """Zeros, noise, another page, another page under this one's number, a bit of the head: each page in turn."""
    with_trees_of_two_levels(path)
    done = sweep(path, "checked")
    assert done.returncode == 0, done.stderr
    pages, quarantined = map(int, done.stdout.split())
    assert pages > 30
    assert 2 * pages < quarantined < 5 * pages


def test_without_looking_first_the_process_ends(path):
    with_trees_of_two_levels(path)
    done = sweep(path, "unchecked")
    assert done.returncode < 0, done.stdout


# -- records under a strange key ------------------------------------------------------------------------------------------


def test_footer_in_the_place_of_the_description_is_damage(path):
    """Both have right checksums."""
    store, table = make_table(path)
    append_each(table, 0, 5)
    store.close()
    environment = lmdb.open(str(segments(path)[0]), max_dbs=8, map_size=1 << 28)
    with environment.begin(write=True) as transaction:
        meta = environment.open_db(b"meta", transaction)
        transaction.put(b"segment", transaction.get(b"footer", db=meta), db=meta)
    environment.close()
    store, table, loaded = reopen(path)
    assert (table.quarantined_segments, loaded.index["chunk_id"].tolist()) == (1, [0, 1, 2, 3, 4])
    store.close()


@pytest.mark.parametrize(
    "content", [{}, {"first_chunk_id": 3}, {"first_chunk_id": 3, "next_position": "x", "next_episode_id": 1}]
)
def test_footer_that_lacks_the_ids_is_damage_and_seals_all_the_same(path, content):
    store, table = make_table(path)
    append_each(table, 0, 5)
    store.close()
    change(segments(path)[0], b"meta", b"footer", lambda _: pack_meta(content))
    store, table, loaded = reopen(path)
    check(table, loaded, 5, size=BIG)
    store.close()


@pytest.mark.parametrize("database", [b"index", b"episodes"])
def test_record_under_the_key_of_another_is_damage(path, database):
    store, table = make_table(path)
    append(table, 0, 9)
    store.close()
    taken = []
    change(segments(path)[0], database, key_of(2), lambda value: (taken.append(value), value)[1])
    change(segments(path)[0], database, key_of(1), lambda value: taken[0])
    store, table, loaded = reopen(path)
    assert table.damaged_records == 1
    if database == b"index":
        assert loaded.index["chunk_id"].tolist() == [0, *range(2, 9)]
    else:
        assert loaded.episodes == [entry(0), entry(2)]
        assert [table.read_episode_entry(number) for number in range(3)] == [entry(0), None, entry(2)]
    store.close()


def test_records_that_are_counted_and_not_there_are_damaged_ones(path):
    """A leaf that is older than the tree's description, as a lost write leaves it."""
    file = with_trees_of_two_levels(path)
    at = root_of(file, b"index") + 32
    count = struct.unpack_from("<Q", file.read_bytes(), at)[0]
    assert count == MANY
    poke(at, (MANY + 5).to_bytes(8, "little"))(file)
    store, table, loaded = reopen(path)
    assert (table.damaged_records, len(loaded.index)) == (5, MANY)
    store.close()


# -- meta pages ---------------------------------------------------------------------------------------------------------

_TRANSACTION = 16 + 24 + 2 * 48 + 8  # in a meta page


def transactions(file):
    content = file.read_bytes()
    return [struct.unpack_from("<Q", content, page * 4096 + _TRANSACTION)[0] for page in (0, 1)]


def set_transaction(file, page, number):
    with file.open("r+b") as opened:
        opened.seek(page * 4096 + _TRANSACTION)
        opened.write(struct.pack("<Q", number))


@pytest.mark.parametrize("page, by", [(0, -1), (0, 1), (0, 2), (0, 256), (0, -256), (1, 1), (1, -1), (1, 512)])
def test_meta_page_of_another_transaction_is_noticed_before_lmdb_takes_the_older_one(path, page, by):
    store, table = make_table(path, segment_bytes=1 << 22)
    for start in range(300):
        append(table, start, start + 1)
    store.close()
    file = segments(path)[0] / "data.mdb"
    first, second = transactions(file)
    assert first % 2 == 0
    assert abs(second - first) == 1
    page_to_newer = by > 0 and abs((first, second)[page] + by - (first, second)[1 - page]) == 1
    set_transaction(file, page, (first, second)[page] + by + (2 * by if page_to_newer else 0))
    with pytest.raises(ChunkCorruptError, match="of the transactions .* not the last two"):
        check_structure(file)
    with Pages(file) as pages:
        assert any("do not follow each other" in problem for problem in pages.problems)


def test_page_that_cannot_be_read_once_is_no_damage_and_one_that_never_can_is_told(path, monkeypatch):
    store, table = make_table(path)
    append_each(table, 0, 3)
    store.close()
    file = segments(path)[0] / "data.mdb"
    read, failing = os.pread, [1]

    def pread(handle, size, at):
        if at >= 8192 and failing[0]:
            failing[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return read(handle, size, at)

    monkeypatch.setattr(os, "pread", pread)
    check_structure(file)
    failing[0] = 2
    with pytest.raises(OSError, match="Input/output error"):
        check_structure(file)
