"""The scrub reads every chunk of sealed segments, no faster than it may, and tells of what is damaged, once."""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest

from replaysvc.storage import System, scrub
from replaysvc.storage.pages import Pages
from replaysvc.storage.records import KEY
from replaysvc.storage.scrub import Scrub
from replaysvc.views import ScrubView
from tests.store_builders import BIG, NOW, append_each, chunk, make_table, segments
from tests.unit.maintenance.test_fsck import PAGE, change, flip, overwrite, place_of

STORED = 88  # bytes of an index record


class Clock(System):
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return NOW + self.now


class Table:
    """A table whose sealed segments are those on the disk but the last."""

    def __init__(self, path, name="t"):
        self._path, self.name = path, name

    def sealed_segments(self):
        return segments(self._path)[:-1]


@pytest.fixture
def path(tmp_path):
    store, table = make_table(tmp_path / "store")
    append_each(table, 0, 8)
    store.close()
    return tmp_path / "store"


@pytest.fixture
def made(path, monkeypatch):
    """Returns a function that makes a scrub of 1 MB/s with a clock, and a list of what it told."""
    monkeypatch.setattr(scrub, "STEP_BYTES", 1)

    def make(rate=1e6, tables=None):
        told, clock = [], Clock()
        tables = tables or [Table(path)]
        return SimpleNamespace(
            scrub=Scrub(lambda: tables, rate, clock, lambda *damage: told.append(damage)), clock=clock, told=told
        )

    return make


def run_round(made, limit=1000):
    """Steps through one round, waiting as long as each step says; returns how long it took."""
    rounds, began = made.scrub.progress.rounds, made.clock.now
    for _ in range(limit):
        wait = made.scrub.step()
        if made.scrub.progress.rounds > rounds:
            return made.clock.now - began
        made.clock.now += wait
    raise AssertionError("the round does not end")


SEALED_BYTES = sum(len(chunk(k, BIG)) + STORED for k in range(6))


def test_round_reads_every_chunk_and_takes_as_long_as_the_rate_says(made):
    it = made()
    took = run_round(it)
    assert it.told == []
    assert it.scrub.progress.bytes_total == SEALED_BYTES
    assert took == pytest.approx(SEALED_BYTES / 1e6, rel=0.01)
    assert it.scrub.progress.last_round_s == pytest.approx(took)
    assert it.scrub.progress.last_round_ended_at_s == pytest.approx(NOW + 1000 + took)


def test_steps_that_come_too_early_read_nothing(made):
    it = made()
    wait = it.scrub.step()
    read = it.scrub.progress.bytes_total
    assert wait == pytest.approx(read / 1e6)
    for _ in range(5):
        assert it.scrub.step() == pytest.approx(wait)
    assert it.scrub.progress.bytes_total == read
    it.clock.now += wait
    it.scrub.step()
    assert it.scrub.progress.bytes_total > read


def test_clock_that_stood_still_for_long_is_not_caught_up_with(made):
    it = made()
    it.scrub.step()
    it.clock.now += 1000
    it.scrub.step()
    read = it.scrub.progress.bytes_total
    it.scrub.step()
    assert it.scrub.progress.bytes_total == read


def test_rate_of_zero_reads_nothing(made):
    it = made(rate=0)
    assert it.scrub.step() == 10.0
    assert it.scrub.progress.bytes_total == 0


def test_next_round_begins_an_hour_after_the_last_began(made):
    it = made()
    run_round(it)
    assert it.scrub.step() == 10.0
    assert (it.scrub.progress.table, it.scrub.progress.segment) == ("", "")
    it.clock.now = 1000.0 + 3600.0
    it.scrub.step()
    assert it.scrub.progress.bytes_total > SEALED_BYTES
    run_round(it)
    assert (it.scrub.progress.rounds, it.scrub.progress.bytes_total) == (2, 2 * SEALED_BYTES)


def test_progress_tells_where_it_is(made, path):
    it = made(tables=[Table(path), Table(path, "again")])
    seen, fractions = [], []
    for _ in range(200):
        it.clock.now += it.scrub.step()
        now = it.scrub.progress
        if now.rounds:
            break
        if not seen or seen[-1] != (now.table, now.segment):
            seen.append((now.table, now.segment))
        fractions.append(now.fraction)
    names = ["seg-00000000000000000000", "seg-00000000000000000003"]
    assert seen == [(table, name) for table in ("t", "again") for name in names]
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] < 0.3 < 0.7 < fractions[-1] <= 1


