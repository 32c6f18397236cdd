"""A process that cannot be started says nothing of a segment: the store cannot be checked, and nothing in it is touched."""

import sys

import pytest

from replaysvc.errors import StorageError
from replaysvc.maintenance.examiner import Examiner
from replaysvc.maintenance.fsck import check
from tests.store_builders import segments, three_segments


@pytest.fixture
def path(tmp_path):
    return three_segments(tmp_path / "store")


def broken(directory, kind):
    """An interpreter that is not there, or may not be run, or ends before it can examine anything."""
    file = directory / "python"
    if kind != "absent":
        file.write_text("#!/bin/sh\nexit 1\n")
        file.chmod(0o600 if kind == "not executable" else 0o700)
    return str(file)


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("kind", ["absent", "not executable", "ends at once"])
def test_store_cannot_be_checked_where_no_process_can_be_started(path, tmp_path, monkeypatch, kind, repair):
    before = [segment.name for segment in segments(path)]
    monkeypatch.setattr(sys, "executable", broken(tmp_path, kind))
    report = check(path, repair=repair)
    assert report.status == 3
    assert report.findings == ()
    assert "segments cannot be examined" in report.cannot
    assert [segment.name for segment in segments(path)] == before
    assert list((path / "quarantine").iterdir()) == []
    monkeypatch.undo()
    assert check(path).status == 0


def test_nobody_is_blamed_for_a_process_that_does_not_start(path, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", broken(tmp_path, "ends at once"))
    with Examiner() as examiner, pytest.raises(StorageError, match="does not start"):
        examiner.examine(segments(path)[0], table=None, signature=None)
