"""A small share of `many_clients`, and that it can fail: each of its checks is shown something that is wrong."""

import pytest

from replay_client import TableConfig
from tests.torture.many_clients import run
from tests.torture.many_clients_checks import Plan, Watched, check_clients, check_learners, check_server, check_stored
from tests.torture.many_clients_roles import SIGNATURE, TABLE, ClientCount, LearnerCount
from tests.torture.report import Report


def test_32_clients_are_served_alike_while_2_learners_sample(tmp_path):
    report = Report("many_clients", 0)
    run(Plan(seconds=10, clients=32, learners=2, processes=2, steps_per_s=50.0), tmp_path, report)
    assert report.violations == []
    assert (report.counts["clients"], report.counts["learners"]) == (32, 2)
    assert report.counts["acknowledged_steps"] > 32 * 5 * 50
    assert report.counts["transitions"] > 0


def test_nobody_notices_clients_that_are_stopped_and_a_learner_that_never_reads(tmp_path):
    report = Report("many_clients", 0)
    plan = Plan(
        seconds=6, clients=16, learners=1, processes=4, steps_per_s=50.0, stop_actors=1, stopped_s=2.0, slow_learner=True
    )
    run(plan, tmp_path, report)
    assert report.violations == []
    assert report.counts["clients"] == 16


def counted(client, rate, seconds=20, gap_s=1.0, errors=()):
    """Returns what a client with so many steps a second saw, from time 0 on."""
    at = [(float(t), rate * t) for t in range(1, seconds + 1)]
    steps = rate * seconds
    return ClientCount(
        client,
        appended=steps,
        acknowledged=steps,
        longest_gap_s=gap_s,
        gap_at_s=5.0,
        last_s=at[-1][0],
        errors=list(errors),
        at=at,
    )


def violations_of(check, *arguments):
    report = Report("many_clients", 0)
    check(*arguments, report)
    return report.violations


ALIKE = [counted(client, 10) for client in range(8)]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (counted(8, 4), "client 8: 4.0 steps/s acknowledged"),
        (counted(8, 30), "client 8: 30.0 steps/s acknowledged"),
        (counted(8, 10, gap_s=10.5), "client 8: nothing acknowledged for 10.5 s, until 5 s"),
        (counted(8, 10, errors=["client 8: Traceback"]), "client 8: Traceback"),
    ],
    ids=["too slow", "too fast", "starved", "an exception"],
)
def test_client_that_fares_otherwise_is_a_violation(odd, words):
    plan = Plan(seconds=20)
    assert violations_of(check_clients, plan, ALIKE, set(), 0.0, 20.0) == []
    (found,) = violations_of(check_clients, plan, [*ALIKE, odd], set(), 0.0, 20.0)
    assert words in found


def test_client_that_was_stopped_may_be_slow_but_must_get_all_of_its_steps_stored():
    stopped = counted(8, 1, gap_s=65.0)
    assert violations_of(check_clients, Plan(seconds=20), [*ALIKE, stopped], {8}, 0.0, 20.0) == []
    stopped.appended += 1
    (found,) = violations_of(check_clients, Plan(seconds=20), [*ALIKE, stopped], {8}, 0.0, 20.0)
    assert found == "client 8: 21 appended, 20 acknowledged"


def test_learner_without_batches_or_with_wrong_ones_is_a_violation():
    assert violations_of(check_learners, [LearnerCount(batches=1)]) == []
    assert len(violations_of(check_learners, [LearnerCount(), LearnerCount(batches=1, wrong=2)])) == 2


MEMORY = "2026-01-01 00:00:00,000 INFO replaysvc memory: at most 120 MiB = caches 48 + queue 64 + the rest\n"


def watched(mib=lambda t: 100.0, files=lambda t: 300, threads=lambda t: 80):
    times = range(600)
    return Watched([float(t) for t in times], *([look(t) for t in times] for look in (mib, files, threads)))


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (watched(mib=lambda t: 130.0 if t == 40 else 100.0), "at most 120 MiB"),
        (watched(mib=lambda t: 80 + t * 1.2 / 60), "rises by at most 1 MiB a minute, found 1.20"),
        (watched(files=lambda t: 700 if t == 40 else 300), "open files, found 700"),
        (watched(files=lambda t: 280 + t // 10), "no more open files at the end"),
        (watched(threads=lambda t: 500 if t == 40 else 80), "threads, found 500"),
        (watched(threads=lambda t: 80 + t // 10), "no more threads at the end"),
    ],
    ids=["memory", "a slope", "files", "more files", "threads", "more threads"],
)
def test_server_that_takes_more_is_a_violation(seen, words):
    log = MEMORY
    assert violations_of(check_server, Plan(seconds=600), watched(), log) == []
    (found,) = violations_of(check_server, Plan(seconds=600), seen, log)
    assert words in found


def test_server_that_prints_no_bound_is_a_violation():
    (found,) = violations_of(check_server, Plan(seconds=600), watched(), "")
    assert "at most 0 MiB" in found


def test_error_in_the_servers_log_is_a_violation():
    line = "2026-01-01 00:00:00,000 ERROR replaysvc: no\n"
    (found,) = violations_of(check_server, Plan(seconds=600), watched(), MEMORY + line)
    assert found == "the server's log: 2026-01-01 00:00:00,000 ERROR replaysvc: no"


@pytest.mark.parametrize("harm", ["none", "an episode gone", "an episode twice", "a step too few"])
def test_steps_that_are_missing_or_doubled_are_violations(replay, harm):
    table = replay.create_table(TABLE, SIGNATURE, TableConfig())
    count = counted(3, 1, seconds=6)
    with table.writer(actor="client-3") as writer:
        for before in (0, 2, 4, *((4,) if harm == "an episode twice" else ())):
            writer.begin([3, before, 0, 0, 0, 0, 0, 0], metadata={"before": before})
            for step in (before + 1, before + 2):
                writer.append([0.0, 0.0], 0.0, [3, step, 0, 0, 0, 0, 0, 0], truncated=step == before + 2)
    if harm == "an episode gone":
        table.delete_episodes([table.episodes()[1].episode_id])
    if harm == "a step too few":
        count.acknowledged += 1
    found = violations_of(check_stored, table, [count], "here")
    assert bool(found) == (harm != "none"), found
