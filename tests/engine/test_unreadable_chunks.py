"""Chunks that are damaged are left out for good; those that cannot be read for a while are drawn again later."""

import shutil

import pytest

from replaysvc import StoreConfig, TableConfig
from replaysvc.errors import CapacityError, ChunkCorruptError, NotFoundError, StorageError, UnavailableError
from replaysvc.index.episode_list import list_episodes
from replaysvc.replay import Replay
from replaysvc.storage import System
from replaysvc.storage.segment import Segment
from tests.builders import SCALARS, open_door, write_episode, write_episodes
from tests.engine.test_reopen import corrupt

STEPS = set(range(20))


@pytest.fixture
def path(tmp_path):
    """A store with twenty steps in chunks of five."""
    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("t", SCALARS, TableConfig(chunk_steps=5)), [20])
    return tmp_path / "s"


def drawn(table):
    return set(table.sample(300, seed=1).positions.tolist())


def test_chunks_that_cannot_be_read_now_are_not_left_out_for_ever(path, monkeypatch):
    read, trouble = Segment.read, [True]

    def maybe(segment, ids):
        if trouble:
            raise StorageError("no reader can be had")
        return read(segment, ids)

    monkeypatch.setattr(Segment, "read", maybe)
    with Replay(path) as replay:
        table = replay.table("t")
        with pytest.raises(UnavailableError, match=r"steps cannot be read now \(no reader can be had\)"):
            table.sample(10)
        with pytest.raises(StorageError, match="no reader can be had"):
            table.read_episode(0)
        stats = table.stats()
        assert (stats.corrupt_chunks_total, stats.quarantined_chunks, stats.steps) == (0, 0, 20)
        assert stats.sampled_items_total == 0
        trouble.clear()
        assert drawn(table) == STEPS


def test_trouble_that_passes_within_a_draw_is_not_seen(path, monkeypatch):
    read, times = Segment.read, [1] * 5

    def maybe(segment, ids):
        if times:
            times.pop()
            raise StorageError("no reader can be had")
        return read(segment, ids)

    monkeypatch.setattr(Segment, "read", maybe)
    with Replay(path) as replay:
        assert drawn(replay.table("t")) == STEPS


def test_damaged_chunk_is_left_out_at_once_after_a_restart(path, monkeypatch):
    corrupt(path, "t", 1)
    with Replay(path) as replay:
        assert drawn(replay.table("t")) == STEPS - set(range(5, 10))
        stats = replay.table("t").stats()
        assert (stats.corrupt_chunks_total, stats.quarantined_chunks) == (1, 1)
    assert [file.name for file in (path / "quarantine").iterdir()] == ["t-chunk-00000000000000000001"]
    asked, read = [], Segment.read
    monkeypatch.setattr(Segment, "read", lambda segment, ids: (asked.extend(ids), read(segment, ids))[1])
    with Replay(path) as replay:
        table = replay.table("t")
        assert (table.stats().steps, table.stats().quarantined_chunks) == (15, 1)
        assert drawn(table) == STEPS - set(range(5, 10))
        assert 1 not in asked
        assert [(record.length, record.closed) for record in table.episodes()] == [(20, True)]
        with table.writer() as writer:
            write_episode(writer, 3)
        assert table.stats().next_position == 23


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_episode_with_damage_in_its_middle_is_read_around_it(path, kind):
    corrupt(path, "t", 1)
    corrupt(path, "t", 2)
    with open_door(kind, path) as door:
        table = door.table("t")
        for _ in range(3):  # the first that looks, finds one; the second, the other
            with pytest.raises(ChunkCorruptError, match="damaged") as caught:
                table.read_episode(0)
        expected = r"episode 0: steps 5 to 14 are damaged; [0, 5) and [15, 20) can be read"
        assert str(caught.value) == expected
        with pytest.raises(ChunkCorruptError, match="steps 5 to 14 are damaged"):
            table.read_episode(0, 3, 6)
        assert table.read_episode(0, 0, 5)["action"].tolist() == list(range(5))
        assert table.read_episode(0, 15)["action"].tolist() == list(range(15, 20))
        with pytest.raises(NotFoundError):
            table.read_episode(1)


