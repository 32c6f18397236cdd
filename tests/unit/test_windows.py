"""Windows over chunks: two episodes, A in chunks of 2, 3 and 1 steps (rows 10, 12, 13), B in one of 2 (row 11)."""

import numpy as np
import pytest

from replaysvc.windows import resolve_forward

BASE = 10
N_STEPS = np.array([2, 2, 3, 1])
NEXT_ROW = np.array([12, -1, 13, -1])


def resolve(anchors, length):
    rows, offsets = (np.array(column) for column in zip(*anchors, strict=True))
    return resolve_forward(rows, offsets, length, N_STEPS, NEXT_ROW, BASE)


def steps_of(windows, i):
    return list(
        zip(windows.rows[i, : windows.counts[i]].tolist(), windows.offsets[i, : windows.counts[i]].tolist(), strict=True)
    )


def test_one_step_windows_stay_in_their_chunk():
    windows = resolve([(10, 1), (11, 0), (13, 0)], 1)
    assert [steps_of(windows, i) for i in range(3)] == [[(10, 1)], [(11, 0)], [(13, 0)]]
    assert windows.end_row.tolist() == [10, 11, 13]
    assert windows.end_offset.tolist() == [1, 0, 0]


def test_window_runs_through_chunks_and_is_clipped_at_the_end_of_the_episode():
    windows = resolve([(10, 1), (10, 0), (11, 1), (12, 2)], 4)
    assert steps_of(windows, 0) == [(10, 1), (12, 0), (12, 1), (12, 2)]
    assert steps_of(windows, 1) == [(10, 0), (10, 1), (12, 0), (12, 1)]
    assert steps_of(windows, 2) == [(11, 1)]
    assert steps_of(windows, 3) == [(12, 2), (13, 0)]
    assert windows.counts.tolist() == [4, 4, 1, 2]
    assert windows.end_row.tolist() == [12, 12, 11, 13]
    assert windows.end_offset.tolist() == [2, 1, 1, 0]
    assert windows.steps().sum(axis=1).tolist() == [4, 4, 1, 2]


def test_entries_past_a_clipped_window_repeat_its_anchor():
    windows = resolve([(11, 1)], 3)
    assert windows.rows.tolist() == [[11, 11, 11]]
    assert windows.offsets.tolist() == [[1, 1, 1]]


def test_window_longer_than_the_episode_holds_all_of_it():
    windows = resolve([(10, 0)], 50)
    assert steps_of(windows, 0) == [(10, 0), (10, 1), (12, 0), (12, 1), (12, 2), (13, 0)]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 20])
def test_random_chains_match_a_walk_step_by_step(length):
    rng = np.random.default_rng(length)
    n_steps = rng.integers(1, 5, 40)
    next_row = np.full(40, -1)
    chains = np.array_split(rng.permutation(40), 6)
    for chain in map(np.sort, chains):
        next_row[chain[:-1]] = chain[1:]
    anchors = [(int(row), int(rng.integers(n_steps[row]))) for row in rng.integers(0, 40, 60)]
    rows, offsets = (np.array(column) for column in zip(*anchors, strict=True))
    windows = resolve_forward(rows, offsets, length, n_steps, next_row, 0)
    for i, (row, offset) in enumerate(anchors):
        walk = []
        while row >= 0 and len(walk) < length:
            walk.append((row, offset))
            offset += 1
            if offset == n_steps[row]:
                row, offset = int(next_row[row]), 0
        assert steps_of(windows, i) == walk
        assert (windows.end_row[i], windows.end_offset[i]) == walk[-1]
