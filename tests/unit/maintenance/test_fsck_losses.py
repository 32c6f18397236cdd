"""fsck tells of what a start had to set aside, and of what is gone; a repair brings back what is whole of it.

The segments hold chunks 0 to 2, 3 to 5, and 6 and 7; chunk k has positions 4 k to 4 k + 3.
"""

import json
import shutil

import numpy as np
import pytest

from replaysvc.maintenance.fsck import Severity, check
from replaysvc.maintenance.restore import restore
from replaysvc.storage.replacement import LOST
from tests.store_builders import BIG, append_each, chunk, index, make_table, open_store, reopen, segments, three_segments

FIRST, SECOND, THIRD = (f"seg-{number:020d}" for number in (0, 3, 6))
PAGE = 4096


@pytest.fixture
def path(tmp_path):
    return three_segments(tmp_path / "store")


def flip(directory, at=None):
    """One bit: at an offset, or of the kind of the page that leads to all others."""
    data = bytearray((directory / "data.mdb").read_bytes())
    newest = max((0, PAGE), key=lambda meta: int.from_bytes(data[meta + 144 : meta + 152], "little"))
    root = int.from_bytes(data[newest + 128 : newest + 136], "little")
    data[root * PAGE + 10 if at is None else at] ^= 1
    (directory / "data.mdb").write_bytes(data)


def set_aside(path, name):
    """Moves a segment away as releases did that salvaged nothing at the start, and starts."""
    flip(path / "tables" / "t" / name)
    (path / "tables" / "t" / name).rename(path / "quarantine" / f"t-{name}")
    store, table, loaded = reopen(path)
    record = index(9, 10, BIG)
    record["chunk_id"], record["position"], record["episode_id"] = (
        loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id,
    )  # fmt: skip
    table.append(record, [chunk(9, BIG)], [], {})
    table.write_state(
        "sampling", json.dumps({"head": loaded.next_position + 4, "tail": int(loaded.index["position"][0])}).encode()
    )
    store.close()
    return loaded.next_chunk_id


def damage(report):
    return [(found.place, found.sentence) for found in report.findings if found.severity is Severity.DAMAGE]


@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_segment_that_was_set_aside_is_found_and_salvaged_though_the_service_has_gone_on(path, name):
    """Each keeps its ids and positions, and the saved tail does not hide them."""
    given = set_aside(path, name)
    report = check(path)
    assert (report.status, damage(report)) == (
        2, [(f"quarantine/t-{name}", "a start could not use this segment of table t, and nothing of it was salvaged")]
    )  # fmt: skip
    first = int(name[4:])
    number = len([k for k in range(first, first + 3) if k < 8])
    assert (report.kept, report.lost) == (number, 0)
    report = check(path, repair=True)
    assert (report.status, report.kept, report.lost) == (1, number, 0)
    (repaired,) = [found.repaired for found in report.findings if found.severity is Severity.DAMAGE]
    assert repaired == f"{number} whole chunks of it are in {name}.1, 0 are lost"
    again = check(path)
    assert (again.status, damage(again)) == (0, [])
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == sorted([*range(8), given])
    kept = loaded.index[loaded.index["chunk_id"] < 8]
    assert kept.tolist() == index(0, 8, BIG).tolist()
    assert table.read(np.arange(8)) == [chunk(k, BIG) for k in range(8)]
    saved = json.loads(table.read_state("sampling"))
    assert saved["tail"] == 0
    assert (table.quarantined_segments, table.lost_segments) == (1, 0)
    store.close()


def test_only_segment_that_was_set_aside_comes_back(tmp_path):
    """The table began at the position 2^32 meanwhile."""
    path = tmp_path / "store"
    store, table = make_table(path)
    append_each(table, 0, 2)
    store.close()
    (path / "tables" / "t" / FIRST).rename(path / "quarantine" / f"t-{FIRST}")
    store, table, loaded = reopen(path)
    assert (len(loaded.index), loaded.next_position) == (0, LOST)
    table.write_state("sampling", b'{"head": %d, "tail": %d}' % (LOST, LOST))
    store.close()
    assert check(path, repair=True).status == 1
    store, table, loaded = reopen(path)
    assert loaded.index.tolist() == index(0, 2, BIG).tolist()
    assert json.loads(table.read_state("sampling")) == {"head": LOST, "tail": 0}
    store.close()


def test_segment_that_a_start_salvaged_is_only_a_note(path):
    flip(segments(path)[1])
    store, _, _ = reopen(path)
    store.close()
    report = check(path)
    assert (report.status, damage(report)) == (0, [])
    assert [found.place for found in report.findings] == ["quarantine"]


