"""Whether all is well, and what to do if not."""

from dataclasses import replace

import pytest

from replaysvc.health.participants import SeenActor
from replaysvc.health.verdict import Seen, SeenTable, of_table, verdict
from replaysvc.views import ActorView, BacklogView, DiskOutlook, DiskView, LearnerView, Reason, Verdict
from tests.builders import make_table

MIB = 1 << 20
DISK = {"used_bytes": 1, "free_bytes": 10_000 * MIB, "total_bytes": 20_000 * MIB, "reserve_bytes": 256 * MIB, "refuses": False}
BACKLOG = {"requests": 1, "held_bytes": 1, "limit_bytes": 100, "oldest_s": 0.1}


@pytest.fixture
def table(replay):
    """Returns a table `t` of ten steps with what is given of its counters, counts and rates."""
    stats = replace(make_table(replay, [10]).stats(), cache_hits_total=1, sampled_items_total=100)
    counts = replay.engine("t").counted()

    def make(*, why_inserting="", waiting=None, steps_in=0.0, items_out=0.0, name="t", **changes):
        counted = replace(counts, inserting_waits_for=why_inserting, waiting=waiting or {"insert": 0, "sample": 0})
        return SeenTable(replace(stats, name=name, **changes), counted, steps_in, items_out)

    return make


@pytest.fixture
def judged(table):
    """Returns the status and the reasons of what is given."""

    def make(given=None, *, status="serving", disk=None, left=None, backlog=None, actors=(), learners=(), set_aside=()):
        view = DiskView(**(DISK | (disk or {}))) if disk != "unknown" else None
        outlook = DiskOutlook(view=view, growth_bytes_per_day=None, days_left=left) if view is not None else None
        tables = [table(**(given or {}))]
        found = verdict(Seen(status, tables, outlook, BacklogView(**(BACKLOG | (backlog or {}))), actors, learners, set_aside))
        return found.status, [(reason.level, reason.table, reason.sentence) for reason in found.reasons]

    return make


def actor(name, state, sentence):
    view = ActorView(
        name=name, steps=1, episodes=1, open_episodes=0, sessions=1, policy_version=1, last_seen_s=1.0, state=state,
        sentence=sentence,
    )  # fmt: skip
    return SeenActor("t", view, 0.0, None)


def learner(name, state="waiting", table="t"):
    return LearnerView(
        name=name, table=table, sampler="uniform", items=1, batches=1, items_per_s=1.0, batches_per_s=1.0, mean_s=0.1,
        waited_share=0.9, last_wait="3 of 10 steps", last_seen_s=1.0, state=state,
        sentence="it waits 90% of the time: 3 of 10 steps",
    )  # fmt: skip


def test_all_is_well_though_the_cache_misses(judged):
    assert judged() == ("ok", [])


def test_a_service_that_stops_is_draining_whatever_else(judged):
    assert judged(status="draining") == ("draining", [])
    status, reasons = judged({"fault": "a write failed"}, status="draining")
    assert (status, len(reasons)) == ("draining", 1)


