"""What a store is after it was closed, or left by a dead process, and opened again."""

import errno
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from replaysvc import FieldSpec, Signature, StoreConfig, TableConfig, Transitions
from replaysvc.errors import ChunkCorruptError, InvalidRequestError, NotFoundError, StorageError
from replaysvc.replay import Replay
from replaysvc.storage import System
from replaysvc.storage.descriptions import pack_table
from tests.builders import SCALARS, write_episode, write_episodes

SMALL = StoreConfig(recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)


def test_everything_is_there_after_reopening(tmp_path):
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=3))
        write_episodes(table, [10, 4], actor="a")
        records, episode, before = table.episodes(), table.read_episode(0), table.stats()
        batch = table.sample(64, Transitions(n_step=4), seed=5)
        replay.put_params("policy", b"weights", version=7)
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert table.signature == SCALARS
        assert table.config.chunk_steps == 3
        assert table.episodes() == records
        again = table.read_episode(0)
        assert all((again[name] == episode[name]).all() for name in episode)
        after = table.stats()
        assert (after.steps, after.episodes, after.chunks, after.stored_bytes) == (14, 2, before.chunks, before.stored_bytes)
        assert replay.get_params("policy") == (7, b"weights")
        second = table.sample(64, Transitions(n_step=4), seed=5)
        for name, values in batch.asdict().items():
            if name != "age_s":
                assert (second.asdict()[name] == values).all(), name


def test_positions_and_episode_ids_go_on_where_they_were(tmp_path):
    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("t", SCALARS), [5])
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        write_episodes(table, [3])
        assert [(r.episode_id, r.length) for r in table.episodes()] == [(1, 3), (0, 5)]
        assert set(table.sample(200, seed=1).positions.tolist()) == set(range(8))


def test_restarting_many_times_changes_nothing(tmp_path):
    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("t", SCALARS, TableConfig(capacity_steps=20, chunk_steps=4)), [30])
        stats = replay.table("t").stats()
    for _ in range(4):
        with Replay(tmp_path / "s") as replay:
            now = replay.table("t").stats()
            assert (now.steps, now.first_position, now.next_position, now.chunks) == (20, 10, 30, stats.chunks)


def test_cold_chunks_are_read_back_and_cached(tmp_path):
    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("t", SCALARS, TableConfig(chunk_steps=5)), [50])
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        batch = table.sample(100, Transitions(n_step=3, gamma=1.0), seed=1)
        assert (batch.observation == batch.t).all()
        cold = table.stats()
        assert (cold.cache_misses_total, cold.cache_hits_total) == (10, 0)
        table.sample(100, seed=1)
        assert (table.stats().cache_misses_total, table.stats().cache_hits_total) == (10, 100)


@pytest.mark.parametrize("n_step", [1, 5])
def test_data_far_larger_than_the_cache_samples_right(tmp_path, n_step):
    """12 MB of observations in rings of 1 MiB: batches need more chunks than a ring holds."""

    signature = Signature(FieldSpec("o", (1500,), np.int32), FieldSpec("a", (), np.int64))
    with Replay(tmp_path / "s", SMALL) as replay:
        table = replay.create_table("t", signature, TableConfig(chunk_steps=16))
        with table.writer() as writer:
            for episode in range(4):
                writer.begin(np.full(1500, 1000 * episode, np.int32))
                for t in range(500):
                    writer.append(t, float(t), np.full(1500, 1000 * episode + t + 1, np.int32), truncated=t == 499)
        for seed in range(5):
            batch = table.sample(200, Transitions(n_step=n_step, gamma=1.0), seed=seed)
            steps = np.minimum(n_step, 500 - batch.t)
            assert (batch.observation == (1000 * batch.episode_id + batch.t)[:, None]).all()
            assert (batch.next_observation == (1000 * batch.episode_id + batch.t + steps)[:, None]).all()
            assert (batch.action == batch.t).all()
        assert table.stats().cache_bytes <= 2 << 20


def test_open_episode_goes_on_after_a_restart_of_the_store_only_for_its_own_writer(tmp_path):
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS)
        writer = table.writer()
        write_episode(writer, 4, end="open")
        writer.flush()
        assert table.stats().open_episodes == 1
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert table.stats().open_episodes == 1
        write_episodes(table, [2])
        assert [(r.episode_id, r.length, r.closed) for r in table.episodes()] == [(1, 2, True), (0, 4, False)]


