"""The writer: takes steps one at a time, checks them, and hands encoded chunks to a sink.

Arrays are copied into buffers made once, so a step costs no allocation and the caller may reuse its own arrays. What a
sink does with a chunk (a network, a queue) and what threads it runs is the sink's business; the writer only promises that
two threads may call it: the user's, and the sink's timer through `flush_due`.
"""

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from replaysvc.checks import check_number, check_timeout
from replaysvc.chunk_steps import choose_chunk_steps
from replaysvc.codec import ChunkEncoder, ChunkInfo
from replaysvc.config import TableConfig
from replaysvc.errors import (
    InvalidRequestError,
    ReplayError,
    SpecMismatchError,
    UnavailableError,
    WaitTimeoutError,
    WriterFencedError,
)
from replaysvc.metadata import encode_metadata
from replaysvc.options import MAX_PRIORITY, PRIORITY_BOUND, Prioritized
from replaysvc.spec import Signature, flatten
from replaysvc.types import Array

DEFAULT_LIMIT_TIMEOUT_S = 600.0


class Lock(Protocol):
    """What the writer needs of a lock; `threading.Lock` is one."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


_BOOLS, _FLOATS = (bool, np.bool_), (float, np.float32, np.float64)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class ChunkSink(Protocol):
    """Where a writer's chunks go. One sink serves many writers; chunks are kept in the order in which they were put."""

    def put(self, chunk: bytes, *, wait: bool, limit_timeout_s: float = DEFAULT_LIMIT_TIMEOUT_S) -> None:
        """Takes a chunk. `wait`: may block while too much is unacknowledged, and raises what has been failing for long.

        While the table's limiter holds chunks back, it blocks for up to `limit_timeout_s`, then raises WaitTimeoutError and has
        not taken the chunk. Without `wait` the chunk is taken even so, for a caller that is about to wait in `flush`.
        """

    def flush(self, timeout_s: float) -> None:
        """Returns when all that was put so far is durable. Raises WaitTimeoutError; what is queued stays queued."""

    def next_episode_key(self) -> int:
        """Returns a number that names a new episode within the sink's session."""

    def make_lock(self) -> Lock:
        """Returns a new lock for one writer."""

    def attach(self, writer: "Writer") -> None:
        """From now on calls `writer.flush_due()` every `flush_interval_s` or so."""

    def detach(self, writer: "Writer") -> None:
        """Stops calling it."""


