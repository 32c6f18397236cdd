"""What the doors tell of a store: one verdict, shared for a second."""

import pytest

from replaysvc import Limiter, TableConfig
from replaysvc.activity import Activity
from replaysvc.errors import NotFoundError
from replaysvc.health import Health
from replaysvc.storage import System
from replaysvc.views import Verdict
from tests.builders import SCALARS, make_table, write_episodes


@pytest.fixture
def health(replay, clock):
    """One that looks when it is told to."""
    return Health(replay, Activity(clock), wall=clock, monotonic=clock)


def test_tables_have_the_rates_of_the_last_looks(replay, health, clock):
    table = make_table(replay)
    health.watch.look()
    clock.now += 2.0
    write_episodes(table, [6])
    health.watch.look()
    (seen,) = health.tables()
    assert (seen.stats.steps, seen.steps_in_per_s, seen.items_out_per_s) == (6, 3.0, 0.0)


def test_what_was_made_within_a_second_is_shared(replay, health, clock):
    assert health.verdict() is health.verdict()
    first = health.actors()
    assert health.actors() is first
    clock.now += 1.0
    assert health.actors() is not first


def test_activity_is_that_of_now_with_states_verdict_and_disk(replay, health):
    table = make_table(replay)
    write_episodes(table, [3], actor="a")
    assert health.activity().actors["t"][0].steps == 3
    write_episodes(table, [4], actor="a")
    told = health.activity()  # within the same second
    assert [(seen.steps, seen.state) for seen in told.actors["t"] if seen.name == "a"] == [(7, "idle")]
    assert (told.verdict.status, told.disk.days_left) == ("ok", None)
    assert told.disk.view.total_bytes > told.disk.view.free_bytes > 0


def test_verdict_in_the_activity_of_a_table_is_that_of_this_table(replay, clock):
    activity = Activity(clock)
    health = Health(replay, activity, wall=clock, monotonic=clock)
    for name in ("t", "u"):
        replay.create_table(name, SCALARS, TableConfig(limiter=Limiter(min_steps=10)))
    activity.sampled("l", "u", "uniform", 0, 0.9, 0.9, "0 of 10 steps")
    starved = "table u: samplers wait: 0 of 10 steps, and nobody writes; start actors, or change the limiter"
    for told in (health.activity(), health.activity("u")):
        assert [(reason.table, reason.sentence) for reason in told.verdict.reasons] == [("u", starved)]
        assert [learner.state for learner in told.learners] == ["waiting"]
    assert health.activity("t").verdict == Verdict(status="ok")
    assert health.activity("t").learners == ()
    with pytest.raises(NotFoundError):
        health.activity("absent")


def test_disk_that_cannot_be_asked_is_a_warning_that_is_logged_once(replay, health, clock, monkeypatch, caplog):
    def fail(self, path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(System, "free_bytes", fail)
    for _ in range(3):
        clock.now += 2.0
        told = health.activity()
        assert told.disk is None
        assert [(reason.level, reason.table) for reason in told.verdict.reasons] == [("warning", None)]
    assert caplog.text.count("its file system cannot be asked") == 1
