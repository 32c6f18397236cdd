"""FORMAT.md says what the code does: its tables are compared with the code's own layouts, and with bytes that it writes."""

import json
import re
import struct
from pathlib import Path

import lmdb
import pytest

import replaysvc.storage
from replaysvc.codec import header
from replaysvc.storage import CRASH_POINTS, deletions, gone, params, quarantine, records, reserve, state
from replaysvc.storage.compaction import BATCH_BYTES, MOST_NEIGHBOURS, REPLACES
from replaysvc.storage.segment import MAX_BATCH_BYTES, ROOM
from replaysvc.storage.store import FIRST_FORMAT, FORMAT
from replaysvc.storage.table_store import MAX_SESSIONS
from tests.store_builders import SESSION, append_each, make_table, segments

DOCUMENT = (Path(replaysvc.storage.__file__).parent / "FORMAT.md").read_text()
GOLDEN = Path(__file__).parents[2] / "golden"
TYPES = {"Q": "u64", "q": "i64", "I": "u32", "i": "i32", "H": "u16", "B": "u8", "d": "f64", "s": "bytes"}


def table(heading):
    """The rows of the first table under a heading, as lists of cells; the head row is left out."""
    _, _, rest = DOCUMENT.partition(f"\n{heading}\n")
    assert rest, heading
    rows = re.search(r"(?:^\|.*\|\n)+", rest, re.MULTILINE)[0].splitlines()
    assert set(rows[1]) == {"|", "-"}
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def fields(heading):
    """(offset, size, type, field) of a table of fields, as far as the offsets are numbers."""
    rows = [(offset, size, kind, name) for offset, size, kind, name, _ in table(heading)]
    return [(int(offset), int(size), kind, name) for offset, size, kind, name in rows if offset.isdigit() and size.isdigit()]


def layout(*structs):
    """(offset, size, type) of each item of packed structs that follow each other."""
    found, at = [], 0
    for packed in structs:
        assert packed.format[0] == "<"  # no padding
        for count, code in re.findall(r"(\d*)([a-zA-Z])", packed.format[1:]):
            size = struct.calcsize(f"<{count}{code}")
            found.append((at, size, TYPES[code]))
            at += size
    return found


def test_index_record_is_as_the_document_says():
    dtype = records.STORED_INDEX_DTYPE
    expected = []
    for name in dtype.names:
        kind, offset = dtype.fields[name]
        expected.append((offset, kind.itemsize, f"{kind.kind}{8 * kind.itemsize}", name))
    assert fields("### Index record") == expected
    assert dtype.itemsize == 88


@pytest.mark.parametrize(
    "heading, structs",
    [
        ("### Episode record", [records.EPISODE]),
        ("### Session record", [records.SESSION, records.CHECKSUM]),
        ("## A parameter set", [params.HEADER]),
        ("## A small file", [state.HEADER]),
        ("## A chunk", [header.PREFIX, header.FIXED]),
        ("### Column descriptor", [header.DESCRIPTOR]),
    ],
)
def test_records_are_as_the_document_says(heading, structs):
    assert [row[:3] for row in fields(heading)] == layout(*structs)


def test_names_of_a_chunk_are_those_of_its_header():
    names = {name for _, _, _, name in fields("## A chunk")}
    told = {"signature_hash", "episode_key", "first_step", "n_steps", "policy_version", "reward_sum"}
    assert told <= names & set(header.ChunkInfo.__dataclass_fields__)
    assert f"{header.MAX_STEPS}" in DOCUMENT
    assert [stage.value for stage in header.Stage] == [1, 2, 4, 8, 16]
    assert "1 cast, 2 delta, 4 shuffle, 8 zstd, 16 offsets" in DOCUMENT


def test_variable_parts_lie_where_the_document_says():
    entry = records.EpisodeEntry(5, SESSION, 7, "actor", 2.5, b"{}")
    packed = records.pack_episode(entry)
    a, m = 5, 2
    assert packed[46 : 46 + a] == b"actor"
    assert packed[46 + a : 46 + a + m] == b"{}"
    assert len(packed) == 46 + a + m + 8
    assert packed[46 + a + m :] == records.checksum(packed[: 46 + a + m]).to_bytes(8, "little")
    assert [row[0] for row in table("### Episode record")[-3:]] == ["46", "46+A", "46+A+M"]
    mark = records.pack_session(SESSION, 1, 2.0)
    assert mark[16:] == records.checksum(SESSION, mark[:16]).to_bytes(8, "little")
    meta = records.pack_meta({"a": 1})
    assert meta[-8:] == records.checksum(meta[:-8]).to_bytes(8, "little")
    assert json.loads(meta[:-8]) == {"a": 1}


def test_crash_table_has_every_crash_point_in_order():
    assert [row[0] for row in table("### Where a process may end")] == list(CRASH_POINTS)


