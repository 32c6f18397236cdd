"""LMDB's file, read page by page without LMDB: for a file that it must not be given, or that a bad disk may not give back.

LMDB reads through a map, where a page that cannot be read ends the process, and it trusts what it reads. Here every read
is a `pread`, every number is checked before it is used, and what is wrong is noted and passed over. Of LMDB 0.9, 64 bits,
little-endian: a page is a header of 16 bytes (its number, u64; 2 unused; flags, u16; lower and upper bound of its free space,
u16 each, or its count of pages, u32), then, in a B-tree's page, an offset (u16) a node. A node is 8 bytes (in a leaf: size of
the value in u16 and u16, flags, size of the key; in a branch the first three are the child's number), the key, the value.
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from replaysvc.codec.header import DESCRIPTOR, FIXED, MAGIC, PREFIX
from replaysvc.errors import ChunkCorruptError
from replaysvc.storage.structure import follow_each_other

PAGE_SIZE = 4096  # where no meta page tells; what LMDB takes on this kind of machine
_HEADER = struct.Struct("<Q2xHHH")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<II8xQ")  # magic, version, size of the map
_DATABASE = struct.Struct("<IHHQQQQQ")  # page size (of the first), flags, depth, pages of three kinds, entries, root
_LAST = struct.Struct("<QQ")  # last page, transaction
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG, _SUBDATABASE = 1, 2
_DEEPEST = 32
_BLOCK_BYTES = 1 << 20
_MAX_CHUNK_HEAD = 16 << 10  # more than the fixed part and the descriptors of a thousand columns


class Item(NamedTuple):
    """Where a value lies in the file."""

    key: bytes
    offset: int
    size: int


class _Root(NamedTuple):
    page: int
    last_page: int
    transaction: int


class Pages:
    """A data file, open for reading. `problems` gathers what was passed over. For one thread at a time; a context manager."""

    def __init__(self, path: Path) -> None:
        """Opens the file; only the file system's own failures are raised, as OSError."""
        self.path = path
        self.problems: list[str] = []
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._handle).st_size
        self.page_size = PAGE_SIZE
        self._block, self._block_at = b"", 0
        roots = [root for at in (0, self._page_size_of_meta()) if (root := self._read_meta(at)) is not None]
        if len(roots) < 2:
            self.problems.append(f"{2 - len(roots)} of the 2 meta pages cannot be read")
        elif not follow_each_other(roots[0].transaction, roots[1].transaction):
            numbers = " and ".join(str(root.transaction) for root in roots)
            self.problems.append(f"the meta pages are of transactions {numbers}, which do not follow each other")
        self._root = max(roots, key=lambda root: root.transaction, default=None)
        self._databases: dict[bytes, int] | None = None

    @property
    def last_page(self) -> int:
        """Returns the number of the last page that counts, by the meta page that LMDB would take; -1 if none can be read."""
        return -1 if self._root is None else self._root.last_page

    def __enter__(self) -> "Pages":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def read(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes, or fewer at the file's end. Raises ChunkCorruptError if the disk cannot give them.

        Both may come from damaged pages: no memory is taken for more than the file has.
        """
        size = min(size, max(0, self.size - offset))
        if size <= 0 or offset < 0:
            return b""
        try:
            return os.pread(self._handle, size, offset)
        except OSError as error:
            raise ChunkCorruptError(f"bytes {offset} to {offset + size} cannot be read: {error.strerror}") from error

    def value(self, item: Item) -> bytes:
        """Returns the bytes of a value. Raises ChunkCorruptError."""
        found = self.read(item.offset, item.size)
        if len(found) < item.size:
            raise ChunkCorruptError(f"{self.path}: expected {item.size} bytes at {item.offset}, found {len(found)}")
        return found

    def forget(self, item: Item) -> None:
        """Lets go of a value's pages in the page cache, but for those that are mapped: it was read only to be checked."""
        if item.offset + item.size <= self.size:
            os.posix_fadvise(self._handle, item.offset, item.size, os.POSIX_FADV_DONTNEED)

    def values(self, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields key and value of what `items` does; a value that the disk does not give is passed over."""
        for item in self.items(name):
            try:
                yield item.key, self.value(item)
            except ChunkCorruptError as error:
                self.problems.append(str(error))

    def items(self, name: bytes) -> Iterator[Item]:
        """Yields what a named database holds, in order of the keys, as far as its pages are whole."""
        if self._databases is None:
            self._databases = {}
            for item in self._walk(self._root.page if self._root else None, _SUBDATABASE):
                record = self.read(item.offset, _DATABASE.size)
                if item.size == len(record) == _DATABASE.size:
                    self._databases[item.key] = _DATABASE.unpack(record)[7]
        if name not in self._databases:
            self.problems.append(f"the database {name.decode()} cannot be found")
            return
        yield from self._walk(self._databases[name], 0)

    def carve(self, record_size: int) -> Iterator[Item]:
        """Yields what lies in any page, whether or not a tree leads there: older versions, too, and what was never committed.

        That is every value of a page that says of itself that it is a leaf; every value of `record_size` bytes under a key of
        8, in the unused part of a page, too; and every chunk that has pages of its own, under an empty key.
        """
        node = re.compile(re.escape(_NODE.pack(record_size, 0, 0, 8)))
        for page in range(2, -(-self.size // self.page_size)):
            start = page * self.page_size
            content = self._carved(start, self.page_size)
            for found in node.finditer(content):
                at = found.end()
                if at + 8 + record_size <= len(content):
                    yield Item(content[at : at + 8], start + at + 8, record_size)
            number, flags, *_ = _HEADER.unpack_from(content) if len(content) >= _HEADER.size else (-1, 0)
            if number == page and flags == _LEAF and len(content) == self.page_size:
                yield from self._nodes(page, content, None)
            own = number == page and flags == _OVERFLOW
            if own and (size := _chunk_size(self._carved(start + _HEADER.size, _MAX_CHUNK_HEAD))):
                yield Item(b"", start + _HEADER.size, size)

    def _carved(self, offset: int, size: int) -> bytes:
        """Returns bytes as `read` does, none where the disk does not give them."""
        if not self._block_at <= offset <= offset + size <= self._block_at + len(self._block):
            self._block_at = offset - offset % self.page_size
            try:
                self._block = self.read(self._block_at, max(_BLOCK_BYTES, size + self.page_size))
            except ChunkCorruptError:  # perhaps only one page of them is bad
                self._block = b""
                try:
                    return self.read(offset, size)
                except ChunkCorruptError as error:
                    self.problems.append(str(error))
                    return b""
        return self._block[offset - self._block_at :][:size]

    def _walk(self, root: int | None, kind: int) -> Iterator[Item]:
        """Yields the values under a page of a tree, depth first; each page once, so that it never goes in circles."""
        if root is None or self._root is None:
            return
        seen: set[int] = set()
        waiting = [(root, 1)]
        while waiting:
            page, depth = waiting.pop()
            if page == (1 << 64) - 1 and depth == 1:  # an empty tree
                return
            if not 2 <= page <= self._root.last_page or page in seen or depth > _DEEPEST:
                self.problems.append(f"page {page}: expected a page of the tree, found one that is out of place")
                continue
            seen.add(page)
            try:
                content = self.read(page * self.page_size, self.page_size)
            except ChunkCorruptError as error:
                self.problems.append(str(error))
                continue
            number, flags = _HEADER.unpack_from(content)[:2] if len(content) == self.page_size else (-1, 0)
            if number != page or flags not in (_BRANCH, _LEAF):
                self.problems.append(f"page {page}: expected a page of the tree, found other bytes")
            elif flags == _LEAF:
                yield from self._nodes(page, content, kind)
            else:
                waiting += [(child, depth + 1) for child in reversed(self._children(page, content))]

    def _offsets(self, page: int, content: bytes) -> list[int]:
        _, _, lower, upper = _HEADER.unpack_from(content)
        if not _HEADER.size <= lower <= upper <= self.page_size or lower % 2:
            self.problems.append(f"page {page}: its bounds are wrong")
            return []
        offsets = struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", content, _HEADER.size)
        good = [at for at in offsets if upper <= at <= self.page_size - _NODE.size]
        if len(good) < len(offsets):
            self.problems.append(f"page {page}: {len(offsets) - len(good)} entries are out of place")
        return good

    def _children(self, page: int, content: bytes) -> list[int]:
        nodes = (_NODE.unpack_from(content, at) for at in self._offsets(page, content))
        return [low | middle << 16 | high << 32 for low, middle, high, _ in nodes]

    def _nodes(self, page: int, content: bytes, kind: int | None) -> Iterator[Item]:
        """Yields the values of a leaf: of nodes of `kind` (0, _SUBDATABASE), or of all for None, but for other trees."""
        for at in self._offsets(page, content):
            low, high, flags, key_size = _NODE.unpack_from(content, at)
            size, start = low | high << 16, at + _NODE.size + key_size
            key = content[at + _NODE.size : start]
            if flags & ~_BIG != (kind or 0):
                continue
            if flags & _BIG:
                if start + 8 <= self.page_size:
                    first = int.from_bytes(content[start : start + 8], "little")
                    yield Item(key, first * self.page_size + _HEADER.size, size)
            elif start + size <= self.page_size:
                yield Item(key, page * self.page_size + start, size)

    def _page_size_of_meta(self) -> int:
        size = int.from_bytes(self._carved(_HEADER.size + _META.size, 4), "little")
        if 512 <= size <= 1 << 15 and not size & (size - 1):
            self.page_size = size
        return self.page_size

    def _read_meta(self, offset: int) -> _Root | None:
        try:
            content = self.read(offset, PAGE_SIZE)
        except ChunkCorruptError:
            return None
        if len(content) < _HEADER.size + _META.size + 2 * _DATABASE.size + _LAST.size:
            return None
        _, flags, _, _ = _HEADER.unpack_from(content)
        magic, version, _ = _META.unpack_from(content, _HEADER.size)
        at = _HEADER.size + _META.size
        root = _DATABASE.unpack_from(content, at + _DATABASE.size)[7]
        last, transaction = _LAST.unpack_from(content, at + 2 * _DATABASE.size)
        good = flags & _META_PAGE and (magic, version) == (_MAGIC, _VERSION)
        return _Root(root, last, transaction) if good else None


def _chunk_size(content: bytes) -> int:
    """Returns the size that a chunk's own header states, 0 if these bytes do not begin one."""
    if len(content) < PREFIX.size + FIXED.size or content[:4] != MAGIC:
        return 0
    *_, metadata_size, columns = FIXED.unpack_from(content, PREFIX.size)
    at = PREFIX.size + FIXED.size
    head = content[at : at + DESCRIPTOR.size * columns]
    if len(head) < DESCRIPTOR.size * columns:
        return 0
    return int(at + len(head) + metadata_size + sum(stored for *_, stored in DESCRIPTOR.iter_unpack(head)))
