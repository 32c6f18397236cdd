"""A start that finds a damaged segment keeps what is whole of it, and one that misses a segment says so.

The segments hold chunks 0 to 2, 3 to 5, and 6 and 7; chunk k has positions 4 k to 4 k + 3, and belongs to episode k // 3.
"""

import errno
import json
import shutil
import struct

import lmdb
import numpy as np
import pytest

from replaysvc.errors import ChunkCorruptError
from replaysvc.maintenance.fsck import check as fsck
from replaysvc.storage import System, segment
from replaysvc.storage.pages import Item, Pages
from replaysvc.storage.replacement import LOST
from tests.store_builders import BIG, Troubled, append_each, chunk, index, open_store, reopen, segments, three_segments

PAGE = 4096
FIRST, SECOND, THIRD = (f"seg-{number:020d}" for number in (0, 3, 6))


@pytest.fixture
def path(tmp_path):
    return three_segments(tmp_path / "store")


def roots(data):
    """The pages of the trees of free pages and of names, by the meta page that holds."""
    newest = max((0, PAGE), key=lambda at: int.from_bytes(data[at + 144 : at + 152], "little"))
    return newest, [int.from_bytes(data[newest + at : newest + at + 8], "little") for at in (80, 128)]


def flip(directory, offset, bit=1):
    data = bytearray((directory / "data.mdb").read_bytes())
    data[offset] ^= bit
    (directory / "data.mdb").write_bytes(data)


def flip_in_a_tree(directory):
    """One bit of the kind of the page that leads to all others."""
    _, (_, names) = roots((directory / "data.mdb").read_bytes())
    flip(directory, names * PAGE + 10)


def flip_in_a_meta_page(directory):
    """One bit of the depth of the tree of names, in the page that holds."""
    newest, _ = roots((directory / "data.mdb").read_bytes())
    flip(directory, newest + 16 + 24 + 48 + 6)


def lose(directory):
    (directory / "data.mdb").write_bytes(bytes(1 << 16))


def names(path, where="tables/t"):
    return sorted(entry.name for entry in (path / where).iterdir() if "seg-" in entry.name)


def whole(table, loaded, ids):
    assert loaded.index.tolist() == [index(k, k + 1, BIG).tolist()[0] for k in ids]
    assert table.read(np.array(ids)) == [chunk(k, BIG) for k in ids]


def append_at(table, loaded, k=9):
    """Appends chunk k as the next one."""
    record = index(k, k + 1, BIG)
    record["chunk_id"], record["position"] = loaded.next_chunk_id, loaded.next_position
    record["episode_id"] = loaded.next_episode_id
    table.append(record, [chunk(k, BIG)], [], {})


def save(path, **bounds):
    """Saves the state of a sampler that knows of these bounds."""
    store, table, _ = reopen(path)
    table.write_state("sampling", json.dumps(bounds).encode())
    store.close()


# -- damaged --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("harm", [flip_in_a_tree, flip_in_a_meta_page])
def test_one_bit_in_a_page_of_a_segment_costs_no_chunk(path, number, harm, caplog):
    harm(segments(path)[number])
    store, table, loaded = reopen(path)
    whole(table, loaded, range(8))
    assert loaded.next_chunk_id >= 8
    assert loaded.next_position >= 32
    name = (FIRST, SECOND, THIRD)[number]
    assert f"{name}.1" in names(path)
    assert name not in names(path)
    assert names(path, "quarantine") == [f"t-{name}"]
    kept = (3, 3, 2)[number]
    assert f"{kept} of its chunks are kept, in {name}.1, and 0 are lost" in caplog.text
    append_at(table, loaded)
    store.close()
    store, table, again = reopen(path)
    assert again.index["chunk_id"].tolist() == [*range(8), loaded.next_chunk_id]
    assert (table.quarantined_segments, table.lost_segments) == (1, 0)
    store.close()
    assert fsck(path).status == 0


