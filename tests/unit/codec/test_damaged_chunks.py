"""Chunks that an accident has changed: no flipped bit and no missing byte goes unnoticed."""

import numpy as np
import pytest

from replaysvc.codec import ChunkDecoder, checksum, header
from replaysvc.errors import ChunkCorruptError, FormatVersionError, ReplayError, SpecMismatchError
from replaysvc.spec import Precision
from tests.chunk_builders import encode, one_column, with_checksum


@pytest.fixture
def signature():
    return one_column("float32", (2,), Precision.FLOAT16)


@pytest.fixture
def chunk(signature):
    values = 1000 + np.arange(8, dtype=np.float32).reshape(4, 2)
    return encode(signature, values, metadata=b'{"a":1}', terminated=True)


def test_checksum_is_xxh3_of_the_parts_joined():
    """The value for no bytes is the one that the XXH3 specification publishes."""
    assert checksum() == 0x2D06800538D394C2
    assert checksum(b"ab", memoryview(b"c")) == checksum(b"abc") == 0x78AF5F94892F3950


def test_every_flipped_bit_is_noticed(signature, chunk):
    assert len(chunk) < 250
    decoder = ChunkDecoder(signature)
    for bit in range(8 * len(chunk)):
        damaged = bytearray(chunk)
        damaged[bit // 8] ^= 1 << bit % 8
        expected = FormatVersionError if bit // 8 in (4, 5) else ChunkCorruptError
        with pytest.raises(expected) as caught:
            decoder.decode([bytes(damaged)])
        assert type(caught.value) is expected, bit


def test_chunk_cut_off_anywhere_is_noticed(signature, chunk):
    decoder = ChunkDecoder(signature)
    for size in range(len(chunk)):
        with pytest.raises(ChunkCorruptError):
            decoder.decode([chunk[:size]])


def test_chunk_cut_off_anywhere_is_noticed_by_its_sizes_alone(signature, chunk):
    """As above, had whoever cut it made the checksum right again."""
    decoder = ChunkDecoder(signature)
    for size in range(72, len(chunk)):
        with pytest.raises(ChunkCorruptError):
            decoder.decode([with_checksum(chunk[:size], {})])


@pytest.mark.parametrize("extra", [b"\0", b"RPC1", bytes(500)], ids=["one", "magic", "many"])
def test_bytes_after_the_last_column_are_noticed(signature, chunk, extra):
    for longer in (chunk + extra, with_checksum(chunk + extra, {})):
        with pytest.raises(ChunkCorruptError):
            ChunkDecoder(signature).decode([longer])


def test_one_damaged_chunk_among_many_refuses_them_all(signature, chunk):
    damaged = chunk[:-1] + bytes([chunk[-1] ^ 1])
    with pytest.raises(ChunkCorruptError):
        ChunkDecoder(signature).decode([chunk, damaged, chunk])
    assert len(ChunkDecoder(signature).decode([chunk, chunk])) == 2


@pytest.mark.parametrize("data", [b"", b"RPC1", bytes(72), b"\x89PNG" + bytes(200)], ids=["nothing", "magic", "zeros", "other"])
def test_bytes_that_are_no_chunk_are_refused(signature, data):
    with pytest.raises(ChunkCorruptError):
        ChunkDecoder(signature).decode([data])


def test_newer_version_is_told_apart_from_damage(signature, chunk):
    with pytest.raises(FormatVersionError, match="expected format version 1, found 2"):
        ChunkDecoder(signature).decode([with_checksum(chunk, {4: b"\2\0"})])


def test_chunk_of_another_signature_is_named_as_such(chunk):
    other = one_column("float32", (3,), Precision.FLOAT16)
    with pytest.raises(SpecMismatchError, match=f"expected hash {other.hash:016x}") as caught:
        ChunkDecoder(other).decode([chunk])
    assert caught.value.field == "chunk signature"


def test_without_the_checksum_flipped_bits_go_through(signature, chunk, monkeypatch):
    """The checksum is what notices: with it switched off, some damage decodes to wrong values."""
    stored = int.from_bytes(chunk[8:16], "little")
    monkeypatch.setattr(header, "checksum", lambda *_: stored)
    (right,) = ChunkDecoder(signature).decode([chunk])
    wrong = 0
    for bit in range(8 * 16, 8 * len(chunk)):
        damaged = bytearray(chunk)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            (decoded,) = ChunkDecoder(signature).decode([bytes(damaged)])
        except ReplayError:
            continue
        pairs = zip(decoded.columns, right.columns, strict=True)
        wrong += decoded.header.info != right.header.info or any(a.values.tobytes() != b.values.tobytes() for a, b in pairs)
    assert wrong > 100
