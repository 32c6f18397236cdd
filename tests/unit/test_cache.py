"""The arena of decoded chunks: what is found where, what is overwritten, and what it costs."""

from pathlib import Path

import numpy as np
import pytest

from replaysvc import FieldSpec, Signature
from replaysvc.cache import Cache, Ring
from replaysvc.codec import StoredColumn

SIGNATURE = Signature(FieldSpec("o", (2,), np.float32), FieldSpec("a", (), np.int64))  # o as float16


def chunk(n, value, offsets=None, dtype=np.float16):
    observation = np.full((n + 1, 2), value, dtype) + np.arange(n + 1, dtype=dtype)[:, None]
    return (StoredColumn(observation, offsets), StoredColumn(np.full(n, value)), StoredColumn(np.zeros(n, np.float32)))


def test_ring_hands_out_rows_in_order_and_overwrites_the_oldest():
    ring = Ring(100, 10, 0, 8)
    assert ring.take(0, 4) == (100, 0, [])
    assert ring.take(1, 4) == (104, 1, [])
    assert ring.used == 8
    # 4 rows do not fit in the 2 that are left: from the start again, over chunk 0
    assert ring.take(2, 4) == (100, 2, [(0, 100)])
    assert ring.take(3, 3) == (104, 3, [(1, 104)])
    assert ring.take(4, 9) == (100, 4, [(2, 100), (3, 104)])
    assert ring.used == 9


def test_ring_out_of_slots_overwrites_the_oldest_too():
    ring = Ring(0, 100, 5, 2)
    assert ring.take(0, 1) == (0, 5, [])
    assert ring.take(1, 1) == (1, 6, [])
    assert ring.take(2, 1) == (2, 5, [(0, 0)])


def test_chunk_larger_than_the_ring_is_not_taken():
    assert Ring(0, 3, 0, 2).take(0, 4) is None
    assert Ring(0, 0, 0, 1).take(0, 1) is None


@pytest.mark.parametrize("seed", range(5))
def test_ring_never_gives_out_rows_that_are_still_owned(seed):
    rng = np.random.default_rng(seed)
    ring, owned = Ring(7, 40, 0, 6), {}
    for owner in range(500):
        length = int(rng.integers(1, 15))
        begin, slot, gone = ring.take(owner, length)
        for old, at in gone:
            assert owned.pop(old)[0] == at
        rows = set(range(begin, begin + length))
        assert rows <= set(range(7, 47))
        assert all(not rows & set(range(b, b + n)) and slot != s for b, n, s in owned.values())
        owned[owner] = (begin, length, slot)
        assert ring.used == sum(n for _, n, _ in owned.values())


def test_values_come_back_in_stored_precision():
    cache = Cache(SIGNATURE, 4000, 4000)
    first, slot, _ = cache.insert(Cache.RECENT, 0, chunk(3, 10), 3)
    second, other, _ = cache.insert(Cache.FAULTED, 1, chunk(2, 50), 2)
    values, items, offsets = cache.take(0, np.array([first, second + 2, first + 3]), np.array([slot, other, slot]))
    assert values.dtype == np.float16
    assert values[:, 0].tolist() == [10, 52, 13]
    assert items is None
    assert offsets is None
    assert cache.take(1, np.array([first + 1, second]), np.array([slot, other]))[0].tolist() == [10, 50]


def test_offsets_belong_to_their_chunk_alone_also_when_its_slot_is_used_again():
    cache = Cache(SIGNATURE, 600, 600)
    plain, plain_slot, _ = cache.insert(Cache.RECENT, 0, chunk(1, 1), 1)
    moved, moved_slot, _ = cache.insert(Cache.RECENT, 1, chunk(1, 2, np.array([1000, 0], np.float32)), 1)
    rows, slots = np.array([plain, moved, *[plain + 1] * 6]), np.array([plain_slot, moved_slot, *[plain_slot] * 6])
    values, items, offsets = cache.take(0, rows, slots)
    assert values.dtype == np.float16
    assert items.tolist() == [1]
    assert offsets.tolist() == [[1000, 0]]
    while True:  # go round until the slot is given out again, to a chunk without offsets
        location, slot, _ = cache.insert(Cache.RECENT, 2, chunk(1, 3), 1)
        if slot == moved_slot:
            break
    assert cache.take(0, np.array([location]), np.array([slot]))[1] is None


