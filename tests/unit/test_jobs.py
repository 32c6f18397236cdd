"""Jobs: what runs and what came of it, the newest first, and no more of them than are wanted."""

import contextvars

import pytest

from replaysvc.errors import CapacityError
from replaysvc.jobs import Jobs, asked_by
from replaysvc.storage import System
from replaysvc.views import JobView


class Clock(System):
    now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return 1.7e9 + self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def jobs(clock):
    return Jobs(clock)


def numbers(jobs):
    return [view.number for view in jobs.views()]


def test_job_is_seen_as_it_runs_and_after_its_end(jobs, clock):
    with jobs.running("compact", "t", "ann") as job:
        clock.now += 2
        job.progress(3, 10)
        (running,) = jobs.views()
        job.message = "the disk got 5 bytes back"
    clock.now += 100
    (ended,) = jobs.views()
    begun = {"number": 1, "kind": "compact", "table": "t", "who": "ann", "started_at_s": 1.7e9 + 1000, "seconds": 2.0}
    assert running == JobView(**begun, state="running", done=3, whole=10)
    assert ended == JobView(**begun, state="done", done=3, whole=10, message="the disk got 5 bytes back")


def test_newest_comes_first(jobs):
    for kind in ("compact", "snapshot", "scrub"):
        with jobs.running(kind):
            pass
    assert [(view.number, view.kind) for view in jobs.views()] == [(3, "scrub"), (2, "snapshot"), (1, "compact")]


@pytest.mark.parametrize(
    ("error", "told"),
    [(CapacityError("store /s: no space"), "store /s: no space"), (KeyError("x"), "KeyError: 'x'"),
     (KeyboardInterrupt(), "KeyboardInterrupt: ")],
)  # fmt: skip
def test_failure_is_noted_and_raised_on(jobs, clock, error, told):
    def work():
        with jobs.running("snapshot") as job:
            job.message = "/a/path"
            clock.now += 7
            raise error

    with pytest.raises(type(error)) as caught:
        work()
    assert caught.value is error
    (view,) = jobs.views()
    assert (view.state, view.message, view.seconds) == ("failed", told, 7.0)


def test_the_last_hundred_are_kept(jobs):
    for _ in range(100):
        with jobs.running("compact"):
            pass
    assert numbers(jobs) == list(range(100, 0, -1))
    with jobs.running("compact"):
        assert numbers(jobs) == list(range(101, 1, -1))


def test_running_jobs_stay_and_ended_ones_go_instead(jobs):
    with jobs.running("snapshot"):
        for _ in range(150):
            with jobs.running("delete_episodes"):
                pass
        assert numbers(jobs) == [*range(151, 52, -1), 1]
        assert jobs.views()[-1].state == "running"
        begun = [jobs.begin("scrub") for _ in range(120)]
        assert numbers(jobs) == [*range(271, 151, -1), 1]
    for job in begun:
        job.finish()
    jobs.begin("scrub")
    assert numbers(jobs) == list(range(272, 172, -1))


def test_job_is_of_whom_the_context_names_unless_it_says_so(jobs):
    def ask():
        asked_by.set("bob")
        with jobs.running("compact"), jobs.running("compact", who="carol"):
            pass

    contextvars.copy_context().run(ask)
    with jobs.running("compact"):
        pass
    assert [view.who for view in jobs.views()] == ["", "carol", "bob"]


def test_message_at_the_end_takes_the_place_of_an_earlier_one(jobs):
    job = jobs.begin("scrub")
    job.message = "so far so good"
    job.finish("read 5 bytes")
    assert [(view.state, view.message) for view in jobs.views()] == [("done", "read 5 bytes")]
