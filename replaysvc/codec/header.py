"""The bytes of a chunk: a header that describes itself, then one payload a column.

Little-endian, no padding between the parts:

  offset  size  field
  0       4     magic `RPC1`
  4       2     format version, 1
  6       2     reserved, 0
  8       8     xxh3_64 over bytes [0, 8) and [16, end)
  16      8     signature hash
  24      8     episode_key: names the episode within the writer's session
  32      8     first_step: step of the episode that the chunk's first step is
  40      4     n_steps, 1 to 65535
  44      4     flags: 1 the last step terminated the episode, 2 it truncated it; others 0
  48      8     policy_version, signed; -1: none
  56      8     reward_sum, float64, over the chunk
  64      4     metadata length M, up to 65536, 0 unless first_step is 0
  68      4     column count C, as in the signature
  72      12*C  one descriptor a column
  ...     M     metadata, a JSON object in UTF-8
  ...           the columns' payloads, in order, each of its `stored` bytes; nothing after the last

  descriptor
  0       1     stages, bits: 1 cast, 2 delta, 4 shuffle, 8 zstd, 16 offsets (only with cast)
  1       3     reserved, 0
  4       4     raw: bytes before zstd
  8       4     stored: bytes in the chunk

An observation column has n_steps + 1 rows, any other n_steps. A column's raw bytes are its offsets if any (one value of the
declared dtype for each element of the field's shape), then its rows in C order: float16 where cast, else the declared
dtype; after `delta` and `shuffle`, in this order, where those bits are set. A column without zstd is stored as its raw bytes.
With zstd it is one frame that states its content size, has no dictionary, a window of at most 8 MiB (or else its content size)
and at most raw / 256 + 16 blocks.
"""

import math
import struct
from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from replaysvc.codec.checksum import checksum
from replaysvc.errors import ChunkCorruptError, FormatVersionError, SpecMismatchError
from replaysvc.spec import FieldSpec, Signature

MAGIC = b"RPC1"
VERSION = 1
PREFIX = struct.Struct("<4sHHQ")
FIXED = struct.Struct("<QQQIIqdII")
DESCRIPTOR = struct.Struct("<B3sII")
_COUNT = struct.Struct("<I")  # the last of FIXED
MAX_STEPS = 65_535
MAX_RAW_BYTES = 256 << 20  # decoded bytes of one chunk: bounds what a hostile chunk can make a decoder allocate
MAX_METADATA_BYTES = 64 << 10


class Stage(IntFlag):
    """What was done to a column, first to last."""

    CAST = 1
    DELTA = 2
    SHUFFLE = 4
    ZSTD = 8
    OFFSETS = 16


