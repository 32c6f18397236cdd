"""Writers that vanish: their open episodes are ended as truncated, their data stay, and they are refused if they come back."""


import numpy as np
import pytest

from replaysvc import Episodes, Fifo, LostActor, Sequences, TableConfig, Uniform
from replaysvc.errors import NotReadyError, SpecMismatchError, WriterFencedError
from tests.builders import SCALARS, always, make_goal_table, make_table, write_episode, write_episodes, write_goal_episode
from tests.waiting import wait_until

LEASE_S = 1.0


def lost(table):
    return table.stats().lost_actor_episodes_total


def abandon(table, length, *, episode=0, actor=""):
    """Leaves an open episode of `length` steps behind."""
    with table.writer(actor=actor) as writer:
        write_episode(writer, length, episode=episode, end="open")


def test_episode_of_a_writer_that_is_gone_ends_as_truncated_with_its_last_step(door):
    table = make_table(door, lease_s=LEASE_S)
    abandon(table, 3, actor="gone")
    (record,) = table.episodes()
    assert (record.closed, record.end_reason) == (False, "")
    wait_until(lambda: lost(table) == 1)
    (record,) = table.episodes(closed_only=True)
    assert (record.actor, record.length, record.closed) == ("gone", 3, True)
    assert (record.terminated, record.truncated, record.end_reason) == (False, True, "lost_actor")
    assert table.stats().open_episodes == 0
    batch = table.sample(300, seed=0)
    last = batch.t == 2
    assert batch.truncated.tolist() == last.tolist()
    assert not batch.terminated.any()
    assert set(batch.discount.tolist()) == {np.float32(0.99)}  # bootstraps from the true last observation
    assert set(batch.next_observation[last].tolist()) == {3}
    columns = table.read_episode(record.episode_id)
    assert columns["truncated"].tolist() == [False, False, True]
    assert table.read_episode(record.episode_id, 0, 2)["truncated"].tolist() == [False, False]


def test_episodes_that_end_by_themselves_are_not_touched(door):
    table = make_table(door, [2], end="terminated", lease_s=LEASE_S)
    abandon(table, 1, episode=1)
    wait_until(lambda: lost(table) == 1)
    newest, oldest = table.episodes()
    assert (oldest.terminated, oldest.truncated, oldest.end_reason) == (True, False, "")
    assert newest.end_reason == "lost_actor"


def test_writer_whose_environment_is_slow_keeps_its_episode(door):
    table = make_table(door, lease_s=LEASE_S)
    with table.writer(actor="slow") as slow:
        slow.begin(0)
        slow.append(0, 0.0, 1)
        slow.flush()
        abandon(table, 2, episode=1)
        wait_until(lambda: lost(table) == 1)  # three leases long nothing is heard of the slow one but its heartbeats
        abandon(table, 2, episode=2)
        wait_until(lambda: lost(table) == 2)
        slow.append(1, 10.0, 2, terminated=True)
    first = table.episodes()[-1]
    assert (first.actor, first.length, first.terminated, first.end_reason) == ("slow", 2, True, "")


def test_episode_that_its_writer_gives_up_ends_although_the_writer_goes_on(door):
    table = make_table(door, lease_s=LEASE_S)
    with table.writer() as writer:
        write_episode(writer, 2, end="open")
        writer.abandon()
        writer.begin(100)
        writer.append(0, 1.0, 101)
        writer.flush()
        wait_until(lambda: lost(table) == 1)
        writer.append(1, 11.0, 102, terminated=True)
    ends = [(record.length, record.terminated, record.end_reason) for record in table.episodes()]
    assert ends == [(2, True, ""), (2, False, "lost_actor")]


def test_tables_may_leave_such_episodes_open(door):
    table = make_table(door, lease_s=LEASE_S, lost_actor="keep_open")
    other = door.create_table("other", SCALARS, TableConfig(lease_s=LEASE_S))
    abandon(table, 2)
    abandon(other, 2)
    wait_until(lambda: lost(other) == 1)
    assert (lost(table), table.stats().open_episodes) == (0, 1)
    assert table.config.lost_actor is LostActor.KEEP_OPEN


