import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replaysvc.selectors import Queue


def ints(*values):
    return np.array(values, np.int64)


def queue_of(*positions, times=1, newest_first=False):
    queue = Queue(times, newest_first)
    queue.insert(ints(*positions))
    return queue


def test_the_oldest_comes_first_all_its_times():
    queue = queue_of(7, 3, 9, times=2)
    assert queue.available == 6
    assert queue.draw(3).tolist() == [7, 7, 3]
    assert queue.draw(0).tolist() == []
    assert [part.tolist() for part in queue.pending] == [[3, 9], [1, 2]]
    assert queue.draw(3).tolist() == [3, 9, 9]
    assert queue.available == 0
    queue.insert(ints(1))
    assert queue.draw(2).tolist() == [1, 1]


def test_the_newest_comes_first_also_on_top_of_one_half_used():
    queue = queue_of(1, 2, times=3, newest_first=True)
    assert queue.draw(2).tolist() == [2, 2]
    queue.insert(ints(8, 9))
    assert queue.draw(4).tolist() == [9, 9, 9, 8]
    queue.insert(ints(5))
    assert queue.draw(6).tolist() == [5, 5, 5, 8, 8, 2]
    assert [part.tolist() for part in queue.pending] == [[1], [3]]
    assert queue.available == 3


def test_more_than_there_is_is_refused_and_uses_nothing_up():
    queue = queue_of(1, 2)
    with pytest.raises(ValueError, match="at most 2, found 3"):
        queue.draw(3)
    assert queue.draw(2).tolist() == [1, 2]


@pytest.mark.parametrize("newest_first", [False, True])
def test_what_is_removed_is_not_handed_out(newest_first):
    queue = queue_of(6, 2, 9, 4, 7, times=2, newest_first=newest_first)
    queue.remove(ints(9, 100))
    queue.remove(ints(9))
    queue.remove_before(5)
    assert queue.available == 4
    queue.remove_before(5)
    queue.insert(ints(5, 8))
    queue.remove_before(6)
    expected = [8, 8, 7, 7, 6, 6] if newest_first else [6, 6, 7, 7, 8, 8]
    assert queue.draw(6).tolist() == expected
    assert queue.available == 0


def test_a_half_used_item_takes_what_is_left_of_it_along():
    queue = queue_of(1, 2, times=3)
    queue.draw(1)
    queue.remove_before(2)
    assert queue.available == 3
    queue.draw(1)
    queue.remove(ints(2))
    assert queue.available == 0


def test_what_is_pending_can_be_restored():
    queue = queue_of(3, 1, 2, times=4)
    queue.draw(5)
    queue.remove(ints(2))
    restored = Queue(4, False)
    restored.restore(*queue.pending)
    restored.insert(ints(0))
    assert restored.available == 7
    restored.remove_before(1)
    assert restored.draw(3).tolist() == [1, 1, 1]
    restored.restore(ints(), ints())
    assert restored.available == 0


def test_a_long_queue_keeps_order_over_many_batches():
    queue = Queue(2, False)
    drawn = []
    for start in range(0, 30_000, 300):
        queue.insert(np.arange(start, start + 300))
        drawn.append(queue.draw(500))
        queue.remove_before(start // 2)
    drawn.append(queue.draw(queue.available))
    assert np.array_equal(np.concatenate(drawn), np.repeat(np.arange(30_000), 2))


ACTIONS = st.one_of(
    st.tuples(st.just("insert"), st.lists(st.integers(0, 40), unique=True, max_size=9)),
    st.tuples(st.just("draw"), st.integers(0, 20)),
    st.tuples(st.just("before"), st.integers(0, 40)),
    st.tuples(st.just("remove"), st.lists(st.integers(0, 40), max_size=6)),
    st.tuples(st.just("restore"), st.none()),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(ACTIONS, max_size=30), st.integers(1, 3), st.booleans())
def test_a_queue_does_what_a_list_would(actions, times, newest_first):
    queue, plain = Queue(times, newest_first), []
    for kind, value in actions:
        if kind == "insert":
            fresh = [position for position in value if position not in [item[0] for item in plain]]
            queue.insert(ints(*fresh))
            plain += [[position, times] for position in fresh]
        elif kind == "draw":
            count = min(value, queue.available)
            expected = []
            while len(expected) < count:
                item = plain[-1 if newest_first else 0]
                expected.append(item[0])
                item[1] -= 1
                plain = [item for item in plain if item[1]]
            assert queue.draw(count).tolist() == expected
        elif kind == "before":
            queue.remove_before(value)
            plain = [item for item in plain if item[0] >= value]
        elif kind == "remove":
            queue.remove(ints(*value))
            plain = [item for item in plain if item[0] not in value]
        else:
            queue.restore(*queue.pending)
        assert queue.available == sum(item[1] for item in plain)
        assert np.stack(queue.pending, axis=1).tolist() == plain
