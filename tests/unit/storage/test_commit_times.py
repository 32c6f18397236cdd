"""Durable commits are timed: whole, and the part in which they are made durable; nothing else is counted."""

import errno
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from replaysvc.errors import CapacityError
from replaysvc.histogram import SECONDS
from replaysvc.storage.commit_times import CommitTimes
from tests.store_builders import BIG, Troubled, append, append_each, make_table, segments


class Ticking(Troubled):
    """Each reading of the clock takes 0.25 s; writing what a commit holds takes 4 s."""

    now, tick = 0.0, 0.25

    def monotonic(self):
        self.now += self.tick
        return self.now

    def crashpoint(self, name):
        super().crashpoint(name)
        if name == "append.before_commit":
            self.now += 4.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def live(*ids):
    return lambda: np.array(ids, np.int64)


def counted(view):
    """Returns {bound: count} of a histogram, without the bounds that have none."""
    assert view.bounds == SECONDS
    return {bound: count for bound, count in zip((*view.bounds, np.inf), view.counts, strict=True) if count}


def test_the_end_is_what_comes_after_the_last_write():
    """A transaction that begins in 1 s, is written in 2 s, and ends in 30 s."""
    clock = SimpleNamespace(now=500.0)

    @contextmanager
    def transaction():
        clock.now += 1.0
        yield
        clock.now += 30.0

    times = CommitTimes(lambda: clock.now)
    with times.measured(transaction()):
        clock.now += 2.0
    assert (times.whole.total, times.sync.total) == (33.0, 30.0)


def test_each_commit_is_counted_once_and_its_end_apart(path):
    """Clock: begun at 0.25, written at 4.5, durable at 4.75: 4.5 s in all, 0.25 s of it the end."""
    store, table = make_table(path, system=Ticking())
    for k in range(5):
        append(table, k, k + 1)
    told = table.told(live(0, 1, 2, 3, 4))
    assert (counted(told.commit_s), told.commit_s.total) == ({5.0: 5}, 5 * 4.5)
    assert (counted(told.sync_s), told.sync_s.total) == ({0.5: 5}, 5 * 0.25)
    store.close()


def test_commit_that_failed_is_not_counted(path):
    system = Ticking()
    store, table = make_table(path, system=system)
    append(table, 0, 1)
    system.error, system.at = OSError(errno.ENOSPC, "No space left on device"), "append.before_commit"
    with pytest.raises(CapacityError):
        append(table, 1, 2)
    system.error = None
    told = table.told(live(0))
    assert (sum(told.commit_s.counts), sum(told.sync_s.counts)) == (1, 1)
    append(table, 1, 2)
    assert sum(table.told(live(0, 1)).commit_s.counts) == 2
    store.close()


def test_what_compaction_writes_is_no_commit_and_full_segments_do_not_begin_anew(path):
    store, table = make_table(path, system=Ticking())
    append_each(table, 0, 8, size=BIG)
    assert table.reclaim(np.array([1, 4, 6, 7])) > 0
    assert len(segments(path)) < 3
    assert sum(table.told(live(1, 4, 6, 7)).commit_s.counts) == 8
    store.close()
