"""What the learner asks of a table and what it tells it, with a table that keeps a diary."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dqn.batches import Batches, window
from replay_client import Goal, Her, NotFoundError, Prioritized, SparseReward, TableConfig, Transitions, Uniform
from tests.learner.toys import small_config


class DiaryTable:
    """Gives out batches that are numbers, and notes what it was asked. `answer` is what an update waits for."""

    def __init__(self, beta: float = 0.4) -> None:
        self.config = TableConfig(samplers={"uniform": Uniform(), "prioritized": Prioritized(beta=beta)})
        self.diary: list[tuple] = []
        self.answer = threading.Event()
        self.answer.set()
        self.fails = False

    def sample(self, batch_size, what, *, sampler, beta, timeout_s):
        self.diary.append(("sample", batch_size, what, sampler, beta))
        return len(self.diary)

    def stream(self, batch_size, what, *, sampler, prefetch, timeout_s):
        self.diary.append(("stream", batch_size, what, sampler))
        yield from (100, 200, 300)

    def update_priorities(self, positions, priorities, *, sampler):
        assert self.answer.wait(30)
        if self.fails:
            raise NotFoundError("table chain is not there")
        self.diary.append(("update", positions.tolist(), priorities.tolist(), sampler))

    def told(self, word):
        return [entry for entry in self.diary if entry[0] == word]


BATCH = SimpleNamespace(positions=np.array([7, 9, 7]))


def prioritized(**changes):
    return small_config(sampler="prioritized", batch_size=8, priority_epsilon=0.5, **changes)


def test_priorities_are_the_absolute_td_errors_and_a_little_more():
    table = DiaryTable()
    with Batches(table, prioritized()) as batches:
        batches.learned(BATCH, np.array([-2.0, 0.0, 1.5]))
    assert table.diary == [("update", [7, 9, 7], [2.5, 0.5, 2.0], "prioritized")]


def test_beta_rises_in_a_straight_line_to_one_and_stays_there():
    """10 steps pay for the first update, each further one for one more: beta 0.5 at step 0, 0.75 at 20, 1 at 40."""
    table = DiaryTable(beta=0.5)
    with Batches(table, prioritized(warmup_steps=10, steps_per_update=1.0, beta_steps=40)) as batches:
        for updates in (10, 30, 1000):
            batches.draw(updates)
            batches._drawn.result()
            batches._drawn = None  # so that the next one is asked for now
    asked = [beta for _, _, _, _, beta in table.told("sample")]
    assert asked[::2] == [0.75, 1.0, 1.0]
    assert asked[1] == 0.7625  # one update further


def test_batches_are_drawn_one_ahead_by_the_table_s_own_beta():
    table = DiaryTable(beta=0.4)
    with Batches(table, prioritized(warmup_steps=0, beta_steps=10**12)) as batches:
        assert [batches.draw(updates) for updates in range(3)] == [1, 2, 3]
    size, what, sampler, beta = table.diary[0][1:]
    assert (size, what, sampler, beta) == (8, Transitions(n_step=2, gamma=0.99), "prioritized", 0.4)


def test_learner_does_not_wait_for_the_answer_to_its_priorities():
    table = DiaryTable()
    with Batches(table, prioritized()) as batches:
        batches.draw(0)
        batches._drawn.result()
        table.answer.clear()
        batches.learned(BATCH, np.zeros(3))
        assert batches.draw(1) == 2  # drawn before the update was asked for
        assert table.told("update") == []
        table.answer.set()
    assert len(table.told("update")) == 1


def test_priorities_that_were_refused_fail_the_next_update():
    table = DiaryTable()
    table.fails = True
    with Batches(table, prioritized()) as batches:
        batches.learned(BATCH, np.zeros(3))
        with pytest.raises(NotFoundError, match="chain"):
            batches.learned(BATCH, np.zeros(3))


def test_last_priorities_are_sent_and_a_refusal_is_not_lost():
    table = DiaryTable()
    table.fails = True
    with pytest.raises(NotFoundError, match="chain"), Batches(table, prioritized()) as batches:
        batches.learned(BATCH, np.zeros(3))


def test_uniform_batches_come_from_one_stream_and_nothing_is_told_back():
    table = DiaryTable()
    with Batches(table, small_config(batch_size=8)) as batches:
        assert [batches.draw(updates) for updates in range(2)] == [100, 200]
        batches.learned(BATCH, np.ones(3))
    assert table.diary == [("stream", 8, Transitions(n_step=2, gamma=0.99), "uniform")]


def test_hindsight_is_asked_for_where_the_configuration_says_so():
    assert window(small_config()).her is None
    asked = window(small_config(her_ratio=0.5, her_goal="final", her_threshold=0.25, gamma=0.9))
    her = Her(goal=Goal.FINAL, ratio=0.5, reward=SparseReward(threshold=0.25))
    assert asked == Transitions(n_step=2, gamma=0.9, her=her)
