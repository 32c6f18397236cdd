"""The disk as the shim's log tells it, and the states in which a loss of power may leave it.

What was synced is there. Of the rest, each part is as it was at some moment since: a block of a file after any of the writes
to it, a file's size after any change of it, a directory entry after any change of it; all independent of each other, so
writes are lost, torn and reordered in every way that POSIX allows. Assumed is what FORMAT.md assumes: a rename is done or not
done, and it is durable once both directories are synced.
"""

import json
import os
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CREATE, WRITE, RESIZE, SYNC, RENAME, LINK, UNLINK, MARK = range(1, 9)
_IS_DIRECTORY, _DURABLE, _FAILED = 1, 2, 4
_PAGE = 4096
_RECORD = struct.Struct("<IIQQqIIII")

Choose = Callable[[int, int], int]
"""(least, most) -> how many of a block's changes are on the disk."""


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the log; see shim.c."""

    kind: int
    flags: int
    inode: int
    other: int
    offset: int
    name: str
    name2: str
    data: bytes

    def mark(self) -> dict[str, Any]:
        """Returns what a MARK says."""
        return dict(json.loads(self.data))

    @property
    def durable(self) -> bool:
        """Returns whether a write was on the disk when the call returned."""
        return bool(self.flags & _DURABLE)

    @property
    def failed(self) -> bool:
        """Returns whether a sync returned an error."""
        return bool(self.flags & _FAILED)


def read_log(path: Path) -> list[Event]:
    """Returns the records of a log. Raises ValueError if the last one is not whole."""
    content, at, events = path.read_bytes(), 0, []
    while at < len(content):
        kind, flags, inode, other, offset, name1, name2, data, _ = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        ends = at + name1, at + name1 + name2, at + name1 + name2 + data
        if ends[2] > len(content):
            raise ValueError(f"{path}: the record at {at} is not whole")
        names = os.fsdecode(content[at : ends[0]]), os.fsdecode(content[ends[0] : ends[1]])
        events.append(Event(kind, flags, inode, other, offset, *names, content[ends[1] : ends[2]]))
        at = ends[2]
    return events


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a file that is not synced yet: bytes at an offset; without any, a new size."""

    offset: int
    data: bytes | None
    durable: bool = False