def test_segment_of_which_nothing_is_whole_is_damage_until_a_repair_has_looked(path):
    (segments(path)[1] / "data.mdb").write_bytes(bytes(1 << 16))
    store, _, _ = reopen(path)
    store.close()
    report = check(path)
    assert (report.status, report.kept, [place for place, _ in damage(report)]) == (2, 0, [f"quarantine/t-{SECOND}"])
    assert check(path, repair=True).status == 1
    assert check(path).status == 0
    store, _, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [0, 1, 2, 6, 7]
    store.close()


def test_segment_of_a_former_table_of_the_same_name_is_left_alone(path):
    shutil.move(segments(path)[1], path / "quarantine" / f"t-{SECOND}")
    store, _, _ = reopen(path)
    store.delete_table("t")
    table = store.create_table("t", {"about": "a test"}, segment_bytes=1 << 17)
    table.load()
    store.close()
    assert check(path, repair=True).status == 0
    assert len(segments(path)) <= 1


def test_ids_that_were_given_out_again_are_not_mixed(path):
    """As if the segment before it had gone on: the one in quarantine must not come between."""
    shutil.copytree(segments(path)[1], path / "quarantine" / "t-seg-00000000000000000004")
    report = check(path, repair=True)
    assert report.status == 2
    assert any("has chunks of its ids" in found.sentence for found in report.findings)
    store, _, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == list(range(8))
    store.close()


def test_segment_whose_directory_is_gone_is_found_and_noted_once(path):
    shutil.rmtree(segments(path)[1])
    report = check(path)
    assert (report.status, damage(report)) == (
        2, [(f"tables/t/{SECOND}", "chunks 3 to 5 are in no segment, and nobody removed them: the segment is gone")]
    )  # fmt: skip
    report = check(path, repair=True)
    assert [found.repaired for found in report.findings] == ["noted as lost, and not told again"]
    assert check(path).status == 0
    store, table, _ = reopen(path)
    assert table.lost_segments == 0
    store.close()


def test_newest_segment_whose_directory_is_gone_is_missed_by_the_saved_head(path):
    store, table, _ = reopen(path)
    table.write_state("sampling", b'{"head": 32, "tail": 0}')
    store.close()
    assert check(path).status == 0
    shutil.rmtree(segments(path)[2])
    report = check(path)
    ((place, sentence),) = damage(report)
    assert (report.status, place) == (2, "tables/t")
    assert "steps up to position 32 were there, and the segments end at 24" in sentence


def test_deleted_and_removed_segments_are_not_missed(path):
    store, table, _ = reopen(path)
    append_each(table, 8, 14)
    table.delete_episodes([1, 2])
    table.reclaim(np.array([0, 1, 2, *range(9, 14)]))
    store.close()
    report = check(path)
    assert (report.status, report.findings) == (0, ())
    (path / "tables" / "t" / "removed").unlink()  # as older releases left it
    report = check(path)
    assert report.status == 0
    assert [found.sentence for found in report.findings] == [
        "chunks 3 to 8 are in no segment; older releases did not note whether such were removed on purpose"
    ]


def test_table_in_quarantine_is_no_clean_store(path):
    for name in ("table.json", "table.json.bak"):
        (path / "tables" / "t" / name).write_text("{")
    open_store(path).close()
    for repair in (False, True):
        report = check(path, repair=repair)
        ((place, sentence),) = damage(report)
        assert (report.status, place) == (2, "quarantine/t-table")
        assert "move it back to tables/" in sentence


def test_what_is_said_of_a_damaged_file_has_no_python_in_it(path):
    (path / "FORMAT").write_text("{")
    (path / "tables" / "t" / "table.json").write_text("{")
    assert damage(check(path)) == [
        ("FORMAT", "it is damaged: it is no JSON; its second copy is whole"),
        (
            "tables/t/table.json",
            "it is damaged: its checksum does not match its bytes, or a key is missing; its second copy is whole",
        ),
    ]


def test_unrepaired_report_counts_what_a_repair_would_keep(path):
    second = segments(path)[1]
    flip(second, (second / "data.mdb").read_bytes().index(chunk(4, BIG)) + 9_000)
    report = check(path)
    assert (report.status, report.kept, report.lost) == (2, 2, 1)
    report = check(path, repair=True)
    assert (report.status, report.kept, report.lost) == (1, 2, 1)


def test_copy_of_a_store_that_misses_a_segment_is_a_whole_copy(path, tmp_path):
    """What was gone before is no damage of the snapshot, and keeps nobody from restoring it."""
    shutil.rmtree(segments(path)[1])
    store, _, _ = reopen(path)
    store.snapshot(tmp_path / "copy", {"t": {"sampling": b'{"head": 32, "tail": 0}'}})
    store.close()
    restored = restore(tmp_path / "copy", tmp_path / "restored", verify=True)
    assert restored.verified
    assert check(tmp_path / "restored").status == 2
