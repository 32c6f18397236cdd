"""Priorities that nobody waits for: what is sent with what, how much may wait, who is told of what failed, and the ends."""

import logging
import threading

import numpy as np
import pytest

import replay_client
from replay_client import priorities
from replay_client.priorities import PrioritySender
from replaysvc import ClientConfig, Prioritized, TableConfig
from replaysvc.errors import NotFoundError, StorageError, UnavailableError, WaitTimeoutError
from tests.builders import SCALARS, make_table, write_episodes
from tests.processes import run_script
from tests.service.test_processes import HEAD

LINEAR = {"prioritized": Prioritized(alpha=1.0)}
NEVER_S = 600.0  # longer than any test: only what must not wait for it ends


class Service:
    """Notes what is sent to it. `open` is what each call waits for; `inside` is set once one waits."""

    def __init__(self):
        self.calls = []
        self.open, self.inside = threading.Event(), threading.Event()
        self.open.set()
        self.refusals = []  # one a call

    def send(self, sampler, positions, values):
        self.inside.set()
        assert self.open.wait(60)
        self.calls.append((sampler, positions.tolist(), values.tolist()))
        if self.refusals and (error := self.refusals.pop(0)) is not None:
            raise error


@pytest.fixture
def service():
    service = Service()
    yield service
    service.open.set()


@pytest.fixture
def sender(service):
    return PrioritySender("t", service.send)


@pytest.fixture
def patient(monkeypatch):
    """What waits for others to go with it waits for ever, unless it is asked not to."""
    monkeypatch.setattr(priorities, "_GATHER_S", NEVER_S)


def put(sender, *positions, value=1.0, sampler="p"):
    sender.put(sampler, np.array(positions, np.int64), np.full(len(positions), value))


# -- what is sent, and when ---------------------------------------------------------------------------------------------------


def test_what_comes_during_a_call_goes_together_in_the_next_in_its_order(sender, service):
    service.open.clear()
    put(sender, 7)
    assert service.inside.wait(60)
    put(sender, 1, 2, value=3.0)
    put(sender, 2, value=4.0)
    put(sender, 1, value=5.0)
    service.open.set()
    sender.drain()
    assert service.calls == [("p", [7], [1.0]), ("p", [1, 2, 2, 1], [3.0, 3.0, 4.0, 5.0])]


def test_each_sampler_has_a_call_of_its_own(sender, service, patient):
    put(sender, 1)
    put(sender, 2, sampler="other")
    put(sender, 3)
    sender.drain()
    assert service.calls == [("p", [1, 3], [1.0, 1.0]), ("other", [2], [1.0])]


def test_updates_are_sent_though_nobody_asks_for_it(sender, service):
    put(sender, 1)
    assert service.inside.wait(60)


def test_a_thread_that_ended_for_want_of_work_is_followed_by_another(sender, service, monkeypatch):
    monkeypatch.setattr(priorities, "_IDLE_S", 0.0)
    for position in range(3):
        put(sender, position)
        sender.drain()
        sender.join()
    assert [call[1] for call in service.calls] == [[0], [1], [2]]


def test_no_more_than_the_bound_waits_and_who_brings_more_waits_for_room(sender, service, patient, monkeypatch):
    """Without the bound all of them would go in one call: nothing else wakes the thread."""
    monkeypatch.setattr(priorities, "MOST_ITEMS", 8)
    for start in range(0, 60, 3):
        put(sender, start, start + 1, start + 2)
    sender.drain()
    assert [len(positions) for _, positions, _ in service.calls] == [6] * 10
    assert [each for _, positions, _ in service.calls for each in positions] == list(range(60))


def test_an_update_beyond_the_bound_is_taken_alone(sender, service, patient, monkeypatch):
    monkeypatch.setattr(priorities, "MOST_ITEMS", 2)
    put(sender, 1)
    put(sender, 2, 3, 4)
    put(sender, 5)
    sender.drain()
    assert [positions for _, positions, _ in service.calls] == [[1], [2, 3, 4], [5]]


# -- what fails ---------------------------------------------------------------------------------------------------------------


def test_a_refusal_is_logged_and_told_once_and_what_came_after_is_sent(sender, service, patient, caplog):
    service.refusals = [NotFoundError("table t is not there"), None]
    put(sender, 1, 2)
    with caplog.at_level(logging.ERROR), pytest.raises(NotFoundError, match="earlier update .* table t is not there"):
        sender.drain()
    assert "2 priorities of sampler p are lost: table t is not there" in caplog.text
    put(sender, 3)
    sender.drain()
    assert [positions for _, positions, _ in service.calls] == [[1, 2], [3]]


def test_the_next_update_tells_of_a_refusal_and_is_not_taken(sender, service, patient, monkeypatch):
    monkeypatch.setattr(priorities, "MOST_ITEMS", 1)
    service.refusals = [NotFoundError("table t is not there")]
    put(sender, 1)
    with pytest.raises(NotFoundError):
        put(sender, 2)  # waits for room, and so for the answer to the first
    put(sender, 3)
    sender.drain()
    assert [positions for _, positions, _ in service.calls] == [[1], [3]]


def test_an_error_that_is_none_of_the_service_is_told_too(sender, service, patient):
    service.refusals = [RuntimeError("no such thing")]
    put(sender, 1)
    with pytest.raises(StorageError, match="no such thing"):
        sender.drain()
    put(sender, 2)
    sender.drain()