@dataclass(eq=False, slots=True)
class Node:
    """A file or a directory. `data` is what is surely on the disk, `cache` what processes see once a sync failed."""

    is_directory: bool
    data: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)
    cache: bytearray | None = None
    forgotten: set[int] = field(default_factory=set)  # pages that the kernel will not write, though they are not on the disk

    def sync(self) -> None:
        """All is on the disk, but for what an earlier sync failed to write."""
        _apply(self.data, self.changes)
        self.changes.clear()

    def fail(self) -> None:
        """A sync returned an error: Linux forgets that the pages were not written, and the next sync succeeds without them."""
        if self.cache is None:
            self.cache = bytearray(self.data)
            _apply(self.cache, self.changes)
        for change in self.changes:
            if change.data is not None:
                self.forgotten.update(range(change.offset // _PAGE, -(-(change.offset + len(change.data)) // _PAGE)))
        self.data = bytearray(self.after_loss(_PAGE, lambda least, most: least, bytes))  # what was durable stays so
        self.changes = [Change(len(self.cache), None)] if len(self.cache) != len(self.data) else []

    def take(self, change: Change) -> None:
        """Takes in a change. A forgotten page is written with it, whole."""
        self.changes.append(change)
        if self.cache is None:
            return
        _apply(self.cache, [change])
        if change.data is not None:
            for page in self.forgotten & set(range(change.offset // _PAGE, -(-(change.offset + len(change.data)) // _PAGE))):
                self.forgotten.remove(page)
                start = page * _PAGE
                self.changes.append(Change(start, bytes(self.cache[start : start + _PAGE])))

    def after_loss(self, grain: int, choose: Choose, stale: Callable[[int], bytes]) -> bytes:
        """Returns what may be in the file, in blocks of `grain` bytes; what no write reached is as `stale` says."""
        if not self.changes:
            return bytes(self.data)
        pieces, sizes, least, least_size = self._pieces(grain)
        count = Counter(block for block, _, _ in pieces)
        cut = {block: choose(least.get(block, 0), most) for block, most in count.items()}
        content, seen = bytearray(self.data), Counter[int]()
        content += stale(max(sizes) - len(content))
        for block, start, data in pieces:
            seen[block] += 1
            if seen[block] <= cut[block]:
                content[start : start + len(data)] = data
        return bytes(content[: sizes[choose(least_size, len(sizes) - 1)]])

    def _pieces(self, grain: int) -> tuple[list[tuple[int, int, bytes]], list[int], dict[int, int], int]:
        """Returns (block, offset, bytes) of all changes, the sizes that the file had, and how much of both is surely there."""
        pieces: list[tuple[int, int, bytes]] = []
        sizes, least, least_size, seen = [len(self.data)], dict[int, int](), 0, Counter[int]()
        for change in self.changes:
            size = sizes[-1]
            if change.data is None:
                start, data, new = change.offset, bytes(max(0, size - change.offset)), change.offset
            else:
                start, data = change.offset, change.data
                new = max(size, start + len(data))
            if new != size:
                sizes.append(new)
            for block in range(start // grain, -(-(start + len(data)) // grain)):
                first, last = max(start, block * grain), min(start + len(data), (block + 1) * grain)
                pieces.append((block, first, data[first - start : last - start]))
                seen[block] += 1
                if change.durable:
                    least[block] = seen[block]
            if change.durable:
                least_size = max(least_size, next(i for i, size in enumerate(sizes) if size >= start + len(data)))
        return pieces, sizes, least, least_size


def _apply(data: bytearray, changes: list[Change]) -> None:
    for change in changes:
        if change.data is None:
            _resize(data, change.offset)
        else:
            _resize(data, max(len(data), change.offset))
            data[change.offset : change.offset + len(change.data)] = change.data


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data += bytes(size - len(data))


Place = tuple[Node, str]
"""A directory and a name in it."""


@dataclass(eq=False, slots=True)
class NameChange:
    """A change of directory entries that is not synced yet: a node leaves one place, takes another, or both at once."""

    node: Node
    left: Place | None
    taken: Place | None
    waiting: set[Node]  # directories to be synced until it is durable

    @property
    def places(self) -> list[Place]:
        return [place for place in (self.left, self.taken) if place is not None]

    def apply(self, entries: dict[Place, Node]) -> None:
        if self.left is not None:
            entries.pop(self.left, None)
        if self.taken is not None:
            entries[self.taken] = self.node


class Disk:
    """A directory tree as the page cache has it, and as much of it as is surely on the disk."""

    def __init__(self, root_inode: int, *, one_sync_renames: bool = False) -> None:
        """`one_sync_renames`: a rename is durable once the directory that it goes to is synced, as journals do it."""
        self.root, self._one_sync_renames = Node(is_directory=True), one_sync_renames
        self._nodes = {root_inode: self.root}
        self._now: dict[Place, Node] = {}
        self._durable: dict[Place, Node] = {}
        self._changes: list[NameChange] = []

    @staticmethod
    def of(directory: Path, *, one_sync_renames: bool = False) -> "Disk":
        """Returns the disk that holds just what a directory does now."""
        disk = Disk(directory.stat().st_ino, one_sync_renames=one_sync_renames)
        for place, names, files in os.walk(directory):
            parent = disk._nodes[os.stat(place).st_ino]
            for name in names + files:
                path = Path(place, name)
                fresh = Node(is_directory=path.is_dir(), data=bytearray(b"" if path.is_dir() else path.read_bytes()))
                node = disk._nodes.setdefault(path.stat().st_ino, fresh)
                disk._now[parent, name] = disk._durable[parent, name] = node
        return disk

    def apply(self, event: Event) -> None:
        """Goes on by one event."""
        self.begin(event)
        self.finish(event)

    def begin(self, event: Event) -> None:
        """Goes on by one event that is under way: it may be done, or in part, and nothing of it is durable."""
        if event.kind == WRITE:
            self._nodes[event.inode].take(Change(event.offset, event.data))
        elif event.kind == RESIZE:
            self._nodes[event.inode].take(Change(event.offset, None))
        elif event.kind not in (SYNC, MARK):
            self._rename(event)

    def finish(self, event: Event) -> None:
        """The event that was begun last has returned."""
        if event.kind == SYNC and not event.failed:
            self._sync(self._nodes[event.inode])
        elif event.kind == SYNC:
            self._nodes[event.inode].fail()
        elif event.kind == WRITE and event.durable:
            self._nodes[event.inode].changes.append(Change(event.offset, event.data, durable=True))

    def _rename(self, event: Event) -> None:
        directory = self._nodes[event.inode]
        here, left, taken = (directory, event.name), None, None
        if event.kind == CREATE:  # an inode's number is used again after the file is gone
            self._nodes[event.other] = node = Node(is_directory=bool(event.flags & _IS_DIRECTORY))
            taken = here
        elif event.kind == LINK:
            node, taken = self._nodes[event.other], here
        elif event.kind == UNLINK:
            node, left = self._now[here], here
        else:
            node, left, taken = self._now[here], here, (self._nodes[event.other], event.name2)
        waiting = {taken[0]} if taken and self._one_sync_renames else {place[0] for place in (left, taken) if place}
        change = NameChange(node, left, taken, waiting)
        change.apply(self._now)
        self._changes.append(change)

    def _sync(self, node: Node) -> None:
        if not node.is_directory:
            node.sync()
            return
        for change in self._changes:
            change.waiting.discard(node)
        forced: set[NameChange] = set()
        places: set[Place] = set()
        for change in reversed(self._changes):  # an entry cannot be newer than its directory's other changes of the same name
            if not change.waiting or not places.isdisjoint(change.places):
                forced.add(change)
                places.update(change.places)
        for change in self._changes:
            if change in forced:
                change.apply(self._durable)
        self._changes = [change for change in self._changes if change not in forced]

    def write_now(self, target: Path) -> None:
        """Writes the tree as the page cache has it: what a process finds that is started without a loss of power."""
        self._write(target, self._now, lambda node: node.after_loss(4096, lambda least, most: most, bytes))

    def write_after_loss(self, target: Path, chance: random.Random) -> None:
        """Writes one of the trees that may be there after a loss of power now."""
        entries, blocked = dict(self._durable), set[Place]()
        keep = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for change in self._changes:
            if blocked.isdisjoint(change.places) and chance.random() < keep:
                change.apply(entries)
            else:
                blocked.update(change.places)
        mixed, stale = chance.random() < 0.5, chance.choice((bytes, bytes, chance.randbytes))
        grain, choose = chance.choice((512, 4096)), _way_to_choose(chance)

        def content(node: Node) -> bytes:
            return node.after_loss(grain, _way_to_choose(chance) if mixed else choose, stale)

        self._write(target, entries, content)

    def _write(self, target: Path, entries: dict[Place, Node], content: Callable[[Node], bytes]) -> None:
        children: dict[Node, list[tuple[str, Node]]] = {}
        for (directory, name), node in entries.items():
            children.setdefault(directory, []).append((name, node))
        written: dict[Node, str] = {}
        for path, node in _walk(os.fspath(target), self.root, children):
            if node.is_directory:
                os.mkdir(path, 0o700)
            elif node in written:
                os.link(written[node], path)
            else:
                written[node] = path
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.write(handle, content(node))
                os.close(handle)


def _walk(path: str, node: Node, children: dict[Node, list[tuple[str, Node]]]) -> Iterator[tuple[str, Node]]:
    yield path, node
    for name, child in children.get(node, ()):
        yield from _walk(f"{path}/{name}", child, children)


def _way_to_choose(chance: random.Random) -> Choose:
    """Returns one of several ways to lose what is not synced: all, nothing, anything, a little, most."""
    rare = chance.choice((0.02, 0.2))
    return chance.choice((
        lambda least, most: least,
        lambda least, most: most,
        lambda least, most: chance.randint(least, most),
        lambda least, most: chance.randint(least, most) if chance.random() < rare else most,
        lambda least, most: chance.randint(least, most) if chance.random() < rare else least,
    ))  # fmt: skip
