"""A small share of `hostile`, and that it can fail: without the guards of admission, and shown figures that are wrong."""

import pytest

from tests.torture.hostile import Looks, Plan, check_server, check_timings, run
from tests.torture.hostile_roles import HOSTILE, Timings
from tests.torture.report import Report


def test_good_clients_hardly_notice_hostile_ones_of_every_kind(tmp_path):
    report = Report("hostile", 0)
    run(Plan(seconds=6.0, scale=0.25), tmp_path, report)
    assert report.violations == []
    assert report.counts["appends beside hostile clients"] > 0
    assert report.counts["samples beside hostile clients"] > 0
    assert {kind.split(":")[0] for kind in report.counts} >= {
        "calls without a body", "bodies that drip", "answers that nobody reads", "connections of garbage",
        "silent connections", "corrupt requests", "wrong tokens",
    }  # fmt: skip


def test_absence_of_the_guards_is_noticed(tmp_path):
    """Calls without a body, on 32 connections, take all workers of a server that lets them."""
    report = Report("hostile", 0)
    run(Plan(seconds=6.0, scale=4.0, kinds=("without_body",), unguarded=True), tmp_path, report)
    assert any(violation.startswith("sample: ") for violation in report.violations)


def test_every_kind_of_hostile_client_has_a_name_to_ask_for():
    assert set(Plan().kinds) == set(HOSTILE)


SPANS = {"alone": (0.0, 10.0), "beside busy processes": (10.0, 20.0), "beside hostile clients": (20.0, 30.0)}


def timings(seconds, errors=()):
    calls = [(at / 10, 0.01 if at < 200 else seconds) for at in range(300)]
    return Timings({"append": calls, "sample": [(at, 0.01) for at, _ in calls]}, list(errors))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (timings(0.6), "append: expected 99 of 100 within 0.500 s beside hostile clients, found 0.600 s"),
        (timings(0.01, ["append: UnavailableError: gone"]), "a good client saw append: UnavailableError: gone"),
        (Timings(), "append: none was answered alone"),
    ],
)
def test_what_good_clients_notice_is_a_violation(found, words):
    report = Report("hostile", 0)
    check_timings(found, SPANS, report)
    assert words in report.violations


def test_good_clients_that_notice_nothing_are_none():
    report = Report("hostile", 0)
    check_timings(timings(0.4), SPANS, report)
    assert report.violations == []


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        (Looks([10.0, 501.0], [20], [30]), "server: 501 MiB of anonymous memory, expected at most 500"),
        (Looks([10.0], [100_000], [30]), "server: 100000 open files"),
        (Looks([10.0], [20], [1000]), "server: 1000 threads"),
    ],
)
def test_server_that_takes_too_much_is_a_violation(looks, words):
    report = Report("hostile", 0)
    check_server(looks, "INFO memory: at most 500 MiB = caches 1", report)
    assert len(report.violations) == 1
    assert report.violations[0].startswith(words)
