"""Memory of clients on this host that batches are written to, where a socket would copy them many times.

The server writes to a region and reads nothing there that it reckons with: the client may write there as well. A region cannot
shrink under the server's hands, as its seals say: to write behind the end of a file would kill the process.
"""

import fcntl
import math
import mmap
import os
import secrets
import sys
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from replaysvc.access import Identity
from replaysvc.config import MAX_MESSAGE_BYTES, SHARED_COLUMN_BYTES
from replaysvc.errors import CapacityError, InvalidRequestError
from replaysvc.rpc.admission import Peer, Shares
from replaysvc.types import Array

LEAST_BYTES, MOST_BYTES = SHARED_COLUMN_BYTES, MAX_MESSAGE_BYTES + (1 << 20)  # of a region
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_ALIGN = 64
_LITTLE = sys.byteorder == "little"  # frames are, and so is what lies beside them


class Slot:
    """A region while one answer is written to it: its arrays stand there one after the other."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory, self._at, self._wanted = memory, 0, 0
        self._places: dict[int, tuple[int, int]] = {}  # by address: offset, bytes

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Returns an array in the region, or elsewhere if it is small or does not fit."""
        dtype, count = np.dtype(dtype), math.prod(shape)
        start, size = self._at, count * dtype.itemsize
        if size < SHARED_COLUMN_BYTES or not _LITTLE:
            return np.empty(shape, dtype)
        aligned = -(-size // _ALIGN) * _ALIGN
        self._wanted += aligned
        if start + size > len(self._memory):
            return np.empty(shape, dtype)
        array = np.frombuffer(self._memory, dtype, count, start)
        self._at += aligned
        self._places[_address(array)] = start, size
        return array.reshape(shape)

    @property
    def room(self) -> int:
        """Returns the bytes that would have been enough, 0 if these were."""
        return self._wanted if self._wanted > self._at else 0

    def offset(self, values: Array) -> int | None:
        """Returns where in the region all of an array is, None if it is elsewhere."""
        if values.nbytes < SHARED_COLUMN_BYTES:
            return None
        start, size = self._places.get(_address(values), (0, -1))
        return start if values.nbytes == size and values.flags.c_contiguous else None


def _address(values: Array) -> int:
    address: int = values.__array_interface__["data"][0]
    return address


@dataclass(frozen=True, slots=True)
class _Region:
    """Memory of one client, mapped; for whoever that was when it asked."""

    owner: Identity
    memory: mmap.mmap


class Regions:
    """The regions of a server's clients. `slot` may be called from any thread, the rest from one."""

    def __init__(self, total_bytes: int, most: int) -> None:
        self._bytes = Shares("bytes of shared memory", total_bytes, "shared_bytes")
        self._counted = Shares("regions of shared memory", most)
        self._regions: dict[bytes, _Region] = {}
        self._unmapped: deque[tuple[Peer, int]] = deque()  # noted by finalizers, which may take no lock
        self._device = _device_of_memory()

    def slot(self, region_id: bytes, owner: Identity) -> Slot | None:
        """Returns a region to write to, None if there is none of this id that is the caller's."""
        region = self._regions.get(region_id)
        return Slot(region.memory) if region is not None and region.owner == owner else None

    def admit(self, peer: Peer, owner: Identity, descriptor: int, size: int) -> bytes | None:
        """Maps memory that a client made. Returns the region's id, None if it is refused."""
        self.settle()
        if not self._is_sound(descriptor, size) or not self._take(peer, size):
            return None
        try:
            memory = mmap.mmap(descriptor, size)
        except (OSError, ValueError):  # sealed against writing, say
            self._unmapped.append((peer, size))
            return None
        weakref.finalize(memory, self._unmapped.append, (peer, size)).atexit = False
        region_id = secrets.token_bytes(16)
        self._regions[region_id] = _Region(owner, memory)
        return region_id

    def forget(self, region_id: bytes) -> None:
        """Lets go of a region. It stays mapped while an answer is written to it."""
        del self._regions[region_id]

    def settle(self) -> int:
        """Gives back what regions held that are mapped no more; returns the bytes of those that are."""
        while self._unmapped:
            peer, size = self._unmapped.popleft()
            self._bytes.give(peer, size)
            self._counted.give(peer, 1)
        return self._bytes.held

    def _is_sound(self, descriptor: int, size: int) -> bool:
        """Returns whether a descriptor is that of a memfd of `size` bytes, of plain pages, which stays so."""
        try:
            status, seals = os.fstat(descriptor), fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError:
            return False
        sealed = seals & _SEALS == _SEALS and status.st_dev == self._device
        return sealed and status.st_size == size and LEAST_BYTES <= size <= MOST_BYTES

    def _take(self, peer: Peer, size: int) -> bool:
        """Counts a region, if there is room for one more."""
        try:
            self._counted.take(peer, 1)
        except CapacityError:
            return False
        try:
            self._bytes.take(peer, size)
        except (CapacityError, InvalidRequestError):
            self._counted.give(peer, 1)
            return False
        return True


def _device_of_memory() -> int:
    """Returns the device of all memfds but those of huge pages, of which there may be none left when one is written to.
    Raises OSError."""
    probe = os.memfd_create("replaysvc", os.MFD_CLOEXEC)
    try:
        return os.fstat(probe).st_dev
    finally:
        os.close(probe)
