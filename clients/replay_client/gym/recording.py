"""What the recording wrappers share: a writer for each environment, and what a user sets on a wrapper.

Actions and extras are checked and copied before the environment moves: a refused one changes nothing, and an environment
that writes into its action does not change what is stored. Should a step be taken but not stored, its episode is over as
far as the table goes: nothing more is recorded of it, and the next `step` asks for a reset.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from replay_client.lifetimes import send_all
from replaysvc.checks import check_timeout
from replaysvc.errors import InvalidRequestError, ReplayError, SpecMismatchError, WriterFencedError
from replaysvc.interface import Table
from replaysvc.spec import FieldSpec, Signature, Tree, flatten, leaves
from replaysvc.writer import Writer

log = logging.getLogger(__name__)

_CLOSE_S = 30.0  # how long `close` waits for all its writers
FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")  # Gymnasium 1, Gymnasium 0.29, Stable-Baselines3

Extras = Callable[[Any, Any], Mapping[str, Any]]


class Choice(NamedTuple):
    """What goes into one step of one environment, checked and copied."""

    action: Any
    extras: Mapping[str, Any] | None


class Recorder:
    """Base of the wrappers. Belongs to the thread that steps the environment.

    A writer that was refused, since its process was stopped for longer than a lease, say, is replaced by a new one in the
    middle of what the environment does: the episode goes on as another one. A warning in the log tells it.

    extras: values of the signature's extras for the next step; a step uses them up. One that the function of the wrapper
      gives as well is taken from here.
    policy_version, episode_metadata: what the episodes that begin from now on are marked with.
    """

    extras: Mapping[str, Any] | None
    policy_version: int
    episode_metadata: Mapping[str, Any] | None
    _writers: Sequence[Writer] = ()  # for a `close` of what was never made
    _table: Table
    _actors: Sequence[str]
    _signature: Signature
    _open: list[bool]  # which environments have an episode that the next step belongs to
    _extras_of: Extras | None

    def _start(
        self,
        table: Table,
        actors: Sequence[str],
        policy_version: int,
        metadata: Mapping[str, Any] | None,
        extras: Extras | None,
    ) -> None:
        self.extras, self.policy_version, self.episode_metadata = None, policy_version, metadata
        self._extras_of, self._signature = extras, table.signature
        self._table, self._actors = table, actors
        self._open = [False] * len(actors)
        writers: list[Writer] = []
        self._writers = writers
        try:
            for actor in actors:
                writers.append(table.writer(actor=actor))
        except BaseException:
            self._close_writers()
            raise

    def flush(self, timeout_s: float = 30.0) -> None:
        """Returns when every step recorded so far is durable. Raises as `Writer.flush` does; even so, recording can go on."""
        deadline = time.monotonic() + check_timeout(timeout_s)
        send_all(self._writers)  # so that one wait is for all
        for writer in self._writers:
            writer.flush(max(0.0, deadline - time.monotonic()))

    def _close_writers(self) -> None:
        """Flushes and closes every writer, also after one that fails, within one timeout; then raises the first failure."""
        failed: Exception | None = None
        deadline = time.monotonic() + _CLOSE_S
        send_all(self._writers)
        for writer in self._writers:
            try:
                writer.close(max(0.0, deadline - time.monotonic()))
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _begin(self, i: int, observation: Any) -> None:
        """Starts an episode in environment `i`; one that is open is abandoned."""
        self._open[i] = False
        self._writers[i].abandon()
        marks: dict[str, Any] = {"metadata": self.episode_metadata, "policy_version": self.policy_version}
        try:
            self._writers[i].begin(observation, **marks)
        except WriterFencedError as error:
            self._replace(i, error)
            self._writers[i].begin(observation, **marks)
        self._open[i] = True

    def _begin_all(self, observations: Any) -> None:
        self._open = [False] * len(self._open)
        for i, observation in enumerate(rows(self._signature.observation, observations, "observation", len(self._open))):
            self._begin(i, observation)

    def _append(self, i: int, choice: Choice, reward: Any, next_observation: Any, terminated: bool, truncated: bool) -> None:
        self._open[i] = False
        step = (choice.action, reward, next_observation)
        flags: dict[str, Any] = {"terminated": terminated, "truncated": truncated, "extras": choice.extras}
        try:
            self._writers[i].append(*step, **flags)
        except WriterFencedError as error:
            refused = self._replace(i, error)
            self._writers[i].begin_after(refused, metadata=self.episode_metadata, policy_version=self.policy_version)
            self._writers[i].append(*step, **flags)
        self._open[i] = not (terminated or truncated)

    def _replace(self, i: int, error: WriterFencedError) -> Writer:
        """Puts a new writer in the place of a refused one, which it returns. None has an epoch, so the new one may write."""
        log.warning("a new writer goes on, without the steps that were not stored yet: %s", error)
        refused = self._writers[i]
        with contextlib.suppress(ReplayError):  # what it could not store is told above
            refused.close()
        self._writers = [*self._writers[:i], self._table.writer(actor=self._actors[i]), *self._writers[i + 1 :]]
        return refused

    def _take_extras(self, observation: Any, action: Any) -> Mapping[str, Any]:
        """Returns the extras of the next step by name, all there, values unchecked."""
        given, self.extras = self.extras, None
        computed = {} if self._extras_of is None else self._extras_of(observation, action)
        for part in (computed, given):
            if not isinstance(part, Mapping | None):
                raise SpecMismatchError("extras", f"a dict with keys {sorted(self._signature.extras)}", type(part).__name__)
        extras = {**computed, **(given or {})}
        if extras.keys() != self._signature.extras.keys():
            raise SpecMismatchError(
                "extras", f"keys {sorted(self._signature.extras)} before each step", f"keys {sorted(map(str, extras))}"
            )
        return extras

    def _choose(self, observation: Any, action: Any) -> Choice:
        extras = self._take_extras(observation, action)
        return Choice(
            settle(self._signature.action, action, "action"),
            {name: settle(tree, extras[name], name) for name, tree in self._signature.extras.items()} or None,
        )

    def _choose_rows(self, observations: Any, actions: Any) -> list[Choice | None]:
        """Returns a choice for each environment that has an episode; what the others are given is not looked at."""
        count, declared = len(self._open), self._signature.extras
        extras = self._take_extras(observations, actions)
        action_rows = rows(self._signature.action, actions, "action", count)
        extra_rows = {name: rows(tree, extras[name], name, count) for name, tree in declared.items()}
        return [
            Choice(
                settle(self._signature.action, action_rows[i], "action"),
                {name: settle(tree, extra_rows[name][i], name) for name, tree in declared.items()} or None,
            )
            if is_open
            else None
            for i, is_open in enumerate(self._open)
        ]


def settle(tree: Tree, value: Any, path: str) -> Any:
    """Returns a copy of `value` in the declared dtypes. Raises SpecMismatchError."""
    pairs = zip(leaves(tree), flatten(tree, value, path), strict=True)
    return _nest(tree, iter([spec.check(leaf).copy() for spec, leaf in pairs]))


def rows(tree: Tree, batch: Any, path: str, count: int) -> list[Any]:
    """Returns the `count` rows of a batch in which every leaf has one more axis, the environments; nothing is copied.

    Raises:
      SpecMismatchError: not nested as `tree` is, or a leaf has another number of rows.
    """
    columns: list[Any] = list(flatten(tree, batch, path))
    for spec, column in zip(leaves(tree), columns, strict=True):
        try:
            found = f"{len(column)} rows"
        except TypeError:
            found = type(column).__name__
        if found != f"{count} rows":
            raise SpecMismatchError(spec.name, f"{count} rows, one for each environment", found)
    return [_nest(tree, iter([column[i] for column in columns])) for i in range(count)]


def _nest(tree: Tree, values: Iterator[Any]) -> Any:
    """Returns the leaves that `flatten` gave, nested again."""
    if isinstance(tree, FieldSpec):
        return next(values)
    if isinstance(tree, Mapping):
        return {key: _nest(child, values) for key, child in tree.items()}
    return tuple(_nest(child, values) for child in tree)


def find_final(tree: Tree, infos: Any, i: int) -> Any:
    """Returns the final observation of environment `i` from what a vector environment told beside its step; None if not there.

    `infos` is Gymnasium's dict (an array of objects with a mask, or the leaves batched) or a list of one dict for each
    environment.
    """
    if isinstance(infos, list | tuple):
        return next((infos[i][key] for key in FINAL_KEYS if infos[i].get(key) is not None), None)
    for key in FINAL_KEYS:
        mask = infos.get(f"_{key}")
        if key in infos and (mask is None or mask[i]):
            return _row(tree, infos[key], i)
    return None


def _row(tree: Tree, batch: Any, i: int) -> Any:
    if isinstance(tree, Mapping) and isinstance(batch, Mapping):  # which may hold masks of its own beside the leaves
        return {key: _row(child, batch[key], i) for key, child in tree.items()}
    if not isinstance(tree, FieldSpec | Mapping) and isinstance(batch, tuple):
        return tuple(_row(child, part, i) for child, part in zip(tree, batch, strict=True))
    return batch[i]


def need_final(tree: Tree, infos: Any, i: int) -> Any:
    """Returns what `find_final` finds.

    Raises:
      InvalidRequestError: nothing; the observation that the step returned is of another episode.
    """
    final = find_final(tree, infos, i)
    if final is None:
        raise InvalidRequestError(
            f"infos: expected the final observation of environment {i}, whose episode ended, under one of {list(FINAL_KEYS)}, "
            f"found keys {sorted(map(str, infos[i] if isinstance(infos, list | tuple) else infos))}"
        )
    return final


def is_mask(value: Any, count: int) -> bool:
    """Returns whether `value` looks like one bool for each environment."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype == np.bool_ and value.shape == (count,))
    return isinstance(value, list | tuple) and len(value) == count and all(isinstance(x, bool | np.bool_) for x in value)