def test_where_many_values_stand_around_offsets_they_come_in_the_declared_dtype_and_no_other_changes():
    cache = Cache(SIGNATURE, 4000, 4000)
    zero = chunk(1, 0)
    zero[0].values[0] = -0.0
    plain, plain_slot, _ = cache.insert(Cache.RECENT, 0, zero, 1)
    moved, moved_slot, _ = cache.insert(Cache.RECENT, 1, chunk(1, 2, np.array([1000, -0.0], np.float32)), 1)
    assert cache.has_offsets(0)
    values, items, offsets = cache.take(0, np.array([plain, moved]), np.array([plain_slot, moved_slot]))
    assert values.dtype == np.float32
    assert values.tolist() == [[0, 0], [1002, 2]]
    assert np.signbit(values[0]).all()
    assert (items, offsets) == (None, None)


def test_chunk_without_offsets_keeps_minus_zero_beside_others_also_in_a_slot_that_had_offsets():
    cache, zero = Cache(SIGNATURE, 600, 600), chunk(1, 0)
    zero[0].values[0] = -0.0
    moved = chunk(1, 2, np.array([1000, 1000], np.float32))
    seen = set()
    while True:  # until a slot of one with offsets is given to the one without
        around, around_slot, _ = cache.insert(Cache.RECENT, 0, moved, 1)
        seen.add(around_slot)
        plain, slot, _ = cache.insert(Cache.RECENT, 1, zero, 1)
        values, _, _ = cache.take(0, np.array([plain, around]), np.array([slot, around_slot]))
        assert values.tolist() == [[0, 0], [1002, 1002]]
        assert np.signbit(values[0]).all()
        if slot in seen:
            break
        cache.insert(Cache.RECENT, 2, moved, 1)


def test_lossless_chunk_of_a_cast_column_widens_the_column():
    cache = Cache(SIGNATURE, 4000, 4000)
    cache.insert(Cache.RECENT, 0, chunk(1, 1), 1)
    wide = chunk(1, 1e6, dtype=np.float32)
    assert not cache.fits(wide)
    cache.widen_for(wide)
    assert cache.used_bytes == 0
    assert cache.fits(wide)
    assert cache.fits(chunk(1, 1))
    location, slot, _ = cache.insert(Cache.RECENT, 1, wide, 1)
    other, other_slot, _ = cache.insert(Cache.RECENT, 2, chunk(1, 2, np.array([0.5, 0], np.float32)), 1)
    values, items, _ = cache.take(0, np.array([location, other]), np.array([slot, other_slot]))
    assert values.dtype == np.float32
    assert values.tolist() == [[1e6, 1e6], [2.5, 2.0]]
    assert items is None


def test_cache_stays_within_its_budget():
    budget = 100_000
    cache = Cache(SIGNATURE, budget, budget)
    for row in range(2000):
        cache.insert(Cache.RECENT, row, chunk(20, 1), 20)
    assert budget // 2 < cache.used_bytes <= budget


def test_empty_cache_of_a_large_budget_takes_no_memory_to_speak_of():
    def resident():
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) << 10

    before = resident()
    caches = [Cache(SIGNATURE, 1 << 30, 1 << 28) for _ in range(8)]
    for cache in caches:
        cache.insert(Cache.RECENT, 0, chunk(3, 1), 3)
    assert resident() - before < 64 << 20  # a huge page or two for each column that was touched


def test_memory_that_a_cache_gives_back_is_not_handed_out_written():
    """Caches of a size that an allocator would keep to itself, made and dropped: each new one takes next to nothing again."""

    def resident():
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) << 10

    before = resident()
    caches = [Cache(SIGNATURE, 20 << 20, 5 << 20) for _ in range(20)]
    for _ in range(4):
        for cache in caches:
            cache.resize(20 << 20, 5 << 20)
    assert resident() - before < 20 << 20
