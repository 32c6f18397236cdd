"""The finished snapshots of a directory are listed by what their manifests say, and nothing else is."""

import os

import pytest

from replaysvc.storage import Snapshots
from replaysvc.storage.manifest import NAME, read_manifest
from replaysvc.views import SnapshotView
from tests.store_builders import append, open_store


@pytest.fixture
def directory(tmp_path):
    """A directory with snapshots `older`, made at 1000 s, and `newer`, at 2000 s."""
    times = iter([1000.0, 2000.0])
    store = open_store(tmp_path / "store")
    table = store.create_table("t", {"about": "a test"}, segment_bytes=1 << 17)
    table.load()
    append(table, 0, 3)
    store._system._inner.time = lambda: next(times)
    for name in ("older", "newer"):
        store.snapshot(tmp_path / "snapshots" / name, {})
    store.close()
    return tmp_path / "snapshots"


def names(snapshots):
    return [view.name for view in snapshots.views()]


def test_newest_comes_first_with_the_bytes_of_all_files(directory):
    files = [file for file in (directory / "older").rglob("*") if file.is_file() and file.name != NAME]
    size = sum(file.stat().st_size for file in files)
    assert Snapshots(directory).views() == [
        SnapshotView(name="newer", made_at_s=2000.0, bytes=size), SnapshotView(name="older", made_at_s=1000.0, bytes=size),
    ]  # fmt: skip


def test_what_is_no_finished_snapshot_is_left_out(directory):
    (directory / "a-file").write_bytes(b"")
    (directory / "empty").mkdir()
    (directory / "newer").rename(directory / "newer.tmp-0123abcd")
    damaged = (directory / "older" / NAME).read_bytes().replace(b"1000.0", b"1001.0")
    (directory / "damaged").mkdir()
    (directory / "damaged" / NAME).write_bytes(damaged)
    assert names(Snapshots(directory)) == ["older"]


def test_manifest_is_read_again_only_when_it_has_changed(directory, caplog):
    (directory / "damaged").mkdir()
    (directory / "damaged" / NAME).write_bytes(b"{}")
    snapshots = Snapshots(directory)
    assert names(snapshots) == names(snapshots) == ["newer", "older"]
    assert len(caplog.messages) == 1  # it was read once
    written = read_manifest(directory / "older").to_bytes()
    (directory / "damaged" / NAME).write_bytes(written)
    os.utime(directory / "damaged" / NAME, ns=(5, 5))
    assert names(snapshots) == ["newer", "damaged", "older"]


def test_snapshots_that_come_and_go_are_seen_at_once(directory):
    snapshots = Snapshots(directory)
    assert names(snapshots) == ["newer", "older"]
    (directory / "newer").rename(directory.parent / "away")
    assert names(snapshots) == ["older"]
    (directory.parent / "away").rename(directory / "third")
    assert names(snapshots) == ["third", "older"]


def test_absent_directory_has_none(tmp_path):
    assert Snapshots(tmp_path / "absent").views() == []
