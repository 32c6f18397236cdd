"""Losses of power in small: `python -m tests.torture.powerloss` does the same for longer.

Whoever believes in a green test of durability should see it fail: without any one of the syncs, violations must be found.
"""

import itertools
import random
import shutil

import pytest

from replaysvc.storage import CRASH_POINTS
from tests.torture.powerloss import lose_power
from tests.torture.powerloss_disk import CREATE, MARK, RENAME, RESIZE, SYNC, UNLINK, WRITE, Disk, Event, read_log
from tests.torture.powerloss_life import FSYNC_FAILS, SABOTAGES, play
from tests.torture.report import Report
from tests.torture.shim import in_memory

ROOT, OTHER, FILE = 1, 2, 3  # inodes


@pytest.fixture
def memory():
    """A directory in memory, removed at the end."""
    with in_memory("test-powerloss") as place:
        yield place
        shutil.rmtree(place)
        place.mkdir()


def event(kind, inode, name="", *, other=0, offset=0, data=b"", flags=0, name2=""):
    return Event(kind, flags, inode, other, offset, name, name2, data)


def states(tmp_path, events, *, times=200):
    """Returns the trees that may be there after a loss of power: sets of (path, content), None for a directory."""
    disk, found = Disk(ROOT), set()
    tmp_path.mkdir(exist_ok=True)
    for one in events:
        disk.apply(one)
    for i in range(times):
        image = tmp_path / str(i)
        disk.write_after_loss(image, random.Random(i))
        found.add(frozenset(tree(image).items()))
    return found


def tree(root):
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


SYNCED_FILE = [
    event(CREATE, ROOT, "a", other=FILE),
    event(WRITE, FILE, data=b"old" * 400),
    event(SYNC, FILE),
    event(SYNC, ROOT),
]


def test_what_was_synced_is_in_every_image(tmp_path):
    assert states(tmp_path, SYNCED_FILE) == {frozenset({("a", b"old" * 400)})}


def test_a_name_is_lost_unless_its_directory_was_synced(tmp_path):
    assert states(tmp_path, SYNCED_FILE[:3]) == {frozenset(), frozenset({("a", b"old" * 400)})}


def test_a_size_is_lost_and_kept_independently_of_the_bytes(tmp_path):
    found = states(tmp_path, [SYNCED_FILE[0], event(SYNC, ROOT), event(WRITE, FILE, data=b"x" * 5000)])
    contents = {dict(state)["a"] for state in found}
    assert {b"", b"x" * 5000, bytes(5000), bytes(4096) + b"x" * 904} <= contents


def test_a_write_is_torn_at_sectors_and_reordered_with_others(tmp_path):
    new = b"1" * 512 + b"2" * 512
    found = states(tmp_path, [*SYNCED_FILE, event(WRITE, FILE, data=new), event(WRITE, FILE, offset=1024, data=b"3" * 176)])
    starts = {(data[:1], data[512:513], data[1024:1025]) for data in (dict(state)["a"] for state in found)}
    assert starts == set(itertools.product((b"o", b"1"), (b"d", b"2"), (b"l", b"3")))


def test_a_write_through_a_durable_descriptor_is_in_every_image_with_what_was_in_its_block_before(tmp_path):
    durable = event(WRITE, FILE, offset=4, data=b"new", flags=2)
    found = states(tmp_path, [*SYNCED_FILE, event(WRITE, FILE, data=b"1234"), durable])
    assert {dict(state)["a"][:8] for state in found} == {b"1234newl"}


def test_a_rename_is_done_or_not_done_and_durable_once_both_directories_are_synced(tmp_path):
    files = [*SYNCED_FILE, event(CREATE, ROOT, "d", other=OTHER, flags=1), event(SYNC, ROOT)]
    rename = event(RENAME, ROOT, "a", other=OTHER, name2="b")
    before, after = frozenset({("a", b"old" * 400), ("d", None)}), frozenset({("d/b", b"old" * 400), ("d", None)})
    assert states(tmp_path / "0", [*files, rename]) == {before, after}
    assert states(tmp_path / "1", [*files, rename, event(SYNC, OTHER)]) == {before, after}
    assert states(tmp_path / "2", [*files, rename, event(SYNC, OTHER), event(SYNC, ROOT)]) == {after}


def test_a_name_does_not_go_back_behind_a_later_change_of_it(tmp_path):
    again = [
        event(UNLINK, ROOT, "a"),
        event(CREATE, ROOT, "a", other=OTHER),
        event(RESIZE, OTHER, offset=3),
        event(SYNC, OTHER),
    ]
    assert states(tmp_path, [*SYNCED_FILE, *again]) == {
        frozenset({("a", b"old" * 400)}), frozenset(), frozenset({("a", bytes(3))})
    }  # fmt: skip


def test_a_sync_that_failed_forgets_pages_which_no_later_sync_writes_until_they_are_written_to_again(tmp_path):
    pages = [event(WRITE, FILE, data=b"1" * 4096), event(WRITE, FILE, offset=4096, data=b"2" * 4096)]
    durable, again = event(WRITE, FILE, data=b"new", flags=2), event(WRITE, FILE, offset=5000, data=b"3" * 8)
    failed = [*SYNCED_FILE, durable, *pages, event(SYNC, FILE, flags=4), again]
    ((path, content),) = next(iter(states(tmp_path, [*failed, event(SYNC, FILE)], times=1)))
    assert (path, len(content), content[:1200]) == ("a", 8192, b"new" + b"old" * 399)
    assert content[4096:] == b"2" * 904 + b"3" * 8 + b"2" * 3184


# -- of a store -------------------------------------------------------------------------------------------------------------


def test_the_log_tells_all_that_was_done_to_the_directory_at_every_crash_point(memory):
    """Replayed, it gives the directory: nothing that writes files goes past the shim."""
    of_others = ("restore.", "quarantine.", "store.")  # what a healthy store does not come to, or before it is watched
    unseen = {point for point in CRASH_POINTS if not point.startswith(of_others)}
    for seed in range(1, 10):  # three, as a rule; on a busy machine what is done in the background may be late
        if seed > 3 and not unseen:
            break
        directory, log = memory / str(seed), memory / f"{seed}.log"
        play(directory, log, seed, actions=60)
        disk = Disk(directory.stat().st_ino)
        for one in read_log(log):
            disk.apply(one)
            if one.kind == MARK and one.mark()["what"] == "at":
                unseen.discard(one.mark()["point"])
        disk.write_now(memory / f"{seed} again")
        told, there = tree(memory / f"{seed} again"), tree(directory)
        assert told.keys() == there.keys()
        assert [path for path in there if told[path] != there[path] and not path.endswith("lock.mdb")] == []
    assert unseen == set()


def test_whatever_power_loss_leaves_has_what_was_acknowledged_and_nothing_twice(memory):
    report = Report("powerloss", 1)
    lose_power(report, memory, 120, actions=30, per_life=20)
    assert report.violations == []
    assert report.counts["images"] >= 120
    assert report.counts["written_to"] > 60
    assert report.counts["snapshots_opened"] > 0


def test_an_fsync_that_failed_loses_nothing_that_is_acknowledged_later(memory):
    report = Report("powerloss", 1)
    lose_power(report, memory, 40, sabotage=FSYNC_FAILS, actions=30, per_life=20)
    assert report.violations == []


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_sync_that_is_left_out_is_found_out(memory, sabotage):
    report = Report("powerloss", 1)
    lose_power(report, memory, 1000, sabotage=sabotage, actions=30, enough=1)
    assert report.violations
