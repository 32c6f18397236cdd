import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from replaysvc.selectors import Runs


def runs_of(*pairs):
    runs = Runs()
    for start, stop in pairs:
        runs.insert(start, stop)
    return runs


def content(runs):
    return runs.select(np.arange(runs.size)).tolist() if runs.size else []


def test_an_empty_set():
    runs = runs_of((4, 4))
    runs.remove(0, 10)
    assert runs.size == 0
    assert runs.runs.tolist() == []


def test_ranks_go_from_the_lowest_position_and_skip_gaps():
    runs = runs_of((5, 8), (8, 9), (1 << 40, (1 << 40) + 2))
    assert runs.size == 6
    assert runs.runs.tolist() == [[5, 9], [1 << 40, (1 << 40) + 2]]
    assert runs.select(np.array([5, 0, 3, 4])).tolist() == [(1 << 40) + 1, 5, 8, 1 << 40]


def test_removal_at_the_front_also_of_whole_runs():
    runs = runs_of((0, 3), (10, 14), (20, 22))
    runs.remove(0, 2)
    assert content(runs) == [2, 10, 11, 12, 13, 20, 21]
    runs.remove(0, 12)
    assert content(runs) == [12, 13, 20, 21]
    runs.remove(0, 15)
    assert content(runs) == [20, 21]
    runs.insert(22, 24)
    runs.remove(3, 21)
    assert content(runs) == [21, 22, 23]
    runs.remove(0, 1 << 50)
    assert content(runs) == []
    runs.insert(30, 32)
    assert content(runs) == [30, 31]


def test_removal_in_the_middle_splits_a_run():
    runs = runs_of((0, 10))
    runs.remove(3, 5)
    assert runs.runs.tolist() == [[0, 3], [5, 10]]
    runs.remove(2, 6)
    assert content(runs) == [0, 1, 6, 7, 8, 9]
    runs.remove(8, 20)
    assert content(runs) == [0, 1, 6, 7]
    runs.remove(3, 5)
    assert content(runs) == [0, 1, 6, 7]


def test_what_is_inserted_out_of_order_joins_what_it_touches():
    runs = runs_of((10, 12), (20, 22), (0, 2))
    runs.insert(12, 20)
    assert runs.runs.tolist() == [[0, 2], [10, 22]]
    runs.insert(21, 25)
    runs.insert(1, 3)
    assert runs.runs.tolist() == [[0, 3], [10, 25]]


def test_thousands_of_runs_come_and_go():
    runs = Runs()
    for turn in range(5_000):
        runs.insert(10 * turn, 10 * turn + 3)
        runs.remove(0, 10 * (turn - 4) + 1)
    assert content(runs) == [49_951, 49_952, *(10 * turn + step for turn in range(4_996, 5_000) for step in range(3))]


SPAN = st.tuples(st.integers(0, 60), st.integers(0, 12))
ACTIONS = st.tuples(st.sampled_from(["insert", "append", "remove", "front"]), SPAN)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(ACTIONS, max_size=25))
def test_runs_hold_what_a_set_would(actions):
    runs, plain = Runs(), set()
    for kind, (at, length) in actions:
        if kind == "append":
            at = max(plain, default=-1) + 1 + at % 3
        if kind == "front":
            at, length = 0, at
        span = range(at, at + length)
        if kind in ("insert", "append"):
            runs.insert(span.start, span.stop)
            plain |= set(span)
        else:
            runs.remove(span.start, span.stop)
            plain -= set(span)
        assert runs.size == len(plain)
        assert content(runs) == sorted(plain)
        assert (np.diff(runs.runs.ravel()) > 0).all()
