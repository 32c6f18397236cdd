"""Chunks for tests of the codec: encoded the usual way, or put together by hand with a valid checksum."""

import struct

import numpy as np

from replaysvc.codec import ChunkDecoder, ChunkEncoder, ChunkInfo, checksum, widen
from replaysvc.spec import FieldSpec, Precision, Signature

NAN_PAYLOADS = {
    "float16": ("u2", (0x7E01, 0xFE55, 0x7D01)),
    "float32": ("u4", (0x7FC12345, 0xFFC00001, 0x7FA00001)),
    "float64": ("u8", (0x7FF8123456789ABC, 0xFFF8000000000001, 0x7FF4000000000001)),
}
"""Bit patterns of quiet and signalling NaNs that are not the usual one."""


def field(dtype, shape=(), **options):
    return FieldSpec("x", shape, np.dtype(dtype), **options)


def one_column(dtype, shape=(), precision=Precision.LOSSLESS, **options):
    """A signature whose first column is the one to look at; the others are small scalars."""
    return Signature(field(dtype, shape, precision=precision, **options), field("uint8"))


def make_info(signature, n_steps, **changes):
    values = {
        "signature_hash": signature.hash, "episode_key": 7, "first_step": 0, "n_steps": n_steps,
        "terminated": False, "truncated": False, "policy_version": 3, "reward_sum": 0.0, "metadata": b"",
    }  # fmt: skip
    return ChunkInfo(**(values | changes))


def columns_for(signature, first):
    """All columns of a chunk whose first column is `first` [n_steps + 1, ...]; the others hold zeros."""
    n_steps = len(first) - 1
    return [first, *(np.zeros((n_steps, *spec.shape), spec.dtype) for spec in signature.columns[1:])]


def encode(signature, first, **changes):
    info = make_info(signature, **({"n_steps": len(first) - 1} | changes))
    return ChunkEncoder(signature).encode(info, columns_for(signature, first))


def decode_first(signature, chunk):
    """The first column of a chunk, in its declared dtype."""
    (decoded,) = ChunkDecoder(signature).decode([chunk])
    return widen(decoded.columns[0], signature.columns[0])


def same_bits(left, right):
    """Whether two arrays are equal to the last bit: NaN payloads and the sign of zero count."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def with_checksum(chunk, changes):
    """The chunk with bytes at the given offsets replaced, and its checksum made right again: {offset: bytes}."""
    data = bytearray(chunk)
    for offset, new in changes.items():
        data[offset : offset + len(new)] = new
    data[8:16] = struct.pack("<Q", checksum(bytes(data[:8]), bytes(data[16:])))
    return bytes(data)
