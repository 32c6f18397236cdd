"""Chunks that somebody made to do harm: their checksum is right, what they say is not."""

import struct
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from replaysvc.codec import ChunkDecoder, read_header, zstd
from replaysvc.codec.header import Stage, raw_size, rows_of, write_chunk
from replaysvc.errors import ChunkCorruptError, FormatVersionError, SpecMismatchError
from replaysvc.spec import FieldSpec, Precision, Signature
from tests.chunk_builders import make_info, with_checksum

PLAIN = Stage(0)
STEPS = 2
SIGNATURE = Signature(
    FieldSpec("", (4,), np.float32, Precision.FLOAT16),
    FieldSpec("", (), np.bool_),
    empty=FieldSpec("", (0,), np.float32),
)
FLOATS = bytes(48)  # three rows of four float32
DESCRIPTORS = 72  # where the first column's descriptor begins; the next ones follow every 12 bytes


def make_chunk(column=0, stages=PLAIN, payload=FLOATS, *, raw=None, **changes):
    """A chunk of zeros in which one column has the given stages and payload; its raw size is the right one."""
    columns = []
    for i, spec in enumerate(SIGNATURE.columns):
        mine = i == column
        size = raw_size(spec, rows_of(i, STEPS, SIGNATURE.observation_columns), stages if mine else PLAIN)
        columns.append((stages, size if raw is None else raw, payload) if mine else (PLAIN, size, bytes(size)))
    return write_chunk(make_info(SIGNATURE, STEPS, **changes), columns)


def decode(chunk):
    (decoded,) = ChunkDecoder(SIGNATURE).decode([chunk])
    return decoded


def refused(chunk, match="chunk"):
    with pytest.raises(ChunkCorruptError, match=match):
        decode(chunk)


def frame_header(content_size):
    """The first 13 bytes of a zstd frame with an 8-byte content size: magic, descriptor (single segment), size."""
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, content_size)


