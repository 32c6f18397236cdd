"""fsck finds each kind of damage and names it; a repair keeps every chunk that is whole, and moves all else out of the way."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from replaysvc.codec import checksum
from replaysvc.maintenance.fsck import Severity, check
from replaysvc.storage import System
from replaysvc.storage.records import KEY, STORED_INDEX_DTYPE, pack_index
from replaysvc.storage.state import pack_file
from tests.store_builders import BIG, SESSION, append_each, chunk, index, make_table, open_store, reopen, segments
from tests.unit.storage.test_snapshot import check_whole, make_whole

GOLDEN = Path(__file__).parents[2] / "golden"
CHUNKS = 8  # three segments: chunks 0 to 2, 3 to 5, and 6 and 7, which is not sealed
PAGE = 4096


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original") / "store"
    store, table = make_table(path)
    append_each(table, 0, CHUNKS)
    table.write_states({"priorities": b"state"})
    store.put_params("policy", 3, b"weights")
    store.close()
    return path


@pytest.fixture
def path(original, tmp_path):
    shutil.copytree(original, tmp_path / "store")
    return tmp_path / "store"


def content(path):
    """Every file but the lock, with its bytes and time of change."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file() and file.name != "LOCK"
    }


def damage(report):
    """(place, sentence) of all damage."""
    return [(found.place, found.sentence) for found in report.findings if found.severity is Severity.DAMAGE]


def notes(report):
    return [(found.place, found.sentence) for found in report.findings if found.severity is Severity.NOTE]


