"""Full disks in small, each kind once, and that the harness notices what it looks for."""

import json
import os
import subprocess
import sys

from tests.torture.full_disk_cast import DISKS, SIZE, Disk, noise, problem


def play(tmp_path, *options):
    """Runs the script, which needs a mount namespace of its own; returns (exit status, its result)."""
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "tests.torture.full_disk", "--results", str(result), *map(str, options)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environment)
    assert result.exists(), f"status {done.returncode}: {done.stderr[-3000:]}"
    return done.returncode, json.loads(result.read_text())


def test_service_on_disks_that_are_filled_and_freed_loses_nothing_and_refuses_nobody(tmp_path):
    status, result = play(tmp_path, "--count", 3, "--seed", 5, "--seconds", 0.5)
    assert result["violations"] == []
    assert status == 0
    counts = result["counts"]
    assert [counts[f"rounds on {kind}"] for kind in DISKS] == [1, 1, 1]
    assert counts["disk filled"] >= 3
    assert counts["probes refused"] >= 3
    assert counts["deletions, disk full"] >= 3
    assert counts["restarts, disk full"] >= 1
    assert min(counts["episodes acknowledged"], counts["batches sampled"], counts["episodes compared"]) > 20


def test_loss_of_what_was_acknowledged_is_noticed(tmp_path):
    status, result = play(tmp_path, "--count", 1, "--seed", 5, "--seconds", 0.5, "--kinds", "tmpfs", "--sabotage", "lose")
    assert status == 1
    assert any("acknowledged episodes of table keep are gone" in violation for violation in result["violations"])


def test_episode_that_differs_is_noticed():
    read = {"observation": noise(0, 0)[:, 0], "action": noise(0, 0)[:, 0], "noise": noise(1, 2)}
    assert problem(read, 1, 2) == "other values than were written"
    assert problem(read | {"action": read["action"][:3]}, 1, 2) == "3 steps of 8"


def test_disk_is_filled_to_the_byte_and_emptied(tmp_path, monkeypatch):
    """On whatever file system there is: the ballast is counted, not the mount."""
    monkeypatch.setattr(Disk, "_mount", lambda self, root: None)
    disk = Disk(tmp_path)
    free = disk.free_bytes
    disk.fill(free - (16 << 20))
    taken = free - disk.free_bytes
    assert taken > 8 << 20  # others write to this file system, too
    disk.empty()
    assert SIZE == 64 << 20
    assert disk.free_bytes > free - (8 << 20)


def test_without_a_namespace_it_says_so_and_fails(monkeypatch, tmp_path):
    """As on a machine where `unshare` is not permitted."""
    denied = tmp_path / "unshare"
    denied.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    denied.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.full_disk", "--count", "1"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 2
    assert "expected to be allowed a mount namespace of its own, found: unshare failed" in done.stderr
