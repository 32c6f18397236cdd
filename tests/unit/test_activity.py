"""Calls and learners as an Activity counts them, with a clock that is set by hand."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from replaysvc.activity import OTHER, Activity, new_request_id, request_id, request_id_of
from replaysvc.histogram import SECONDS


class Clock:
    """A clock that stands still."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def activity(clock):
    return Activity(clock)


def sample(activity, *, name="a", items=100, seconds=0.1, waited_s=0.0, wait="", **options):
    activity.sampled(name, "t", "uniform", items, seconds, waited_s, wait, **options)


def only(activity):
    (learner,) = activity.learners()
    return learner


def test_calls_are_counted_by_method_and_code(activity):
    activity.call("Sample", "OK", 0.002, 100, 5000)
    activity.call("Sample", "OK", 0.2, 100, 7000)
    activity.call("Sample", "NOT_FOUND", 0.0, 10, 0)
    calls = activity.calls()
    assert {key: sum(view.counts) for key, view in calls.seconds.items()} == {("Sample", "OK"): 2, ("Sample", "NOT_FOUND"): 1}
    view = calls.seconds["Sample", "OK"]
    assert view.bounds == SECONDS
    assert view.total == pytest.approx(0.202)
    assert [SECONDS[i] for i, count in enumerate(view.counts[:-1]) if count] == [0.002, 0.2]
    assert (calls.received_bytes, calls.sent_bytes) == (210, 12000)


def test_waits_are_counted_apart_from_errors_of_the_same_code(activity):
    activity.call("Sample", "FAILED_PRECONDITION", 1.0, 10, 0, wait=True)
    activity.call("Sample", "FAILED_PRECONDITION", 1.0, 10, 0, wait=True)
    activity.call("Sample", "FAILED_PRECONDITION", 0.0, 10, 0)
    activity.call("Append", "OK", 0.1, 10, 0)
    before = activity.calls()
    assert {key: sum(view.counts) for key, view in before.seconds.items()} == {
        ("Sample", "FAILED_PRECONDITION"): 3, ("Append", "OK"): 1,
    }  # fmt: skip
    assert before.waits == {"Sample": 2}
    activity.call("Sample", "FAILED_PRECONDITION", 1.0, 10, 0, wait=True)
    assert (before.waits, activity.calls().waits) == ({"Sample": 2}, {"Sample": 3})


def test_names_of_methods_that_do_not_exist_share_one_count(activity):
    for number in range(100):
        activity.call(f"/some.Service/Method{number}", "UNIMPLEMENTED", 0.0, 0, 0, 0.0)
    assert [(key, sum(view.counts)) for key, view in activity.calls().seconds.items()] == [((OTHER, "UNIMPLEMENTED"), 100)]
    assert [(method, sum(view.counts)) for method, view in activity.answers().items()] == [(OTHER, 100)]


def test_what_was_told_does_not_change_afterwards(activity):
    activity.call("Sample", "OK", 0.1, 1, 1)
    activity.refused("UNAUTHENTICATED")
    before = activity.calls()
    activity.call("Sample", "OK", 0.1, 1, 1)
    activity.refused("UNAUTHENTICATED")
    assert sum(before.seconds["Sample", "OK"].counts) == 1
    assert before.refused == {"UNAUTHENTICATED": 1}
    assert activity.calls().refused == {"UNAUTHENTICATED": 2}


def test_rates_are_of_the_last_minute_and_sums_of_all(activity, clock):
    sample(activity, items=6000)
    clock.now += 300  # 1300 begins a slot of 5 s: what counts came since 1245
    for _ in range(11):
        sample(activity, items=200, seconds=0.5, batches=2)
        clock.now += 5.0
    learner = only(activity)  # at 1355, of which slots the oldest of the last twelve began at 1300
    assert (learner.name, learner.table, learner.sampler) == ("a", "t", "uniform")
    assert (learner.items, learner.batches) == (8200, 23)
    assert learner.items_per_s == pytest.approx(2200 / 55)
    assert learner.batches_per_s == pytest.approx(22 / 55)
    assert learner.mean_s == pytest.approx(5.5 / 22)
    assert learner.last_seen_s == 5.0


def test_rates_fall_to_zero_a_minute_after_the_last_batch(activity, clock):
    sample(activity)
    clock.now += 61
    learner = only(activity)
    assert (learner.items, learner.items_per_s, learner.batches_per_s, learner.mean_s) == (100, 0.0, 0.0, 0.0)
    assert learner.last_seen_s == 61.0