_STAGES = tuple(Stage(bits) for bits in range(32))  # flags are made and combined slowly, and this is done for every column read
_CAST, _ZSTD, _OFFSETS = int(Stage.CAST), int(Stage.ZSTD), int(Stage.OFFSETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkInfo:
    """What a writer says of a chunk. `metadata` is a JSON object, empty unless `first_step` is 0; flags are the last step's."""

    signature_hash: int
    episode_key: int
    first_step: int
    n_steps: int
    terminated: bool
    truncated: bool
    policy_version: int
    reward_sum: float
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """Where a column's bytes lie in its chunk, and what was done to them."""

    stages: Stage
    raw: int
    start: int
    stored: int


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """A checked header. fallbacks: columns declared float16 but lossless here. raw_bytes: of all columns as declared."""

    info: ChunkInfo
    checksum: int
    fallbacks: int
    payloads: tuple[Payload, ...]
    raw_bytes: int


def rows_of(column: int, n_steps: int, observation_columns: int) -> int:
    """Returns the rows of a column in a chunk of `n_steps`: one more for observations, the first so many of the columns."""
    return n_steps + (column < observation_columns)


def raw_size(spec: FieldSpec, rows: int, stages: int) -> int:
    """Returns the bytes of a column before zstd; `stages` as the bits of a Stage."""
    bits = int(stages)
    values = math.prod(spec.shape)
    width = 2 if bits & _CAST else spec.dtype.itemsize
    return values * rows * width + (values * spec.dtype.itemsize if bits & _OFFSETS else 0)


def decoded_bytes(chunk: bytes) -> int:
    """Returns the bytes that the columns of an intact chunk take in stored precision."""
    (count,) = _COUNT.unpack_from(chunk, PREFIX.size + FIXED.size - _COUNT.size)
    at = PREFIX.size + FIXED.size
    return sum(raw for _, _, raw, _ in DESCRIPTOR.iter_unpack(chunk[at : at + DESCRIPTOR.size * count]))


def checksum_of(chunk: bytes | memoryview) -> int:
    """Returns the checksum that a chunk of these bytes must state."""
    data = memoryview(chunk)
    return checksum(data[:8], data[16:])


def steps_of(chunk: bytes) -> int:
    """Returns the steps of a chunk if its checksum holds, else the most that any chunk has; for when nothing else tells."""
    data = memoryview(chunk)
    if len(data) < PREFIX.size + FIXED.size or checksum_of(data) != PREFIX.unpack_from(data)[3]:
        return MAX_STEPS
    return int(FIXED.unpack_from(data, PREFIX.size)[3])


def read_header(chunk: bytes | memoryview, signature: Signature) -> ChunkHeader:
    """Returns the header of `chunk` after checking the checksum, and every size against the signature.

    Raises:
      ChunkCorruptError: damaged or dishonest bytes. FormatVersionError: a version that is not known.
      SpecMismatchError: intact, but of another signature.
    """
    data = memoryview(chunk)
    if len(data) < PREFIX.size + FIXED.size:
        raise ChunkCorruptError(f"chunk: expected at least {PREFIX.size + FIXED.size} bytes, found {len(data)}")
    magic, version, reserved, expected = PREFIX.unpack_from(data)
    if magic != MAGIC or reserved:
        raise ChunkCorruptError("chunk: expected the magic RPC1, found other bytes")
    if version != VERSION:
        raise FormatVersionError(f"chunk: expected format version {VERSION}, found {version}")
    if checksum_of(data) != expected:
        raise ChunkCorruptError("chunk: its checksum does not match its bytes")
    hashed, key, first_step, n_steps, flags, policy, reward_sum, metadata_size, count = FIXED.unpack_from(data, PREFIX.size)
    if hashed != signature.hash:
        raise SpecMismatchError("chunk signature", f"hash {signature.hash:016x}", f"{hashed:016x}")
    if not 1 <= n_steps <= MAX_STEPS or flags & ~3 or first_step >= 1 << 62 or policy < -1 or not math.isfinite(reward_sum):
        raise ChunkCorruptError(
            f"chunk: a header field is out of range (n_steps {n_steps}, flags {flags}, first_step {first_step})"
        )
    if metadata_size > MAX_METADATA_BYTES or (metadata_size and first_step) or count != len(signature.columns):
        raise ChunkCorruptError(
            f"chunk: expected {len(signature.columns)} columns, found {count}, and {metadata_size} bytes of metadata"
        )
    at = PREFIX.size + FIXED.size
    start = at + DESCRIPTOR.size * count + metadata_size
    if start > len(data):
        raise ChunkCorruptError("chunk: it ends within its header")
    payloads, fallbacks, raw_bytes = [], 0, 0
    observation_columns = signature.observation_columns  # counted anew at each look
    for i, spec in enumerate(signature.columns):
        bits, reserved_bytes, raw, stored = DESCRIPTOR.unpack_from(data, at + DESCRIPTOR.size * i)
        rows = rows_of(i, n_steps, observation_columns)
        raw_bytes += spec.row_bytes * rows
        known = bits & ~31 == 0 and reserved_bytes == b"\0\0\0"
        cast = bool(bits & _CAST)
        honest = known and (not cast or spec.cast) and (cast or not bits & _OFFSETS) and raw == raw_size(spec, rows, bits)
        if not honest or raw_bytes > MAX_RAW_BYTES or (not bits & _ZSTD and stored != raw):
            raise ChunkCorruptError(f"chunk: the descriptor of column {spec.name} does not fit the signature")
        fallbacks += spec.cast and not cast
        payloads.append(Payload(_STAGES[bits], raw, start, stored))
        start += stored
    if start != len(data):
        raise ChunkCorruptError(f"chunk: expected {start} bytes, found {len(data)}")
    metadata = bytes(data[at + DESCRIPTOR.size * count :][:metadata_size])
    info = ChunkInfo(
        signature_hash=hashed, episode_key=key, first_step=first_step, n_steps=n_steps, terminated=bool(flags & 1),
        truncated=bool(flags & 2), policy_version=policy, reward_sum=reward_sum, metadata=metadata,
    )  # fmt: skip
    return ChunkHeader(info, expected, fallbacks, tuple(payloads), raw_bytes)


def write_chunk(info: ChunkInfo, columns: list[tuple[Stage, int, bytes]]) -> bytes:
    """Returns the chunk of `info` and its columns' (stages, raw size, payload)."""
    flags = int(info.terminated) | int(info.truncated) << 1
    fixed = FIXED.pack(
        info.signature_hash, info.episode_key, info.first_step, info.n_steps, flags, info.policy_version, info.reward_sum,
        len(info.metadata), len(columns),
    )  # fmt: skip
    descriptors = [DESCRIPTOR.pack(stages, b"", raw, len(payload)) for stages, raw, payload in columns]
    body = b"".join((fixed, *descriptors, info.metadata, *(payload for _, _, payload in columns)))
    head = PREFIX.pack(MAGIC, VERSION, 0, 0)[:8]
    return head + checksum(head, body).to_bytes(8, "little") + body


def stored_shape(spec: FieldSpec, rows: int) -> tuple[int, ...]:
    """Returns the array shape of a column."""
    return (rows, *spec.shape)


def bits_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Returns the unsigned integer dtype of the same width."""
    return np.dtype(f"u{dtype.itemsize}")
