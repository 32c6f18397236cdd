import numpy as np
import pytest

from replaysvc.index.columns import Columns


def test_rows_keep_their_numbers_when_old_ones_go():
    columns = Columns({"a": "i8", "b": "f4"})
    columns.append({"a": np.arange(5), "b": np.arange(5) / 2})
    columns.remove_to(2)
    assert (columns.base, columns.end, len(columns)) == (2, 5, 3)
    assert columns["a"].tolist() == [2, 3, 4]
    columns["a"][0] = 9
    columns.append({"a": np.array([7]), "b": np.array([0.0])})
    assert columns["a"].tolist() == [9, 3, 4, 7]
    assert columns["b"].tolist() == [1.0, 1.5, 2.0, 0.0]


def test_removing_backwards_or_too_far_is_bounded():
    columns = Columns({"a": "i8"}, base=10)
    columns.append({"a": np.arange(3)})
    columns.remove_to(5)
    assert len(columns) == 3
    columns.remove_to(100)
    assert (len(columns), columns.base, columns.end) == (0, 13, 13)


@pytest.mark.parametrize("kept", [10, 5000])
def test_memory_follows_what_is_kept_not_what_ever_was(kept):
    columns = Columns({"a": "i8"})
    for start in range(0, 200_000, 100):
        columns.append({"a": np.arange(start, start + 100)})
        columns.remove_to(columns.end - kept)
    assert columns["a"].tolist() == list(range(200_000 - kept, 200_000))
    assert columns["a"].base.nbytes < 8 * 16 * (kept + 1024)


def test_fields_that_lie_together_are_read_as_records_and_alone_and_stay_in_step_when_arrays_move():
    columns = Columns({"a": "i8"}, together={"b": "i8", "c": "f4"})
    for start in range(0, 300, 100):
        numbers = np.arange(start, start + 100)
        columns.append({"a": numbers, "b": 2 * numbers, "c": numbers / 2})
        columns["b"][0] = -1
        columns.remove_to(columns.end - 60)
    assert columns.records.dtype.itemsize == 12
    records = columns.records.take([0, 59])
    assert records["b"].tolist() == [480, 598]
    assert records["c"].tolist() == [120, 149.5]
    assert columns["a"].tolist() == list(range(240, 300))
    columns["c"][1] = 9
    assert columns.records["c"][1] == 9
