"""What the learner asks of a table and what it tells it, with a table that keeps a diary."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dqn.batches import Batches, window
from replay_client import Goal, Her, NotFoundError, Prioritized, SparseReward, TableConfig, Transitions, Uniform
from tests.learner.toys import small_config


class DiaryTable:
    """Gives out numbers as batches, those of the n-th stream from 100 n on, and notes what it was asked.

    `answer` is what an update of priorities waits for.
    """

    def __init__(self, beta: float = 0.4) -> None:
        self.config = TableConfig(samplers={"uniform": Uniform(), "prioritized": Prioritized(beta=beta)})
        self.diary: list[tuple] = []
        self.answer = threading.Event()
        self.answer.set()
        self.fails = False

    def stream(self, batch_size, what, *, sampler, beta, prefetch, timeout_s):
        self.diary.append(("stream", batch_size, what, sampler, beta))
        yield from range(100 * len(self.diary), 100 * len(self.diary) + 100)

    def update_priorities(self, positions, priorities, *, sampler):
        assert self.answer.wait(30)
        if self.fails:
            raise NotFoundError("table chain is not there")
        self.diary.append(("update", positions.tolist(), priorities.tolist(), sampler))


BATCH = SimpleNamespace(positions=np.array([7, 9, 7]))


def prioritized(**changes):
    return small_config(sampler="prioritized", batch_size=8, priority_epsilon=0.5, **changes)


def test_priorities_are_the_absolute_td_errors_and_a_little_more():
    table = DiaryTable()
    with Batches(table, prioritized()) as batches:
        batches.learned(BATCH, np.array([-2.0, 0.0, 1.5]))
    assert table.diary == [("update", [7, 9, 7], [2.5, 0.5, 2.0], "prioritized")]


def test_priorities_of_four_batches_go_in_one_call_in_their_order_and_the_rest_at_the_end():
    """Of a position that comes again, the last priority holds."""
    table = DiaryTable()
    with Batches(table, prioritized()) as batches:
        for error in range(5):
            batches.learned(SimpleNamespace(positions=np.array([error % 2])), np.array([float(error)]))
    assert [entry[1:3] for entry in table.diary] == [([0, 1, 0, 1], [0.5, 1.5, 2.5, 3.5]), ([0], [4.5])]


def test_beta_rises_in_a_straight_line_to_one_and_stays_there():
    """100 steps warm up, each further one pays for an update: beta 0.5 at step 0, 0.6 at 100, 1 at 500 and after."""
    table = DiaryTable(beta=0.5)
    with Batches(table, prioritized(warmup_steps=100, steps_per_update=1.0, beta_steps=500)) as batches:
        for updates in (0, 200, 400, 600):
            batches.draw(updates)
    assert [beta for *_, beta in table.diary] == [0.6, 0.8, 1.0, 1.0]


def test_batches_come_from_one_stream_while_beta_stays():
    table = DiaryTable(beta=0.4)
    with Batches(table, prioritized(warmup_steps=0, beta_steps=1000)) as batches:
        assert [batches.draw(updates) for updates in (0, 1, 199, 200, 201)] == [100, 101, 102, 200, 201]
    first = ("stream", 8, Transitions(n_step=2, gamma=0.99), "prioritized", 0.4)
    assert table.diary == [first, (*first[:-1], pytest.approx(0.52))]


def test_resumed_learner_goes_on_with_its_beta():
    table = DiaryTable(beta=0.0)
    with Batches(table, prioritized(warmup_steps=0, beta_steps=1000)) as batches:
        batches.draw(750)
    assert table.diary[0][-1] == 0.75


def test_learner_does_not_wait_for_the_answer_to_its_priorities():
    table = DiaryTable()
    table.answer.clear()
    with Batches(table, prioritized()) as batches:
        for _ in range(4):
            batches.learned(BATCH, np.zeros(3))
        assert batches.draw(0) == 100
        assert [entry[0] for entry in table.diary] == ["stream"]
        table.answer.set()
    assert [entry[0] for entry in table.diary] == ["stream", "update"]


def test_priorities_that_were_refused_fail_a_later_update():
    table = DiaryTable()
    table.fails = True
    with Batches(table, prioritized()) as batches:
        for _ in range(7):
            batches.learned(BATCH, np.zeros(3))
        with pytest.raises(NotFoundError, match="chain"):
            batches.learned(BATCH, np.zeros(3))
        table.fails = False


def test_last_priorities_are_sent_and_a_refusal_is_not_lost():
    table = DiaryTable()
    table.fails = True
    with pytest.raises(NotFoundError, match="chain"), Batches(table, prioritized()) as batches:
        batches.learned(BATCH, np.zeros(3))


def test_uniform_batches_come_from_one_stream_and_nothing_is_told_back():
    table = DiaryTable()
    with Batches(table, small_config(batch_size=8)) as batches:
        assert [batches.draw(updates) for updates in (0, 1000)] == [100, 101]
        batches.learned(BATCH, np.ones(3))
    assert table.diary == [("stream", 8, Transitions(n_step=2, gamma=0.99), "uniform", None)]


def test_hindsight_is_asked_for_where_the_configuration_says_so():
    assert window(small_config()).her is None
    asked = window(small_config(her_ratio=0.5, her_goal="final", her_threshold=0.25, gamma=0.9))
    her = Her(goal=Goal.FINAL, ratio=0.5, reward=SparseReward(threshold=0.25))
    assert asked == Transitions(n_step=2, gamma=0.9, her=her)
