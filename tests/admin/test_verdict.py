"""Whether all is well, and what to do if not."""

import pytest

from replaysvc.admin.verdict import verdict
from replaysvc.views import BacklogView, DiskView

MIB = 1 << 20
ROW = {
    "name": "t", "fault": "", "sampling_waits_for": "", "inserting_waits_for": "", "waiting": {"insert": 0, "sample": 0},
    "steps_in_per_s": 0.0, "items_out_per_s": 0.0, "quarantined_chunks": 0, "quarantined_segments": 0, "lost_segments": 0,
    "cache_hit_share": 0.01,
}  # fmt: skip
DISK = {"used_bytes": 1, "free_bytes": 10_000 * MIB, "total_bytes": 20_000 * MIB, "reserve_bytes": 256 * MIB, "refuses": False}
BACKLOG = {"requests": 1, "held_bytes": 1, "limit_bytes": 100, "oldest_s": 0.1}


def judged(row=None, *, status="serving", disk=None, left=None, backlog=None, actors=(), set_aside=()):
    found = verdict(
        status, [ROW | (row or {})],
        DiskView(**(DISK | (disk or {}))), left, BacklogView(**(BACKLOG | (backlog or {}))), actors,
        set_aside,
    )  # fmt: skip
    return found["status"], [(reason.level, reason.table, reason.sentence) for reason in found["reasons"]]


def test_all_is_well_though_the_cache_misses():
    assert judged() == ("ok", [])


def test_a_service_that_stops_is_draining_whatever_else():
    assert judged(status="draining") == ("draining", [])
    status, reasons = judged({"fault": "a write failed"}, status="draining")
    assert (status, len(reasons)) == ("draining", 1)


@pytest.mark.parametrize(
    ("given", "level", "table", "sentence"),
    [
        (
            {"row": {"fault": "a sync failed"}}, "failing", "t",
            "table t: it takes no more steps (a sync failed); start the service again",
        ),
        (
            {"row": {"sampling_waits_for": "3 of 10 steps", "waiting": {"insert": 0, "sample": 2}}}, "warning", "t",
            "table t: samplers wait: 3 of 10 steps, and nobody writes; start actors, or change the limiter",
        ),
        (
            {"row": {"inserting_waits_for": "limiter: x", "waiting": {"insert": 1, "sample": 0}}}, "warning", "t",
            "table t: writers wait: limiter: x, and nobody samples; start a learner, or change the limiter",
        ),
        (
            {"row": {"quarantined_chunks": 2, "quarantined_segments": 1}}, "warning", "t",
            "table t: 2 chunks and 1 segments were damaged and set aside; stop the service, run `replaysvc fsck --repair`, and "
            "look at the disk",
        ),
        (
            {"row": {"lost_segments": 1}}, "warning", "t",
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
            "the disk is full in 2.9 days at the growth of the last hour (10,000 MiB are free); give tables a capacity, or the "
            "store a larger disk",
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
def test_what_is_wrong_is_told_with_what_to_do(given, level, table, sentence):
    assert judged(**given) == (level, [(level, table, sentence)])


def test_limiter_at_its_work_is_no_fault():
    waits = {"sampling_waits_for": "3 of 10 steps", "inserting_waits_for": "limiter: x"}
    assert judged(waits) == ("ok", [])  # nobody wants anything
    both = waits | {"waiting": {"insert": 1, "sample": 1}, "steps_in_per_s": 1.0, "items_out_per_s": 1.0}
    assert judged(both) == ("ok", [])  # both sides go on


def test_bounds_themselves_are_well():
    assert judged(left=3.0)[0] == "ok"
    assert judged(disk={"free_bytes": 512 * MIB})[0] == "ok"
    assert judged(disk={"free_bytes": 0, "reserve_bytes": 0})[0] == "ok"
    assert judged(backlog={"oldest_s": 4.99, "held_bytes": 90})[0] == "ok"
    assert judged(backlog={"held_bytes": 5, "limit_bytes": 0})[0] == "ok"


def test_actors_in_trouble_are_named_up_to_three_of_a_kind():
    actors = [{"table": "t", "name": f"a{i}", "state": "stale", "sentence": "it is old"} for i in range(5)]
    actors += [{"table": "t", "name": "", "state": "lost", "sentence": "it is gone"}]
    actors += [
        {"table": "t", "name": "b", "state": "idle", "sentence": "x"},
        {"table": "t", "name": "c", "state": "writing", "sentence": "x"},
    ]
    assert judged(actors=actors) == (
        "warning",
        [
            ("warning", "t", "actor (no name): it is gone"), ("warning", "t", "actor a0: it is old"),
            ("warning", "t", "actor a1: it is old"), ("warning", "t", "actor a2: it is old"),
            ("warning", None, "2 more actors are stale; see the page of actors"),
        ],
    )  # fmt: skip


def test_what_fails_comes_first():
    status, reasons = judged({"fault": "x"}, left=1.0)
    assert (status, [level for level, _, _ in reasons]) == ("failing", ["failing", "warning"])
