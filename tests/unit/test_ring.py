"""Rows and slots of an arena: handed out in order, never while another owns them."""

import numpy as np
import pytest

from replaysvc.ring import Ring


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


def test_run_takes_as_many_as_fit_up_to_the_end_and_the_rest_begins_anew():
    ring = Ring(100, 10, 0, 8)
    count, begin, slots, gone, at = ring.take_run(np.array([0, 1, 2]), np.array([4, 4, 4]))
    assert (count, begin, slots.tolist(), gone.tolist(), at.tolist()) == (2, 100, [0, 1], [], [])
    count, begin, slots, gone, at = ring.take_run(np.array([2]), np.array([4]))
    assert (count, begin, slots.tolist(), gone.tolist(), at.tolist()) == (1, 100, [2], [0], [100])
    assert ring.used == 8


def test_run_is_bounded_by_the_slots():
    ring = Ring(0, 100, 5, 2)
    count, begin, slots, gone, _ = ring.take_run(np.arange(3), np.array([1, 1, 1]))
    assert (count, begin, slots.tolist(), gone.tolist()) == (2, 0, [5, 6], [])
    count, begin, slots, gone, at = ring.take_run(np.array([2]), np.array([1]))
    assert (count, begin, slots.tolist(), gone.tolist(), at.tolist()) == (1, 2, [5], [0], [0])


def test_run_whose_first_chunk_is_larger_than_the_ring_is_not_taken():
    assert Ring(0, 3, 0, 2).take_run(np.array([0]), np.array([4]))[0] == 0
    assert Ring(0, 0, 0, 1).take_run(np.array([0]), np.array([4]))[0] == 0


@pytest.mark.parametrize("seed", range(8))
def test_runs_and_single_chunks_never_get_rows_that_are_still_owned(seed):
    rng = np.random.default_rng(seed)
    rows, slots = (40, 6) if seed % 2 else (4000, 900)  # many entries are overwritten by one run in the second
    ring, owned, owner = Ring(7, rows, 0, slots), {}, 0
    for _ in range(300):
        if rng.random() < 0.3:
            length = int(rng.integers(1, 15))
            begin, slot, gone = ring.take(owner, length)
            placed = [(owner, begin, length, slot)]
            owner += 1
        else:
            lengths = rng.integers(1, 15, int(rng.integers(1, 400)))
            count, begin, taken, old, at = ring.take_run(owner + np.arange(len(lengths)), lengths)
            assert count >= 1
            begins = begin + np.cumsum(lengths[:count]) - lengths[:count]
            placed = list(zip(owner + np.arange(count), begins, lengths[:count], taken, strict=True))
            gone = list(zip(old.tolist(), at.tolist(), strict=True))
            owner += count
        for old_owner, old_at in gone:
            assert owned.pop(old_owner)[0] == old_at
        for name, start, length, slot in placed:
            owned[int(name)] = int(start), int(length), int(slot)
        taken_rows = np.zeros(7 + rows, int)
        for start, length, _ in owned.values():
            taken_rows[start : start + length] += 1
        assert taken_rows[:7].sum() == 0
        assert taken_rows.max() == 1
        assert len({slot for _, _, slot in owned.values()}) == len(owned)
        assert ring.used == sum(length for _, length, _ in owned.values())
