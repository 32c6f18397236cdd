"""Who writes to a table, and when it was last heard of, by a clock that is set by hand."""

import pytest

from replaysvc.replay import Replay
from replaysvc.storage import System
from replaysvc.table import actors
from tests.builders import SCALARS, write_episode, write_episodes


class Clock(System):
    now = 50.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(tmp_path, clock):
    with Replay(tmp_path / "store", system=clock) as replay:
        yield replay.create_table("t", SCALARS)


def seen(table):
    return {view.name: view for view in table._engine.actors.seen()}


def test_nobody_wrote_to_a_new_table(table):
    assert seen(table) == {}


def test_an_actor_has_its_steps_its_ended_and_its_open_episodes(table):
    with table.writer("a") as writer, table.writer("b") as other:
        write_episode(writer, 3)
        write_episode(writer, 4, end="truncated")
        write_episode(writer, 2, end="open")
        writer.flush()
        write_episode(other, 1)
        other.flush()
        found = seen(table)
        assert (found["a"].steps, found["a"].episodes, found["a"].open_episodes, found["a"].sessions) == (9, 2, 1, 1)
        assert (found["b"].steps, found["b"].episodes, found["b"].open_episodes, found["b"].sessions) == (1, 1, 0, 1)


def test_writers_of_one_actor_count_together(table):
    write_episodes(table, [2], actor="a")
    write_episodes(table, [3], actor="a")
    assert (seen(table)["a"].steps, seen(table)["a"].sessions) == (5, 2)


def test_a_writer_without_a_name_counts_under_the_empty_one(table):
    write_episodes(table, [2])
    assert seen(table)[""].steps == 2


def test_the_newest_policy_version_is_told(table):
    with table.writer("a") as writer:
        writer.flush()
        assert seen(table)["a"].policy_version == -1
        for version in (7, 3):
            write_episode(writer, 1, policy_version=version)
            writer.flush()
            assert seen(table)["a"].policy_version == 7


def test_an_actor_is_heard_of_by_steps_and_by_signs_of_life(table, clock):
    engine = table._engine
    engine.open_session(b"s" * 16, "a")
    clock.now = 60.0
    assert seen(table)["a"].last_seen_s == 10.0
    engine.renew(b"s" * 16, [])
    clock.now = 63.0
    assert seen(table)["a"].last_seen_s == 3.0
    write_episodes(table, [1], actor="a")
    assert seen(table)["a"].last_seen_s == 0.0
    engine.renew(b"t" * 16, [])  # of whom nothing is known
    assert list(seen(table)) == ["a"]


def test_the_last_heard_of_comes_first(table):
    for actor in ("a", "b", "c", "a"):
        write_episodes(table, [1], actor=actor)
    assert list(seen(table)) == ["a", "c", "b"]


def test_those_not_heard_of_for_longest_are_forgotten(table, monkeypatch):
    monkeypatch.setattr(actors, "_MOST_ACTORS", 2)
    monkeypatch.setattr(actors, "_MOST_SESSIONS", 2)
    for actor in ("a", "b", "a", "c"):
        write_episodes(table, [1], actor=actor)
    assert list(seen(table)) == ["c", "a"]
    assert len(table._engine.actors._actor_of) == 2


def test_an_episode_that_the_service_ended_is_open_no_more(tmp_path):
    with Replay(tmp_path / "store") as replay:
        table = replay.create_table("t", SCALARS)
        writer = table.writer("a", epoch=1)
        write_episode(writer, 2, end="open")
        writer.flush()
        assert seen(table)["a"].open_episodes == 1
        table.writer("a", epoch=2)
        assert (seen(table)["a"].open_episodes, seen(table)["a"].episodes, seen(table)["a"].sessions) == (0, 0, 2)


def test_open_episodes_are_known_after_a_restart_once_their_actor_is_heard_of(tmp_path):
    with Replay(tmp_path / "store") as replay:
        writer = replay.create_table("t", SCALARS).writer("a")
        write_episode(writer, 2, end="open")
        writer.flush()
    with Replay(tmp_path / "store") as replay:
        table = replay.table("t")
        assert seen(table) == {}
        write_episodes(table, [1], actor="a")
        assert (seen(table)["a"].open_episodes, seen(table)["a"].steps) == (1, 1)
