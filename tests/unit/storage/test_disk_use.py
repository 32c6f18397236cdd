"""What a store tells of its disk: what its files take, counted once a minute, and what is free now."""

import os

import pytest

from replaysvc.errors import CapacityError, StorageError
from replaysvc.storage.disk_use import DiskUse
from replaysvc.storage.system import System
from replaysvc.views import DiskView
from tests.store_builders import append, make_table

MiB = 1 << 20


class Disk(System):
    now, free = 1000.0, 500 * MiB

    def monotonic(self):
        return self.now

    def free_bytes(self, path):
        return self.free

    def root_bytes(self, path):
        return 45 * MiB

    def total_bytes(self, path):
        return 900 * MiB


@pytest.fixture
def disk():
    return Disk()


def test_all_files_count_and_links_to_others_do_not(tmp_path, disk):
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    for name in ("FORMAT", "tables/t/seg/data.mdb", "quarantine/x"):
        file = store / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(20_000))
    elsewhere.mkdir()
    (elsewhere / "large").write_bytes(os.urandom(300_000))
    (store / "link").symlink_to(elsewhere)
    with (store / "sparse").open("wb") as stream:
        stream.truncate(1 << 30)
    used = DiskUse(store, 0, disk).view().used_bytes
    files = sum((store / name).stat().st_blocks * 512 for name in ("FORMAT", "tables/t/seg/data.mdb", "quarantine/x"))
    assert files >= 60_000
    assert used == files + (store / "link").lstat().st_blocks * 512  # a long path in a link takes a block of its own


def test_files_are_counted_once_a_minute_and_what_is_free_each_time(tmp_path, disk):
    use = DiskUse(tmp_path, 0, disk)
    assert use.view() == DiskView(
        used_bytes=0, free_bytes=500 * MiB, root_bytes=45 * MiB, total_bytes=900 * MiB, reserve_bytes=0, refuses=False
    )  # fmt: skip
    (tmp_path / "file").write_bytes(os.urandom(40_960))
    disk.now, disk.free = 1059.9, 400 * MiB
    assert (use.view().used_bytes, use.view().free_bytes) == (0, 400 * MiB)
    disk.now = 1060.0
    assert use.view().used_bytes == 40_960


def test_directory_that_goes_meanwhile_takes_nothing(tmp_path, disk):
    assert DiskUse(tmp_path / "gone", 0, disk).view().used_bytes == 0


@pytest.mark.parametrize(("free", "refuses"), [(64 * MiB - 1, True), (64 * MiB, True), (65 * MiB, False)])
def test_it_says_that_appends_are_refused_where_they_are(tmp_path, disk, free, refuses):
    store, table = make_table(tmp_path / "store", system=disk, disk_reserve_bytes=64 * MiB)
    disk.free = free
    assert (store.disk().refuses, store.disk().reserve_bytes) == (refuses, 64 * MiB)
    if refuses:
        with pytest.raises(CapacityError):
            append(table, 0, 1)
    else:
        append(table, 0, 1)
    store.close()


def test_without_a_reserve_nothing_is_refused(tmp_path, disk):
    disk.free = 0
    assert not DiskUse(tmp_path, 0, disk).view().refuses


def test_disk_that_cannot_be_asked_is_an_error_of_the_store(tmp_path, disk):
    store, _ = make_table(tmp_path / "store", system=disk)

    def fail(path):
        raise OSError(5, "Input/output error")

    disk.free_bytes = fail
    with pytest.raises(StorageError, match="Input/output error"):
        store.disk()
    store.close()


def test_the_real_file_system_has_a_size(tmp_path):
    assert 0 < System().free_bytes(tmp_path) <= System().total_bytes(tmp_path)


def test_file_that_is_set_aside_is_told_and_counts_as_used(tmp_path, disk):
    store, _ = make_table(tmp_path / "store", system=disk, disk_reserve_bytes=64 * MiB)
    view = store.disk()
    assert view.set_aside_bytes == 2 * MiB  # a 32nd
    assert view.used_bytes > view.set_aside_bytes
    store.close()


def test_real_file_system_adds_up(tmp_path):
    view = DiskUse(tmp_path, 0, System()).view()
    status = os.statvfs(tmp_path)
    assert view.root_bytes == (status.f_bfree - status.f_bavail) * status.f_frsize
    assert view.free_bytes + view.root_bytes <= view.total_bytes
    assert 0.0 <= view.full_share <= 1.0


def test_what_is_kept_for_root_is_no_part_of_how_full_the_disk_is():
    known = {"used_bytes": 10, "free_bytes": 30, "total_bytes": 100, "reserve_bytes": 0, "refuses": False}
    assert DiskView(root_bytes=40, **known).full_share == 0.5  # 30 of the 60 that are not root's
    assert DiskView(root_bytes=70, **known).full_share == 0.0
