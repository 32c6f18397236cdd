"""A history that can be told by its chunk ids: what is appended to a table store in tests, and what must be read back.

Chunk k has 4 steps, so it begins at position 4 k. Three chunks make an episode: chunk k belongs to episode k // 3, begins
at its step 4 (k % 3), and ends it if k % 3 is 2. One writer session writes all; its sequence numbers are the chunk ids.
"""

import functools

import numpy as np

from replaysvc.storage import INDEX_DTYPE, EpisodeEntry, Store, System
from tests.chunk_builders import encode, one_column

SESSION = b"session-00000001"
NOW = 1_700_000_000.0
SMALL_SEGMENT = 1 << 17
BIG = 20_000  # bytes of a chunk of which three, appended one by one, fill a segment of SMALL_SEGMENT


@functools.cache
def chunk(k, size=100):
    """An intact chunk of 4 steps that does not compress."""
    signature = one_column("uint8", (size // 5,))
    return encode(signature, np.random.default_rng(k).integers(0, 256, (5, size // 5), dtype=np.uint8), first_step=4 * (k % 3))


def index(start, stop, size=100):
    records = np.zeros(stop - start, INDEX_DTYPE)
    ids = np.arange(start, stop)
    records["chunk_id"], records["position"], records["episode_id"] = ids, 4 * ids, ids // 3
    records["first_step"], records["n_steps"], records["flags"] = 4 * (ids % 3), 4, ids % 3 == 2
    records["policy_version"], records["return_after"], records["committed_at_s"] = ids - 1, ids / 2, NOW
    records["stored_bytes"] = [len(chunk(k, size)) for k in ids.tolist()]
    records["checksum"] = [int.from_bytes(chunk(k, size)[8:16], "little") for k in ids.tolist()]
    return records


def entry(episode):
    return EpisodeEntry(episode, SESSION, 10 * episode, "актёр", NOW + episode, b'{"seed":%d}' % episode)


def append(table, start, stop, *, size=100, session=SESSION):
    """Appends chunks [start, stop) with the entries of the episodes that begin among them."""
    begun = [entry(k // 3) for k in range(start, stop) if k % 3 == 0]
    table.append(index(start, stop, size), [chunk(k, size) for k in range(start, stop)], begun, {session: stop - 1})


def append_each(table, start, stop, *, size=BIG):
    """The same, in one transaction a chunk."""
    for k in range(start, stop):
        append(table, k, k + 1, size=size)


def open_store(path, system=None, clock=lambda: NOW, **options):
    system = system or System()
    system.time = clock
    return Store(path, system=system, **options)


def make_table(path, *, segment_bytes=SMALL_SEGMENT, system=None, clock=lambda: NOW, **options):
    """Returns a new store with one loaded table `t`, and the table."""
    store = open_store(path, system, clock, **options)
    table = store.create_table("t", {"about": "a test"}, segment_bytes=segment_bytes)
    table.load()
    return store, table


def check(table, loaded, stop, *, start=0, size=100):
    """Asserts that a table that was loaded holds the chunks [start, stop), each once, and goes on after them."""
    assert loaded.index.tolist() == index(start, stop, size).tolist()
    assert table.read(np.arange(start, stop)) == [chunk(k, size) for k in range(start, stop)]
    wanted = {k // 3 for k in range(start, stop)}
    known = {e.episode_id: e for e in loaded.episodes}
    assert wanted <= known.keys()
    assert all(known[number] == entry(number) for number in known)
    assert (loaded.next_chunk_id, loaded.next_position) == (stop, 4 * stop)
    assert loaded.next_episode_id == -(-stop // 3)
    assert loaded.sessions == ({SESSION: stop - 1} if stop else {})


def segments(path):
    return sorted((path / "tables" / "t").glob("seg-*"))


def reopen(path, system=None):
    """Returns the store, its table `t`, and what that loaded."""
    store = open_store(path, system)
    table = store.tables()["t"]
    return store, table, table.load()


def three_segments(path):
    """Makes a store whose segments hold chunks 0 to 2, 3 to 5, and 6 and 7; closes it and returns its path."""
    store, table = make_table(path)
    append_each(table, 0, 8)
    store.close()
    return path


class Troubled(System):
    """Raises `error` wherever `name` of a call's target path, or of a crash point, is met, while it is set."""

    error = None
    at = ""

    def trouble(self, call, name):
        if self.error is not None and self.at in (call, f"{call} {name}"):
            raise self.error

    def crashpoint(self, name):
        self.trouble(name, name)

    def write_file(self, path, data):
        self.trouble("write_file", path.name)
        super().write_file(path, data)

    def replace(self, source, target):
        self.trouble("replace", target.name)
        super().replace(source, target)

    def rename(self, source, target):
        self.trouble("rename", target.name)
        super().rename(source, target)

    def link(self, source, target):
        self.trouble("link", target.name)
        super().link(source, target)

    def copy(self, source, target):
        self.trouble("copy", target.name)
        super().copy(source, target)

    def fsync_directory(self, path):
        self.trouble("fsync_directory", path.name)
        super().fsync_directory(path)
