"""What a table tells of its segments: sizes and counts, and how much of each is still in the table."""

import numpy as np
import pytest

from replaysvc.storage.chain import Chain
from replaysvc.storage.segment import ROOM, Segment
from replaysvc.storage.segment_views import SegmentViews
from replaysvc.storage.system import System
from tests.store_builders import BIG, SMALL_SEGMENT, append_each, make_table, open_store, segments, three_segments


@pytest.fixture
def made(tmp_path):
    """A table whose segments hold chunks 0 to 2, 3 to 5, and 6 and 7."""
    store, table = make_table(tmp_path / "store")
    append_each(table, 0, 8)
    yield table
    store.close()


def told(table, *live):
    return table.told(lambda: np.array(live, np.int64))


def counts(table, *live):
    return [(int(view.name[4:24]), view.chunks, view.live_chunks) for view in told(table, *live).segments]


def test_segments_are_told_oldest_first_with_their_live_chunks(made, tmp_path):
    assert counts(made, 1, 3, 4, 5, 7) == [(0, 3, 1), (3, 3, 3), (6, 2, 1)]
    assert counts(made, *range(8)) == [(0, 3, 3), (3, 3, 3), (6, 2, 2)]
    assert counts(made) == [(0, 3, 0), (3, 3, 0), (6, 2, 0)]
    views = told(made).segments
    assert [view.name for view in views] == [path.name for path in segments(tmp_path / "store")]
    assert [view.sealed for view in views] == [True, True, False]


def test_sizes_are_those_of_the_files(made, tmp_path):
    for view, path in zip(told(made).segments, segments(tmp_path / "store"), strict=True):
        status = (path / "data.mdb").stat()
        assert view.allocated_bytes == status.st_blocks * 512
        assert view.used_bytes == status.st_size  # LMDB's file ends with the last page in use
        assert view.map_bytes == SMALL_SEGMENT + ROOM
        assert view.chunks * BIG < view.used_bytes < view.chunks * BIG + 80_000


def test_the_segment_that_grows_is_looked_at_anew_and_so_is_what_is_sealed_since(made):
    assert counts(made, *range(8))[2] == (6, 2, 2)
    append_each(made, 8, 10)
    assert counts(made, *range(10)) == [(0, 3, 3), (3, 3, 3), (6, 3, 3), (9, 1, 1)]
    assert [view.sealed for view in told(made).segments] == [True, True, True, False]


def test_removed_and_compacted_segments_are_told_as_they_are_now(made):
    made.remove_before(3)
    assert counts(made, 4, 6, 7) == [(3, 3, 1), (6, 2, 2)]
    assert made.reclaim(np.array([4, 6, 7])) > 0
    (first, _) = told(made, 4, 6, 7).segments
    assert (first.name, first.chunks, first.live_chunks) == ("seg-00000000000000000003.1", 1, 1)


def test_chunks_of_a_segment_that_went_meanwhile_are_nobody_elses(made):
    """Of the live chunks, 3 to 5 lay in a segment that is gone from the middle."""
    made.reclaim(np.array([0, 1, 2, 6, 7]))
    assert counts(made, 0, 1, 2, 3, 4, 5, 6, 7) == [(0, 3, 3), (6, 2, 2)]


def test_segment_that_cannot_be_read_now_is_told_without_its_content_until_it_can(made):
    segment = made._chain.segments[0]
    segment.close()
    assert counts(made, *range(8)) == [(0, 0, 0), (3, 3, 3), (6, 2, 2)]
    segment._open(readonly=True)
    assert counts(made, *range(8)) == [(0, 3, 3), (3, 3, 3), (6, 2, 2)]


def test_segment_that_is_removed_under_the_look_is_left_out(tmp_path):
    path = three_segments(tmp_path / "store")

    class Shrinking(Chain):
        """Its first segment goes when it has been named."""

        named = False

        @property
        def segments(self):
            found = super().segments
            if not self.named:
                self.named = True
                found[0].close()
                with self._lock:
                    self._segments = self._segments[1:]
            return found

    chain = Shrinking("t", tmp_path, System())
    chain._segments = [Segment(segment, System(), SMALL_SEGMENT) for segment in segments(path)]
    assert [view.name[-1] for view in SegmentViews(chain).views(np.arange(8))] == ["3", "6"]
    chain.close()


def test_readers_are_those_of_the_segment_that_grows(made, tmp_path):
    assert told(made).readers >= 1
    made._chain.segments[-1].seal(made._next)
    assert told(made).readers == 0
    made._chain.segments[-1].close()
    assert told(made).readers == 0


def test_table_without_a_segment_tells_nothing(tmp_path):
    store, table = make_table(tmp_path / "store")
    found = told(table)
    assert (found.segments, found.readers, sum(found.commit_s.counts)) == ((), 0, 0)
    assert (found.quarantined_chunks, found.quarantined_segments, found.lost_segments) == (0, 0, 0)
    store.close()


def test_quarantine_and_loss_are_told(tmp_path):
    path = three_segments(tmp_path / "store")
    (segments(path)[1] / "data.mdb").write_bytes(b"\0" * 50_000)
    store = open_store(path)
    table = store.tables()["t"]
    table.load()
    table.quarantine_chunk(1, "it is damaged")
    found = told(table)
    assert (found.quarantined_chunks, found.quarantined_segments, found.lost_segments) == (1, 1, table.lost_segments)
    store.close()