def test_what_lmdb_must_not_see_is_never_given_to_it(path, monkeypatch):
    opened, real = [], lmdb.open
    damaged = segments(path)[1] / "data.mdb"
    flip_in_a_tree(damaged.parent)
    node = damaged.stat().st_ino

    def watched(directory, **options):
        environment = real(directory, **options)
        opened.append((environment.path(), (damaged.parent.parent / directory / "data.mdb").stat().st_ino))
        return environment

    monkeypatch.setattr(segment.lmdb, "open", watched)
    store, _, _ = reopen(path)
    store.close()
    assert len(opened) > 3
    assert node not in [number for _, number in opened]


def test_chunk_that_is_damaged_as_well_is_the_only_one_that_is_lost(path, caplog):
    second = segments(path)[1]
    at = (second / "data.mdb").read_bytes().index(chunk(4, BIG))
    flip(second, at + 9_000)
    flip_in_a_tree(second)
    store, table, loaded = reopen(path)
    whole(table, loaded, [0, 1, 2, 3, 5, 6, 7])
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (8, 32, 3)
    assert "2 of its chunks are kept, in seg-00000000000000000003.1, and 1 are lost" in caplog.text
    store.close()


def test_ids_that_the_newest_commit_may_have_given_out_are_not_given_out_again(path):
    flip_in_a_meta_page(segments(path)[2])
    store, table, loaded = reopen(path)
    whole(table, loaded, range(8))
    assert (loaded.next_chunk_id, loaded.next_position) == (8 + LOST, 32 + LOST)
    store.close()


def test_two_damaged_neighbours_are_both_salvaged(path):
    for number in (0, 1):
        flip_in_a_tree(segments(path)[number])
    store, table, loaded = reopen(path)
    whole(table, loaded, range(8))
    assert loaded.next_chunk_id == 8
    assert table.quarantined_segments == 2
    store.close()


# -- processes that end, disks that are full ------------------------------------------------------------------------------


class Ended(Exception):
    pass