@pytest.mark.parametrize(
    ("given", "level", "about", "sentence"),
    [
        (
            {"given": {"fault": "a sync failed"}}, "failing", "t",
            "table t: it takes no more steps (a sync failed); start the service again",
        ),
        (
            {"given": {"waiting_for": "3 of 10 steps", "waiting": {"insert": 0, "sample": 2}}}, "warning", "t",
            "table t: samplers wait: 3 of 10 steps, and nobody writes; start actors, or change the limiter",
        ),
        (
            {"given": {"why_inserting": "limiter: x", "waiting": {"insert": 1, "sample": 0}}}, "warning", "t",
            "table t: writers wait: limiter: x, and nobody samples; start a learner, or change the limiter",
        ),
        (
            {"given": {"quarantined_chunks": 2, "quarantined_segments": 1}}, "warning", "t",
            "table t: 2 chunks and 1 segments were damaged and set aside; stop the service, run `replaysvc fsck --repair`, and "
            "look at the disk",
        ),
        (
            {"given": {"lost_segments": 1}}, "warning", "t",
            "table t: segments are missing at 1 places; restore a snapshot if you need their steps",
        ),
        (
            {"disk": {"free_bytes": 100 * MIB, "refuses": True}}, "failing", None,
            "the disk is full: 100 MiB are free, and appends are refused below 256 MiB; free space, lower a capacity, or "
            "delete episodes and compact",
        ),
        (
            {"disk": {"free_bytes": 511 * MIB}}, "warning", None,
            "the disk is nearly full: 511 MiB are free, and appends are refused below 256 MiB; free space, or lower a capacity",
        ),
        (
            {"left": 2.94}, "warning", None,
            "the disk is full in about 2.9 days at the growth of the last hour (10,000 MiB are free); give tables a "
            "capacity, or the store a larger disk",
        ),
        (
            {"backlog": {"oldest_s": 5.0}}, "warning", None,
            "writing stalls: a commit has been going on for 5 s; look at what else uses the disk, and at its health",
        ),
        (
            {"backlog": {"oldest_s": 30.0}}, "failing", None,
            "writing stalls: a commit has been going on for 30 s; look at what else uses the disk, and at its health",
        ),
        (
            {"backlog": {"held_bytes": 95}}, "warning", None,
            "the queue of commits is 95% full, and writers are told to come again; the disk is slower than the actors",
        ),
        (
            {"set_aside": ["a", "b"]}, "warning", None,
            "2 tables could not be loaded and were set aside (a, b); the log says why, and `replaysvc fsck --repair` brings "
            "back what is whole",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_to_do(judged, given, level, about, sentence):
    assert judged(**given) == (level, [(level, about, sentence)])


def test_limiter_at_its_work_is_no_fault(judged):
    waits = {"waiting_for": "3 of 10 steps", "why_inserting": "limiter: x"}
    assert judged(waits) == ("ok", [])  # nobody wants anything
    both = waits | {"waiting": {"insert": 1, "sample": 1}, "steps_in": 1.0, "items_out": 1.0}
    assert judged(both) == ("ok", [])  # both sides go on


def test_bounds_themselves_are_well(judged):
    assert judged(left=3.0)[0] == "ok"
    assert judged(disk={"free_bytes": 512 * MIB})[0] == "ok"
    assert judged(disk={"free_bytes": 0, "reserve_bytes": 0})[0] == "ok"
    assert judged(backlog={"oldest_s": 4.99, "held_bytes": 90})[0] == "ok"
    assert judged(backlog={"held_bytes": 5, "limit_bytes": 0})[0] == "ok"


def test_actors_in_trouble_are_named_up_to_three_of_a_kind(judged):
    actors = [actor(f"a{i}", "stale", "it is old") for i in range(5)]
    actors += [actor("", "lost", "it is gone"), actor("b", "idle", "x"), actor("c", "writing", "x")]
    assert judged(actors=actors) == (
        "warning",
        [
            ("warning", "t", "actor (no name): it is gone"), ("warning", "t", "actor a0: it is old"),
            ("warning", "t", "actor a1: it is old"), ("warning", "t", "actor a2: it is old"),
            ("warning", None, "2 more actors are stale"),
        ],
    )  # fmt: skip


def test_what_fails_comes_first(judged):
    status, reasons = judged({"fault": "x"}, left=1.0)
    assert (status, [level for level, _, _ in reasons]) == ("failing", ["failing", "warning"])


STARVED = (
    "learner l: it waits 90% of the time: 3 of 10 steps; it gets more if more is written, or if the limiter allows more "
    "samples per insert"
)


def test_learner_that_waits_while_somebody_writes_is_a_note_and_no_fault(judged):
    written = {"waiting_for": "3 of 10 steps", "steps_in": 5.0}
    assert judged(written, learners=[learner("l"), learner("m", "sampling")]) == ("ok", [("note", "t", STARVED)])


def test_learner_that_waits_while_nobody_writes_is_told_by_its_table(judged):
    """A learner that asks without waiting is not there at the moment of the look."""
    sentence = "table t: samplers wait: 3 of 10 steps, and nobody writes; start actors, or change the limiter"
    assert judged({"waiting_for": "3 of 10 steps"}, learners=[learner("l")]) == ("warning", [("warning", "t", sentence)])
    assert judged({"waiting_for": "3 of 10 steps"}, learners=[learner("l", "idle")]) == ("ok", [])


def test_waiting_learners_are_named_up_to_three_and_come_last(judged):
    learners = [learner(f"l{i}") for i in range(5)]
    status, reasons = judged({"steps_in": 1.0, "lost_segments": 1}, learners=learners)
    assert (status, [(level, table) for level, table, _ in reasons]) == (
        "warning", [("warning", "t"), ("note", "t"), ("note", "t"), ("note", "t"), ("note", None)]
    )  # fmt: skip
    assert reasons[-1][2] == "2 more learners wait"


def test_disk_that_cannot_be_asked_is_a_warning(judged):
    sentence = "the file system of the store cannot be asked how much is free; the log has the cause"
    assert judged(disk="unknown") == ("warning", [("warning", None, sentence)])


def test_verdict_of_one_table_leaves_out_the_others():
    of = (("failing", "u"), ("warning", None), ("note", "t"))
    reasons = [Reason(level=level, table=name, sentence="x") for level, name in of]
    whole = Verdict(status="failing", reasons=tuple(reasons))
    assert of_table(whole, "t") == Verdict(status="warning", reasons=(reasons[1], reasons[2]))
    assert of_table(whole, "u") == Verdict(status="failing", reasons=(reasons[0], reasons[1]))
    assert of_table(Verdict(status="draining", reasons=(reasons[0],)), "t") == Verdict(status="draining")