def overwrite(file, offset, data):
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def flip(file, offset):
    with file.open("r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))


def change(path, database, key, edit):
    """Changes a value of a segment through LMDB: the structure stays sound."""
    with lmdb.open(str(path), max_dbs=8, map_size=1 << 28) as environment:
        handle = environment.open_db(database)
        with environment.begin(write=True, db=handle) as transaction:
            value = edit(transaction.get(key))
            assert transaction.put(key, value) if value is not None else transaction.delete(key)
    (path / "lock.mdb").unlink()


def place_of(path, data):
    """Offset of bytes in a file."""
    return (path / "data.mdb").read_bytes().index(data)


def held(path, ids):
    """Opens the store and asserts that it holds just these chunks, whole, and that nothing else is wrong."""
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == list(ids)
    assert table.read(np.array(ids, np.int64)) == [chunk(k, BIG) for k in ids]
    assert table.quarantined_segments == len([file for file in (path / "quarantine").iterdir() if "seg-" in file.name])
    assert (table.damaged_records, table.lost_segments) == (0, 0)
    assert loaded.next_chunk_id >= CHUNKS
    assert loaded.next_position >= 4 * CHUNKS
    assert loaded.next_episode_id >= 3
    store.close()
    return loaded


def repaired(path, *, lost=()):
    """Repairs, and asserts that it leaves a clean store with all chunks but those lost; returns the report."""
    report = check(path, repair=True)
    assert report.status == 1, report.findings
    again = check(path)
    assert again.status == 0, again.findings
    before = content(path)
    assert check(path, repair=True).status == 0
    assert content(path) == before
    held(path, [k for k in range(CHUNKS) if k not in lost])
    return report


# -- whole stores ---------------------------------------------------------------------------------------------------------


def test_store_that_is_whole_is_clean_and_not_touched(path):
    before, told = content(path), []
    report = check(path, progress=lambda *progress: told.append(progress))
    assert (report.status, report.findings, report.cannot) == (0, (), "")
    assert (report.tables, report.segments, report.chunks) == (1, 3, CHUNKS)
    assert report.chunk_bytes == sum(len(chunk(k, BIG)) for k in range(CHUNKS))
    assert content(path) == before
    sizes = sum((file / "data.mdb").stat().st_size for file in segments(path))
    assert told[-1] == (sizes, sizes, "")
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_store_with_everything_and_its_snapshot_are_clean(tmp_path):
    store, _ = make_whole(tmp_path / "store")
    store.snapshot(tmp_path / "copy", {"t": {"priorities": b"new"}})
    store.close()
    for path in (tmp_path / "store", tmp_path / "copy"):
        report = check(path)
        assert (report.status, damage(report)) == (0, [])
    assert not (tmp_path / "copy" / "LOCK").exists()


@pytest.mark.parametrize("name", ["store_v1", "store_v2"])
def test_stores_of_every_format_are_clean(name):
    report = check(GOLDEN / name)
    assert (report.status, damage(report)) == (0, [])
    assert report.chunks > 0


def test_what_a_crash_leaves_is_no_damage(path):
    (path / "tmp" / "seg-00000000000000000009").mkdir()
    (path / "trash" / "t-seg-1").mkdir()
    shutil.copytree(segments(path)[1], segments(path)[1].with_name("seg-00000000000000000003.1"))
    report = check(path)
    assert report.status == 0
    assert notes(report) == [
        ("tables/t/seg-00000000000000000003", "seg-00000000000000000003.1 has taken its place; the next start removes it")
    ]
    assert (report.segments, report.chunks) == (3, CHUNKS)


def test_what_does_not_belong_there_is_noted_and_left_alone(path):
    for name in ("thesis.txt", "tables/t/thesis.txt", "tables/t/seg-00000000000000000003/thesis.txt"):
        (path / name).write_text("words")
    report = check(path, repair=True)
    assert report.status == 0
    assert sorted(place for place, _ in notes(report)) == [
        "tables/t/seg-00000000000000000003/thesis.txt", "tables/t/thesis.txt", "thesis.txt"
    ]  # fmt: skip
    assert (path / "thesis.txt").read_text() == "words"


# -- what cannot be checked -----------------------------------------------------------------------------------------------


def test_store_that_is_open_is_not_checked(path):
    store = open_store(path)
    report = check(path, repair=True)
    store.close()
    assert (report.status, report.findings) == (3, ())
    assert report.cannot == f"store {path}: another process has it open; stop it first"


def test_store_cannot_be_opened_while_it_is_checked(path):
    seen = []

    def opening(*_):
        with pytest.raises(Exception, match="another process has it open"):
            open_store(path)
        seen.append(True)

    assert check(path, progress=opening).status == 0
    assert seen


@pytest.mark.parametrize("kind, found", [("absent", "nothing"), ("empty", "no FORMAT file in it"), ("file", "a file")])
def test_what_is_no_store_is_not_checked(tmp_path, kind, found):
    path = tmp_path / kind
    if kind == "empty":
        path.mkdir()
    if kind == "file":
        path.write_text("words")
    report = check(path)
    assert (report.status, report.cannot) == (3, f"store {path}: expected a store or a snapshot, found {found}")
    assert [file.name for file in tmp_path.rglob("*")] in ([], [kind])


def test_store_of_a_newer_release_is_not_checked(path):
    marker = path / "FORMAT"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 9, "min_reader": 9}))
    before = content(path)
    report = check(path, repair=True)
    assert (report.status, report.cannot) == (3, f"store {path}: expected format version 3, found 9")
    assert content(path) == before


# -- damage ---------------------------------------------------------------------------------------------------------------

SECOND = "tables/t/seg-00000000000000000003"


def test_bit_in_a_chunk_is_found_and_only_that_chunk_is_lost(path):
    flip(segments(path)[1] / "data.mdb", place_of(segments(path)[1], chunk(4, BIG)) + 9_000)
    before = content(path)
    report = check(path)
    assert report.status == 2
    assert damage(report) == [(SECOND, "chunk 4: its checksum does not match its bytes")]
    assert content(path) == before
    report = repaired(path, lost=[4])
    (found,) = (finding for finding in report.findings if finding.severity is Severity.DAMAGE)
    assert found.repaired == (
        "moved to quarantine/t-seg-00000000000000000003; 2 whole chunks of it are in seg-00000000000000000003.1, 1 are lost"
    )
    moved = path / "quarantine" / "t-seg-00000000000000000003" / "data.mdb"
    assert moved.read_bytes() == before[f"{SECOND}/data.mdb"][1]


