"""Chunks that a writer session has not seen acknowledged, in order.

Not thread-safe: the sender's lock is held around every call.
"""

from collections import deque
from dataclasses import dataclass

from replaysvc.codec.header import decoded_bytes
from replaysvc.v1 import replay_pb2 as pb

MAX_CHUNKS = 16_384  # of one append
_MAX_DECODED_BYTES = 32 << 20  # of one append's chunks: however well they compress, the server must hold them decoded


@dataclass(frozen=True, slots=True)
class _Queued:
    sequence: int
    chunk: bytes
    decoded_bytes: int


class Backlog:
    """What waits to be stored, numbered 0, 1, 2, ... as it came."""

    def __init__(self) -> None:
        self._queue: deque[_Queued] = deque()
        self._put = 0
        self.bytes = 0  # of the chunks as sent

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> int:
        """Returns the number of the first chunk that waits, or else of the next one to come."""
        return self._put - len(self._queue)

    @property
    def end(self) -> int:
        """Returns the number of the next chunk to come."""
        return self._put

    def put(self, chunk: bytes) -> None:
        """Takes a chunk."""
        self._queue.append(_Queued(self._put, chunk, decoded_bytes(chunk)))
        self.bytes += len(chunk)
        self._put += 1

    def next_append(self, most_chunks: int, most_bytes: int) -> list[pb.AppendChunk]:
        """Returns the first chunks, as many as one append may carry; one at least, if there is any."""
        chunks: list[pb.AppendChunk] = []
        size = decoded = 0
        for queued in self._queue:
            size += len(queued.chunk)
            decoded += queued.decoded_bytes
            if chunks and (size > most_bytes or decoded > _MAX_DECODED_BYTES or len(chunks) >= most_chunks):
                break
            chunks.append(pb.AppendChunk(sequence=queued.sequence, chunk=queued.chunk))
        return chunks

    def acknowledge(self, last: int) -> None:
        """Forgets the chunks up to number `last`, which are durable."""
        while self._queue and self._queue[0].sequence <= last:
            self.bytes -= len(self._queue.popleft().chunk)