def frame(data=FLOATS, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


def test_chunk_put_together_by_hand_is_an_honest_one():
    assert decode(make_chunk()).columns[0].values.tolist() == [[0.0] * 4] * 3
    assert decode(make_chunk(stages=Stage.ZSTD, payload=frame())).columns[0].values.tolist() == [[0.0] * 4] * 3


def peak_of(chunk):
    """Refuses the chunk and returns the most memory that Python took for it."""
    tracemalloc.start()
    try:
        refused(chunk)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("claim", [1 << 40, 64 << 20, 49, 47, 0], ids=str)
def test_frame_that_claims_another_size_is_refused_before_anything_is_allocated(claim, monkeypatch):
    """No decompressor is there to be asked, and memory that it would take by itself does not show in `peak_of`."""
    monkeypatch.setattr(zstd, "_local", SimpleNamespace(decompressor=object()))
    bomb = frame_header(claim)
    assert len(bomb) == 13
    refused(make_chunk(stages=Stage.ZSTD, payload=bomb), f"found one that states {claim}")
    assert peak_of(make_chunk(stages=Stage.ZSTD, payload=bomb)) < 1 << 20


def test_without_the_look_at_the_frame_one_that_lies_reaches_the_decompressor(monkeypatch):
    monkeypatch.setattr(zstd, "_local", SimpleNamespace(decompressor=object()))
    monkeypatch.setattr(zstd, "_check_frame", lambda *_: None)
    with pytest.raises(AttributeError, match="multi_decompress_to_buffer"):
        decode(make_chunk(stages=Stage.ZSTD, payload=frame_header(1 << 40)))


def test_frame_that_does_not_state_its_size_is_refused():
    silent = frame(write_content_size=False)
    assert zstandard.get_frame_parameters(silent).content_size == zstandard.CONTENTSIZE_UNKNOWN
    refused(make_chunk(stages=Stage.ZSTD, payload=silent), "states")


def test_without_the_look_at_the_frame_a_silent_one_goes_through(monkeypatch):
    monkeypatch.setattr(zstd, "_check_frame", lambda *_: None)
    assert decode(make_chunk(stages=Stage.ZSTD, payload=frame(write_content_size=False))).columns[0].values.shape == (3, 4)


def by_hand(header):
    """A frame of 48 zeros in one raw block (3 bytes: last block, raw, size) after `header`."""
    return header + (48 << 3 | 1).to_bytes(3, "little") + FLOATS


def test_frame_that_wants_a_large_window_is_refused():
    """Window descriptor 0xA8 asks for 2^(10 + 21) bytes = 2 GiB, though the frame states its 48 bytes."""
    payload = by_hand(struct.pack("<IBBI", 0xFD2FB528, 0x80, 0xA8, 48))
    found = zstandard.get_frame_parameters(payload)
    assert (found.content_size, found.window_size) == (48, 1 << 31)
    refused(make_chunk(stages=Stage.ZSTD, payload=payload), "zstd frame")


def test_frame_with_a_dictionary_is_refused():
    payload = by_hand(struct.pack("<IBBB", 0xFD2FB528, 0x21, 1, 48))
    found = zstandard.get_frame_parameters(payload)
    assert (found.content_size, found.dict_id) == (48, 1)
    refused(make_chunk(stages=Stage.ZSTD, payload=payload), "zstd frame")


def test_frame_by_hand_without_either_is_taken():
    payload = by_hand(struct.pack("<IBB", 0xFD2FB528, 0x20, 48))
    assert decode(make_chunk(stages=Stage.ZSTD, payload=payload)).columns[0].values.shape == (3, 4)


def in_blocks(empty):
    """A frame of 48 zeros after so many blocks that hold nothing."""
    return struct.pack("<IBB", 0xFD2FB528, 0x20, 48) + bytes(3) * empty + (48 << 3 | 1).to_bytes(3, "little") + FLOATS


def test_frame_of_more_blocks_than_any_encoder_makes_is_refused():
    """48 bytes may come in 48 // 256 + 16 = 16 blocks; each costs a step of the walk to the frame's end."""
    assert decode(make_chunk(stages=Stage.ZSTD, payload=in_blocks(15))).columns[0].values.shape == (3, 4)
    refused(make_chunk(stages=Stage.ZSTD, payload=in_blocks(16)), "does not end where the column does")


def test_walk_through_a_frame_knows_every_kind_of_block():
    """Kind 0 holds its bytes, kind 1 one byte that is repeated, kind 2 compressed ones; kind 3 is reserved."""
    start = struct.pack("<IBB", 0xFD2FB528, 0x20, 48)
    repeated = start + (48 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    assert decode(make_chunk(stages=Stage.ZSTD, payload=repeated)).columns[0].values.tolist() == [[0.0] * 4] * 3
    both = start + (40 << 3).to_bytes(3, "little") + bytes(40) + (8 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    assert decode(make_chunk(stages=Stage.ZSTD, payload=both)).columns[0].values.tolist() == [[0.0] * 4] * 3
    refused(make_chunk(stages=Stage.ZSTD, payload=start + (48 << 3 | 3 << 1 | 1).to_bytes(3, "little") + FLOATS))


def test_frame_whose_last_block_is_not_marked_as_such_does_not_reach_the_decompressor():
    start = struct.pack("<IBB", 0xFD2FB528, 0x20, 48)
    refused(make_chunk(stages=Stage.ZSTD, payload=start + (48 << 3).to_bytes(3, "little") + FLOATS), "does not end where")


def test_frame_with_a_checksum_of_its_own_is_taken_unless_damaged():
    payload = frame(write_checksum=True)
    assert zstandard.get_frame_parameters(payload).has_checksum
    assert decode(make_chunk(stages=Stage.ZSTD, payload=payload)).columns[0].values.tolist() == [[0.0] * 4] * 3
    refused(make_chunk(stages=Stage.ZSTD, payload=payload[:-1] + bytes([payload[-1] ^ 1])), "does not decompress")


@pytest.mark.parametrize("options", [{}, {"write_checksum": True}], ids=["plain", "checksum"])
def test_frame_cut_off_anywhere_is_refused(options):
    payload = frame(**options)
    for size in range(len(payload)):
        refused(
            make_chunk(stages=Stage.ZSTD, payload=payload[:size]), "no zstd frame|states|does not end where the column does"
        )


MAGIC = b"\x28\xb5\x2f\xfd"
NOT_ONE_FRAME = {
    "trailing byte": frame() + b"\0",
    "second frame": frame() + frame(),
    "cut off": frame()[:-1],
    "damaged": frame()[:-1] + b"\xff",
    "nothing": b"",
    "magic": MAGIC,
    "no frame": bytes(48),
    "too short": frame(bytes(47)),
    "skippable": struct.pack("<II", 0x184D2A50, 48) + bytes(48),
    "noise": MAGIC + b"\xff" * 30,
}


@pytest.mark.parametrize("payload", NOT_ONE_FRAME.values(), ids=NOT_ONE_FRAME)
def test_payload_that_is_not_one_whole_frame_is_refused(payload):
    refused(make_chunk(stages=Stage.ZSTD, payload=payload))


@pytest.mark.parametrize("extra", [b"\0", frame()], ids=["byte", "frame"])
def test_without_the_look_at_the_frame_what_follows_it_goes_unnoticed(extra, monkeypatch):
    refused(make_chunk(stages=Stage.ZSTD, payload=frame() + extra), "does not end where the column does")
    monkeypatch.setattr(zstd, "_check_frame", lambda *_: None)
    assert decode(make_chunk(stages=Stage.ZSTD, payload=frame() + extra)).columns[0].values.shape == (3, 4)


def test_frame_of_nothing_is_held_to_its_end_as_well():
    assert decode(make_chunk(3, Stage.ZSTD, frame(b""))).columns[3].values.shape == (2, 0)
    refused(make_chunk(3, Stage.ZSTD, frame(b"") + b"\0"), "does not end where the column does")
    refused(make_chunk(3, Stage.ZSTD, frame_header(1 << 40)), "states")


@pytest.mark.parametrize("raw", [0, 47, 49, (1 << 32) - 1])
@pytest.mark.parametrize("stages", [PLAIN, Stage.ZSTD, Stage.ZSTD | Stage.DELTA])
def test_raw_size_that_does_not_follow_from_the_signature_is_refused(raw, stages):
    payload = frame() if stages else FLOATS
    refused(make_chunk(stages=stages, payload=payload, raw=raw), "observation")


@pytest.mark.parametrize("stored", [0, 47, 49, 1 << 20, (1 << 32) - 1])
def test_stored_size_that_is_not_true_is_refused(stored):
    for chunk in (make_chunk(), make_chunk(stages=Stage.ZSTD, payload=frame())):
        refused(with_checksum(chunk, {DESCRIPTORS + 8: struct.pack("<I", stored)}))


def test_stored_sizes_that_only_add_up_are_refused():
    """One column's byte is given to the next: the sum is right, the columns are not."""
    first, last = DESCRIPTORS + 8, DESCRIPTORS + 2 * 12 + 8
    refused(with_checksum(make_chunk(), {first: struct.pack("<I", 47), last: struct.pack("<I", 9)}), "observation")


@pytest.mark.parametrize("bits", [32, 64, 128, 255, Stage.OFFSETS, Stage.OFFSETS | Stage.ZSTD])
def test_stage_bits_that_mean_nothing_are_refused(bits):
    refused(with_checksum(make_chunk(), {DESCRIPTORS: bytes([bits])}), "observation")


@pytest.mark.parametrize("reserved", [b"\1\0\0", b"\0\1\0", b"\0\0\1"])
def test_reserved_bytes_of_a_descriptor_must_be_zero(reserved):
    refused(with_checksum(make_chunk(), {DESCRIPTORS + 1: reserved}), "observation")


def test_cast_is_refused_on_a_field_that_is_not_declared_so():
    reward = 2
    assert SIGNATURE.columns[reward].name == "reward"
    refused(make_chunk(reward, Stage.CAST, bytes(4)), "reward")
    assert decode(make_chunk(0, Stage.CAST, bytes(24))).columns[0].values.dtype == np.float16


@pytest.mark.parametrize("count", [0, 3, 5, 256, (1 << 32) - 1])
def test_other_number_of_columns_is_refused(count):
    refused(with_checksum(make_chunk(), {68: struct.pack("<I", count)}), "expected 4 columns")


def test_other_signature_hash_is_a_mismatch():
    with pytest.raises(SpecMismatchError, match="chunk signature"):
        decode(with_checksum(make_chunk(), {16: b"12345678"}))


OUT_OF_RANGE = {
    "no step": (40, "<I", 0),
    "65536 steps": (40, "<I", 65_536),
    "a step too many": (40, "<I", 3),
    "unknown flag": (44, "<I", 4),
    "highest flag": (44, "<I", 1 << 31),
    "first_step": (32, "<Q", 1 << 62),
    "policy_version": (48, "<q", -2),
    "reward_sum is nan": (56, "<d", np.nan),
    "reward_sum is infinite": (56, "<d", -np.inf),
    "metadata of 1": (64, "<I", 1),
    "metadata of 65537": (64, "<I", 65_537),
    "metadata of 4 GiB": (64, "<I", (1 << 32) - 1),
    "reserved": (6, "<H", 1),
    "magic": (0, "<4s", b"RPC2"),
}


@pytest.mark.parametrize(("offset", "code", "value"), OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_header_field_out_of_range_is_refused(offset, code, value):
    refused(with_checksum(make_chunk(), {offset: struct.pack(code, value)}))


@pytest.mark.parametrize("steps", [0, 65_536, (1 << 32) - 1])
def test_step_count_out_of_range_is_named_before_any_size_is_taken_from_it(steps):
    refused(with_checksum(make_chunk(), {40: struct.pack("<I", steps)}), "out of range")


def test_metadata_of_more_than_64_kib_is_refused_though_it_is_all_there():
    assert len(read_header(make_chunk(metadata=bytes(65_536)), SIGNATURE).info.metadata) == 65_536
    refused(make_chunk(metadata=bytes(65_537)), "65537 bytes of metadata")


def test_metadata_belongs_to_the_first_chunk_of_an_episode_alone():
    assert read_header(make_chunk(metadata=b"{}"), SIGNATURE).info.metadata == b"{}"
    refused(make_chunk(metadata=b"{}", first_step=1), "2 bytes of metadata")


@pytest.mark.parametrize("offset", [np.nan, np.inf, -np.inf])
def test_offsets_that_are_not_finite_are_refused(offset):
    offsets = np.array([0, 0, offset, 0], np.float32).tobytes()
    refused(make_chunk(0, Stage.CAST | Stage.OFFSETS, offsets + bytes(24)), "not finite")
    assert decode(make_chunk(0, Stage.CAST | Stage.OFFSETS, bytes(40))).columns[0].offsets.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("stages", "payload"), [(PLAIN, b"\2\1"), (PLAIN, b"\1\xff"), (Stage.DELTA, b"\1\1"), (Stage.SHUFFLE, b"\0\2")]
)
def test_bools_other_than_0_and_1_are_refused(stages, payload):
    """With delta, 1 and 1 stand for 1 and 2."""
    refused(make_chunk(1, stages, payload), "no bools")
    assert decode(make_chunk(1, Stage.DELTA, b"\1\xff")).columns[1].values.tolist() == [True, False]


@pytest.mark.parametrize("bits", range(32))
def test_stages_of_an_empty_field_make_no_trouble(bits):
    """A field of shape (0,) has no bytes whatever was done to them; cast it may not be, since it is not declared so."""
    stages = Stage(bits)
    chunk = make_chunk(3, stages, frame(b"") if stages & Stage.ZSTD else b"")
    if stages & (Stage.CAST | Stage.OFFSETS):
        refused(chunk, "empty")
    else:
        assert decode(chunk).columns[3].values.shape == (2, 0)


def test_steps_that_would_decode_to_more_than_the_limit_are_refused_by_the_header():
    """65536 rows of 8000 bytes are 524 MB; the chunk has 200 bytes."""
    signature = Signature(FieldSpec("", (1000,), np.float64, Precision.LOSSLESS), FieldSpec("", (), np.uint8))
    sizes = [
        raw_size(spec, rows_of(i, 65_535, signature.observation_columns), PLAIN) for i, spec in enumerate(signature.columns)
    ]
    assert sizes[0] == 524_288_000
    chunk = write_chunk(make_info(signature, 65_535), [(Stage.ZSTD, size, frame_header(size)) for size in sizes])
    with pytest.raises(ChunkCorruptError, match="observation"):
        read_header(chunk, signature)


@settings(derandomize=True, database=None, deadline=None, max_examples=400)
@given(data=st.data())
def test_any_bytes_with_a_right_checksum_decode_or_are_refused_in_words(data):
    chunk = data.draw(
        st.sampled_from(
            [
                make_chunk(),
                make_chunk(stages=Stage.ZSTD | Stage.SHUFFLE | Stage.DELTA, payload=frame(), metadata=b"{}"),
                make_chunk(0, Stage.CAST | Stage.OFFSETS, bytes(40)),
            ]
        )
    )
    places = st.integers(16, len(chunk) - 1) | st.integers(DESCRIPTORS, DESCRIPTORS + 47) | st.integers(32, 71)
    changes = data.draw(st.dictionaries(places, st.integers(0, 255).map(lambda byte: bytes([byte])), min_size=1, max_size=4))
    cut = data.draw(st.just(len(chunk)) | st.integers(72, len(chunk)))
    try:
        decoded = decode(with_checksum(with_checksum(chunk, changes)[:cut], {}))
    except (ChunkCorruptError, SpecMismatchError, FormatVersionError):
        return
    assert [column.values.shape for column in decoded.columns] == [(3, 4), (2,), (2,), (2, 0)]