def test_chunk_under_the_key_of_another_is_found(path):
    change(segments(path)[1], b"chunks", KEY.pack(4), lambda _: chunk(5, BIG))
    named, found = checksum_of(4), checksum_of(5)
    assert damage(check(path)) == [(SECOND, f"chunk 4: expected checksum {named} by its index record, found {found}")]
    repaired(path)  # its own bytes still lie in pages that are out of use


def checksum_of(k):
    return int.from_bytes(chunk(k, BIG)[8:16], "little")


def test_index_record_that_is_damaged_or_missing_or_anothers_is_found(path, tmp_path):
    second = segments(path)[1]
    change(second, b"index", KEY.pack(4), lambda record: record[:3] + b"\xff" + record[4:])
    assert damage(check(path)) == [(SECOND, "chunk 4: its index record is damaged")]
    shutil.copytree(path, tmp_path / "one")
    repaired(tmp_path / "one")  # an older version of the page still has the record
    change(second, b"index", KEY.pack(4), lambda _: None)
    assert damage(check(path)) == [(SECOND, "chunk 4: it has no index record")]
    with lmdb.open(str(second), max_dbs=8) as environment, environment.begin(db=environment.open_db(b"index")) as reading:
        other = reading.get(KEY.pack(5))
    assert len(other) == STORED_INDEX_DTYPE.itemsize
    (second / "lock.mdb").unlink()
    change(second, b"index", KEY.pack(3), lambda _: other)
    assert (SECOND, "chunk 3: its index record is that of chunk 5") in damage(check(path))


def test_chunk_that_is_missing_is_found(path):
    change(segments(path)[1], b"chunks", KEY.pack(4), lambda _: None)
    assert damage(check(path)) == [(SECOND, "chunk 4: it has an index record but is not there")]


def test_damaged_records_of_an_episode_and_a_session_are_found(path):
    last = segments(path)[2]
    change(last, b"episodes", KEY.pack(2), lambda record: record[:-1] + bytes([record[-1] ^ 1]))
    change(last, b"sessions", SESSION, lambda record: record[:-1] + bytes([record[-1] ^ 1]))
    place = "tables/t/seg-00000000000000000006"
    assert damage(check(path)) == [
        (place, "episode 2: its record is damaged"), (place, f"session {SESSION.hex()}: its record is damaged")
    ]  # fmt: skip
    report = repaired(path)
    assert any("sends again may store twice" in sentence for _, sentence in notes(report))


def test_record_of_an_episode_that_is_lost_in_one_segment_comes_from_another(tmp_path):
    path = tmp_path / "store"
    store, table = make_table(path)
    append_each(table, 0, 5, size=30_000)  # episode 1 begins in the first segment of two and goes on in the second
    store.close()
    last = segments(path)[1]
    change(last, b"episodes", KEY.pack(1), lambda record: record[:-1] + b"x")
    assert [sentence for _, sentence in damage(check(path))] == ["episode 1: its record is damaged"]
    assert check(path, repair=True).status == 1
    assert notes(check(path)) == [("quarantine", "it holds 1 damaged things; remove them when you are done with them")]


@pytest.mark.parametrize(
    "key, sentence", [(b"segment", "its description is missing or damaged"), (b"footer", "its footer is damaged")]
)
def test_damaged_description_or_footer_is_found_and_made_anew(path, key, sentence):
    change(segments(path)[1], b"meta", key, lambda record: record[:-1] + bytes([record[-1] ^ 1]))
    assert (SECOND, sentence) in damage(check(path))
    repaired(path)
    store, table, _ = reopen(path)
    assert table.read_episode_entry(1).episode_id == 1
    store.close()


def test_segment_of_another_table_is_moved_and_none_of_it_kept(path, tmp_path):
    other, table = make_table(tmp_path / "other")
    append_each(table, 0, CHUNKS)
    other.close()
    shutil.rmtree(segments(path)[1])
    shutil.copytree(segments(tmp_path / "other")[1], path / SECOND)
    assert damage(check(path)) == [(SECOND, "it belongs to another table")]
    repaired(path, lost=[3, 4, 5])


