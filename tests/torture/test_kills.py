"""The kill loop and the crash points in small, and whether the loop can fail at all."""

import itertools
import re

import numpy as np
import pytest

from replaysvc.replay import Replay
from replaysvc.storage import CRASH_POINTS
from tests.torture import kills, points
from tests.torture.cast import Numbers, steps_of
from tests.torture.oracle import SIGNATURE, BatchCheck, Findings, Keeps, Log, Oracle, check_table


@pytest.fixture
def report():
    return Findings("kills", 5)


def test_service_killed_at_random_moments_loses_nothing_and_stores_nothing_twice(tmp_path, report):
    kills.run(tmp_path, report, count=12, longest_s=1.2)
    assert report.violations == []
    counts = report.counts
    assert (counts["kills"], counts["generations"]) == (12, 1)
    assert counts["lives looked at"] >= 3  # one look may last for several lives
    assert counts["duplicates that the server skipped"] > 0
    for seen in ("steps compared", "sampled items checked", "episodes deleted", "tables made and deleted"):
        assert counts[seen] > 0, seen


@pytest.mark.parametrize(
    "guard, sentence",
    [
        ("dedupe", r"stored twice|chunk \d+ was sent"),
        ("acknowledge", r"acknowledged|\d+ were written"),
    ],  # by whom it is noticed first
)
def test_loop_notices_a_service_without_its_guard(tmp_path, report, guard, sentence):
    kills.run(tmp_path, report, count=8, broken=guard, longest_s=1.0)
    assert [found for found in report.violations if re.search(sentence, found)]


def test_service_ended_at_each_crash_point_in_turn_loses_nothing(tmp_path, report):
    points.drive_points(tmp_path, report, visits=0)
    assert report.violations == []
    assert report.counts["ends at a crash point"] == len(CRASH_POINTS)


def test_service_ended_once_at_a_crash_point_loses_nothing(tmp_path, report):
    """At one visit of some points; `kills --points` takes all of them."""
    points.drive_points(tmp_path, report, visits=1, points=CRASH_POINTS[:: len(CRASH_POINTS) // 4])
    assert report.violations == []
    assert report.counts["ends at a crash point"] >= 4


def test_crash_point_that_nothing_comes_to_is_a_violation(tmp_path, report):
    points.drive_points(tmp_path, report, visits=1, points=("params.written", "moon.landed"))
    assert report.violations == ["crash point moon.landed: nothing in tests/torture/points.py comes to it"]


class _World:
    """A table of two actors' episodes, and an oracle of them that tests bend."""

    def __init__(self, path, report):
        self.report = report
        (path / "oracle").mkdir()
        self.log = Log(path / "oracle" / "actor-1.log")
        self.numbers = Numbers(1, ["keep"], self.log)
        self.oracle = Oracle(path / "oracle")
        self.replay = Replay(path / "store")
        self.table = self.replay.create_table("keep", SIGNATURE)
        self.lengths = itertools.cycle((5, 9, 3))

    def write(self, episodes, *, acknowledge=True, intend=True, change=None):
        with self.table.writer(actor="1") as writer:
            for length in itertools.islice(self.lengths, episodes):
                rows, names = self.numbers.intend("keep", length)
                if not intend:
                    continue
                rows = rows if change is None else change(rows.copy())
                writer.begin(rows[0], metadata=names)
                for t, (action, reward, after) in enumerate(steps_of(rows)):
                    writer.append(action, reward, after, terminated=t == length - 1)
        if acknowledge:
            self.numbers.acknowledge("keep", self.numbers.upto["keep"])

    def check(self, keeps=Keeps.ALL, **options):
        options = {"quiet": True, "rng": np.random.default_rng(0)} | options
        check_table(self.table, self.oracle, self.report, keeps, where="here", **options)
        return self.report.violations


@pytest.fixture
def world(tmp_path, report):
    world = _World(tmp_path, report)
    yield world
    world.replay.close()


def test_oracle_is_content_with_what_was_written(world):
    world.write(6)
    assert world.check() == []
    assert world.report.counts["steps compared"] == 34


def test_oracle_misses_an_acknowledged_episode_at_the_end(world):
    world.write(3)
    world.write(1, intend=False)
    assert world.check() == ["here: actor 1: 22 steps are acknowledged, the last one stored is 16"]


def test_oracle_misses_an_acknowledged_episode_in_the_middle(world):
    world.write(2)
    world.write(1, intend=False)
    world.write(1)
    assert world.check() == ["here: actor 1: steps [14, 17) are missing, 22 are acknowledged"]


def test_oracle_does_not_ask_for_what_was_not_acknowledged(world):
    world.write(3)
    world.write(1, intend=False, acknowledge=False)
    assert world.check() == []


def test_oracle_finds_an_episode_that_is_stored_twice(world):
    world.write(2)
    world.numbers.upto["keep"], world.numbers._episode = 5, 1
    world.lengths = iter((9,))
    world.write(1)
    assert "here: episode 1 of actor 1 is stored twice" in world.check()


def test_oracle_finds_a_changed_value(world):
    def change(rows):
        rows[2, 30] ^= 1
        return rows

    world.write(1, change=change)
    assert [found.partition(": ")[2] for found in world.check()] == ["episode 0 (0 of actor 1): observations differ"]


def test_oracle_finds_a_deleted_episode_that_is_back(world):
    world.write(2)
    world.log.write(kind="deleting", table="keep", ids=[1], names=[(1, 1)])
    assert world.check() == []
    world.log.write(kind="deleted", table="keep", ids=[1])
    assert world.check() == ["here: deleted episodes are back: [1]"]


def test_oracle_lets_a_bounded_table_forget_the_oldest_but_no_others(world):
    world.write(3)
    world.table.delete_episodes([0])
    assert world.check(Keeps.NEWEST) == []
    assert world.check(Keeps.ALL) == ["here: actor 1: acknowledged steps before 5 are missing"]
    world.report.violations.clear()
    world.write(1)
    world.table.delete_episodes([2])
    assert world.check(Keeps.NEWEST) == ["here: actor 1: steps [14, 17) are missing, 22 are acknowledged"]


def test_mixed_rows_in_a_batch_are_found(world):
    world.write(6)
    batch = world.table.sample(32, seed=1)
    check = BatchCheck(world.report)
    check.transitions(batch, 1, 0.99)
    assert world.report.violations == []
    batch.next_observation[3] = batch.next_observation[3] ^ 1
    check.transitions(batch, 1, 0.99)
    assert any("a row that nobody wrote" in found for found in world.report.violations)
    world.report.violations.clear()
    batch = world.table.sample(32, seed=2)
    batch.observation[:] = np.roll(batch.observation, 1, axis=0)
    BatchCheck(world.report).transitions(batch, 1, 0.99)
    assert any("rows of two episodes" in found for found in world.report.violations)


def test_name_of_an_item_that_changes_its_meaning_is_found(world):
    world.write(6)
    check = BatchCheck(world.report)
    first, second = world.table.sample(1, seed=1), world.table.sample(1, seed=2)
    check.transitions(first, 1, 0.99)
    second.positions[:] = first.positions
    check.transitions(second, 1, 0.99)
    assert [found for found in world.report.violations if found.startswith("position ")]
