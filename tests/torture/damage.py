"""One damage to one file of a store: what of it is hit, and what becomes of its bytes."""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import lmdb

from replaysvc.codec.header import DESCRIPTOR, FIXED, PREFIX
from tests.torture.damage_store import STAGES, TABLES
from tests.torture.lmdb_pages import HEAD, PAGE, Layout, Value, read_layout

RECORDS = {"chunk": b"chunks", "index record": b"index", "episode record": b"episodes", "session record": b"sessions"}
SEGMENT_KINDS = (
    "chunk header", "chunk payload", "index record", "episode record", "session record", "description", "footer", "b-tree page",
    "free list", "overflow header", "meta page", "any byte",
)  # fmt: skip
SMALL_KINDS = ("deleted", "state", "params", "table.json", "FORMAT")
KINDS = SEGMENT_KINDS + SMALL_KINDS
MAY_REFUSE = ("table.json", "FORMAT")
"""Kinds of damage for which a store may refuse to open, in words, if it has no second copy: it cannot know what it is."""

OPERATIONS = ("flip", "bytes", "zero page", "random page", "swap pages", "swap values", "stale page", "truncate", "extend")


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done, in words, for people; `changed` is false where the bytes happened to be the same before and after."""

    kind: str
    operation: str
    file: str
    detail: str
    changed: bool


class Subject:
    """The undamaged store at its ages, of which cheap copies are made and damaged."""

    def __init__(self, root: Path) -> None:
        self.original = root / str(STAGES - 1)
        self._ages = [root / str(stage) for stage in range(STAGES - 1)]
        self.files = sorted(path.relative_to(self.original) for path in self.original.rglob("*") if path.is_file())
        self._segments = [path for path in self.files if path.name == "data.mdb"]
        self._layouts: dict[Path, Layout] = {path: read_layout(self.original / path) for path in self._segments}
        self._newest = {max(path for path in self._segments if path.parts[1] == name) for name in TABLES}
        self._written = self._newest | {path for path in self.files if path.name != "data.mdb"}

    def has_copy(self, file: str) -> bool:
        """Returns whether the store keeps a second copy of a small file."""
        return (self.original / f"{file.removesuffix('.bak')}.bak").exists()

    def copy(self, target: Path, damaged: Path) -> None:
        """Makes a copy: what nobody writes to is linked, all else copied."""
        for path in self.files:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            if path in self._written or path == damaged:
                shutil.copyfile(self.original / path, target / path)
            else:
                os.link(self.original / path, target / path)

    def strike(self, target: Path, rng: random.Random, kinds: tuple[str, ...], operations: tuple[str, ...]) -> Damage:
        """Makes a damaged copy at `target`."""
        while True:
            kind, operation = rng.choice(kinds), rng.choice(operations)
            file = self._file_for(kind, rng)
            if (found := self._place(kind, file, rng)) is None:
                continue
            start, size, value = found
            if operation == "swap values":
                if value is None or (other := self._other(file, value, rng)) is None:
                    continue
                self.copy(target, file)
                both = rng.random() < 0.5
                _swap_values(target / file, value, other, both)
                return Damage(kind, operation, str(file), f"{value.key.hex()} and {other.key.hex()}, {both=}", True)
            before = (self.original / file).read_bytes()
            after = self._changed(before, file, operation, start, size, rng)
            if after is None:
                continue
            self.copy(target, file)
            (target / file).write_bytes(after)
            return Damage(kind, operation, str(file), f"at {start} of {len(before)}", after != before)

    def _file_for(self, kind: str, rng: random.Random) -> Path:
        if kind in SEGMENT_KINDS:
            return rng.choice(self._segments)
        parts = {"deleted": "deleted", "state": "state", "params": "params"}
        wanted = parts.get(kind, kind)
        return rng.choice([path for path in self.files if wanted in (path.name, path.stem, path.parts[0], path.parent.name)])

    def _place(self, kind: str, file: Path, rng: random.Random) -> tuple[int, int, Value | None] | None:
        """Returns (start, size) of the bytes to hit, and the value that they belong to; None if there are none of the kind."""
        if kind in SMALL_KINDS:
            return 0, (self.original / file).stat().st_size, None
        layout = self._layouts[file]
        if kind == "any byte":
            return 0, layout.pages * PAGE, None
        if kind == "meta page":
            return PAGE * rng.randrange(2), HEAD + 24 + 2 * 48 + 16, None
        if kind in ("b-tree page", "free list", "overflow header"):
            trees = [pages for name, pages in layout.trees.items() if (name == b"free") == (kind == "free list")]
            pages = layout.runs if kind == "overflow header" else [page for tree in trees for page in tree]
            if not pages:
                return None
            size = HEAD if kind == "overflow header" or rng.random() < 0.5 else 256
            return PAGE * rng.choice(pages), size, None
        if kind in ("description", "footer"):
            values = [v for v in layout.values if v.database == b"meta" and (v.key == b"footer") == (kind == "footer")]
        else:
            database = b"chunks" if kind.startswith("chunk") else RECORDS[kind]
            values = [value for value in layout.values if value.database == database]
        if not values:
            return None
        value = rng.choice(values)
        if kind == "chunk header":
            columns = len(TABLES[file.parts[1]][0].columns)
            return value.start, PREFIX.size + FIXED.size + DESCRIPTOR.size * columns, value
        if kind == "chunk payload":
            head = PREFIX.size + FIXED.size + DESCRIPTOR.size * len(TABLES[file.parts[1]][0].columns)
            return value.start + head, value.size - head, value
        return value.start, value.size, value

    def _other(self, file: Path, value: Value, rng: random.Random) -> Value | None:
        """Returns another value of the same database."""
        return rng.choice([v for v in self._layouts[file].values if v.database == value.database and v != value] or [None])

    def _changed(self, data: bytes, file: Path, operation: str, start: int, size: int, rng: random.Random) -> bytes | None:
        """Returns the bytes of the damaged file, None if the operation cannot be done to it."""
        at = start + rng.randrange(size)
        page = at // PAGE * PAGE
        match operation:
            case "flip":
                return _replaced(data, at, bytes([data[at] ^ 1 << rng.randrange(8)]))
            case "bytes":
                return _replaced(data, at, rng.randbytes(min(rng.choice((1, 2, 4, 8, 64)), len(data) - at)))
            case "zero page":
                return _replaced(data, page, bytes(min(PAGE, len(data) - page)))
            case "random page":
                return _replaced(data, page, rng.randbytes(min(PAGE, len(data) - page)))
            case "truncate":
                return data[: page if rng.random() < 0.5 else at]
            case "extend":
                return data + rng.choice((bytes, rng.randbytes))(rng.choice((1, 100, PAGE, 10 * PAGE)))
            case "swap pages" if len(data) > 2 * PAGE:
                other = PAGE * rng.randrange(len(data) // PAGE)
                swapped = _replaced(data, page, data[other : other + PAGE])
                return _replaced(swapped, other, data[page : page + PAGE])
            case "swap pages" if file.name != "FORMAT":  # a small file: one of its kind is in its place
                mates = [path for path in self.files if path != file and path.suffix == file.suffix and path.name != "data.mdb"]
                return (self.original / rng.choice(mates)).read_bytes()
            case "stale page":
                return self._stale(data, file, page, rng)
        return None

    def _stale(self, data: bytes, file: Path, page: int, rng: random.Random) -> bytes | None:
        """Returns the file with a page, or a small file, as it was at an earlier age: as if its last write had been lost."""
        old = [content for age in self._ages if (age / file).exists() and (content := (age / file).read_bytes()) != data]
        if not old:
            return None
        content = rng.choice(old)
        if file.name != "data.mdb":
            return content
        places = [at for at in range(0, min(len(content), len(data)), PAGE) if content[at : at + PAGE] != data[at : at + PAGE]]
        if file in self._newest:  # where the last write of a meta page is lost, the last commit never was: nothing can tell
            places = [at for at in places if at > PAGE]
        page = page if page in places else rng.choice(places)
        return _replaced(data, page, content[page : page + PAGE])


def _replaced(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _swap_values(file: Path, first: Value, second: Value, both: bool) -> None:
    """Puts the second value under the first's key, and, if `both`, the first under the second's: a misdirected write."""
    environment = lmdb.open(str(file.parent), max_dbs=8, map_size=1 << 28)
    try:
        with environment.begin(write=True) as transaction:
            database = environment.open_db(first.database, transaction, create=False)
            values = [bytes(transaction.get(value.key, db=database)) for value in (first, second)]
            transaction.put(first.key, values[1], db=database)
            if both:
                transaction.put(second.key, values[0], db=database)
    finally:
        environment.close()
    (file.parent / "lock.mdb").unlink()
