"""Subjects of a comparison: each a process that lives as long as the run, asked for one measurement at a time.

What is asked and answered is one JSON object a line, over the process's standard input and output: see peers/asked.py. A rival
gets an environment of its own, made on first use under $XDG_CACHE_HOME/replaysvc-bench; one that cannot be installed here is
left out with a line that says why.
"""

import contextlib
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"
ROOT = Path(__file__).parents[2]

# What pip is asked for, a command an entry. torch comes first and alone, by its exact version, as in the Makefile.
TORCH = "torch==2.13.0"
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "reverb": (("dm-reverb[tensorflow]==0.14.0",),),
    "torchrl": ((TORCH,), (TORCH, "torchrl==0.14.1")),
    "sb3": ((TORCH,), (TORCH, "stable-baselines3==2.9.2")),
    "cpprb": (("cpprb==11.0.0", "setuptools<81"),),
    "files": (("numpy", "h5py==3.16.0", "lmdb==3.0.0"),),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that is measured. `environment`: the one it runs in; None: ours."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("service", "ours.py", ("service",)),
        Subject("embedded", "ours.py", ("embedded",)),
        Subject("reverb", "peers/reverb_peer.py", environment="reverb"),
        Subject("torchrl-memmap", "peers/torchrl_peer.py", ("memmap",), environment="torchrl"),
        Subject("torchrl-tensor", "peers/torchrl_peer.py", ("tensor",), environment="torchrl"),
        Subject("cpprb", "peers/cpprb_peer.py", environment="cpprb"),
        Subject("sb3", "peers/sb3_peer.py", environment="sb3"),
        Subject("h5py-gzip", "peers/files_peer.py", ("h5py",), environment="files"),
        Subject("lmdb-pickle", "peers/files_peer.py", ("lmdb",), environment="files"),
        Subject("numpy", "peers/numpy_peer.py"),
    )
}


def home_of(environment: str) -> Path:
    """Returns where an environment lies, or will."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replaysvc-bench" / environment


def python_of(environment: str | None) -> str | None:
    """Returns the interpreter of an environment, which is made if absent; None, and a line why, where it cannot be."""
    if environment is None:
        return sys.executable
    home = home_of(environment)
    python, ready = home / "bin" / "python", home / ".installed"
    wanted = json.dumps(ENVIRONMENTS[environment])
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {environment} into {home}", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        for packages in ENVIRONMENTS[environment]:
            command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                print(f"{environment} is left out, it cannot be installed here: {why}", file=sys.stderr, flush=True)
                return None
        ready.write_text(wanted)
    return str(python)


class Peer:
    """A running subject. A context manager that ends it."""

    def __init__(self, subject: Subject, python: str, rollouts: Path, scratch: Path) -> None:
        """`rollouts`: the folder that rollouts.py filled. `scratch`: a folder of the subject's own, for what it stores."""
        scratch.mkdir(parents=True)
        self.subject = subject
        self.log = scratch.with_suffix(".log")
        command = [python, "-u", str(Path(__file__).parent / subject.script), *subject.arguments, str(rollouts), str(scratch)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
            )
        self.workloads: list[str] = []

    def await_ready(self) -> None:
        """Returns when it says what it can do. Raises RuntimeError: it ended instead."""
        self.workloads = self._answer()["workloads"]

    def ask(self, workload: str, seconds: float) -> dict[str, Any]:
        """Returns the numbers of one measurement. Raises RuntimeError: it failed; says why."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer tells why it ended
            self._process.stdin.write(json.dumps({"workload": workload, "seconds": seconds}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = next((line for line in self._process.stdout if line.startswith("{")), "")  # what else is said is a library's
        if not line:
            last = (self.log.read_text().strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(f"{self.subject.name} ended: {last}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.subject.name}: {answer['error']}")
        return answer

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    for each in sys.argv[1:] or ENVIRONMENTS:
        print(each, python_of(each), flush=True)
