"""Records of a segment: every field keeps its extremes, every flipped bit is noticed."""

import numpy as np
import pytest

from replaysvc.storage import INDEX_DTYPE, EpisodeEntry
from replaysvc.storage.records import (
    pack_episode,
    pack_index,
    pack_meta,
    pack_session,
    unpack_episode,
    unpack_index,
    unpack_meta,
    unpack_session,
)

EPISODE = EpisodeEntry((1 << 63) - 1, bytes(range(16)), (1 << 64) - 1, "актёр", 1.5e9, '{"a":"ü"}'.encode())
SESSION_ID = b"0123456789abcdef"


def flipped(record):
    """Yields `record` with each of its bits flipped in turn, and cut off at each length."""
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)
    yield from (record[:size] for size in range(len(record)))
    yield record + b"\0"


@pytest.fixture
def index():
    records = np.zeros(2, INDEX_DTYPE)
    for name in records.dtype.names:
        kind = records.dtype[name]
        limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        records[name] = [limits.min, limits.max]
    return records


def test_index_records_keep_the_extremes_of_every_field(index):
    stored = pack_index(index)
    assert [len(record) for record in stored] == [88, 88]
    again, damaged = unpack_index(stored)
    assert (again.tolist(), damaged) == (index.tolist(), 0)
    assert again.dtype == INDEX_DTYPE


def test_damaged_index_record_is_left_out_and_counted(index):
    first, second = pack_index(index)
    for damaged in flipped(second):
        again, count = unpack_index([first, damaged])
        assert (again.tolist(), count) == (index[:1].tolist(), 1)


def test_no_index_record_is_an_empty_index():
    again, damaged = unpack_index([])
    assert (len(again), again.dtype, damaged) == (0, INDEX_DTYPE, 0)


@pytest.mark.parametrize("entry", [EPISODE, EpisodeEntry(0, bytes(16), 0, "", 0.0, b"")], ids=["full", "empty"])
def test_episode_entry_survives_and_damage_to_it_does_not_go_unnoticed(entry):
    record = pack_episode(entry)
    assert unpack_episode(record) == entry
    assert all(unpack_episode(damaged) is None for damaged in flipped(record))


def test_longest_actor_and_metadata_fit_an_episode_entry():
    entry = EpisodeEntry(1, bytes(16), 2, "ж" * 128, 0.0, bytes(64 << 10))
    assert unpack_episode(pack_episode(entry)) == entry


def test_session_mark_survives_and_belongs_to_its_session_alone():
    record = pack_session(SESSION_ID, (1 << 63) - 1, 1.25)
    assert unpack_session(SESSION_ID, record) == ((1 << 63) - 1, 1.25)
    assert unpack_session(SESSION_ID[::-1], record) is None
    assert all(unpack_session(SESSION_ID, damaged) is None for damaged in flipped(record))


def test_description_of_a_segment_survives_and_damage_to_it_does_not_go_unnoticed():
    record = pack_meta({"first_chunk_id": 1 << 62, "table": "a"})
    assert unpack_meta(record) == {"first_chunk_id": 1 << 62, "table": "a"}
    assert all(unpack_meta(damaged) is None for damaged in flipped(record))