@pytest.mark.parametrize("pages", [0, 1, 3, 10, 25])
def test_segment_whose_file_is_short_is_found(path, pages):
    file = segments(path)[1] / "data.mdb"
    os.truncate(file, pages * PAGE)
    report = check(path)
    assert report.status == 2
    assert {place for place, _ in damage(report)} == {SECOND}
    assert check(path, repair=True).status == 1
    assert check(path).status == 0
    store, table, loaded = reopen(path)
    kept = loaded.index["chunk_id"].tolist()
    assert {0, 1, 2, 6, 7} <= set(kept)
    assert table.read(np.array(kept)) == [chunk(k, BIG) for k in kept]
    store.close()


def test_segment_without_a_file_is_found(path):
    (segments(path)[1] / "data.mdb").unlink()
    assert damage(check(path))[0][0] == SECOND
    assert check(path, repair=True).status == 2  # nobody can make it anew, and nothing is there to be moved but a directory


def test_ids_and_positions_that_do_not_fit_are_found(path):
    first, second = segments(path)[:2]
    shutil.copytree(first, first.with_name("seg-00000000000000000002"))
    found = damage(check(path))
    assert ("tables/t/seg-00000000000000000002", "expected chunks from 2 on by its name, found 0") in found
    assert ("tables/t/seg-00000000000000000000", "chunk 2: expected ids below 2 only") in found
    assert any("expected a position from" in sentence for _, sentence in found)
    assert second.exists()


# -- any page -------------------------------------------------------------------------------------------------------------


