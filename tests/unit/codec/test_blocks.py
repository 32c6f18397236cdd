"""Frames of more blocks than zstd would make: where they end, and that any decoder reads them."""

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from replaysvc.codec import ChunkDecoder, ChunkEncoder, read_header
from replaysvc.codec.blocks import block_ends
from replaysvc.codec.header import Stage
from replaysvc.codec.zstd import Compressor, decompress
from tests.chunk_builders import columns_for, make_info, one_column, same_bits


def blocks_of(frame):
    """The sizes in which the blocks of a frame are stored."""
    at, sizes = zstandard.frame_header_size(frame), []
    while True:
        block = int.from_bytes(frame[at : at + 3], "little")
        sizes.append(1 if block & 6 == 2 else block >> 3)
        at += 3 + sizes[-1]
        if block & 1:
            assert at == len(frame)
            return sizes


def test_noise_and_zeros_and_few_values_get_blocks_of_their_own(rng):
    noise = rng.integers(0, 256, (4, 500), dtype=np.uint8)
    few = rng.integers(0, 4, (2, 500), dtype=np.uint8)
    assert block_ends(np.concatenate([noise, few, np.zeros((2, 500), np.uint8)])) == [4, 6]
    assert block_ends(np.concatenate([few, noise])) == [2]


def test_rows_alike_stay_together(rng):
    assert block_ends(rng.integers(0, 16, (8, 500), dtype=np.uint8)) == []
    assert block_ends(np.zeros((1, 9), np.uint8)) == []
    assert block_ends(np.zeros((3, 0), np.uint8)) == []


def test_rows_too_short_for_a_code_of_their_own_stay_together(rng):
    """A block of 20 random bytes of 4 values would save 15 bytes, and its code takes about 10 and its header 3."""
    rows = np.concatenate([rng.integers(0, 256, (1, 4), dtype=np.uint8), rng.integers(0, 4, (1, 4), dtype=np.uint8)])
    assert block_ends(rows) == []


def test_frame_has_the_blocks_that_were_asked_for():
    data = np.random.default_rng(0).bytes(200) + bytes(100) + b"\1" * 50
    frame = Compressor(3).compress(data, [200, 300])
    assert blocks_of(frame) == [200, 1, 1]  # as they are, then twice one byte repeated
    assert zstandard.get_frame_parameters(frame).content_size == 350
    assert bytes(decompress([memoryview(frame)], [350])[0]) == data


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(data=st.binary(min_size=1, max_size=2000), places=st.sets(st.integers(0, 2000), max_size=7))
def test_wherever_blocks_end_the_frame_is_read_back(data, places):
    ends = sorted(place for place in places if place < len(data))
    frame = Compressor(6).compress(data, ends)
    assert bytes(decompress([memoryview(frame)], [len(data)])[0]) == data


@pytest.mark.parametrize("rows", [400, 250, 190, 150, 3, 1])
def test_exponents_are_coded_apart_from_mantissas_and_shorter_chunks_come_back(rows):
    """Uniform noise from -1 to 1: 3 of 4 bytes are noise; shuffled in one block they would cost as much as they are long."""
    rng = np.random.default_rng(1)
    signature = one_column("float32", (6,))
    encoder = ChunkEncoder(signature)
    values = rng.uniform(-1, 1, (401, 6)).astype(np.float32)
    first = encoder.encode(make_info(signature, 400), columns_for(signature, values))
    payload = read_header(first, signature).payloads[0]
    assert payload.stages & Stage.SHUFFLE
    assert payload.stored < 0.86 * values.nbytes
    short = values[: rows + 1]
    chunk = encoder.encode(make_info(signature, rows), columns_for(signature, short))
    payload = read_header(chunk, signature).payloads[0]
    if payload.stages & Stage.ZSTD:  # one of less than half the length was not what the division was made for
        frame = chunk[payload.start : payload.start + payload.stored]
        assert (len(blocks_of(frame)) > 1) == (rows > 200)
    assert same_bits(ChunkDecoder(signature).decode([chunk])[0].columns[0].values, short)
