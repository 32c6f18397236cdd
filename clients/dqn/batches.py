"""The learner's batches: what it asks the service for, and what it tells it back.

Uniform draws come from a stream, requests under way all the time. Prioritized ones (Schaul et al. 2016) are drawn one batch
ahead by a thread, which also sends the new priorities, so that the learner waits for neither. A batch is therefore drawn by
priorities that lack those of one batch.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np

from dqn.config import Config
from replay_client import Batch, Goal, Her, Prioritized, SparseReward, Table, Transitions

_PREFETCH = 4
_TIMEOUT_S = 60.0  # for the table to hold what is asked for


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
        self._beta = sampler.beta if isinstance(sampler, Prioritized) else None
        self._window = window(config)
        self._stream: Iterator[Batch] | None = None
        if self._beta is None:
            self._stream = table.stream(
                config.batch_size, self._window, sampler=config.sampler, prefetch=_PREFETCH, timeout_s=_TIMEOUT_S
            )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._drawn: Future[Batch] | None = None
        self._sent: Future[object] | None = None

    def draw(self, updates: int) -> Batch:
        """Returns the batch for the next update after `updates` of them."""
        if self._stream is not None:
            return next(self._stream)
        drawn = self._drawn or self._ask(updates)
        batch = drawn.result()
        self._drawn = self._ask(updates + 1)
        return batch

    def learned(self, batch: Batch, td_errors: np.ndarray) -> None:
        """Tells the service how wrong the network was about each item: its new priority. Does not wait for the answer."""
        if self._beta is None:
            return
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.result()  # or an error would stay unseen
        priorities = np.abs(td_errors) + self._config.priority_epsilon
        send = partial(self._table.update_priorities, sampler=self._config.sampler)
        self._sent = self._thread.submit(send, batch.positions, priorities)

    def _ask(self, updates: int) -> "Future[Batch]":
        assert self._beta is not None
        beta = self._config.beta(self._beta, self._config.steps_learned(updates))
        ask = partial(self._table.sample, sampler=self._config.sampler, beta=beta, timeout_s=_TIMEOUT_S)
        return self._thread.submit(ask, self._config.batch_size, self._window)

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._drawn is not None:
            self._drawn.cancel()
        self._thread.shutdown()  # the last priorities are sent
        if self._sent is not None and kind is None:
            self._sent.result()