def places(data, record):
    """The pages in which bytes lie."""
    return {found.start() // PAGE for found in re.finditer(re.escape(record), data)}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_whatever_page_is_damaged_every_other_chunk_is_kept(original, tmp_path, number):
    """A tenth of all pages, each filled with random bytes. A page of a tree costs only chunks whose one record lies in it."""
    rng = np.random.default_rng(number)
    file = segments(original)[number] / "data.mdb"
    data, found = file.read_bytes(), 0
    for page in range(number, len(data) // PAGE, 10):
        path = tmp_path / f"store{page}"
        shutil.copytree(original, path)
        overwrite(segments(path)[number] / "data.mdb", page * PAGE, rng.bytes(PAGE))
        spans = {k: data.find(chunk(k, BIG)) for k in range(3 * number, min(CHUNKS, 3 * number + 3))}
        hit = [k for k, at in spans.items() if at < (page + 1) * PAGE and page * PAGE < at + len(chunk(k, BIG))]
        first = check(path)
        if first.status == 0:  # a page that is out of use
            assert hit == []
            continue
        found += 1
        if page == 0:
            hit = []
        hit += [k for k in spans if places(data, pack_index(index(k, k + 1, BIG))[0]) == {page}]
        repaired(path, lost=hit)
        shutil.rmtree(path)
    assert found > 0


def test_damaged_list_of_free_pages_is_found_though_no_read_comes_there(path):
    """The next append would: it would write over pages that are in use."""
    file = segments(path)[2] / "data.mdb"
    data = file.read_bytes()
    newest = max((0, PAGE), key=lambda at: int.from_bytes(data[at + 144 : at + 152], "little"))  # by its transaction
    root = int.from_bytes(data[newest + 80 : newest + 88], "little")
    overwrite(file, root * PAGE + PAGE - 8, b"\xff" * 8)
    assert any("freeDB" in sentence for _, sentence in damage(check(path)))
    repaired(path)


def test_ids_that_were_given_out_in_what_is_lost_are_not_given_out_again(path):
    last = segments(path)[2]
    size = (last / "data.mdb").stat().st_size
    overwrite(last / "data.mdb", 0, np.random.default_rng(0).bytes(size))
    assert check(path, repair=True).status == 1
    assert check(path).status == 0
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == list(range(6))
    assert loaded.next_chunk_id >= 1 << 32
    assert loaded.next_position >= 1 << 32
    assert loaded.next_episode_id > 3
    table.append(shifted(loaded), [chunk(9, BIG)], [], {})
    store.close()
    store, table, again = reopen(path)
    assert again.index["chunk_id"].tolist() == [*range(6), loaded.next_chunk_id]
    store.close()
    assert check(path).status == 0


def shifted(loaded):
    """The index record of chunk 9, as of the next new chunk."""
    record = index(9, 10, BIG)
    record["chunk_id"], record["position"] = loaded.next_chunk_id, loaded.next_position
    record["episode_id"] = loaded.next_episode_id
    return record


# -- processes that end ---------------------------------------------------------------------------------------------------

ENDING = """#!/bin/sh
exec {python} -c '
import os, signal
import replaysvc.maintenance.examine as examine
def end(path, **_):
    if "00003" in path:
        os.kill(os.getpid(), signal.SIGBUS)
    return opened(path, **_)
opened, examine.lmdb.open = examine.lmdb.open, end
examine.main()
'
"""


def test_segment_that_ends_lmdb_is_a_finding_and_the_others_are_examined(path, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(ENDING.format(python=sys.executable))
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    report = check(path)
    assert (report.status, report.chunks) == (2, CHUNKS)
    assert damage(report) == [(SECOND, "reading it ends the process (SIGBUS)")]


def test_process_that_cannot_be_started_is_no_clean_bill(path, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    report = check(path)
    assert report.status == 3
    assert report.cannot.startswith("segments cannot be examined: no process can be started for that: ")


# -- the rest of a store --------------------------------------------------------------------------------------------------


def test_damaged_parameters_and_states_are_moved(path):
    flip(path / "params" / "policy", 30)
    flip(path / "tables" / "t" / "state" / "priorities", 25)
    assert damage(check(path)) == [
        ("params/policy", "the parameter set does not match its checksum"),
        ("tables/t/state/priorities", "the state does not match its checksum, or is of a newer version"),
    ]
    repaired(path)
    assert sorted(file.name for file in (path / "quarantine").iterdir()) == ["params-policy", "t-state-priorities"]
    store = open_store(path)
    assert store.params() == {}
    store.close()


@pytest.mark.parametrize("name", ["deleted", "deleted.bak"])
def test_damaged_copy_of_the_list_is_written_anew_from_the_other(tmp_path, name):
    path = tmp_path / "store"
    make_whole(path)[0].close()
    flip(path / "tables" / "t" / name, 24)
    report = check(path)
    assert damage(report) == [(f"tables/t/{name}", "the list of deleted episodes does not match its checksum")]
    assert check(path, repair=True).status == 1
    assert check(path).status == 0
    assert (path / "tables/t/deleted").read_bytes() == (path / "tables/t/deleted.bak").read_bytes()
    check_whole(path)


def test_list_of_which_no_copy_is_whole_is_left_to_the_operator(tmp_path):
    path = tmp_path / "store"
    make_whole(path)[0].close()
    for name in ("deleted", "deleted.bak"):
        flip(path / "tables" / "t" / name, 24)
    before = content(path)
    report = check(path, repair=True)
    assert report.status == 2
    assert any("put deleted or deleted.bak back from a snapshot" in sentence for _, sentence in damage(report))
    assert {name: what for name, what in content(path).items() if "deleted" in name} == {
        name: what for name, what in before.items() if "deleted" in name
    }


def test_table_whose_description_cannot_be_read_is_moved_whole_and_the_others_open(tmp_path):
    path = tmp_path / "store"
    make_whole(path)[0].close()
    for name in ("table.json", "table.json.bak"):
        (path / "tables" / "empty" / name).write_text("{")
    report = check(path, repair=True)
    assert report.status == 1
    assert [place for place, _ in damage(report)] == ["tables/empty"]
    assert (path / "quarantine" / "empty-table" / "table.json").read_text() == "{"
    store = open_store(path)
    assert list(store.tables()) == ["t"]
    store.close()


@pytest.mark.parametrize("name", ["FORMAT", "tables/t/table.json"])
@pytest.mark.parametrize("harm", ["damaged", "missing", "copy"])
def test_file_with_a_second_copy_is_written_anew_from_it(path, name, harm):
    """Newer stores have a copy of these beside them."""
    file, copy = path / name, path / f"{name}.bak"
    whole = file.read_bytes()
    copy.write_bytes(whole)
    broken = copy if harm == "copy" else file
    if harm == "missing":
        file.unlink()
    else:
        broken.write_bytes(whole[:-9])
    report = check(path)
    ((place, sentence),) = damage(report)
    assert place == broken.relative_to(path).as_posix()
    assert sentence.endswith("; its second copy is whole")
    repaired(path)
    assert file.read_bytes() == copy.read_bytes() == whole


def test_description_that_contradicts_its_checksum_is_found(path):
    file = path / "tables" / "t" / "table.json"
    file.with_name("table.json.bak").unlink()
    described = json.loads(file.read_bytes())
    described.pop("checksum")
    stated = f"{checksum(json.dumps(described, sort_keys=True).encode()):016x}"
    file.write_text(json.dumps(described | {"checksum": stated}))
    assert check(path).status == 0
    file.write_text(json.dumps(described | {"checksum": stated, "segment_bytes": described["segment_bytes"] + 1}))
    assert ("tables/t", "its table.json cannot be read; the table cannot be opened") in damage(check(path))


def test_list_of_damaged_chunks_goes_with_the_segment_that_it_was_of(path):
    """What is whole in the new segment is to be used, though it was damaged in the old one."""
    (path / "tables" / "t" / "damaged").write_bytes(pack_file(b"RPQ1", (4).to_bytes(8, "little")))
    assert check(path).status == 0
    flip(segments(path)[1] / "data.mdb", place_of(segments(path)[1], chunk(4, BIG)) + 9_000)
    repaired(path, lost=[4])
    assert not (path / "tables" / "t" / "damaged").exists()
    (path / "tables" / "t" / "damaged").write_bytes(b"RPQ1")
    assert damage(check(path)) == [("tables/t/damaged", "the list of damaged chunks does not match its checksum")]
    repaired(path, lost=[4])


def test_file_among_the_tables_is_moved(path):
    (path / "tables" / "notes.txt").write_text("words")
    report = repaired(path)
    ((place, sentence),) = damage(report)
    assert place == "tables/notes.txt"
    assert sentence.startswith("expected a table, found a file")
    assert (path / "quarantine" / "notes.txt-table").read_text() == "words"


def test_format_file_that_cannot_be_read_is_written_anew(path):
    (path / "FORMAT").write_bytes(b"\0" * 50)
    (path / "FORMAT.bak").unlink()
    assert damage(check(path)) == [("FORMAT", "it cannot be read; the store does not open")]
    repaired(path)
    assert json.loads((path / "FORMAT").read_bytes())["min_reader"] == 3  # there may be merged segments


# -- repairs that end early -----------------------------------------------------------------------------------------------


class Ended(Exception):
    pass


@pytest.mark.parametrize("call", range(1, 12))
def test_repair_that_ends_early_loses_nothing_that_is_whole_and_can_be_repeated(path, call):
    class Ending(System):
        calls = 0

        def rename(self, source, target):
            self.count()
            super().rename(source, target)

        def crashpoint(self, name):
            self.count()

        def count(self):
            self.calls += 1
            if self.calls == call:
                raise Ended

    flip(segments(path)[1] / "data.mdb", place_of(segments(path)[1], chunk(4, BIG)) + 9_000)
    try:
        check(path, repair=True, system=Ending())
    except Ended:
        ended = True
    else:
        ended = False
    assert ended == (call < 11)
    report = check(path, repair=True)
    assert report.status in (0, 1)
    assert check(path).status == 0
    held(path, [0, 1, 2, 3, 5, 6, 7])


def test_older_releases_are_kept_out_before_a_compacted_segment_is_named(path, monkeypatch):
    order = []

    class Watched(System):
        def rename(self, source, target):
            order.append(target.name)
            super().rename(source, target)

    flip(segments(path)[1] / "data.mdb", place_of(segments(path)[1], chunk(4, BIG)) + 9_000)
    assert check(path, repair=True, system=Watched()).status == 1
    assert order == ["FORMAT", "seg-00000000000000000003.1", "t-seg-00000000000000000003"]