def test_chunk_by_hand_is_the_golden_one():
    dump = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)$", DOCUMENT, re.MULTILINE)
    assert [int(offset, 16) for offset, _ in dump] == list(range(0, 16 * len(dump), 16))
    data = bytes.fromhex(" ".join(line for _, line in dump))
    assert data == (GOLDEN / "chunk_v1" / "stored.chunk").read_bytes()


def test_files_keys_and_databases_are_those_that_a_store_has(tmp_path):
    path = tmp_path / "store"
    store, opened = make_table(path, disk_reserve_bytes=1 << 20)
    append_each(opened, 0, 4)
    opened.quarantine_chunk(1, "a test")
    store.put_params("policy", 1, b"data")
    opened.write_state("name", b"data")
    opened.delete_episodes([1])
    store.close()
    files = {entry.name for entry in (path / "tables" / "t").iterdir()}
    assert {re.sub(r"seg-\d{20}", "seg-ID", name) for name in files} == {
        "table.json",
        "table.json.bak",
        "damaged",
        "deleted",
        "deleted.bak",
        "state",
        "seg-ID",
    }
    for name in (
        "table.json ", "table.json.bak ", "damaged ", "removed ", "deleted ", "deleted.bak ", "state/NAME ", "seg-ID/ ",
        "seg-ID.N/ ", "TABLE-seg-ID ", "TABLE-chunk-ID ", "TABLE-table ",
    ):  # fmt: skip
        assert f"\n    {name}" in DOCUMENT
    assert [file.name for file in (path / "quarantine").iterdir()] == ["t-chunk-00000000000000000001"]
    assert {row[0] for row in table("### FORMAT")} == set(json.loads((path / "FORMAT").read_bytes()))
    assert {row[0] for row in table("### table.json")} == set(json.loads((path / "tables" / "t" / "table.json").read_bytes()))
    for entry in path.iterdir():
        assert re.search(rf"^  {entry.name}(/| )", DOCUMENT, re.MULTILINE), entry.name
    assert {file.name for segment in segments(path) for file in segment.iterdir()} == {"data.mdb", "lock.mdb"}

    rows = table("## A segment")
    described = {"description": set(), "footer": set()}
    for key, places, _ in table("### Description and footer"):
        for place in places.split(", "):
            described[place].add(key)
    environment = lmdb.open(str(segments(path)[0]), max_dbs=8, map_size=1 << 28, readonly=True)
    with environment.begin() as transaction:
        assert {bytes(key).decode() for key, _ in transaction.cursor()} == {row[0] for row in rows}
        handles = {row[0]: environment.open_db(row[0].encode(), transaction, create=False) for row in rows}
        contents = {name: dict(transaction.cursor(db=handle)) for name, handle in handles.items()}
    environment.close()
    assert list(contents["chunks"]) == list(contents["index"]) == [k.to_bytes(8, "big") for k in range(3)]
    assert list(contents["episodes"]) == [bytes(8)]
    assert list(contents["sessions"]) == [SESSION]
    assert {f"`{key.decode()}`" for key in contents["meta"]} == {row[1] for row in rows if row[0] == "meta"}
    for key, name in ((b"segment", "description"), (b"footer", "footer")):
        assert set(records.unpack_meta(contents["meta"][key])) == described[name]


def test_numbers_in_the_text_are_those_of_the_code():
    assert f"at most {MAX_SESSIONS}" in DOCUMENT
    assert f"{MAX_BATCH_BYTES >> 20} MiB of chunks at most" in DOCUMENT
    assert f"{ROOM >> 20} MiB larger" in DOCUMENT
    assert f"up to {header.MAX_METADATA_BYTES}" in DOCUMENT
    assert params.MAGIC.decode() in DOCUMENT
    assert {name: meaning for _, _, _, name, meaning in table("## A small file")}["magic"] == (
        f"`{deletions.MAGIC.decode()}` deleted episodes, `{state.STATE_MAGIC.decode()}` state,"
        f" `{quarantine.MAGIC.decode()}` damaged chunks, `{gone.MAGIC.decode()}` removed chunks"
    )
    assert f"at most {quarantine.MOST_COPIES} and {quarantine.MOST_COPIED_BYTES >> 20} MiB of a table" in DOCUMENT
    assert f"at most {quarantine.MOST_LISTED}. They" in DOCUMENT
    assert f"{reserve.MOST_BYTES >> 20} MiB, or\n  a 32nd" in DOCUMENT
    assert f"{BATCH_BYTES >> 20} MiB\n  a transaction" in DOCUMENT
    assert (FIRST_FORMAT, FORMAT, state.VERSION) == (1, 3, 1)
    assert DOCUMENT.startswith(f"# The bytes on disk, format versions {FIRST_FORMAT} to {FORMAT}\n")
    assert f"Up to {MOST_NEIGHBOURS} sealed segments" in DOCUMENT
    assert f"has `{REPLACES}` in its description" in DOCUMENT
    assert header.MAGIC.decode() in DOCUMENT