class Writer:
    """Writes the steps of one episode after another. Made by `table.writer()`; a context manager that flushes at its end.

    A refused call (SpecMismatchError, InvalidRequestError) changes nothing: the step can be appended again, corrected.

    Once the service has refused it for good (WriterFencedError: its lease ended, or a newer one took over), `begin`, `append`
    and `flush` raise that again, `abandon` does nothing, and `close` raises it if steps that were appended are not stored.
    """

    def __init__(
        self, signature: Signature, config: TableConfig, sink: ChunkSink, *, clock: Callable[[], float],
        limit_timeout_s: float = DEFAULT_LIMIT_TIMEOUT_S,
    ) -> None:  # fmt: skip
        self._limit_timeout_s = check_number("limit_timeout_s", limit_timeout_s, 0, 86_400, whole=False)
        self._signature, self._sink, self._clock = signature, sink, clock
        self._capacity = choose_chunk_steps(signature, config)
        self._interval_s = config.flush_interval_s
        self._encoder = ChunkEncoder(signature)
        self._first_action = signature.observation_columns
        self._buffers: list[Array] = [
            np.zeros((self._capacity + (i < self._first_action), *spec.shape), spec.dtype)
            for i, spec in enumerate(signature.columns)
        ]
        names = [spec.name for spec in signature.columns]
        self._reward_at = names.index("reward")
        self._specs = tuple(signature.columns)
        self._flat = self._first_action == 1 and names[:3] == ["observation", "action", "reward"] and not signature.extras
        given = {s.initial_priority for s in config.samplers.values() if isinstance(s, Prioritized)}
        self._priorities_at = tuple(at for at, name in enumerate(names) if name in given)
        self._lock = sink.make_lock()
        self._open = self._closed = False
        self._ended = "this writer was closed"  # why, once `_closed` is set
        self._fenced: WriterFencedError | None = None
        self._n = self._first_step = 0  # steps in the buffers, and the step of the episode that the first of them is
        self._episode_key = 0
        self._policy_version = -1
        self._metadata = b""
        self._started_at = 0.0
        sink.attach(self)

    def begin(self, observation: Any, *, metadata: Mapping[str, Any] | None = None, policy_version: int = -1) -> None:
        """Starts an episode at its first observation.

        `metadata` is kept with the episode as JSON, up to 64 KiB. `policy_version` (>= 0) says which parameters act in it.

        Raises:
          InvalidRequestError: an episode is open; end it with `terminated` or `truncated`, or `abandon` it.
          SpecMismatchError: the observation does not fit the signature.
          WriterFencedError: this writer may not go on; make a new one.
        """
        with self._guard("begin"):
            self._check_fence()
            if self._open:
                raise InvalidRequestError(
                    f"begin: expected the open episode to be ended (terminated or truncated with its last step, or abandon()), "
                    f"found it open at step {self._first_step + self._n}"
                )
            policy_version = check_number("policy_version", policy_version, -1, (1 << 63) - 1)
            encoded = encode_metadata(metadata)
            self._put_row(0, self._signature.observation, observation, "observation", row=0)
            self._start_episode(policy_version, encoded)

    def begin_after(self, other: "Writer", *, metadata: Mapping[str, Any] | None = None, policy_version: int = -1) -> None:
        """Starts an episode at the last observation that a refused writer of the same table was given. For recorders."""
        encoded = encode_metadata(metadata)
        with self._guard("begin"):
            for buffer, seen in zip(self._buffers[: self._first_action], other._buffers, strict=False):
                buffer[0] = seen[other._n]
            self._start_episode(policy_version, encoded)

    def _start_episode(self, policy_version: int, metadata: bytes) -> None:
        self._episode_key = self._sink.next_episode_key()
        self._open, self._n, self._first_step = True, 0, 0
        self._policy_version, self._metadata = policy_version, metadata

    def append(
        self, action: Any, reward: Any, next_observation: Any, *, terminated: bool = False, truncated: bool = False,
        extras: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Adds one step: the action taken at the last observation, and what came of it.

        `next_observation` is the true one, also at the end of an episode. `extras` holds a value for each extra of the
        signature. May wait while too much is unacknowledged (backpressure), or the table's limiter holds steps back.

        Raises:
          SpecMismatchError: a value does not fit the signature; names the field.
          InvalidRequestError: no episode is open.
          WaitTimeoutError: the limiter held steps back for `limit_timeout_s`; says what must happen first. The step was not
            taken and can be appended again.
        """
        if self._closed or not self._open:
            raise self._not_open("append")
        lock = self._lock
        lock.acquire()
        try:
            if self._closed:  # meanwhile: the step would stay here for ever
                raise self._not_open("append")
            n, specs, buffers = self._n, self._specs, self._buffers
            if self._flat:  # the common case, without walking trees
                buffers[0][n + 1] = specs[0].check(next_observation)
                buffers[1][n] = specs[1].check(action)
                if type(reward) in _FLOATS and -_FLOAT32_MAX <= reward <= _FLOAT32_MAX:  # a NaN is within nothing
                    buffers[2][n] = reward
                else:
                    buffers[2][n] = specs[2].check(reward)
            else:
                at = self._put_row(0, self._signature.observation, next_observation, "next_observation", row=n + 1)
                at = self._put_row(at, self._signature.action, action, "action", row=n)
                buffers[at][n] = specs[at].check(reward)
            if not self._flat or extras is not None or self._priorities_at:
                self._put_extras(extras, n)
            if not (isinstance(terminated, _BOOLS) and isinstance(truncated, _BOOLS)):
                raise SpecMismatchError("terminated, truncated", "two bools", f"{terminated!r}, {truncated!r}")
            if n == 0:
                self._started_at = self._clock()
            self._n = n + 1
            ended = bool(terminated or truncated)
            if ended or n + 1 == self._capacity:
                try:
                    self._cut(bool(terminated), bool(truncated), wait=True)
                except BaseException:
                    self._n = n  # the sink did not take it: this step can be appended again
                    raise
                self._open = not ended and self._fenced is None
        finally:
            lock.release()

    @property
    def open_episode(self) -> int | None:
        """Returns the key of the episode that this writer goes on with, None if there is none. For the sink."""
        return self._episode_key if self._open and not self._closed else None

    def abandon(self) -> None:
        """Gives up the open episode, if any. Steps appended so far are kept; the episode stays without an end."""
        with self._guard("abandon"):
            if self._n and self._fenced is None:
                with contextlib.suppress(WriterFencedError):  # the steps stay here, so that `close` tells
                    self._cut(False, False, wait=True)
            self._open = False

    def flush(self, timeout_s: float = 30.0) -> None:
        """Returns when every step appended so far is durable.

        Raises:
          WaitTimeoutError: not within `timeout_s`; the steps stay queued.
          UnavailableError: the service has not answered for `reconnect_timeout_s`; the steps stay queued.
          CapacityError: its disk has been full for so long (an embedded store's: is full); the steps stay queued.
          WriterFencedError: the service takes nothing of this writer any more; make a new one.
        """
        timeout_s = check_timeout(timeout_s)
        with self._guard("flush"):
            self._check_fence()
            if self._n:
                self._cut(False, False, wait=False)
        try:
            self._sink.flush(timeout_s)
        except WriterFencedError as error:
            self.fence(error)
            raise

    def flush_due(self, *, at_once: bool = False) -> None:
        """Sends a part-filled chunk older than `flush_interval_s`, or any with `at_once`; never blocks, so it may send nothing
        where another call is under way. For the sink."""
        lock = self._lock
        if not self._n or not lock.acquire(blocking=False):
            return  # a writer that is busy right now will look at the time itself
        try:
            if self._n and self._open and (at_once or self._clock() - self._started_at >= self._interval_s):
                self._cut(False, False, wait=False)
        finally:
            lock.release()

    def finish(self, reason: str, timeout_s: float) -> None:
        """Sends the steps that are in no chunk yet, and ends this writer as `end` does; no step comes in between. For the sink.

        Raises:
          WaitTimeoutError: another call of it was under way all the time: what it holds is not sent.
        """
        lock = self._lock
        if not lock.acquire(timeout=timeout_s):
            self.end(reason)
            if self._n:
                raise WaitTimeoutError(
                    f"close: a call of a writer did not end within {timeout_s:g} s; its last {self._n} steps are not stored"
                )
            return
        try:
            if self._n and self._open and not self._closed:
                self._cut(False, False, wait=False)
            elif self._n:
                self._check_fence()
        finally:
            self.end(reason)
            lock.release()

    def end(self, reason: str) -> None:
        """From now on every call raises UnavailableError with `reason`. For the sink, when it can take no more."""
        if not self._closed:
            self._ended = reason
            self._closed = True
            self._lock = self._sink.make_lock()  # after a fork, a thread that is no more may have held the old one

    def fence(self, error: WriterFencedError) -> None:
        """From now on `begin`, `append` and `flush` raise `error`. For the sink, when the service has refused this writer."""
        self._fenced = error
        self._open = False

    def close(self, timeout_s: float = 30.0) -> None:
        """Flushes and ends this writer; an open episode stays without an end. Closing twice is fine.

        Raises:
          WriterFencedError: steps that were appended are not stored and will not be. And as `flush`.
        """
        timeout_s = check_timeout(timeout_s)
        if self._closed:
            return
        try:
            if self._fenced is None or self._n:
                self.flush(timeout_s)
            else:
                self._sink.flush(timeout_s)
        finally:
            self._closed = True
            self._sink.detach(self)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a writer cannot be pickled: pickle a client's table, and call table.writer() in the other process")

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        try:  # what went wrong in the block is what the caller must hear of
            self.close()
        except ReplayError as closing:
            if isinstance(closing, WriterFencedError) and isinstance(error, WriterFencedError):
                return
            error.add_note(f"and the writer could not be closed: {closing}")

    def _guard(self, call: str) -> "_Held":
        if self._closed:
            raise self._not_open(call)
        return _Held(self, self._lock, call)

    def _check_fence(self) -> None:
        if self._fenced is not None:
            raise WriterFencedError(str(self._fenced)) from self._fenced

    def _not_open(self, call: str) -> Exception:
        if self._closed:
            return UnavailableError(f"{call}: {self._ended}")
        if self._fenced is not None:
            return WriterFencedError(str(self._fenced))
        return InvalidRequestError(f"{call}: expected an open episode, found none; call begin first")

    def _put_row(self, at: int, tree: Any, value: Any, path: str, *, row: int) -> int:
        for leaf in flatten(tree, value, path):
            spec = self._specs[at]
            array = spec.check(leaf)
            if spec.ragged:  # two columns: zeros beyond the values, since the row may hold an older step's
                n = len(array)
                self._buffers[at][row, :n], self._buffers[at][row, n:] = array, 0
                at += 1
                self._buffers[at][row] = n
            else:
                self._buffers[at][row] = array
            at += 1
        return at

    def _put_extras(self, extras: Mapping[str, Any] | None, row: int) -> None:
        declared = self._signature.extras
        given = {} if extras is None else extras
        if not isinstance(given, Mapping):
            raise SpecMismatchError("extras", f"a dict with keys {sorted(declared)}", type(given).__name__)
        if given.keys() != declared.keys():
            raise SpecMismatchError("extras", f"keys {sorted(declared)}", f"keys {sorted(map(str, given))}")
        at = self._reward_at + 1
        for name, tree in declared.items():
            at = self._put_row(at, tree, given[name], name, row=row)
        for at in self._priorities_at:
            priority = self._buffers[at][row]
            if not 0 <= priority <= PRIORITY_BOUND:  # a NaN is within nothing
                raise SpecMismatchError(self._specs[at].name, f"a priority from 0 to {MAX_PRIORITY:g}", repr(priority))

    def _cut(self, terminated: bool, truncated: bool, *, wait: bool) -> None:
        """Encodes the steps in the buffers and puts them; afterwards the buffers begin with the last observation."""
        n, first = self._n, self._first_action
        rewards = self._buffers[self._reward_at][:n]
        info = ChunkInfo(
            signature_hash=self._signature.hash, episode_key=self._episode_key, first_step=self._first_step, n_steps=n,
            terminated=terminated, truncated=truncated, policy_version=self._policy_version,
            reward_sum=float(rewards.sum(dtype=np.float64)), metadata=self._metadata,
        )  # fmt: skip
        chunk = self._encoder.encode(info, [buffer[: n + (i < first)] for i, buffer in enumerate(self._buffers)])
        try:
            self._sink.put(chunk, wait=wait, limit_timeout_s=self._limit_timeout_s)
        except WriterFencedError as error:
            self.fence(error)
            raise
        for buffer in self._buffers[:first]:
            buffer[0] = buffer[n]
        self._first_step += n
        self._n = 0
        self._metadata = b""


class _Held:
    """Holds a writer's lock for the length of a with statement, unless the writer has ended when it is free."""

    def __init__(self, writer: Writer, lock: Lock, call: str) -> None:
        self._writer, self._lock, self._call = writer, lock, call

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._writer._closed:
            self._lock.release()
            raise self._writer._not_open(self._call)

    def __exit__(self, *_: object) -> None:
        self._lock.release()
