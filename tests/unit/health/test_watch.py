"""The looks that happen whoever asks, and answers that many share."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from replaysvc.activity import Activity
from replaysvc.errors import NotFoundError, WaitTimeoutError
from replaysvc.health.cached import Cached
from replaysvc.health.watch import Watch
from tests.builders import make_table, write_episode, write_episodes
from tests.waiting import wait_until


@pytest.fixture
def watch(replay, clock):
    """A watch that looks when it is told to."""
    return Watch(replay, Activity(), clock, clock)


def test_rates_of_tables_and_actors(replay, watch, clock):
    table = make_table(replay)
    watch.look()
    for _ in range(5):
        clock.now += 2.0
        write_episodes(table, [4], actor="a")
        table.sample(8)
        watch.look()
    assert watch.rates("t") == {
        "steps_in_per_s": 2.0, "items_out_per_s": 4.0, "bytes_in_per_s": 0.0, "bytes_out_per_s": 0.0,
    }  # fmt: skip
    assert watch.rates(None)["steps_in_per_s"] == 2.0
    assert watch.actor_rates()["t", "a"] == 2.0
    assert ("t", "other") not in watch.actor_rates()
    assert watch.points("t", 600)["steps_in_per_s"].tolist() == [2.0] * 5
    for _ in range(6):
        clock.now += 2.0
        watch.look()
    assert watch.actor_rates()["t", "a"] == 0.0


def test_policy_of_a_minute_ago(replay, watch, clock):
    table = make_table(replay)
    with table.writer("a") as writer:
        write_episode(writer, 3, policy_version=5)
    assert watch.policy_of_a_minute_ago() is None
    for look in range(31):
        if look == 10:
            replay.put_params("policy", b"x", version=8)
        watch.look()
        clock.now += 2.0
    assert watch.policy_of_a_minute_ago() == 5
    for _ in range(10):
        watch.look()
    assert watch.policy_of_a_minute_ago() == 8


def test_deleted_tables_are_passed_over(replay, watch, clock, monkeypatch):
    make_table(replay, [3])
    watch.look()
    monkeypatch.setattr(type(replay), "engine", lambda *_: (_ for _ in ()).throw(NotFoundError("gone")))
    clock.now += 2.0
    watch.look()
    assert watch.points("t", 600)["at_s"].tolist() == []


def test_store_that_is_closed_ends_no_watch(replay, watch):
    watch.look()
    replay.close()
    watch.look()


def test_a_look_that_fails_is_logged_and_the_next_one_comes(replay, watch, monkeypatch, caplog):
    monkeypatch.setattr("replaysvc.health.watch.FINE_S", 0.01)
    calls = []

    def fail(self):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("broken")
        return []

    monkeypatch.setattr(type(replay), "tables", fail)
    watch.start()
    wait_until(lambda: len(calls) > 3)
    watch.stop(5.0)
    assert "a look failed, and the next one comes" in caplog.text


# -- shared answers ---------------------------------------------------------------------------------------------------


def test_value_is_made_once_while_it_is_good(clock):
    cached, made = Cached(clock), []

    def make():
        made.append(1)
        return len(made)

    assert [cached.get("key", make), cached.get("key", make)] == [1, 1]
    clock.now += 0.99
    assert cached.get("key", make) == 1
    clock.now += 0.01
    assert cached.get("key", make) == 2
    assert cached.get("other", make) == 3
    clock.now += 30.0
    assert cached.get("key", make, 60.0) == 2


def test_those_who_ask_meanwhile_wait_for_the_one_that_makes_it(clock):
    cached, begun, go_on, made = Cached(clock), threading.Event(), threading.Event(), []

    def make():
        begun.set()
        go_on.wait(30)
        made.append(1)
        return "value"

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cached.get, "key", make)
        assert begun.wait(30)
        clock.now += 100.0  # however old it is
        others = [pool.submit(cached.get, "key", make) for _ in range(3)]
        go_on.set()
        assert [one.result(30) for one in (first, *others)] == ["value"] * 4
    assert len(made) <= 2  # one, and perhaps one more by who came after it was made


def test_failure_is_told_to_all_who_wait_and_is_forgotten(clock):
    cached = Cached(clock)

    def fail():
        raise NotFoundError("gone")

    with pytest.raises(NotFoundError):
        cached.get("key", fail)
    assert cached.get("key", lambda: "there") == "there"


def test_nobody_waits_for_ever(clock, monkeypatch):
    monkeypatch.setattr("replaysvc.health.cached._WAIT_S", 0.05)
    cached, begun, go_on = Cached(clock), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(cached.get, "key", lambda: (begun.set(), go_on.wait(30)))
        assert begun.wait(30)
        with pytest.raises(WaitTimeoutError):
            cached.get("key", lambda: None)
        go_on.set()


def test_only_so_much_is_remembered(clock):
    cached = Cached(clock)
    for number in range(1000):
        cached.get(number, lambda: None)
    assert len(cached._values) == 256