def test_rate_of_a_new_learner_is_of_the_time_since_it_came(activity, clock):
    sample(activity, seconds=0.5)  # so it came half a second ago
    clock.now += 9.5
    sample(activity)
    assert only(activity).items_per_s == pytest.approx(20.0)


def test_all_batches_of_a_moment_count(activity, clock):
    for _ in range(100):
        sample(activity, items=1, seconds=0.0)
    clock.now += 2.0
    assert only(activity).items_per_s == pytest.approx(50.0)


def test_first_batch_of_a_learner_is_no_storm(activity):
    sample(activity, items=256, seconds=0.001)
    assert only(activity).items_per_s == pytest.approx(256.0)


def test_learner_that_waits_counts_no_batch_and_says_why(activity, clock):
    clock.now = 1001.0
    sample(activity, items=0, seconds=1.0, waited_s=1.0, wait="3,200 of 10,000 steps")
    clock.now = 1002.0
    sample(activity, items=0, seconds=1.0, waited_s=1.0, wait="3,900 of 10,000 steps")
    clock.now = 1004.0
    learner = only(activity)
    assert (learner.items, learner.batches, learner.mean_s) == (0, 0, 0.0)
    assert learner.last_wait == "3,900 of 10,000 steps"
    assert learner.waited_share == pytest.approx(2 / 4)
    sample(activity, seconds=0.1)
    assert only(activity).last_wait == "3,900 of 10,000 steps"


def test_time_of_a_batch_is_without_its_wait(activity):
    sample(activity, seconds=0.75, waited_s=0.5)
    assert only(activity).mean_s == pytest.approx(0.25)


def test_several_calls_at_once_wait_for_their_share_of_all_their_time(activity, clock):
    clock.now += 2.0
    for _ in range(4):  # at once, since 1000
        sample(activity, seconds=2.0, waited_s=0.5)
    assert only(activity).waited_share == pytest.approx(0.25)
    for _ in range(4):
        sample(activity, seconds=2.0, waited_s=2.0)
    assert only(activity).waited_share == pytest.approx(10 / 16)


@pytest.fixture
def hasty():
    """Threads that take turns all the time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_what_many_threads_note_is_counted_to_the_last(activity, hasty):
    def note():
        for _ in range(1000):
            activity.call("Sample", "OK", 0.25, 1, 2, 0.5)
            sample(activity, items=3, seconds=0.25)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(note) for _ in range(4)]:
            done.result()
    calls = activity.calls()
    assert (sum(calls.seconds["Sample", "OK"].counts), calls.received_bytes, calls.sent_bytes) == (4000, 4000, 8000)
    assert activity.answers()["Sample"].total == 2000.0
    assert (only(activity).items, only(activity).batches) == (12_000, 4000)


def test_notes_that_nobody_looks_at_do_not_gather(activity):
    for _ in range(1000):
        activity.call("Sample", "OK", 0.25, 1, 2)
        sample(activity)
    assert len(activity._calls) < 64
    assert len(activity._draws) < 64


def test_same_name_at_other_tables_and_samplers_is_another_learner(activity):
    for key in (("a", "t", "uniform"), ("a", "t", "per"), ("a", "u", "uniform"), ("b", "t", "uniform")):
        activity.sampled(*key, 1, 0.1, 0.0)
    found = activity.learners()
    assert [(learner.name, learner.table, learner.sampler) for learner in found] == [
        ("b", "t", "uniform"), ("a", "u", "uniform"), ("a", "t", "per"), ("a", "t", "uniform"),
    ]  # fmt: skip


def test_the_learners_that_were_not_seen_for_longest_are_forgotten(activity):
    sample(activity, name="first")
    sample(activity, name="second")
    for number in range(1022):
        sample(activity, name=str(number))
    sample(activity, name="first")
    sample(activity, name="one more")
    names = {learner.name for learner in activity.learners()}
    assert len(names) == 1024
    assert "first" in names
    assert "second" not in names


@pytest.mark.parametrize("asked", ["a", "run-7.step_3", "A" * 64])
def test_callers_name_their_calls(asked):
    assert request_id_of(asked) == asked


@pytest.mark.parametrize("asked", [None, "", "A" * 65, "two words", "line\nbreak", "a\n", "grün", b"bytes", '"'])
def test_names_that_do_not_belong_in_a_log_are_replaced(asked):
    assert re.fullmatch("[0-9a-f]{12}", request_id_of(asked))


def test_new_names_differ_and_outside_of_calls_there_is_none():
    assert len({new_request_id() for _ in range(100)}) == 100
    assert request_id.get() == ""