def test_lost_episodes_are_items_of_what_takes_closed_ones(door):
    samplers = {"uniform": Uniform(), "queue": Fifo()}
    table = make_table(door, [2], samplers=samplers, lease_s=LEASE_S)
    whole = Episodes(max_steps=5)
    assert len(table.sample(1, whole, sampler="queue")) == 1
    abandon(table, 4, episode=1)
    with pytest.raises(NotReadyError):
        table.sample(1, whole, sampler="queue")
    wait_until(lambda: lost(table) == 1)
    batch = table.sample(1, whole, sampler="queue")
    assert (batch.episode_id.tolist(), batch.mask.sum(), batch.truncated[0].tolist()[:4]) == ([1], 4, [False] * 3 + [True])
    assert set(table.sample(64, whole, seed=1).episode_id.tolist()) == {0, 1}


def test_lost_sequences_are_complete_in_a_queue(door):
    table = make_table(door, samplers={"queue": Fifo()}, lease_s=LEASE_S)
    what = Sequences(length=4, at_end="pad")
    with pytest.raises(NotReadyError):
        table.sample(1, what, sampler="queue")
    abandon(table, 6)
    assert table.sample(1, what, sampler="queue").t.tolist() == [0]
    wait_until(lambda: table.stats().queues.get("queue") == 1)
    batch = table.sample(1, what, sampler="queue")
    assert (batch.t.tolist(), batch.mask.tolist()) == ([4], [[True, True, False, False]])


def test_lost_episodes_are_relabelled(door):
    table = make_goal_table(door, [3], lease_s=LEASE_S)
    with table.writer() as writer:
        write_goal_episode(writer, 2, episode=1, end="open")
    wait_until(lambda: lost(table) == 1)
    from replaysvc import Transitions

    batch = table.sample(64, Transitions(her=always("final")), seed=3)
    assert set(batch.episode_id.tolist()) == {0, 1}


def test_writer_that_comes_back_is_refused_and_another_goes_on(door, monkeypatch):
    table = make_table(door, lease_s=LEASE_S, flush_interval_s=3600)
    writer = table.writer(actor="paused")
    writer.begin(0)
    writer.append(0, 0.0, 1)
    writer.flush()
    monkeypatch.setattr(type(writer), "open_episode", None)  # a writer in a process that is stopped sends no heartbeat
    wait_until(lambda: lost(table) == 1)
    writer.append(1, 10.0, 2)
    with pytest.raises(WriterFencedError, match=r"episode 0 was ended as truncated, since its writer was gone.*new writer"):
        writer.flush()
    monkeypatch.undo()
    write_episodes(table, [2], actor="paused")
    assert [(record.length, record.end_reason) for record in table.episodes()] == [(2, ""), (1, "lost_actor")]
    for call in (lambda: writer.begin(0), lambda: writer.append(2, 20.0, 3), writer.flush):
        with pytest.raises(WriterFencedError, match="new writer"):
            call()
    writer.abandon()
    with pytest.raises(WriterFencedError):  # a step of it was not stored
        writer.close()
    writer.close()


def test_writer_learns_of_its_end_without_a_flush(door, monkeypatch):
    """Whatever call comes next is refused: a writer that has room for more steps would else take them for nothing."""
    table = make_table(door, lease_s=LEASE_S, flush_interval_s=0.01)
    writer = table.writer(actor="paused")
    writer.begin(0)
    writer.append(0, 0.0, 1)
    writer.flush()
    monkeypatch.setattr(type(writer), "open_episode", None)
    wait_until(lambda: lost(table) == 1)
    monkeypatch.undo()
    with pytest.raises(WriterFencedError):  # noqa: PT012 - the first step is sent when it is due, and refused then
        for t in range(2):
            writer.append(1 + t, 10.0, 2 + t)
            wait_until(lambda: writer.open_episode is None)
    writer.abandon()
    with pytest.raises(WriterFencedError):
        writer.begin(0)
    with pytest.raises(WriterFencedError):
        writer.close()


# -- epochs ---------------------------------------------------------------------------------------------------------------