# -- the end ------------------------------------------------------------------------------------------------------------------


def test_close_sends_what_waits_and_ends_the_thread(sender, service, patient):
    put(sender, 1)
    put(sender, 2)
    sender.close(60.0)
    sender.join()
    assert service.calls == [("p", [1, 2], [1.0, 1.0])]
    assert sender.ended
    with pytest.raises(UnavailableError, match="closed"):
        put(sender, 3)
    sender.close(60.0)  # again does nothing


def test_close_tells_of_a_refusal_that_nobody_was_told_of(sender, service, patient):
    service.refusals = [NotFoundError("table t is not there")]
    put(sender, 1)
    with pytest.raises(NotFoundError):
        sender.close(60.0)


def test_close_says_what_it_gives_up_when_time_is_over(sender, service, caplog):
    service.open.clear()
    put(sender, 1)
    assert service.inside.wait(60)
    put(sender, 2, 3)
    with caplog.at_level(logging.ERROR), pytest.raises(WaitTimeoutError, match="2 updates of priorities, of 3 items"):
        sender.close(0.0)
    assert "2 updates of priorities were not answered" in caplog.text
    service.open.set()
    sender.join()
    assert [positions for _, positions, _ in service.calls] == [[1]]


# -- with a service -----------------------------------------------------------------------------------------------------------


def drawn(table, sampler="prioritized"):
    """Returns the positions that can be drawn: those whose priority is not 0."""
    return set(table.sample(512, sampler=sampler, seed=1).positions.tolist())


def test_an_update_that_waits_comes_after_those_that_did_not(served, patient):
    table = make_table(served, [3], samplers=LINEAR)
    table.update_priorities([0, 1], [0.0, 0.0], wait=False)
    assert table.update_priorities([0], [1.0]) == (1, 0)
    assert drawn(table) == {0, 2}


def test_tables_of_one_name_and_client_share_their_order(served, patient):
    table = make_table(served, [3], samplers=LINEAR)
    table.update_priorities([0], [0.0], wait=False)
    served.table("t").update_priorities([], [])
    assert drawn(table) == {1, 2}


def test_close_of_a_client_sends_what_nobody_waited_for(serve, connect, replay, patient):
    client = connect(serve().address)
    table = make_table(client, [3], samplers=LINEAR)
    table.update_priorities([0], [0.0], wait=False)
    client.close()
    assert drawn(replay.table("t")) == {1, 2}
    table.update_priorities([1], [0.0], wait=False)  # which connects again
    client.close()
    assert drawn(replay.table("t")) == {2}


def test_close_of_a_client_tells_of_a_table_that_was_deleted_meanwhile(serve, connect, replay, patient):
    client = connect(serve().address)
    make_table(client, [3], samplers=LINEAR).update_priorities([0], [0.0], wait=False)
    replay.delete_table("t")
    with pytest.raises(NotFoundError, match="earlier update"):
        client.close()


def test_a_client_that_deletes_its_table_still_tells_of_its_priorities(serve, connect, patient):
    client = connect(serve().address)
    make_table(client, [3], samplers=LINEAR).update_priorities([0], [0.0], wait=False)
    client.delete_table("t")
    with pytest.raises(NotFoundError, match="earlier update"):
        client.close()


def test_updates_ride_out_a_restart(server_process, remote):
    table = make_table(remote, [3], samplers=LINEAR)
    server_process.kill()
    table.update_priorities([0], [0.0], wait=False)
    table.update_priorities([1], [0.0], wait=False)
    server_process.start()
    assert table.update_priorities([], []) == (0, 0)
    assert drawn(table) == {2}


def test_an_outage_beyond_the_reconnect_timeout_is_told(server_process):
    with replay_client.connect(server_process.address, config=ClientConfig(reconnect_timeout_s=0.2)) as client:
        table = make_table(client, [3], samplers=LINEAR)
        server_process.kill()
        table.update_priorities([0], [0.0], wait=False)
        with pytest.raises(UnavailableError, match="earlier update"):
            table.update_priorities([], [])
        server_process.start()


PREPARED = HEAD + "table = client.table('t')\n"

FORK = """
table.update_priorities([0], [0.0], wait=False)

def child():
    table.update_priorities([1], [0.0], wait=False)
    client.close()

forked(child)
table.update_priorities([], [])
assert set(table.sample(512, sampler="prioritized").positions.tolist()) == {2, 3}
table.update_priorities([2], [0.0], wait=False)
client.close()
"""


WORKER = """
import multiprocessing

def work():
    table.update_priorities([0], [0.0], wait=False)

worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
assert worker.exitcode == 0
"""  # which ends without what `atexit` was told
EXIT = "table.update_priorities([0], [0.0], wait=False)"


@pytest.mark.parametrize(
    ("script", "left"), [(FORK, {3}), (EXIT, {1, 2, 3}), (WORKER, {1, 2, 3})], ids=["fork", "exit", "worker"]
)
def test_a_fork_and_the_exit_of_the_interpreter_lose_no_update(server_process, remote, script, left):
    table = remote.create_table("t", SCALARS, TableConfig(samplers=LINEAR))
    write_episodes(table, [4])
    run_script(PREPARED + script, server_process.address)
    assert drawn(table) == left


def test_updates_of_nothing_are_not_kept(sender, service):
    """However many come, they take no memory, and no call."""
    for _ in range(3):
        put(sender)
    sender.drain()
    assert service.calls == []
