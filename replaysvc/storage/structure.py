"""Whether LMDB may be given a file: it trusts the pages of its trees, and ends the process over one that is not as it wrote it.

Every page of every tree is looked at, by pread, in the place and of the kind that its parent says; no value is, but of the
list of free pages. FORMAT.md assumes LMDB 0.9, 64 bits, little-endian: a page begins with its number (u64), 2 unused bytes,
flags, the lower and the upper bound of its free space (u16 each); then comes the offset (u16) of each node. A node is 8 bytes,
its key, its value. In a leaf the 8 bytes are the value's size (2 * u16), flags and the key's size (u16 each); in a branch the
first three are the number of a page.
"""

import logging
import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replaysvc.errors import ChunkCorruptError
from replaysvc.types import Array

log = logging.getLogger(__name__)

_HEAD, _NODE = 16, 8
_BRANCH, _LEAF = 1, 2
_BIG, _SUBTREE = 1, 2  # flags of nodes: the value has pages of its own, the value is a tree
_TREE = struct.Struct("<IHHQQQQQ")
_META_TREES = _HEAD + 24  # in a meta page: trees of free pages and of names, last page, transaction
_NO_PAGE = (1 << 64) - 1
_INTEGER_KEYS = 8  # flag of the tree of free pages
_KEY_BYTES = {b"chunks": 8, b"index": 8, b"episodes": 8, b"sessions": 16}  # of trees of which all keys are as long


class _Tree(NamedTuple):
    page_size: int  # stated by the tree of free pages alone
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class _Leaf(NamedTuple):
    """The nodes of a leaf: where their values begin in it, right after the keys; sizes and flags."""

    content: bytes
    key_size: Array
    start: Array
    size: Array
    flags: Array


def follow_each_other(first: int, second: int) -> bool:
    """Returns whether the two meta pages of a file may be of these transactions: the last two, the even one in the first page.

    Where not, one of the numbers is damaged, and LMDB might take the older page for the newer one.
    """
    return first % 2 == 0 and abs(second - first) == 1


def check_structure(file: Path) -> None:
    """Looks at all trees of a data file.

    Raises:
      ChunkCorruptError: LMDB must not be given the file. OSError: it cannot be read, nor at a second attempt.
    """
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            _Check(file, handle).run()
        except OSError as error:
            log.warning("segment %s: reading failed, and is tried once more: %s", file.parent, error)
            _Check(file, handle).run()
    finally:
        os.close(handle)


