"""What the learner asks of a table and what it tells it, with a table that keeps a diary."""

from types import SimpleNamespace

import numpy as np
import pytest

from dqn.batches import Batches, window
from replay_client import Goal, Her, NotFoundError, Prioritized, SparseReward, TableConfig, Transitions, Uniform
from tests.learner.toys import small_config


class DiaryTable:
    """Gives out numbers as batches, those of the n-th stream from 100 n on, and notes what it was asked.

    `refused` is what the next update of priorities raises, as one does that the service refused an earlier one of.
    """

    def __init__(self, beta: float = 0.4) -> None:
        self.config = TableConfig(samplers={"uniform": Uniform(), "prioritized": Prioritized(beta=beta)})
        self.diary: list[tuple] = []
        self.refused: Exception | None = None

    def stream(self, batch_size, what, *, sampler, beta, prefetch, timeout_s):
        self.diary.append(("stream", batch_size, what, sampler, beta))
        yield from range(100 * len(self.diary), 100 * len(self.diary) + 100)

    def update_priorities(self, positions, priorities, *, sampler, wait=True):
        if self.refused is not None:
            raise self.refused
        self.diary.append(("update", list(positions), list(priorities), sampler, wait))


GONE = NotFoundError("table chain is not there")
SETTLED = ("update", [], [], "prioritized", True)  # nothing, but it waits for all that was sent before
BATCH = SimpleNamespace(positions=np.array([7, 9, 7]))


def prioritized(**changes):
    return small_config(sampler="prioritized", batch_size=8, priority_epsilon=0.5, **changes)


def test_priorities_are_the_absolute_td_errors_and_a_little_more():
    table = DiaryTable()
    with Batches(table, prioritized()) as batches:
        batches.learned(BATCH, np.array([-2.0, 0.0, 1.5]))
    assert table.diary == [("update", [7, 9, 7], [2.5, 0.5, 2.0], "prioritized", False), SETTLED]


def test_learner_waits_for_the_answer_to_its_priorities_at_the_end_alone():
    table = DiaryTable()
    with Batches(table, prioritized()) as batches:
        for _ in range(4):
            batches.learned(BATCH, np.zeros(3))
            batches.draw(0)
    assert [entry[-1] for entry in table.diary if entry[0] == "update"] == [False] * 4 + [True]


def test_beta_rises_in_a_straight_line_to_one_and_stays_there():
    """100 steps warm up, each further one pays for an update: beta 0.5 at step 0, 0.6 at 100, 1 at 500 and after."""
    table = DiaryTable(beta=0.5)
    with Batches(table, prioritized(warmup_steps=100, steps_per_update=1.0, beta_steps=500)) as batches:
        for updates in (0, 200, 400, 600):
            batches.draw(updates)
    assert table.diary.pop() == SETTLED
    assert [beta for *_, beta in table.diary] == [0.6, 0.8, 1.0, 1.0]


def test_batches_come_from_one_stream_while_beta_stays():
    table = DiaryTable(beta=0.4)
    with Batches(table, prioritized(warmup_steps=0, beta_steps=1000)) as batches:
        assert [batches.draw(updates) for updates in (0, 1, 199, 200, 201)] == [100, 101, 102, 200, 201]
    first = ("stream", 8, Transitions(n_step=2, gamma=0.99), "prioritized", 0.4)
    assert table.diary == [first, (*first[:-1], pytest.approx(0.52)), SETTLED]


def test_resumed_learner_goes_on_with_its_beta():
    table = DiaryTable(beta=0.0)
    with Batches(table, prioritized(warmup_steps=0, beta_steps=1000)) as batches:
        batches.draw(750)
    assert table.diary[0][-1] == 0.75


def test_priorities_that_were_refused_fail_a_later_update():
    table = DiaryTable()
    with Batches(table, prioritized()) as batches:
        batches.learned(BATCH, np.zeros(3))
        table.refused = GONE
        with pytest.raises(NotFoundError, match="chain"):
            batches.learned(BATCH, np.zeros(3))
        table.refused = None


def test_a_learner_that_fails_asks_for_nothing_more():
    table = DiaryTable()
    with pytest.raises(ZeroDivisionError), Batches(table, prioritized()):
        raise ZeroDivisionError
    assert table.diary == []


def test_a_refusal_of_the_last_priorities_is_not_lost():
    table = DiaryTable()
    batches = Batches(table, prioritized())
    batches.learned(BATCH, np.zeros(3))
    table.refused = GONE
    with pytest.raises(NotFoundError, match="chain"):
        batches.__exit__(None, None, None)


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
