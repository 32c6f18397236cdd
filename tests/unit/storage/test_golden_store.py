"""Stores of each format version. They open with the same contents for ever; nothing may write their files again.

The one of version 1 was written by the first release. In it,
observation t of episode e is {count: 100 e + t, place: (20000 + t / 8, -t)}, action t is t % 3, reward t is 10 t + e, and
log_prob t is -t / 2. Episode 0 has 9 steps and terminated, episode 1 has 6 and was truncated, episode 2 has 5 and is open.
They were written by two writers at a time, into several segments.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from replaysvc import StoreConfig
from replaysvc.replay import Replay
from tests.store_builders import SESSION, append, chunk, entry, index, open_store

GOLDEN = Path(__file__).parents[2] / "golden"
SMALL = StoreConfig(recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)


@pytest.fixture
def path(tmp_path):
    shutil.copytree(GOLDEN / "store_v1", tmp_path / "store")
    return tmp_path / "store"


def test_golden_store_loads_its_records(path):
    expected = json.loads((GOLDEN / "store_v1.json").read_text())
    store = open_store(path)
    assert sorted(store.tables()) == ["empty", "steps"]
    table = store.tables()["steps"]
    loaded = table.load()
    assert list(loaded.index.dtype.names) == expected["names"]
    assert [list(record) for record in loaded.index.tolist()] == expected["index"]
    for found, told in zip(loaded.episodes, expected["episodes"], strict=True):
        assert (found.episode_id, found.session_id.hex(), found.episode_key) == tuple(
            told[name] for name in ("episode_id", "session_id", "episode_key")
        )
        assert (found.actor, found.started_at_s, found.metadata.decode()) == tuple(
            told[name] for name in ("actor", "started_at_s", "metadata")
        )
    assert {session.hex(): last for session, last in loaded.sessions.items()} == expected["sessions"]
    assert [loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id] == expected["next"] == [8, 20, 3]
    assert (table.quarantined_segments, table.damaged_records) == (0, 0)
    assert table.segment_count > 2
    assert len(store.tables()["empty"].load().index) == 0
    assert (store.params(), store.get_params("policy")) == ({"policy": 42}, (42, b"other weights"))
    store.close()


def test_golden_store_reads_its_episodes(path):
    with Replay(path, SMALL) as replay:
        table = replay.table("steps")
        for episode, length in enumerate((9, 6, 5)):
            read = table.read_episode(episode)
            t = np.arange(length + 1)
            assert read["observation"]["count"].tolist() == (100 * episode + t).tolist()
            assert read["observation"]["place"].dtype == np.float32
            assert read["observation"]["place"].tolist() == np.stack([20_000 + t / 8, -t], axis=1).tolist()
            assert read["action"].tolist() == (t[:-1] % 3).tolist()
            assert read["reward"].tolist() == (10.0 * t[:-1] + episode).tolist()
            assert read["log_prob"].tolist() == (-t[:-1] / 2).tolist()
        told = [(r.episode_id, r.length, r.actor, r.terminated, r.truncated, r.closed) for r in table.episodes()]
        assert told == [
            (2, 5, "бегун", False, False, False),
            (1, 6, "бегун", False, True, True),
            (0, 9, "walker", True, False, True),
        ]
        assert [(r.policy_version, r.return_, dict(r.metadata)) for r in table.episodes()] == [
            (7, 110.0, {"open": True}),
            (-1, 156.0, {}),
            (5, 360.0, {"seed": 1, "имя": "ü"}),
        ]


def test_golden_store_takes_new_data(path):
    with Replay(path, SMALL) as replay:
        with replay.table("steps").writer() as writer:
            writer.begin({"count": 0, "place": np.zeros(2, np.float32)})
            writer.append(1, 2.0, {"count": 1, "place": np.ones(2, np.float32)}, terminated=True, extras={"log_prob": 0.0})
        assert replay.table("steps").stats().next_position == 21
    with Replay(path, SMALL) as replay:
        assert replay.table("steps").read_episode(3)["observation"]["count"].tolist() == [0, 1]
        assert replay.table("steps").read_episode(2)["action"].tolist() == [0, 1, 2, 0, 1]


def test_golden_store_of_version_2_has_its_deletions_its_compacted_segment_and_its_states(tmp_path):
    """The history of store_builders, chunks 0 to 10 of 2000 bytes, three a segment: episode 0 is deleted, segment 0 removed,
    segment 3 compacted to chunk 4."""
    path = tmp_path / "store"
    shutil.copytree(GOLDEN / "store_v2", path)
    assert [segment.name[-3:] for segment in sorted(path.glob("tables/t/seg-*"))] == ["3.1", "006", "009"]
    assert b'"format": 2, "min_reader": 2' in (path / "FORMAT").read_bytes()
    store = open_store(path)
    table = store.tables()["t"]
    loaded = table.load()
    live = [4, 6, 7, 8, 9, 10]
    assert loaded.index.tolist() == [index(k, k + 1, 2000).tolist()[0] for k in live]
    assert table.read(np.arange(11)) == [chunk(k, 2000) if k in live else None for k in range(11)]
    assert loaded.episodes == [entry(1), entry(2), entry(3)]
    assert (loaded.sessions, loaded.deleted.tolist()) == ({SESSION: 10}, [0])
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (11, 44, 4)
    assert (table.quarantined_segments, table.damaged_records) == (0, 0)
    assert {name: table.read_state(name) for name in table.state_names()} == {
        "priorities": b"of a sampler",
        "queue": b"of another",
    }
    append(table, 11, 13, size=2000)
    store.close()


@pytest.mark.parametrize("name", ["store_v1", "store_v2"])
def test_golden_store_itself_was_not_opened(name):
    """Opening leaves a lock behind, and directories that git does not keep."""
    names = {file.relative_to(GOLDEN / name).parts[0] for file in (GOLDEN / name).rglob("*")}
    assert names == {"FORMAT", "params", "tables"}
    assert not list((GOLDEN / name).rglob("lock.mdb"))
