"""Jump pointers between the chunks of an episode."""

import numpy as np

from replaysvc.index.chunk_links import NONE, find_depth, find_step, jump_lengths


def test_jump_lengths_are_the_lowest_skew_binary_digits():
    """1, 2 = 2*1, 3, 4 = 3+1, 5 = 3+2*1, 6 = 2*3, 7, 8 = 7+1."""
    assert jump_lengths(np.arange(9)).tolist() == [0, 1, 1, 3, 1, 1, 3, 7, 1]


def test_jump_lengths_follow_the_recurrence():
    jump = [0]
    for depth in range(1, 5000):
        parent, over = depth - 1, jump[depth - 1]
        jump.append(jump[over] if parent - over == over - jump[over] else parent)
    depths = np.arange(5000)
    assert (depths - jump_lengths(depths) == jump).all()


def chain(n, first_row=0):
    """n chunks of 3 steps, in rows first_row, first_row + 1, ..."""
    depth = np.arange(n)
    rows = depth + first_row
    prev = np.where(depth > 0, rows - 1, NONE)
    return depth, prev, rows - jump_lengths(depth), 3 * depth


def test_every_step_of_a_long_episode_is_found():
    depth, prev, jump, first_step = chain(1000)
    steps = np.arange(3000)
    found = find_step(np.full(3000, 999), steps, first_step, prev, jump, 0)
    assert (found == steps // 3).all()
    assert (find_depth(np.full(1000, 999), depth, depth, prev, jump, 0) == depth).all()


def test_steps_of_removed_chunks_are_not_found_and_others_are():
    _, prev, jump, first_step = chain(100)
    base = 37
    kept = [array[base:] for array in (first_step, prev, jump)]
    steps = np.arange(300)
    found = find_step(np.full(300, 99), steps, *kept, base)
    assert (found == np.where(steps // 3 >= base, steps // 3, NONE)).all()


def test_a_search_takes_logarithmically_many_hops():
    """Counted through an array that notes each look: 100,000 chunks, at most 3 * 17 looks at `prev_row`."""

    class Counting(np.ndarray):
        looks = 0

        def __getitem__(self, key):
            Counting.looks += 1
            return super().__getitem__(key)

    _, prev, jump, first_step = chain(100_000)
    for step in (0, 1, 149_999, 299_998):
        Counting.looks = 0
        find_step(np.array([99_999]), np.array([step]), first_step, prev.view(Counting), jump, 0)
        assert Counting.looks <= 51


def test_steps_before_a_run_that_begins_late_are_not_found():
    """The beginning of an episode was removed with all links to it; its first chunk left jumps to itself."""
    first_step, prev, jump = np.array([6, 9]), np.array([NONE, 0]), np.array([0, 0])
    assert find_step(np.array([1, 1, 1]), np.array([2, 7, 10]), first_step, prev, jump, 0).tolist() == [NONE, 0, 1]