def test_damaged_chunk_is_told_once_and_by_its_id(made, path):
    flip(segments(path)[1] / "data.mdb", place_of(segments(path)[1], chunk(4, BIG)) + 5_000)
    it = made()
    run_round(it)
    assert it.told == [("t", 4, "its checksum does not match its bytes")]
    it.clock.now += 3600
    run_round(it)
    assert len(it.told) == 1
    assert it.scrub.progress.damage_total == 1


def test_chunk_under_anothers_key_and_missing_ones_are_told(made, path):
    second = segments(path)[1]
    change(second, b"chunks", KEY.pack(4), lambda _: chunk(5, BIG))
    change(second, b"chunks", KEY.pack(3), lambda _: None)
    change(segments(path)[0], b"index", KEY.pack(1), lambda record: record[:-1] + bytes([record[-1] ^ 1]))
    it = made()
    run_round(it)
    assert ("t", None, "segment seg-00000000000000000000: 1 index records are damaged") in it.told
    assert ("t", 3, "it has an index record but is not there") in it.told
    assert any(told[:2] == ("t", 4) and "expected checksum" in told[2] for told in it.told)
    assert len(it.told) == 3


def test_damaged_tree_is_told_of_the_segment_and_the_others_are_read(made, path):
    file = segments(path)[0] / "data.mdb"
    overwrite(file, 0, os.urandom(2 * PAGE))
    it = made()
    run_round(it)
    assert [told[:2] for told in it.told] == [("t", None)]
    assert it.told[0][2].startswith("segment seg-00000000000000000000: ")
    assert it.scrub.progress.bytes_total == SEALED_BYTES // 2


