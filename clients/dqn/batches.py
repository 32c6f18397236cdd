"""The learner's batches: what it asks the service for, and what it tells it back.

They come from a stream, requests under way all the time. Where they are prioritized (Schaul et al. 2016), the learner waits for
no answer to the new priorities: the batches that are under way were drawn without them anyway. Beta grows by small steps, with
a new stream for each.
"""

import math
from collections.abc import Iterator

import numpy as np

from dqn.config import Config
from replay_client import Batch, Goal, Her, Prioritized, SparseReward, Table, Transitions

_PREFETCH = 4  # requests under way
_TIMEOUT_S = 60.0  # for the table to hold what is asked for
_BETA_UPDATES = 200  # updates between two steps of beta: a new stream throws away what was under way


def window(config: Config) -> Transitions:
    """Returns the transitions that a run learns from."""
    her = None
    if config.her_ratio:
        her = Her(goal=Goal(config.her_goal), ratio=config.her_ratio, reward=SparseReward(threshold=config.her_threshold))
    return Transitions(n_step=config.n_step, gamma=config.gamma, her=her)


class Batches:
    """A context manager; used by one thread."""

    def __init__(self, table: Table, config: Config) -> None:
        self._table, self._config = table, config
        sampler = table.config.samplers[config.sampler]
        self._first_beta = sampler.beta if isinstance(sampler, Prioritized) else None
        self._stream: Iterator[Batch] = self._open(None)  # asks for nothing before the first batch is wanted
        self._renew_at = 0.0 if self._first_beta is not None else math.inf

    def draw(self, updates: int) -> Batch:
        """Returns the batch for the next update after `updates` of them."""
        if updates >= self._renew_at and self._first_beta is not None:
            steps = self._config.steps_learned(updates)
            self._stream = self._open(self._config.beta(self._first_beta, steps))
            self._renew_at = updates + _BETA_UPDATES
        return next(self._stream)

    def learned(self, batch: Batch, td_errors: np.ndarray) -> None:
        """Tells the service how wrong the network was about each item: its new priority. Does not wait for the answer; should
        it be a refusal, a later call raises it, or the end of the with statement."""
        if self._first_beta is not None:
            priorities = np.abs(td_errors) + self._config.priority_epsilon
            self._table.update_priorities(batch.positions, priorities, sampler=self._config.sampler, wait=False)

    def _open(self, beta: float | None) -> Iterator[Batch]:
        config = self._config
        return self._table.stream(
            config.batch_size, window(config), sampler=config.sampler, beta=beta, prefetch=_PREFETCH, timeout_s=_TIMEOUT_S
        )

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._first_beta is not None:  # waits for all earlier priorities, which would else fail unseen
            self._table.update_priorities([], [], sampler=self._config.sampler)
