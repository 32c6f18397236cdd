"""The library that sees, and can fail, every change of files below a directory: `shim.c`, built when it is first needed.

A process has it if it was started with `environment()`. It then asks by `Shim` for what it wants.
"""

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("shim.c")


class Fault(IntEnum):
    """Which calls fail, and how; the values are those of shim.c."""

    NONE = 0
    ANY_EIO = 1  # any call that changes files, with EIO
    ANY_ENOSPC = 2  # the same, with ENOSPC
    SHORT_WRITE = 3  # a write takes half of its bytes
    FSYNC_EIO = 4  # fsync and fdatasync
    META_EIO = 5  # a write through a descriptor opened with O_DSYNC, LMDB's of its meta page: it is in the page cache only
    END = 6  # the process ends before any call that changes files, or when a meta page is in the page cache only


@cache
def library() -> Path:
    """Builds the library, unless an earlier run did, and returns its path. Raises RuntimeError where it cannot be built."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise RuntimeError("these tests need a C compiler: install gcc or clang, or name one by the environment variable CC")
    source = SOURCE.read_bytes()
    place = Path(tempfile.gettempdir()) / f"replaysvc-torture-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    target = place / f"shim-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not target.exists():
        build = target.with_name(f"{target.name}.{os.getpid()}")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(build), str(SOURCE), "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr}")
        build.rename(target)
    return target


def environment() -> dict[str, str]:
    """Returns the environment of a process that has the library."""
    return {**os.environ, "LD_PRELOAD": str(library())}


@contextmanager
def in_memory(name: str) -> Iterator[Path]:
    """Yields a new directory in memory where there is such: what is synced there costs nothing. Keeps it if it is not empty."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=memory if os.access(memory, os.W_OK) else None))
    yield place
    if not any(place.iterdir()):
        place.rmdir()


class Shim:
    """The library in this process. Raises RuntimeError if this process was not started with it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        try:
            self._library.torture_calls.restype = ctypes.c_int64
            self._library.torture_eligible.restype = ctypes.c_int64
            self._library.torture_arm.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int]
        except AttributeError:
            raise RuntimeError("this process has no shim: start it with tests.torture.shim.environment()") from None

    def watch(self, directory: Path, log: Path | None = None, *, without_syncs: bool = False) -> None:
        """Watches the files below `directory`, and logs what is done to them; `without_syncs`: as if nothing was synced."""
        target = None if log is None else os.fsencode(log)
        if self._library.torture_watch(os.fsencode(directory.resolve()), target, int(without_syncs)):
            raise RuntimeError(f"the log {log} cannot be opened")

    def stop(self) -> None:
        """Watches nothing any more, and lets nothing fail."""
        self.arm(Fault.NONE, 0)
        self._library.torture_watch(None, None, 0)

    def mark(self, **fact: Any) -> None:
        """Notes something at this place of the log."""
        self._library.torture_mark(json.dumps(fact).encode())

    def arm(self, fault: Fault, nth: int, *, sticky: bool = False) -> None:
        """Lets the `nth` call from now on that `fault` is for fail; with `sticky`, those after it, too."""
        self._library.torture_arm(fault, nth, int(sticky))

    @property
    def fired(self) -> int:
        """Returns how many calls failed since `arm`."""
        return int(self._library.torture_fired())

    @property
    def eligible(self) -> int:
        """Returns how many calls were seen since `arm` that the fault is for."""
        return int(self._library.torture_eligible())

    @property
    def calls(self) -> int:
        """Returns how many changing calls were seen since `watch`."""
        return int(self._library.torture_calls())
