"""Whole episodes that were removed: a crash right after their chunks left the disk must not bring the rest of them back."""

import shutil

import numpy as np
import pytest

from replaysvc import FieldSpec, Prioritized, Remover, Signature, StoreConfig, TableConfig, Uniform
from replaysvc.replay import Replay

NOISE = Signature(FieldSpec("observation", (60_000,), np.uint8), FieldSpec("action", (), np.int64))
NEVER = StoreConfig(recent_cache_bytes=4 << 20, faulted_cache_bytes=4 << 20, state_interval_s=3600)
SAMPLERS = {"uniform": Uniform(), "prioritized": Prioritized()}


def noise(number):
    return np.random.default_rng(number).integers(0, 256, 60_000, dtype=np.uint8)


def write_in_turn(table, episodes, length):
    """Writes episodes step by step in turn, so that all of them lie in several segments of 1 MiB."""
    writers = [table.writer(actor=f"a{number}") for number in range(episodes)]
    for number, writer in enumerate(writers):
        writer.begin(noise(number))
    for t in range(length):
        for number, writer in enumerate(writers):
            writer.append(t, float(number), noise(100 * t + number), terminated=t == length - 1)
            writer.flush()
    for writer in writers:
        writer.close()


def records_after_crash(replay, path):
    """Returns {episode: (first step, length)} of the store as a machine that fails now would find it."""
    shutil.copytree(replay._store.path, path)
    with Replay(path, NEVER) as after:
        return {record.episode_id: (record.first_step, record.length) for record in after.table("t").episodes()}


@pytest.mark.parametrize("remover", [Remover.OLDEST_EPISODES, Remover.LOWEST_PRIORITY])
def test_no_episode_comes_back_without_its_beginning(tmp_path, remover):
    config = TableConfig(chunk_steps=1, segment_bytes=1 << 20, capacity_steps=32, remover=remover, samplers=SAMPLERS)
    with Replay(tmp_path / "s", NEVER) as replay:
        table = replay.create_table("t", NOISE, config)
        write_in_turn(table, 2, 12)
        table.update_priorities(np.arange(24), np.ones(24) * 0.01)
        segments = table.stats().segments
        with table.writer() as writer:
            writer.begin(noise(7))
            for t in range(30):
                writer.append(t, 0.0, noise(1000 + t), terminated=t == 29)
                writer.flush()
                if t in (9, 15, 29):
                    found = records_after_crash(replay, tmp_path / f"copy{t}")
                    assert all(first == 0 for first, _ in found.values()), (t, found)
                    assert found[2] == (0, t + 1)
        assert table.stats().segments < segments + 4  # the removed ones left the disk
        assert [record.episode_id for record in table.episodes()] == [2]
