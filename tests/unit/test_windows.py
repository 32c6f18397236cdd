"""Windows over chunks: two episodes, A in chunks of 2, 3 and 1 steps (rows 10, 12, 13), B in one of 2 (row 11)."""

import numpy as np
import pytest

from replaysvc.windows import past_ends, resolve_forward

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


BEGINS = {10: 100, 11: 200, 12: 300, 13: 400}  # where the chunks stand in an array


def places(windows):
    begins = np.array([[BEGINS[row] for row in runs] for runs in windows.runs.tolist()])
    return tuple(found.tolist() for found in windows.places(begins))


def test_steps_and_observations_are_placed_a_run_at_a_time_and_the_last_are_repeated():
    windows = resolve([(10, 1), (11, 1), (12, 2)], 4)
    steps, observations = places(windows)
    assert steps == [[101, 300, 301, 302], [201, 201, 201, 201], [302, 400, 400, 400]]
    assert observations == [[101, 300, 301, 302, 303], [201, 202, 202, 202, 202], [302, 400, 401, 401, 401]]


def test_full_windows_in_one_chunk_each_are_placed():
    assert places(resolve([(10, 0), (12, 1)], 2)) == ([[100, 101], [301, 302]], [[100, 101, 102], [301, 302, 303]])


def test_what_a_run_has_is_spread_over_its_steps_and_the_observation_after_the_last():
    windows = resolve([(10, 1), (11, 1), (12, 2)], 4)
    assert windows.spread(windows.runs).tolist() == [[10, 12, 12, 12, 12], [11] * 5, [12, 13, 13, 13, 13]]
    assert resolve([(10, 0)], 2).spread(np.array([[7]])).tolist() == [[7, 7, 7]]


def test_cut_windows_end_earlier_in_an_earlier_run():
    windows = resolve([(10, 1), (10, 0), (11, 1), (12, 2)], 4).cut(np.array([1, 3, 1, 2]))
    assert [steps_of(windows, i) for i in range(4)] == [
        [(10, 1)], [(10, 0), (10, 1), (12, 0)], [(11, 1)], [(12, 2), (13, 0)],
    ]  # fmt: skip
    assert windows.end_row.tolist() == [10, 12, 11, 13]
    assert windows.end_offset.tolist() == [1, 0, 1, 0]
    steps, observations = places(windows)
    assert steps == [[101] * 4, [100, 101, 300, 300], [201] * 4, [302, 400, 400, 400]]
    assert observations == [[101, 102, 102, 102, 102], [100, 101, 300, 301, 301], [201] + [202] * 4, [302, 400, 401, 401, 401]]


def test_windows_until_a_length_are_cut_there_and_are_no_longer():
    windows = resolve([(10, 1), (11, 1), (12, 2)], 4).until(2)
    assert (windows.length, windows.counts.tolist()) == (2, [2, 1, 2])
    assert [steps_of(windows, i) for i in range(3)] == [[(10, 1), (12, 0)], [(11, 1)], [(12, 2), (13, 0)]]
    assert places(windows)[1] == [[101, 300, 301], [201, 202, 202], [302, 400, 401]]
    one = resolve([(10, 1), (11, 1)], 4).until(1)
    assert (one.rows.tolist(), one.offsets.tolist()) == ([[10], [11]], [[1], [1]])


def test_part_of_windows_is_those_alone():
    part = resolve([(10, 1), (11, 1), (12, 2)], 4).part(1, 3)
    assert [steps_of(part, i) for i in range(2)] == [[(11, 1)], [(12, 2), (13, 0)]]
    assert places(part)[0] == [[201, 201, 201, 201], [302, 400, 400, 400]]


@pytest.mark.parametrize("length", [2, 3, 7, 20])
def test_places_are_those_of_each_observation(length):
    rng = np.random.default_rng(length)
    n_steps, next_row = rng.integers(1, 5, 40), np.full(40, -1)
    for chain in map(np.sort, np.array_split(rng.permutation(40), 6)):
        next_row[chain[:-1]] = chain[1:]
    rows = rng.integers(0, 40, 60)
    windows = resolve_forward(rows, rng.integers(0, n_steps[rows]), length, n_steps, next_row, 0)
    begins = rng.permutation(40) * 100
    for those in (windows, windows.cut(rng.integers(1, windows.counts + 1))):
        steps, observations = those.places(begins[those.runs])
        inside = those.steps()
        np.testing.assert_array_equal(steps[inside], (begins[those.rows] + those.offsets)[inside])
        rows, offsets = those.observations()
        np.testing.assert_array_equal(observations, begins[rows] + offsets)


def test_entries_past_the_ends_are_counted_row_by_row():
    assert past_ends(np.array([3, 1, 3, 2]), 3).tolist() == [4, 5, 11]
    assert past_ends(np.array([3, 4]), 3).tolist() == []