@pytest.mark.parametrize("point", ["compact.built", "compact.renamed", "format.renamed"])
def test_process_that_ends_while_it_salvages_leaves_it_to_the_next_start(path, point):
    class Ending(System):
        def crashpoint(self, name):
            if name == point:
                raise Ended

    flip_in_a_tree(segments(path)[1])
    store = open_store(path, Ending())
    with pytest.raises(Ended):
        store.tables()["t"].load()
    store.close()
    store, table, loaded = reopen(path)
    whole(table, loaded, range(8))
    assert names(path) == [FIRST, f"{SECOND}.1", THIRD]
    assert names(path, "quarantine") == [f"t-{SECOND}"]  # not removed, as one that was compacted is
    store.close()
    assert fsck(path).status == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_on_a_full_disk_the_start_goes_on_without_it_and_a_later_one_salvages_it(path, number, caplog):
    flip_in_a_tree(segments(path)[number])
    name, disk = (FIRST, SECOND, THIRD)[number], Troubled()
    disk.error, disk.at = OSError(errno.ENOSPC, "No space left on device"), f"rename {name}.1"
    store, table, loaded = reopen(path, disk)
    others = [k for k in range(8) if k // 3 != number]
    whole(table, loaded, others)
    assert names(path)[number] == name
    assert "the next start tries again, or stop the service and run `replaysvc fsck --repair`" in caplog.text.replace("\n", " ")
    assert loaded.next_chunk_id == (8 if number < 2 else 6 + LOST)
    append_at(table, loaded)
    store.close()
    disk.error = None
    store, table, again = reopen(path)
    assert again.index["chunk_id"].tolist() == sorted([*range(8), loaded.next_chunk_id])
    assert (again.next_chunk_id, table.lost_segments) == (loaded.next_chunk_id + 1, 0)
    store.close()
    assert fsck(path).status == 0


def test_steps_that_come_back_are_not_taken_for_removed_ones(path):
    """Meanwhile the table seemed to begin at position 12, which a sampler had saved as its tail."""
    flip_in_a_tree(segments(path)[0])
    disk = Troubled()
    disk.error, disk.at = OSError(errno.ENOSPC, "No space left on device"), f"rename {FIRST}.1"
    store, table, _ = reopen(path, disk)
    table.write_state("sampling", b'{"head": 32, "tail": 12}')
    store.close()
    store, table, loaded = reopen(path)
    whole(table, loaded, range(8))
    assert json.loads(table.read_state("sampling")) == {"head": 32, "tail": 0}
    store.close()


def test_what_capacity_had_removed_of_a_salvaged_segment_stays_removed(path):
    save(path, head=32, tail=6)
    flip_in_a_tree(segments(path)[0])
    store, table, _ = reopen(path)
    assert json.loads(table.read_state("sampling")) == {"head": 32, "tail": 6}
    store.close()


def test_what_was_deleted_while_a_segment_was_out_of_use_does_not_come_back_with_it(path):
    flip_in_a_tree(segments(path)[0])
    disk = Troubled()
    disk.error, disk.at = OSError(errno.ENOSPC, "No space left on device"), f"rename {FIRST}.1"
    store, table, _ = reopen(path, disk)
    disk.error = None
    table.delete_episodes([0])
    table.delete_episodes([1])  # written anew, with chunks of episode 2 alone in use
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [6, 7]
    store.close()


# -- losses stay to be seen -----------------------------------------------------------------------------------------------


def test_segment_of_which_nothing_is_whole_is_counted_and_told_of_at_every_start(path, caplog):
    lose(segments(path)[1])
    for _ in range(3):
        caplog.clear()
        store, table, loaded = reopen(path)
        assert table.quarantined_segments == 1
        assert loaded.index["chunk_id"].tolist() == [0, 1, 2, 6, 7]
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert said == [
            "table t: 1 of its segments lie in quarantine, 1 of which were not salvaged: stop the service and run"
            " `replaysvc fsck --repair`"
        ]
        store.close()


def test_segment_of_another_table_of_the_same_name_is_not_counted(path):
    lose(segments(path)[1])
    store, table, _ = reopen(path)
    assert table.quarantined_segments == 1
    store.delete_table("t")
    table = store.create_table("t", {}, segment_bytes=1 << 17)
    loaded = table.load()
    assert (table.quarantined_segments, loaded.next_chunk_id) == (0, 0)
    store.close()


def test_lost_newest_segment_counts_even_if_no_other_could_be_made_in_that_life(path):
    """Else the next start would give out its ids again."""
    lose(segments(path)[2])
    disk = Troubled()
    disk.error, disk.at = OSError(errno.ENOSPC, "No space left on device"), f"rename seg-{6 + LOST:020d}"
    store, _, loaded = reopen(path, disk)
    assert loaded.next_chunk_id == 6 + LOST
    assert len(names(path)) == 2
    store.close()
    disk.error = None
    store, _, loaded = reopen(path)
    assert loaded.next_chunk_id == 6 + LOST
    assert len(names(path)) == 3
    store.close()


def test_middle_segment_that_is_gone_is_told_of_at_every_start(path, caplog):
    shutil.rmtree(segments(path)[1])
    for _ in range(2):
        caplog.clear()
        store, table, loaded = reopen(path)
        assert loaded.index["chunk_id"].tolist() == [0, 1, 2, 6, 7]
        assert table.lost_segments == 1
        assert "table t: segments are gone, and nobody removed them: chunks 3 to 5;" in caplog.text
        store.close()


def test_newest_segment_that_is_gone_is_missed_by_the_saved_head_and_its_ids_are_not_given_out_again(path, caplog):
    save(path, head=32, tail=0)
    shutil.rmtree(segments(path)[2])
    store, table, loaded = reopen(path)
    assert table.lost_segments == 1
    assert "by saved state, 8 steps more were there, up to position 32" in caplog.text
    assert (loaded.next_chunk_id, loaded.next_position) == (6 + 8 + LOST, 32 + LOST)
    assert loaded.next_episode_id > 3
    append_at(table, loaded)
    store.close()
    store, table, again = reopen(path)
    assert again.index["chunk_id"].tolist() == [*range(6), loaded.next_chunk_id]
    assert table.lost_segments == 1
    store.close()


def test_segment_whose_place_was_taken_on_purpose_is_not_missed(path, caplog):
    """Episode 1 is all of the second segment, episode 0 of the first."""
    store, table, _ = reopen(path)
    table.delete_episodes([1])
    table.reclaim(np.array([0, 1, 2, 6, 7]))
    assert names(path) == [FIRST, THIRD]
    store.close()
    store, table, _ = reopen(path)
    assert table.lost_segments == 0
    append_each(table, 8, 14)
    table.remove_before(6)
    store.close()
    store, table, _ = reopen(path)
    assert (table.lost_segments, caplog.text) == (0, "")
    store.close()
    assert fsck(path).status == 0


def test_gap_is_missed_although_another_one_was_made_on_purpose(path):
    store, table, _ = reopen(path)
    append_each(table, 8, 14)  # two segments more: 9 to 11, and 12 and 13
    table.delete_episodes([1])
    table.reclaim(np.array([0, 1, 2, *range(6, 14)]))
    store.close()
    shutil.rmtree(path / "tables" / "t" / "seg-00000000000000000009")
    store, table, _ = reopen(path)
    assert table.lost_segments == 1
    store.close()


def test_segment_stays_if_its_removal_cannot_be_noted(path, caplog):
    disk = Troubled()
    store, table, _ = reopen(path, disk)
    table.delete_episodes([1])
    disk.error, disk.at = OSError(errno.ENOSPC, "No space left on device"), "rename removed"
    table.reclaim(np.array([0, 1, 2, 6, 7]))
    assert names(path) == [FIRST, SECOND, THIRD]
    assert "no segment is removed, since that cannot be noted" in caplog.text
    disk.error = None
    table.reclaim(np.array([0, 1, 2, 6, 7]))
    assert names(path) == [FIRST, THIRD]
    store.close()


def test_log_says_what_is_gone_with_a_damaged_state(path, caplog):
    store, table, _ = reopen(path)
    for name in ("sampling", "priorities.prioritized.0"):
        table.write_state(name, b"{}")
        file = path / "tables" / "t" / "state" / name
        file.write_bytes(file.read_bytes()[:-1])
        assert table.read_state(name) is None
    assert "where its queues stand, the counts of its limiter and the state of its generator start anew" in caplog.text
    assert "the priorities of its steps start anew" in caplog.text
    store.close()


def test_page_number_beyond_any_file_costs_no_other_chunk(path):
    """The highest bit of the number of the page where chunk 1 lies: no file is so long, nor can a system call say so."""
    file = path / "tables" / "t" / FIRST / "data.mdb"
    with Pages(file) as pages:
        item = next(item for item in pages.items(b"chunks") if item.key == (1).to_bytes(8, "big"))
    data = file.read_bytes()
    node = item.key + struct.pack("<Q", (item.offset - 16) // PAGE)
    file.write_bytes(data.replace(node, node[:-1] + b"\x40"))
    assert fsck(path).status == 2
    store, table, loaded = reopen(path)
    assert set(loaded.index["chunk_id"].tolist()) >= {0, 2, 3, 4, 5, 6, 7}
    assert table.read(np.array([0, 2, 3])) == [chunk(k, BIG) for k in (0, 2, 3)]
    store.close()
    assert fsck(path, repair=True).status in (0, 1)


def test_sizes_that_damage_makes_up_take_no_memory(path):
    file = path / "tables" / "t" / FIRST / "data.mdb"
    with Pages(file) as pages:
        assert pages.read(1 << 70, 16) == b""
        assert len(pages.read(pages.size - 8, 1 << 60)) == 8
        with pytest.raises(ChunkCorruptError, match=f"expected {1 << 60} bytes at 0, found {pages.size}"):
            pages.value(Item(b"", 0, 1 << 60))
        pages.forget(Item(b"", 1 << 70, 1 << 60))


def test_whatever_goes_wrong_with_one_segments_salvage_the_others_are_there(path, monkeypatch, caplog):
    def surprise(*arguments):
        raise ZeroDivisionError("a fault of this program")

    monkeypatch.setattr("replaysvc.storage.replacement.salvage", surprise)
    flip(path / "tables" / "t" / SECOND, 16, 4)
    store, _, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [0, 1, 2, 6, 7]
    assert "could not be salvaged: a fault of this program" in caplog.text
    store.close()
