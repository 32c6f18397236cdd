"""A small share of `hostile_admin`, and that it can fail: shown what must not be, and figures that are wrong."""

from dataclasses import replace

import pytest

from tests.torture.hostile_admin import Ended, Looks, Plan, check_honest, check_hostile, check_server, run
from tests.torture.hostile_admin_roles import HOSTILE, Answer, Found, Target, strangers
from tests.torture.report import Report

LOG = "INFO memory: at most 500 MiB = caches 1\nINFO serving\n"
LOOKS = Looks([100.0, 200.0], [30, 300], 90.0, 25, 210.0, 40)
SPANS = {"beside hostile clients": (0.0, 10.0)}


def test_honest_clients_are_served_beside_hostile_ones_of_every_kind(tmp_path):
    report = Report("hostile_admin", 0)
    run(Plan(seconds=3.0, scale=0.2), tmp_path, report)
    assert report.violations == []
    assert {kind.split(":")[0] for kind in report.counts} >= {
        "strangers", "other sites", "slow heads", "slow bodies", "endless chunks", "half-closed connections",
        "pipelined requests", "odd heads", "idle connections", "answers that nobody reads", "floods",
    }  # fmt: skip


def test_every_kind_of_hostile_client_takes_part():
    assert set(Plan().kinds) == set(HOSTILE)


def honest(seconds=0.1, **more):
    """Returns clients that noticed nothing: calls each 100 ms, of which those in `more` took longer."""
    took = {kind: [(at / 10, 0.1) for at in range(100)] for kind in ("page", "action", "probe", "sample")}
    return Found(took=took | more)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (honest(page=[(1.0, 21.0)]), "page: expected at most 20 s beside hostile clients, found 21.0 s"),
        (honest(action=[]), "action: none was answered beside hostile clients"),
        (honest(probe=[(1.0, 6.0)]), "probe: expected at most 5 s beside hostile clients, found 6.0 s"),
        (honest(sample=[(0.0, 0.1), (5.0, 0.1), (8.0, 0.1)]),
         "learner: expected a batch in 3 s beside hostile clients, found none for 5.0 s"),
        (replace(honest(), wrong=["the learner saw NotFoundError: gone"]), "the learner saw NotFoundError: gone"),
    ],
)  # fmt: skip
def test_what_honest_clients_notice_is_a_violation(found, words):
    report = Report("hostile_admin", 0)
    check_honest(found, SPANS, report)
    assert words in report.violations


def test_honest_clients_that_notice_nothing_are_none():
    report = Report("hostile_admin", 0)
    check_honest(honest(), SPANS, report)
    check_hostile([Found()], report)
    check_server(LOOKS, LOG, Ended(0, 2.0), report)
    assert report.violations == []


@pytest.mark.parametrize(
    ("looks", "log", "ended", "words"),
    [
        (replace(LOOKS, mib=[501.0]), LOG, Ended(0, 2.0), "server: 501 MiB of anonymous memory, expected at most 500"),
        (replace(LOOKS, mib_after=275.0), LOG, Ended(0, 2.0),
         "server: 275 MiB of anonymous memory afterwards, expected at most 274"),
        (replace(LOOKS, mib=[90.0, 100.0, 150.0, 165.0]), LOG, Ended(0, 2.0),
         "server: 65 MiB more in the last quarter than in the second, expected at most 64"),
        (replace(LOOKS, files=[848]), LOG, Ended(0, 2.0), "server: 848 open files, expected at most 847"),
        (replace(LOOKS, files_after=46), LOG, Ended(0, 2.0), "server: 46 open files afterwards, expected at most 45"),
        (LOOKS, LOG + "Traceback (most recent call last):", Ended(0, 2.0), "log: Traceback (most recent call last):"),
        (LOOKS, LOG, Ended(-9, 45.0), "server: ended with status -9 45.0 s after SIGTERM"),
        (LOOKS, LOG, Ended(0, 16.0), "server: ended with status 0 16.0 s after SIGTERM"),
    ],
)  # fmt: skip
def test_server_that_takes_keeps_or_tells_too_much_is_a_violation(looks, log, ended, words):
    report = Report("hostile_admin", 0)
    check_server(looks, log, ended, report)
    assert report.violations == [words]


@pytest.mark.parametrize(
    ("name", "method", "status", "is_wrong"),
    [
        ("overview", "GET", 200, True), ("overview", "GET", 401, False), ("overview", "GET", 404, True),
        ("scrub", "POST", 202, True), ("scrub", "POST", 401, False), ("index", "GET", 200, False), ("index", "GET", 401, True),
    ],
)  # fmt: skip
def test_page_that_lets_in_a_stranger_is_a_violation(monkeypatch, name, method, status, is_wrong):
    class Once:
        asked = False

        def is_set(self):
            self.asked, before = True, self.asked
            return before

    monkeypatch.setattr("tests.torture.hostile_admin_roles.ask", lambda *_, **__: Answer(status, {}, b""))
    found = Found()
    strangers(Target("", 0, {}, {}, [(name, method, "/")], seed=0), Once(), found)
    assert bool(found.wrong) == is_wrong
