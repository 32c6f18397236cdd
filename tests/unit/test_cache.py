"""The arena of decoded chunks: what is found where, what is overwritten, and what it costs."""

from pathlib import Path

import numpy as np

from replaysvc import FieldSpec, Signature
from replaysvc.cache import Cache
from replaysvc.codec import DecodedGroup, GroupColumn, StoredColumn

SIGNATURE = Signature(FieldSpec("o", (2,), np.float32), FieldSpec("a", (), np.int64))  # o as float16


def chunk(n, value, offsets=None, dtype=np.float16):
    observation = np.full((n + 1, 2), value, dtype) + np.arange(n + 1, dtype=dtype)[:, None]
    return (StoredColumn(observation, offsets), StoredColumn(np.full(n, value)), StoredColumn(np.zeros(n, np.float32)))


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


def group_of(lengths, values, offsets=None, dtype=np.float16):
    """Chunks decoded together, in the order in which they lie: chunk k holds values[k], values[k] + 1, ... in each row."""
    n_steps = np.array(lengths)
    starts = np.cumsum(n_steps + 1) - (n_steps + 1)
    rows = np.concatenate([value + np.arange(n + 1) for n, value in zip(lengths, values, strict=True)])
    around = None if offsets is None else np.array([offset is not None for offset in offsets])
    if offsets is not None:
        offsets = np.array([[-0.0, -0.0] if offset is None else offset for offset in offsets], np.float32)
    observation = GroupColumn(np.stack([rows, rows], 1).astype(dtype), around, offsets)
    columns = observation, GroupColumn(rows.astype(np.int64)), GroupColumn(rows.astype(np.float32))
    return DecodedGroup(starts, n_steps, np.arange(len(lengths)), columns)


def test_group_comes_in_as_its_chunks_would_one_by_one():
    cache = Cache(SIGNATURE, 4000, 4000)
    group = group_of([1, 3, 2], [10, 20, 30])
    ((rows, locations, slots, gone, _),) = cache.insert_group(Cache.FAULTED, np.array([7, 8, 9]), group, np.arange(3))
    assert rows.tolist() == [7, 8, 9]
    assert (locations - locations[0]).tolist() == [0, 2, 6]
    assert gone.size == 0
    values, items, _ = cache.take(0, locations + 1, slots)
    assert values[:, 0].tolist() == [11, 21, 31]
    assert items is None


def test_only_the_chunks_that_are_named_come_in():
    cache = Cache(SIGNATURE, 4000, 4000)
    group = group_of([1, 3, 2], [10, 20, 30], [None, [500, 0], [1000, 0]])
    ((rows, locations, slots, _, _),) = cache.insert_group(Cache.FAULTED, np.array([7, 8, 9]), group, np.array([0, 2]))
    assert rows.tolist() == [7, 9]
    wide = cache.take(0, locations, slots)[0]  # one of two stands around an offset
    assert wide[:, 0].tolist() == [10, 1030]


def test_group_larger_than_the_ring_comes_in_as_far_as_it_fits():
    cache = Cache(SIGNATURE, 600, 600)
    rows = cache._rings[Cache.FAULTED].rows
    count = rows // 2 + 3
    group = group_of([1] * count, range(count))
    placed = list(cache.insert_group(Cache.FAULTED, np.arange(count), group, np.arange(count)))
    assert 0 < sum(len(each[0]) for each in placed) <= rows // 2
    for index_rows, locations, slots, _, _ in placed[-1:]:
        assert cache.take(1, locations, slots)[0].tolist() == index_rows.tolist()
    assert list(Cache(SIGNATURE, 0, 0).insert_group(Cache.FAULTED, np.arange(count), group, np.arange(count))) == []


def test_group_in_float16_is_widened_where_the_arena_is_wide():
    cache = Cache(SIGNATURE, 4000, 4000)
    cache.widen_for(chunk(1, 1e30, dtype=np.float32))
    group = group_of([1, 1], [10, 20], [None, [500, 0]])
    ((_, locations, slots, _, _),) = cache.insert_group(Cache.RECENT, np.array([0, 1]), group, np.array([0, 1]))
    values = cache.take(0, np.concatenate([locations, locations + 1]), np.concatenate([slots, slots]))[0]
    assert values.dtype == np.float32
    assert values.tolist() == [[10, 10], [520, 20], [11, 11], [521, 21]]


def test_wide_group_does_not_fit_an_arena_of_float16():
    cache = Cache(SIGNATURE, 4000, 4000)
    assert cache.fits(group_of([1], [1]).columns)
    assert not cache.fits(group_of([1], [1], dtype=np.float32).columns)