def test_chunk_that_ends_an_episode_may_be_damaged_and_the_episode_has_ended(path):
    corrupt(path, "t", 3)
    for _ in range(2):
        with Replay(path) as replay:
            table = replay.table("t")
            assert drawn(table) <= set(range(15))
            assert table.stats().open_episodes == 0
            assert table.episodes()[0].closed


def test_chunk_that_was_removed_while_it_was_drawn_is_not_damaged(path, monkeypatch):
    read = Segment.read
    with Replay(path) as replay:
        table = replay.table("t")

        def removing(segment, ids):
            monkeypatch.setattr(Segment, "read", read)
            table.delete_episodes([0])
            return [None] * len(ids)

        with table.writer() as writer:
            write_episode(writer, 4)
        monkeypatch.setattr(Segment, "read", removing)
        assert drawn(table) <= set(range(20, 24))
        stats = table.stats()
        assert (stats.corrupt_chunks_total, stats.quarantined_chunks) == (0, 0)


def test_store_directory_that_is_removed_is_told_and_nothing_more_is_acknowledged(path):
    replay = Replay(path)
    table = replay.table("t")
    assert table.stats().fault == ""
    shutil.rmtree(path)
    with pytest.raises(StorageError, match="was removed, moved or replaced"):
        write_episodes(table, [3])
    assert "restart the service" in table.stats().fault
    assert table.stats().next_position == 20
    assert drawn(table) == STEPS
    replay.close()


def test_reserve_of_the_configuration_stops_appends_and_nothing_else(path):
    class Disk(System):
        free = 1 << 40

        def free_bytes(self, path):
            return self.free

    disk = Disk()
    with Replay(path, StoreConfig(disk_reserve_bytes=1 << 20), system=disk) as replay:
        table = replay.engine("t")
        chunks = [chunk for piece in table.episode_chunks(0, 0, None) for chunk in piece]
        disk.free = 1 << 20
        with pytest.raises(CapacityError, match=r"the disk is full: expected \d+ bytes free .*disk_reserve_bytes=1048576"):
            table.append(b"a session of its", "a", [(0, chunks[0])], urgent=True, timeout_s=60)
        assert drawn(replay.table("t")) == STEPS
        assert table.stats().fault == ""
        assert replay.table("t").delete_episodes([0]) == 1
        disk.free <<= 1
        assert table.append(b"a session of its", "a", [(0, chunks[0])], urgent=True, timeout_s=60) == 0
        with pytest.raises(NotFoundError):
            replay.table("t").read_episode(0)


def test_draw_goes_on_as_long_as_it_finds_damage_that_nobody_knew_of(tmp_path):
    """Each attempt finds at most one damaged chunk here, and there are many more of them than attempts in vain are made."""
    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("t", SCALARS, TableConfig(chunk_steps=1)), [30])
    for chunk in range(29):
        corrupt(tmp_path / "s", "t", chunk)
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        while table.stats().corrupt_chunks_total < 29:
            assert table.sample(1).positions.tolist() == [29]
        assert table.stats().steps == 1


def test_episode_of_which_all_steps_are_there_but_some_twice_is_damaged_and_says_so(path):
    """As a stale index record leaves it: the second chunk has six steps by it, and the third begins after five."""
    with Replay(path) as replay:
        table = replay.table("t")
        chunks = table._engine._core.index.chunks
        chunks["n_steps"][1] += 1
        with pytest.raises(ChunkCorruptError, match="episode 0: its chunks do not follow each other"):
            table.read_episode(0)


def test_episode_whose_record_is_lost_is_nobodys(tmp_path):
    import lmdb

    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("t", SCALARS), [3, 4], actor="a")
    environment = lmdb.open(str(next((tmp_path / "s" / "tables" / "t").glob("seg-*"))), max_dbs=8, map_size=1 << 30)
    with environment.begin(write=True) as transaction:
        assert transaction.delete((0).to_bytes(8, "big"), db=environment.open_db(b"episodes", transaction))
    environment.close()
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert [record.episode_id for record in table.episodes(actor="a")] == [1]
        records, _ = list_episodes(table._engine._core.index, 10, 2, None, False, None)
        assert [(record.episode_id, record.actor) for record in records] == [(1, "a"), (0, "")]
        assert len(table.read_episode(0)["reward"]) == 3
