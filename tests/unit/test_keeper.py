"""The threads that do something again and again."""

import threading

from replaysvc.keeper import Keeper


def test_work_that_fails_is_told_and_done_again(caplog):
    calls, again = [], threading.Event()

    def work():
        calls.append(len(calls))
        if len(calls) == 1:
            raise RuntimeError("the first time")
        again.set()

    keeper = Keeper("test", work, 0.001)
    assert again.wait(20)
    keeper.close()
    assert "the first time" in caplog.text


def test_work_says_when_it_wants_to_be_done_again():
    calls, done = [], threading.Event()

    def work():
        calls.append(None)
        if len(calls) < 3:
            return 0.001
        done.set()
        return 3600.0

    keeper = Keeper("test", work, 0.001)
    assert done.wait(20)
    keeper.close()  # does not wait for the hour
    assert len(calls) == 3


def test_waking_has_the_work_done_before_its_time():
    done = [threading.Event() for _ in range(3)]
    left = iter(done)

    def work():
        next(left).set()
        return 3600.0

    keeper = Keeper("test", work, 0.001)
    assert done[0].wait(20)
    keeper.wake()
    assert done[1].wait(20)
    assert not done[2].wait(0.2)  # once is enough
    keeper.close()
