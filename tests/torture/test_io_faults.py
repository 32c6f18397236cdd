"""I/O that fails, in small: `python -m tests.torture.io_faults` lets every call fail, one after the other."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.torture.io_faults import KINDS, sessions, sweep
from tests.torture.io_reopen import EPISODES, STEPS
from tests.torture.report import Report
from tests.torture.shim import Fault, environment, in_memory, library


@pytest.fixture(scope="module")
def ask():
    with in_memory("test-io-faults") as place, sessions(place / "session") as ask:
        yield ask


def test_a_session_without_a_fault_makes_hundreds_of_calls_and_nobody_is_told_of_one(ask):
    answer = ask(Fault.ANY_EIO, 1_000_000, False)
    assert answer["eligible"] > 300
    assert (answer["fired"], answer["failed"], answer["violations"]) == (0, {}, [])


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_call_fails_nothing_acknowledged_is_lost_and_the_store_goes_on(ask, kind):
    report = Report("io_faults", 1)
    stride = 60 if KINDS[kind][0] in (Fault.ANY_EIO, Fault.ANY_ENOSPC) else 20
    sweep(report, ask, first=7, stride=stride, kinds={kind: KINDS[kind]})
    assert report.violations == []
    assert report.counts[f"{kind}: sessions"] >= 1
    assert report.counts["sessions in which a call was told of it"] >= 1


def test_without_a_compiler_there_is_an_error_that_says_what_is_needed(monkeypatch):
    library.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match="need a C compiler: install gcc or clang"):
        library()
    library.cache_clear()


def test_no_call_that_fails_while_a_store_is_opened_makes_it_take_whole_segments_for_damaged():
    with in_memory("test-io-reopen") as place:
        done = subprocess.run(
            [sys.executable, "-m", "tests.torture.io_reopen", str(place / "store")],
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        shutil.rmtree(place / "store")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["segments"] >= 2
    assert found["calls"] >= 20
    assert len(found["raised"]) >= 10
    assert (found["moved"], found["steps"]) == ([], EPISODES * STEPS)