class _Check:
    def __init__(self, file: Path, handle: int) -> None:
        self._file, self._handle = file, handle
        self._size = os.fstat(handle).st_size
        self._page_size = 4096
        self._seen: set[int] = set()
        self._last = 0

    def run(self) -> None:
        first = os.pread(self._handle, 4096, 0)
        if len(first) < 4096:
            raise self._damage("its meta pages are missing")
        self._page_size = _TREE.unpack_from(first, _META_TREES)[0]
        if self._page_size not in (4096, 8192, 16_384, 32_768):
            raise self._damage(f"it states a page size of {self._page_size} bytes")
        metas = [first, os.pread(self._handle, 4096, self._page_size)]
        if len(metas[1]) < 4096:
            raise self._damage("its second meta page is missing")
        ends = [struct.unpack_from("<QQ", meta, _META_TREES + 2 * _TREE.size) for meta in metas]
        if not follow_each_other(ends[0][1], ends[1][1]):
            raise self._damage(f"its meta pages are of the transactions {ends[0][1]} and {ends[1][1]}, not the last two")
        chosen = 1 if ends[1][1] > ends[0][1] else 0  # as LMDB does
        self._last = ends[chosen][0]
        free, names = (_Tree(*_TREE.unpack_from(metas[chosen], _META_TREES + i * _TREE.size)) for i in (0, 1))
        wanted = (self._last + 1) * self._page_size
        if self._size < wanted:
            raise self._damage(f"expected a file of at least {wanted} bytes, found {self._size}")
        for leaf in self._leaves(free, _INTEGER_KEYS, 0, 8):
            for _, value in self._items(leaf):
                self._check_free(value)
        for leaf in self._leaves(names, 0, _SUBTREE, None):
            for name, value in self._items(leaf):
                if len(value) != _TREE.size:
                    raise self._damage("a tree's description is cut")
                for _ in self._leaves(_Tree(*_TREE.unpack(value)), 0, 0, _KEY_BYTES.get(name)):
                    pass

    def _damage(self, what: str) -> ChunkCorruptError:
        return ChunkCorruptError(f"segment {self._file.parent}: {what}")

    def _page(self, number: int) -> bytes:
        content = os.pread(self._handle, self._page_size, number * self._page_size)
        if len(content) < self._page_size:
            raise self._damage(f"page {number} is missing")
        return content

    def _leaves(self, tree: _Tree, flags: int, kind: int, key_bytes: int | None) -> Iterator[_Leaf]:
        """Yields the leaves of a tree, all nodes of which are of `kind`."""
        if tree.flags != flags:
            raise self._damage(f"expected a tree of flags {flags}, found {tree.flags}")
        waiting = [] if tree.root == _NO_PAGE else [(tree.root, 1)]
        while waiting:
            number, depth = waiting.pop()
            if not 2 <= number <= self._last or number in self._seen:
                raise self._damage(f"page {number} is out of place")
            self._seen.add(number)
            content = self._page(number)
            expected = _LEAF if depth == tree.depth else _BRANCH
            words = np.frombuffer(content, "<u2")
            found = int.from_bytes(content[:8], "little")
            if found != number or words[5] != expected or depth > tree.depth:
                raise self._damage(f"page {number}: expected page {number} of kind {expected}, found {found} of {words[5]}")
            at = self._offsets(number, words)
            low, middle, high, key_size = (words[at // 2 + i].astype(np.int64) for i in range(4))
            start = at + _NODE + key_size
            if (start > self._page_size).any():
                raise self._damage(f"page {number}: a key reaches beyond it")
            first = int(expected == _BRANCH)  # the first key of a branch has no meaning
            if key_bytes is not None and (key_size[first:] != key_bytes).any():
                raise self._damage(f"page {number}: expected keys of {key_bytes} bytes, found others")
            self._check_keys(number, content, at[first:] + _NODE, key_size[first:], integers=flags == _INTEGER_KEYS)
            if expected == _BRANCH:
                waiting += [(child, depth + 1) for child in (low | middle << 16 | high << 32).tolist()]
                continue
            leaf = _Leaf(content, key_size, start, low | middle << 16, high)
            self._check_values(number, leaf, kind)
            yield leaf

    def _offsets(self, number: int, words: Array) -> Array:
        """Returns where the nodes of a page begin."""
        lower, upper = int(words[6]), int(words[7])
        at = words[_HEAD // 2 : lower // 2].astype(np.int64)
        if lower % 2 or not _HEAD < lower <= upper <= self._page_size or (at % 2).any() or (at < upper).any():
            raise self._damage(f"page {number}: its bounds are wrong")
        if (at > self._page_size - _NODE).any():
            raise self._damage(f"page {number}: a node reaches beyond it")
        return at

    def _check_keys(self, number: int, content: bytes, at: Array, size: Array, *, integers: bool) -> None:
        if not at.size:
            return
        if (size == 8).all():
            raw = np.frombuffer(content, np.uint8)[at[:, None] + np.arange(8)]
            keys = raw.view("<u8" if integers else ">u8")[:, 0]
            rising = bool((keys[1:] > keys[:-1]).all())
        else:
            texts = [content[start : start + length] for start, length in zip(at.tolist(), size.tolist(), strict=True)]
            rising = b"" not in texts and all(before < after for before, after in pairwise(texts))
        if not rising:
            raise self._damage(f"page {number}: its keys do not rise")

    def _check_values(self, number: int, leaf: _Leaf, kind: int) -> None:
        big = (leaf.flags & _BIG) != 0
        if ((leaf.flags & ~_BIG) != kind).any():
            raise self._damage(f"page {number}: a node is of another kind")
        if (leaf.start + np.where(big, 8, leaf.size) > self._page_size).any():
            raise self._damage(f"page {number}: a value reaches beyond it")
        start = leaf.start[big]
        if start.size:
            first = np.frombuffer(leaf.content, np.uint8)[start[:, None] + np.arange(8)].view("<u8")[:, 0]
            pages = (_HEAD + leaf.size[big] + self._page_size - 1) // self._page_size
            if ((first < 2) | (first > self._last) | (first + pages.astype(np.uint64) > self._last + 1)).any():
                raise self._damage(f"page {number}: a value lies outside of the file")

    def _items(self, leaf: _Leaf) -> Iterator[tuple[bytes, bytes]]:
        for key_size, start, size, flags in zip(*(part.tolist() for part in leaf[1:]), strict=True):
            key = leaf.content[start - key_size : start]
            if flags & _BIG:
                first = int.from_bytes(leaf.content[start : start + 8], "little")
                yield key, os.pread(self._handle, size, first * self._page_size + _HEAD)
            else:
                yield key, leaf.content[start : start + size]

    def _check_free(self, value: bytes) -> None:
        """Looks at a list of free pages: its count, then their numbers, falling."""
        numbers = np.frombuffer(value[: len(value) // 8 * 8], "<u8")
        listed = numbers[1:]
        good = len(value) == 8 * len(numbers) and len(numbers) and numbers[0] == len(listed)
        if not good or (listed < 2).any() or (listed > self._last).any() or (listed[1:] >= listed[:-1]).any():
            raise self._damage("a list of free pages is wrong")
