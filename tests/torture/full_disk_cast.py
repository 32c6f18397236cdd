"""Who takes part when a disk is full: small file systems that are filled and emptied, writers that remember what they were told
is durable, and a sampler that may never be refused."""

import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc import FieldSpec, Signature
from replaysvc.errors import NotReadyError
from tests.torture.report import Report

MiB = 1 << 20
SIZE = 64 * MiB
SIGNATURE = Signature(
    FieldSpec("", (), np.int64), FieldSpec("", (), np.int64), noise=FieldSpec("", (2000,), np.uint8)
)  # fmt: skip
STEPS = 8
_PAUSE_S = 0.05  # between episodes of a writer, 16 KB each
_LONGEST_FLUSH_S = 60.0


def command(*words: str) -> None:
    """Runs a command. Raises RuntimeError with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}: {(done.stderr or done.stdout).strip()}")


class Disk:
    """A file system of 64 MiB in RAM, at `path`; `fill` leaves some bytes free, `empty` gives all back."""

    def __init__(self, root: Path) -> None:
        self.path = root / "disk"
        self.path.mkdir()
        self._ballast = self.path / "ballast"
        self._mount(root)

    def _mount(self, root: Path) -> None:
        command("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.path))

    def attach(self, pid: int) -> None:
        """Says which process is the service's."""

    @property
    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def fill(self, leave: int) -> None:
        handle = os.open(self._ballast, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for _ in range(50):  # others write and remove meanwhile
                size, spare = os.fstat(handle).st_size, self.free_bytes - leave
                if spare < 4096:
                    return
                try:
                    os.posix_fallocate(handle, size, spare)
                except OSError:  # less than that was left
                    os.ftruncate(handle, size)
                    os.posix_fallocate(handle, size, 4096)
        except OSError:
            return
        finally:
            os.close(handle)

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        command("umount", "-l", str(self.path))


class Ext4(Disk):
    """The same on a real file system, in an image that is mounted as a loop device."""

    def _mount(self, root: Path) -> None:
        image = root / "image"
        with image.open("wb") as file:
            file.truncate(SIZE + 16 * MiB)
        command("mkfs.ext4", "-q", "-m", "0", str(image))
        command("mount", "-o", "loop", str(image), str(self.path))


class Limited(Disk):
    """A disk with room, for a process that may not make files longer than some bytes: EFBIG instead of ENOSPC."""

    _pid = 0
    _limit = resource.RLIM_INFINITY

    def attach(self, pid: int) -> None:
        self._pid = pid
        self._set(self._limit)

    def _set(self, limit: int) -> None:
        self._limit = limit
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def fill(self, leave: int) -> None:
        self._set((1 << 16) + min(leave, MiB) // 4096 * 4096)  # small files still can be written, as on any disk with a quota

    def empty(self) -> None:
        self._set(resource.RLIM_INFINITY)


DISKS: dict[str, Callable[[Path], Disk]] = {"tmpfs": Disk, "ext4": Ext4, "limit": Limited}


def noise(writer: int, number: int) -> Any:
    """Returns the noise of an episode, [STEPS, 2000]."""
    return np.random.default_rng((writer, number)).integers(0, 256, (STEPS, 2000), dtype=np.uint8)


def problem(read: dict[str, Any], writer: int, number: int) -> str:
    """Returns what is wrong with an episode that was read; an empty string if nothing is."""
    if len(read["action"]) != STEPS:
        return f"{len(read['action'])} steps of {STEPS}"
    good = read["observation"].tolist() == [1000 * number + t for t in range(STEPS + 1)]
    good = good and read["action"].tolist() == [writer] * STEPS and read["noise"].tobytes() == noise(writer, number).tobytes()
    return "" if good else "other values than were written"


class Writer(threading.Thread):
    """Writes episodes one after the other, each flushed before the next; knows which are durable."""

    def __init__(self, client: Any, table: str, number: int, stop: threading.Event, report: Report) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self._client, self.table, self.number, self._halt, self._report = client, table, number, stop, report
        self.durable: list[int] = []
        self.begun = 0
        self.longest_s = 0.0

    def run(self) -> None:
        try:
            with self._client.table(self.table).writer(f"w{self.number}") as writer:
                while not self._halt.is_set():
                    self._write(writer, self.begun)
                    self._halt.wait(_PAUSE_S)
        except Exception as error:  # a writer's user is to see nothing of a full disk
            self._report.violations.append(f"writer {self.number}: {type(error).__name__}: {error}")

    def _write(self, writer: Any, n: int) -> None:
        self.begun = n + 1
        values = noise(self.number, n)
        writer.begin(1000 * n, metadata={"w": self.number, "n": n})
        for t in range(STEPS):
            writer.append(self.number, 1.0, 1000 * n + t + 1, terminated=t == STEPS - 1, extras={"noise": values[t]})
        began = time.monotonic()
        writer.flush(_LONGEST_FLUSH_S)
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.durable.append(n)


class Sampler(threading.Thread):
    """Samples all the time, with uniform and prioritized draws; a failure, or a long silence, is a violation."""

    def __init__(self, client: Any, tables: tuple[str, ...], stop: threading.Event, report: Report) -> None:
        super().__init__(name="sampler", daemon=True)
        self._client, self._tables, self._halt, self._report = client, tables, stop, report
        self.batches = 0
        self.longest_s = 0.0  # between two batches; restarts of the service are not counted
        self._last_s = time.monotonic()

    def forgive(self) -> None:
        """Says that the service was away just now."""
        self._last_s = time.monotonic()

    def run(self) -> None:
        handles = [self._client.table(name) for name in self._tables]
        while not self._halt.is_set():
            table = handles[self.batches % len(handles)]
            try:
                batch = table.sample(8, sampler=("uniform", "prioritized")[self.batches // 2 % 2])
                step = batch.observation % 1000
                if not (batch.next_observation == batch.observation + 1).all() or not (step == batch.t).all():
                    self._report.violations.append("sampler: other values than were written")
                if self.batches % 5 == 0:
                    table.update_priorities(batch.positions, np.full(8, 1.0 + self.batches % 7))
            except NotReadyError:
                if self.batches > 10:
                    self._report.violations.append(f"sampler: table {table.name} became empty")
            except Exception as error:
                self._report.violations.append(f"sampler: {type(error).__name__}: {error}")
                return
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - self._last_s)
            self._last_s = now
            self.batches += 1
            self._halt.wait(0.002)