def test_whole_segments_leave_the_disk_with_the_steps_in_them(tmp_path):
    config = TableConfig(capacity_steps=2000, chunk_steps=50, segment_bytes=1 << 20)
    rng = np.random.default_rng(0)

    signature = Signature(FieldSpec("o", (64,), np.int32), FieldSpec("a", (), np.int64))
    with Replay(tmp_path / "s", SMALL) as replay:
        table = replay.create_table("t", signature, config)
        sizes = []
        with table.writer() as writer:
            for _ in range(30):
                writer.begin(rng.integers(0, 1 << 30, 64, dtype=np.int32))
                for t in range(1000):
                    writer.append(t, 0.0, rng.integers(0, 1 << 30, 64, dtype=np.int32), truncated=t == 999)
                writer.flush()
                sizes.append(table.stats().disk_bytes)
        stats = table.stats()
        assert stats.steps == 2000
        assert stats.segments <= 3
        assert max(sizes[5:]) < 4 << 20
        assert table.read_episode(29)["action"].tolist() == list(range(1000))
    with Replay(tmp_path / "s", SMALL) as replay:
        assert replay.table("t").stats().steps == 2000
        assert len(list((tmp_path / "s" / "trash").iterdir())) == 0


def test_capacity_in_bytes_drops_the_oldest_chunks(tmp_path):
    rng = np.random.default_rng(0)

    signature = Signature(FieldSpec("o", (512,), np.int32), FieldSpec("a", (), np.int64))
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", signature, TableConfig(capacity_bytes=1 << 20, chunk_steps=10))
        with table.writer() as writer:
            writer.begin(rng.integers(0, 1 << 30, 512, dtype=np.int32))
            for t in range(1000):
                writer.append(t, 0.0, rng.integers(0, 1 << 30, 512, dtype=np.int32), truncated=t == 999)
        stats = table.stats()
        assert 900_000 < stats.stored_bytes <= 1 << 20
        assert stats.next_position == 1000
        assert table.sample(500, seed=1).t.min() >= 1000 - stats.steps


def corrupt(path, table, chunk_id):
    """Flips a byte of a stored chunk, behind the store's back."""
    import lmdb

    segment = next((path / "tables" / table).glob("seg-*"))
    environment = lmdb.open(str(segment), max_dbs=8, map_size=1 << 30)
    with environment.begin(write=True) as transaction:
        chunks = environment.open_db(b"chunks", transaction)
        key = chunk_id.to_bytes(8, "big")
        data = bytearray(transaction.get(key, db=chunks))
        data[len(data) // 2] ^= 1
        transaction.put(key, bytes(data), db=chunks)
    environment.close()


def test_damaged_chunk_is_left_out_counted_and_the_rest_is_served(tmp_path):
    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("t", SCALARS, TableConfig(chunk_steps=5)), [20])
    corrupt(tmp_path / "s", "t", 1)
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        batch = table.sample(500, Transitions(n_step=3, gamma=1.0), seed=1)
        assert set(batch.t.tolist()) == set(range(5)) | set(range(10, 20))
        last_before = batch.next_observation[batch.t == 4]
        assert (last_before == 5).all()
        assert (batch.discount > 0).all() or batch.terminated.any()
        assert table.stats().corrupt_chunks_total == 1
        assert table.stats().steps == 15
        with pytest.raises((NotFoundError, ChunkCorruptError)):
            table.read_episode(0)
        assert table.read_episode(0, 10)["action"].tolist() == list(range(10, 20))


def test_swapped_chunks_are_noticed(tmp_path):
    """Two intact chunks under each other's key: only the index knows which checksum belongs where."""
    import lmdb

    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("t", SCALARS, TableConfig(chunk_steps=5)), [20])
    segment = next((tmp_path / "s" / "tables" / "t").glob("seg-*"))
    environment = lmdb.open(str(segment), max_dbs=8, map_size=1 << 30)
    with environment.begin(write=True) as transaction:
        chunks = environment.open_db(b"chunks", transaction)
        keys = [n.to_bytes(8, "big") for n in (1, 2)]
        first, second = (transaction.get(key, db=chunks) for key in keys)
        transaction.put(keys[0], second, db=chunks)
        transaction.put(keys[1], first, db=chunks)
    environment.close()
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert set(table.sample(300, seed=1).t.tolist()) == set(range(5)) | set(range(15, 20))
        assert table.stats().corrupt_chunks_total == 2


WRITER = """
import sys
from replaysvc import TableConfig
from replaysvc.replay import Replay
from tests.builders import SCALARS
replay = Replay(sys.argv[1])
writer = replay.create_table("t", SCALARS, TableConfig(chunk_steps=4), exist_ok=True).writer()
while True:
    writer.begin(0)
    for t in range(10):
        writer.append(t, 10 * t, t + 1, terminated=t == 9)
    writer.flush()
    print("durable", flush=True)
"""


def test_acknowledged_steps_survive_kill_9(tmp_path):
    acknowledged = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "s")],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(7):
            assert process.stdout.readline() == b"durable\n"
            acknowledged += 1
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read().count(b"durable")
        process.wait()
        process.stdout.close()
        with Replay(tmp_path / "s") as replay:
            table = replay.table("t")
            closed = [r for r in table.episodes(limit=1000) if r.closed]
            assert len(closed) >= acknowledged
            for record in closed:
                assert table.read_episode(record.episode_id)["action"].tolist() == list(range(10))