def test_sector_that_the_disk_does_not_give_back_is_told_and_does_not_end_the_process(made, path, monkeypatch):
    file = segments(path)[1] / "data.mdb"
    bad = place_of(segments(path)[1], chunk(4, BIG))
    whole = os.pread

    def pread(handle, size, offset):
        if os.path.samestat(os.fstat(handle), file.stat()) and offset <= bad < offset + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(handle, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    it = made()
    run_round(it)
    ((table, chunk_id, problem),) = it.told
    assert (table, chunk_id) == ("t", 4)
    assert "cannot be read: Input/output error" in problem


def test_segment_that_is_removed_meanwhile_is_no_damage(made, path):
    it = made()
    it.scrub.step()
    for segment in segments(path)[:2]:
        shutil.rmtree(segment)
    run_round(it)
    assert it.told == []
    assert it.scrub.progress.fraction <= 1


def test_table_without_sealed_segments_is_looked_at_again_later(made, tmp_path):
    it = made(tables=[SimpleNamespace(name="t", sealed_segments=list)])
    run_round(it)
    assert it.scrub.progress.bytes_total == 0
    assert it.scrub.step() > 0


def test_file_stays_the_same_for_who_reads_it_when_it_is_scrubbed(path):
    """What the scrub lets go of are pages of the cache, not of the file."""
    with Pages(segments(path)[0] / "data.mdb") as pages:
        for item in pages.items(b"chunks"):
            before = pages.value(item)
            pages.forget(item)
            assert pages.value(item) == before


# -- rounds that somebody asks for ----------------------------------------------------------------------------------------


class Asker:
    """Notes what it is told of the round that it asked for."""

    def __init__(self):
        self.progressed, self.ended = [], []

    def progress(self, done, whole):
        self.progressed.append((done, whole))

    def finish(self, message):
        self.ended.append(("finished", message))

    def fail(self, reason):
        self.ended.append(("failed", reason))


def whole_bytes(path):
    return sum((segment / "data.mdb").stat().st_size for segment in segments(path)[:-1])


def test_round_asked_for_begins_at_once_and_is_told_of_until_its_end(made, path):
    it, asker, whole = made(), Asker(), whole_bytes(path)
    run_round(it)
    it.scrub.start(asker)
    took = run_round(it)
    assert took == pytest.approx(SEALED_BYTES / 1e6, rel=0.01)
    assert asker.ended == [("finished", f"read {whole} bytes; nothing is damaged")]
    assert asker.progressed == sorted(asker.progressed)
    assert {size for _, size in asker.progressed} == {whole}
    assert SEALED_BYTES - BIG < asker.progressed[-1][0] <= whole
    told = len(asker.progressed)
    it.clock.now += 3600
    run_round(it)  # one of its own accord
    assert (len(asker.progressed), len(asker.ended)) == (told, 1)


def test_with_a_rate_of_zero_only_what_is_asked_for_runs_at_ten_mib_a_second(made):
    it, asker = made(rate=0), Asker()
    assert not it.scrub.view.running
    it.scrub.start(asker)
    assert it.scrub.view.running
    assert run_round(it) == pytest.approx(SEALED_BYTES / (10 << 20), rel=0.01)
    assert len(asker.ended) == 1
    assert not it.scrub.view.running
    it.clock.now += 7200
    assert it.scrub.step() == 10.0
    assert it.scrub.progress.bytes_total == SEALED_BYTES


def test_round_asked_for_in_the_middle_of_another_begins_from_the_start(made):
    """The first asker's round reads one chunk; then there is one round for both."""
    it, first, second = made(), Asker(), Asker()
    it.scrub.start(first)
    it.scrub.step()
    read = it.scrub.progress.bytes_total
    assert 0 < read < SEALED_BYTES / 2
    it.scrub.start(second)
    it.scrub.step()
    assert it.scrub.progress.bytes_total == 2 * read
    run_round(it)
    assert it.scrub.progress.bytes_total == read + SEALED_BYTES
    assert (it.scrub.progress.rounds, len(first.ended), len(second.ended)) == (1, 1, 1)


def test_damage_known_before_is_found_again_by_who_asks_if_it_is_still_there(made, path):
    """Two chunks are damaged, of which one is whole again when somebody asks."""
    segment = segments(path)[1]
    places = [place_of(segment, chunk(k, BIG)) + 5_000 for k in (4, 5)]
    for place in places:
        flip(segment / "data.mdb", place)
    it, asker = made(), Asker()
    run_round(it)
    flip(segment / "data.mdb", places[1])
    it.scrub.start(asker)
    run_round(it)
    assert asker.ended == [("finished", f"read {whole_bytes(path)} bytes; damaged: 1")]
    assert (len(it.told), it.scrub.view.damaged) == (2, 2)


def test_round_that_ends_before_its_time_fails_for_all_who_asked(made):
    it, under_way, waiting = made(), Asker(), Asker()
    it.scrub.start(under_way)
    it.scrub.step()
    it.scrub.start(waiting)
    it.scrub.stop("the store is closed")
    assert under_way.ended == waiting.ended == [("failed", "the store is closed")]
    assert it.scrub.progress.rounds == 0


def test_round_that_breaks_fails_and_does_not_count(made, path):
    it, asker = made(), Asker()

    def broken():
        raise RuntimeError("no tables")

    it.scrub._tables, tables = broken, it.scrub._tables
    it.scrub.start(asker)
    with pytest.raises(RuntimeError):
        it.scrub.step()
    assert asker.ended == [("failed", "RuntimeError: no tables")]
    it.scrub._tables = tables
    again = Asker()
    it.scrub.start(again)
    run_round(it)
    assert (it.scrub.progress.rounds, len(again.ended)) == (1, 1)


def test_view_tells_bytes_and_when_a_round_last_ended(made, path):
    it, whole = made(), whole_bytes(path)
    assert it.scrub.view == ScrubView(
        running=True, done_bytes=0, whole_bytes=0, rounds=0, damaged=0, finished_at_s=None
    )  # fmt: skip
    it.scrub.step()
    now = it.scrub.view
    assert 0 < now.done_bytes < now.whole_bytes == whole
    took = run_round(it)
    assert it.scrub.view == ScrubView(
        running=True, done_bytes=whole, whole_bytes=whole, rounds=1, damaged=0, finished_at_s=pytest.approx(NOW + 1000 + took),
    )  # fmt: skip
