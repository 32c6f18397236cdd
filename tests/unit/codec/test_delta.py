"""Differences between bit patterns: they wrap around, and so never lose anything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from replaysvc.codec.delta import delta_decode, delta_encode
from replaysvc.codec.shuffle import shuffle, unshuffle


def test_differences_wrap_around_at_the_width_of_the_value():
    bits = np.array([250, 5, 255, 0], np.uint8)
    deltas = delta_encode(bits)
    assert deltas.tolist() == [250, 11, 250, 1]  # 5 - 250 = -245 = 11 mod 256
    assert delta_decode(deltas).tolist() == [250, 5, 255, 0]
    assert delta_decode(deltas).dtype == np.uint8


def test_float16_numbers_further_apart_than_float16_reaches_come_back():
    """65504 - -65504 is no float16; their bit patterns 0x7bff and 0xfbff differ by 0x8000 either way."""
    bits = np.array([65504, -65504, 65504], np.float16).view(np.uint16)
    deltas = delta_encode(bits)
    assert deltas.tolist() == [0x7BFF, 0x8000, 0x8000]
    assert delta_decode(deltas).view(np.float16).tolist() == [65504, -65504, 65504]


def test_differences_run_along_time_and_leave_the_input_alone():
    bits = np.array([[1, 10], [3, 10], [3, 7]], np.uint32)
    assert delta_encode(bits).tolist() == [[1, 10], [2, 0], [0, (1 << 32) - 3]]
    assert bits.tolist() == [[1, 10], [3, 10], [3, 7]]


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@settings(derandomize=True, database=None, deadline=None, max_examples=25)
@given(data=st.data())
def test_delta_and_shuffle_are_undone_exactly(width, data):
    shape = (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4)))
    bits = data.draw(hnp.arrays(f"u{width}", shape))
    assert (delta_decode(delta_encode(bits)) == bits).all()
    raw = bits.reshape(-1).view(np.uint8)
    assert (unshuffle(shuffle(raw, width), width) == raw).all()


def test_shuffle_puts_the_bytes_of_one_place_side_by_side():
    raw = np.array([1, 2, 3, 4, 5, 6], np.uint8)
    assert shuffle(raw, 2).tolist() == [1, 3, 5, 2, 4, 6]
    assert shuffle(raw, 3).tolist() == [1, 4, 2, 5, 3, 6]