class FullDisk(System):
    """Fails commits while `full` is set, as a full disk does."""

    full = False

    def crashpoint(self, name):
        if self.full and name == "append.before_commit":
            raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_refuses_appends_serves_samples_and_recovers(tmp_path, monkeypatch):
    from replaysvc.errors import CapacityError

    disk = FullDisk()
    with Replay(tmp_path / "s", system=disk) as replay:
        table = replay.create_table("t", SCALARS)
        writer = table.writer()
        write_episode(writer, 5)
        writer.flush()
        disk.full = True
        write_episode(writer, 6, episode=1)
        with pytest.raises(CapacityError, match="No space left"):
            writer.flush()
        assert len(table.sample(8)) == 8
        assert table.stats().steps == 5
        disk.full = False
        writer.flush()
        writer.close()
        assert table.stats().steps == 11
        assert table.read_episode(1)["action"].tolist() == list(range(6))


def test_deletion_before_which_nothing_can_be_noted_is_refused_and_deletes_nothing(tmp_path):
    """What capacity removed must be on the disk before there is room for it again, so that a restart leaves it out."""
    from replaysvc.errors import CapacityError

    class Full(System):
        full = False

        def write_file(self, path, data):
            if self.full and "state-" in path.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write_file(path, data)

    disk = Full()
    with Replay(tmp_path / "s", StoreConfig(state_interval_s=3600), system=disk) as replay:
        table = replay.create_table("t", SCALARS, TableConfig(capacity_steps=12))
        write_episodes(table, [5, 5, 5])  # of the first, three steps are removed
        disk.full = True
        with pytest.raises(CapacityError, match="No space left"):
            table.delete_episodes([1])
        assert [record.episode_id for record in table.episodes()] == [2, 1, 0]
        assert table.stats().steps == 12
        disk.full = False
        assert table.delete_episodes([1]) == 1
        disk.full = True  # nothing more is needed
        assert table.stats().steps == 7
    disk.full = False
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert [(r.episode_id, r.first_step) for r in table.episodes()] == [(2, 0), (0, 3)]
        assert table.stats().steps == 7


def test_store_that_cannot_be_loaded_is_given_free_again(tmp_path):
    """A table of a newer format refuses the start; once it is gone, the same process can open the store."""
    with Replay(tmp_path / "s") as replay:
        write_episodes(replay.create_table("good", SCALARS), [3])
        replay.create_table("strange", SCALARS)
    description = tmp_path / "s" / "tables" / "strange" / "table.json"
    whole = description.read_text()
    values = json.loads(whole.replace('"capacity_steps"', '"capacity_of_a_later_release"'))
    del values["checksum"]
    description.write_bytes(pack_table(values))
    with pytest.raises(InvalidRequestError, match="capacity_of_a_later_release"):
        Replay(tmp_path / "s")
    description.write_text(whole)
    with Replay(tmp_path / "s") as replay:
        assert replay.tables() == ["good", "strange"]


def test_table_samples_on_after_its_newest_segment_was_lost(tmp_path):
    """Ids jump far ahead so that none is used twice; the draw must not fall into that gap."""
    signature = Signature(FieldSpec("o", (64,), np.int32), FieldSpec("a", (), np.int64))
    rng = np.random.default_rng(0)

    def write(table, length):
        with table.writer() as writer:
            writer.begin(rng.integers(0, 1 << 30, 64, dtype=np.int32))
            for t in range(length):
                writer.append(t, 0.0, rng.integers(0, 1 << 30, 64, dtype=np.int32), truncated=t == length - 1)
                if t % 1000 == 999:
                    writer.flush()

    with Replay(tmp_path / "s") as replay:
        write(replay.create_table("t", signature, TableConfig(chunk_steps=50, segment_bytes=1 << 20)), 12_000)
        assert replay.table("t").stats().segments >= 2
    newest = max((tmp_path / "s" / "tables" / "t").glob("seg-*"))
    (newest / "data.mdb").write_bytes(b"")
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        kept = table.stats().steps
        assert 0 < kept < 12_000
        assert table.sample(500, seed=1).positions.max() < kept
        write(table, 100)
        positions = table.sample(2000, seed=2).positions
        assert positions.max() > 12_000
        assert len(np.unique(positions[positions > 12_000])) > 5
        assert table.stats().steps == kept + 100


class Surprise(System):
    """Fails one commit in a way that nobody thought of."""

    armed = False

    def crashpoint(self, name):
        if self.armed and name == "append.before_commit":
            self.armed = False
            raise RuntimeError("nobody thought of this")


def test_unforeseen_failure_of_a_commit_is_told_to_its_writer_and_ends_nothing_else(tmp_path, monkeypatch):
    disk = Surprise()
    with Replay(tmp_path / "s", system=disk) as replay:
        table, other = replay.create_table("t", SCALARS), replay.create_table("other", SCALARS)
        writer = table.writer()
        disk.armed = True
        write_episode(writer, 5)
        with pytest.raises(StorageError, match="RuntimeError"):
            writer.flush()
        write_episodes(other, [3])
        assert other.stats().steps == 3
        writer.flush()  # the commit left nothing behind, so it can be made again
        writer.close()
        assert table.stats().steps == 5
