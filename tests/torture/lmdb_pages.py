"""Where things lie in an LMDB 0.9 file: read from its bytes alone, so that a test can damage just one of them.

Page: u64 number, u16 pad, u16 flags, then u16 lower and u16 upper, or u32 pages of an overflow run. A leaf's nodes: u16 low and
u16 high half of the size, u16 flags, u16 key size, the key, the value (or the u64 number of an overflow page).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096
HEAD = 16  # bytes of a page's header
_BRANCH, _LEAF, _META = 1, 2, 8
_BIG, _NAMED = 1, 2  # flags of a node: its value is in overflow pages; it is the root of a named database
_DATABASE = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_NO_PAGE = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Value:
    """A stored value: its database and key, and the bytes [start, start + size) of the file that it takes."""

    database: bytes
    key: bytes
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What a file holds. `trees`: the pages of each database's B-tree, and of the whole file's own two (b"main", b"free")."""

    values: tuple[Value, ...]
    trees: dict[bytes, tuple[int, ...]]
    runs: tuple[int, ...]  # first pages of values of more than half a page
    pages: int


def read_layout(file: Path) -> Layout:
    """Returns what lies where in an intact file."""
    data = file.read_bytes()
    metas = [data[PAGE * i + HEAD : PAGE * (i + 1)] for i in (0, 1)]
    newest = max(metas, key=lambda meta: struct.unpack_from("<Q", meta, 128)[0])
    free, main = (_DATABASE.unpack_from(newest, 24 + _DATABASE.size * i)[-1] for i in (0, 1))
    values: list[Value] = []
    trees: dict[bytes, tuple[int, ...]] = {b"free": tuple(_tree(data, free))}
    runs: list[int] = []
    trees[b"main"] = tuple(_tree(data, main))
    for key, flags, start, size in _nodes(data, trees[b"main"]):
        assert flags & _NAMED
        root = _DATABASE.unpack_from(data[start : start + size])[-1]
        trees[key] = tuple(_tree(data, root))
        for name, kind, at, length in _nodes(data, trees[key]):
            if kind & _BIG:
                (page,) = struct.unpack_from("<Q", data, at)
                runs.append(page)
                at = PAGE * page + HEAD
            values.append(Value(key, name, at, length))
    return Layout(tuple(values), trees, tuple(runs), len(data) // PAGE)


def _tree(data: bytes, root: int) -> Iterator[int]:
    """Yields the pages of a B-tree."""
    if root == _NO_PAGE:
        return
    yield root
    flags = struct.unpack_from("<H", data, PAGE * root + 10)[0]
    if flags & _BRANCH:
        for at in _pointers(data, root):
            low, high, top, _ = struct.unpack_from("<HHHH", data, at)
            yield from _tree(data, low | high << 16 | top << 32)


def _nodes(data: bytes, pages: tuple[int, ...]) -> Iterator[tuple[bytes, int, int, int]]:
    """Yields (key, flags, start of the value, its size) of the leaves among `pages`."""
    for page in pages:
        if struct.unpack_from("<H", data, PAGE * page + 10)[0] & _LEAF:
            for at in _pointers(data, page):
                low, high, flags, size = struct.unpack_from("<HHHH", data, at)
                yield data[at + 8 : at + 8 + size], flags, at + 8 + size, low | high << 16


def _pointers(data: bytes, page: int) -> list[int]:
    """Returns where the nodes of a page begin in the file."""
    start = PAGE * page
    (lower,) = struct.unpack_from("<H", data, start + 12)
    return [start + place for place in struct.unpack_from(f"<{(lower - HEAD) // 2}H", data, start + HEAD)]
