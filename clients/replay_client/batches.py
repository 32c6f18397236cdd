"""Batches of one kind, asked for one by one or ahead of time."""

import random
import time
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any

from replay_client.connection import Connection, translated
from replay_client.frames import read_frame, shared_bytes
from replay_client.shared import LEAST_BYTES, Slot
from replaysvc.batch import assemble, split
from replaysvc.config import MAX_LARGE_BYTES, MAX_MESSAGE_BYTES
from replaysvc.errors import CapacityError, ChunkCorruptError, NotReadyError, UnavailableError, WaitTimeoutError
from replaysvc.extent import extent_of
from replaysvc.requests import Episodes, Window
from replaysvc.spec import FieldSpec, Signature
from replaysvc.types import Batch
from replaysvc.v1 import replay_pb2 as pb

_UNDER_WAY_BYTES = 128 << 20  # of batches that a stream has asked for: each lies in the server's memory until it is sent
_WAIT_SLICE_S = 5.0  # a waiting sample call asks again at least this often
_PAUSE_S = 0.2  # and at most this often, should the server have too many of them to let it wait there
_LARGER = 10  # times as long as other calls may one take whose answer is streamed


class Batches:
    """What requests for one kind of batch have in common. `request` says all but when, and by what seed. Thread-safe."""

    def __init__(
        self, connection: Connection, signature: Signature, specs: Mapping[str, FieldSpec], request: pb.SampleRequest,
        what: Window,
    ) -> None:  # fmt: skip
        self._connection, self._signature, self._specs, self._what = connection, signature, specs, what
        self._request = request.SerializeToString()  # a message's fields may follow another's: together they are one
        self._batch_size = request.batch_size
        self._shared: dict[int, int] = {}  # what an answer was found to take of shared memory, by its number of batches
        self._extent = extent_of(signature, what, self._batch_size)

    def sample(self, deadline: float, *, seed: int | None = None, closes: int | None = None) -> Batch:
        """Returns a batch; waits for one until `deadline`, by the monotonic clock.

        `closes`: of the connection, as of when this was asked for; a later close ends it.
        """
        connection, slot = self._connection, None
        closes = connection.closes if closes is None else closes

        def attempt() -> tuple[bytes | bytearray, Slot | None]:
            left = max(0.0, deadline - time.monotonic())
            more = pb.SampleRequest(timeout_s=min(left, _WAIT_SLICE_S), seed=seed)
            timeout_s = connection.config.call_timeout_s
            if isinstance(self._what, Episodes):
                data = self._request + more.SerializeToString()
                return connection.sample_large(data, _LARGER * timeout_s + more.timeout_s), None
            slot = self._slot(1)
            try:
                return connection.sample(self._data(more, slot), timeout_s + more.timeout_s), slot
            except BaseException as error:
                _end(slot, error)
                raise

        while True:
            asked = time.monotonic()
            try:
                frame, slot = connection.retrying(attempt, closes=closes)
                return self._batch(frame, slot, 1)
            except NotReadyError:
                now = time.monotonic()
                if now >= deadline:
                    raise
                if connection.closes != closes:
                    raise UnavailableError(f"the connection to {connection.address} was closed") from None
                if now - asked < _PAUSE_S:
                    time.sleep(min(deadline - now, _PAUSE_S * random.uniform(0.5, 1.0)))

    def stream(self, prefetch: int, timeout_s: float) -> Generator[Batch, None, None]:
        """Yields batches without end, with requests for `prefetch` of them under way; for fewer large ones."""
        connection = self._connection
        prefetch = min(prefetch, max(1, _UNDER_WAY_BYTES // self._extent.raw_bytes))
        count = self._together(prefetch)
        more = pb.SampleRequest(timeout_s=timeout_s, batches=count)
        under_way: deque[tuple[Any, Slot | None]] = deque()

        def ask() -> None:
            slot = self._slot(count)
            try:
                future = connection.start_sample(self._data(more, slot), connection.config.call_timeout_s)
            except BaseException as error:
                _end(slot, error)
                raise
            under_way.append((future, slot))

        try:
            while True:
                closes = connection.closes
                while len(under_way) < prefetch // count:
                    ask()
                future, slot = under_way[0]
                try:
                    with translated(connection.address):
                        frame = future.result()
                except (UnavailableError, WaitTimeoutError, NotReadyError, CapacityError) as error:
                    _end(under_way.popleft()[1], error)
                    yield self.sample(time.monotonic() + timeout_s, closes=closes)
                    continue
                under_way.popleft()
                parts = self._parts(self._batch(frame, slot, count), count)
                del frame, slot
                if count > 1:  # what is under way shall not wait until all of these are used
                    ask()
                parts.reverse()
                while parts:  # each is forgotten here, for its memory may be that of the next
                    yield parts.pop()
        finally:
            for future, slot in under_way:
                future.cancel()
                _end(slot, None)

    def _together(self, prefetch: int) -> int:
        """Returns how many batches to ask for at once: several small ones, but so that two requests are under way."""
        return self._extent.together(prefetch // 2)

    def _parts(self, batch: Batch, count: int) -> list[Batch]:
        """Returns the batches of an answer; an older server knows of no groups and gives one."""
        found, rest = divmod(len(batch), self._batch_size)
        if rest or not 1 <= found <= count:
            raise ChunkCorruptError(f"batch: expected {count} times {self._batch_size} items, found {len(batch)}")
        return split(batch, found) if found > 1 else [batch]

    def _slot(self, count: int) -> Slot | None:
        """Returns memory for an answer, if earlier ones were found to be large enough for it."""
        size = self._shared.get(count, 0)
        return self._connection.shared.take(size) if size else None

    def _data(self, more: pb.SampleRequest, slot: Slot | None) -> bytes:
        data = self._request + more.SerializeToString()
        return data if slot is None else data + pb.SampleRequest(region=slot.region).SerializeToString()

    def _batch(self, frame: bytes | bytearray, slot: Slot | None, count: int) -> Batch:
        """Returns what an answer holds."""
        most = MAX_LARGE_BYTES if isinstance(self._what, Episodes) else MAX_MESSAGE_BYTES
        found = read_frame(frame, self._specs, slot.buffer() if slot is not None else None, most=most)
        if found.room or (slot is None and self._extent.raw_bytes * count >= LEAST_BYTES):
            self._shared[count] = max(self._shared.get(count, 0), found.room, shared_bytes(found.columns))
        return assemble(self._signature, self._what, found.columns)


def _end(slot: Slot | None, error: BaseException | None) -> None:
    """Ends the use of a slot without a batch. Two errors tell that the server is done with it."""
    if slot is None:
        return
    if isinstance(error, NotReadyError | CapacityError):
        slot.come_back()
    else:
        slot.spoil()