def test_newer_writer_of_an_actor_takes_over_from_the_older_one(door):
    table = make_table(door)
    old = table.writer(actor="a", epoch=1)
    old.begin(0)
    old.append(0, 0.0, 1)
    old.flush()
    with table.writer(actor="b", epoch=1) as other, table.writer(actor="a", epoch=2) as new:
        write_episode(other, 2, episode=2, end="open")
        other.flush()
        write_episode(new, 2, episode=1)
        new.flush()
        ended = {record.actor: (record.closed, record.end_reason) for record in table.episodes()[1:]}
        first = table.episodes()[-1]
        assert (first.actor, first.length, first.truncated, first.end_reason) == ("a", 1, True, "lost_actor")
        assert ended["b"] == (False, "")
        old.append(1, 10.0, 2)
        with pytest.raises(WriterFencedError, match="expected epoch 2 or a larger one, found 1"):
            old.flush()
    assert table.stats().steps == 5
    with pytest.raises(WriterFencedError):
        old.close()


def test_writer_with_an_epoch_takes_over_before_it_begins_an_episode(door):
    table = make_table(door)
    old = table.writer(actor="a", epoch=1)
    old.begin(0)
    old.append(0, 0.0, 1)
    old.flush()
    with table.writer(actor="a", epoch=2):
        wait_until(lambda: lost(table) == 1)
    (record,) = table.episodes()
    assert (record.length, record.truncated, record.end_reason) == (1, True, "lost_actor")
    old.append(1, 10.0, 2)
    with pytest.raises(WriterFencedError, match="expected epoch 2 or a larger one, found 1.*new writer"):
        old.flush()
    with pytest.raises(WriterFencedError):
        old.close()


def test_writer_that_is_closed_without_steps_has_taken_over(door):
    table = make_table(door)
    old = table.writer(actor="a", epoch=1)
    old.begin(0)
    old.append(0, 0.0, 1)
    old.flush()
    table.writer(actor="a", epoch=2).close()
    assert lost(table) == 1
    old.close()  # all that it was given is stored


def test_error_within_the_block_of_a_fenced_writer_is_noted_once(door):
    table = make_table(door)
    with pytest.raises(WriterFencedError) as caught, table.writer(actor="a", epoch=1) as old:  # noqa: PT012 - its end, too
        write_episode(old, 1, end="open")
        table.writer(actor="a", epoch=2).close()
        old.flush()
    assert not hasattr(caught.value, "__notes__")


def test_writers_of_one_epoch_live_side_by_side_and_those_without_one_too(door):
    table = make_table(door)
    with table.writer(actor="a", epoch=3) as one, table.writer(actor="a", epoch=3) as two, table.writer(actor="a") as three:
        for number, writer in enumerate((one, two, three)):
            write_episode(writer, 2, episode=number)
    assert table.stats().episodes == 3


def test_older_epoch_is_refused_after_a_newer_one_has_written(door):
    table = make_table(door)
    with table.writer(actor="a", epoch=5) as writer:
        write_episode(writer, 1)

    def write_late():
        with table.writer(actor="a", epoch=4) as late:
            write_episode(late, 1)

    with pytest.raises(WriterFencedError, match="expected epoch 5 or a larger one, found 4"):
        write_late()
    assert table.stats().episodes == 1
    with table.writer(actor="other", epoch=0) as writer:
        write_episode(writer, 1)


def test_earlier_life_of_an_actor_is_refused_whatever_it_calls(door):
    table = make_table(door, flush_interval_s=3600)
    old = table.writer(actor="a", epoch=1)
    write_episode(old, 1, end="open")
    table.writer(actor="a", epoch=2).close()
    for call in (old.flush, lambda: old.begin(0), lambda: old.append(0, 0.0, 1), old.flush):
        with pytest.raises(WriterFencedError, match="new writer"):
            call()
    old.abandon()
    with pytest.raises(WriterFencedError):
        old.close()


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", True, (1 << 62) + 1])
def test_epoch_that_is_no_number_of_lives_is_refused(door, epoch):
    table = make_table(door)
    with pytest.raises(SpecMismatchError, match="epoch: expected a whole number from 0 to"):
        table.writer(epoch=epoch)
