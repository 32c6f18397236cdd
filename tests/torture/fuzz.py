"""A million inputs to everything that takes bytes from others: chunks, requests, records, frames, JSON.

Whatever an input is, nothing but the declared errors may come out, within a second of the processor's time, and the process may
not take 256 MiB more memory than before. Each target runs in a process of its own: one that dies is a violation, too.
Inputs are changed versions of right ones; those that led to something new are changed further, and some of them stay in
`corpus/` for the next time. All follows from the seed and the corpus.
"""

import argparse
import base64
import faulthandler
import json
import logging
import mmap
import multiprocessing as mp
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zstandard

from replaysvc.codec import decoder
from tests.torture.fuzz_service import Service
from tests.torture.fuzz_targets import Chunks, Frames, Records, Target, Texts
from tests.torture.report import Report, progress_bar

TARGETS: dict[str, type[Target]] = {target.name: target for target in (Chunks, Records, Frames, Texts, Service)}
_BATCH = 256  # inputs between two looks at the memory
_LONGEST_S = 1.0  # of the processor's time that an input may take
_HANG_S = 60  # of real time, after which the process ends itself
_MOST_BYTES = 256 << 20
_INPUT_BYTES = 2 << 20
CORPUS = Path(__file__).parent / "corpus"
_KEPT_INPUTS, _KEPT_BYTES = 60, 512  # that are kept in a file: of each kind, and of each input
_TOLD = 5  # inputs of one kind of violation that are saved


def _peak_bytes() -> int:
    """Returns the most memory that this process has had resident since `_forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status: expected a line VmHWM, found none")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def without_look_at_frames(target: Target) -> None:
    """Lets the decoder believe what zstd frames say of their size: to see that the harness notices."""
    decoder.decompress = lambda frames, sizes: [zstandard.ZstdDecompressor().decompress(frame) for frame in frames]


def with_a_bug(target: Target) -> None:
    """Lets a target raise what it should not, for one input in some hundreds."""
    take = target.take

    def buggy(data: bytes) -> str:
        if sum(data[-4:]) % 251 == 7:
            raise KeyError("a bug")
        return take(data)

    target.take = buggy  # type: ignore[method-assign]


BROKEN: dict[str, Callable[[Target], None]] = {"frames unchecked": without_look_at_frames, "a bug": with_a_bug}


class _Work:
    """Fuzzes one target in this process."""

    def __init__(self, target: Target, seed: int, save: Path, current: mmap.mmap) -> None:
        self._target, self._rng, self._save, self._current = target, random.Random(f"{seed}/{target.name}"), save, current
        self.outcomes: Counter[str] = Counter()
        self.violations: list[str] = []
        self.slowest_s = 0.0
        self._told: Counter[str] = Counter()
        self._seen: set[str] = set()

    def one(self, data: bytes) -> None:
        self._current.seek(0)
        self._current.write(len(data).to_bytes(8, "little") + data)
        began = time.process_time()
        try:
            word = self._target.take(data)
        except self._target.declared as error:
            word = type(error).__name__
            self._is_new(f"{word} {str(error)[:48]}", data)
        except Exception as error:
            word = "undeclared"
            frames = traceback.extract_tb(error.__traceback__)
            ours = [
                frame for frame in frames if "/replaysvc/" in frame.filename or "/replay_client/" in frame.filename
            ] or frames
            line = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
            self._violate(f"{type(error).__name__} at {line}", f"{error!r}"[:200], data)
        else:
            self._is_new(word, data)
        took = time.process_time() - began
        self.slowest_s = max(self.slowest_s, took)
        if took > _LONGEST_S:
            self._violate("too long", f"{took:.1f} s of the processor's time", data)
        self.outcomes[word] += 1

    def _is_new(self, what: str, data: bytes) -> None:
        what = re.sub(r"[0-9]+", "#", what)
        if what not in self._seen and len(self._seen) < 5000:
            self._seen.add(what)
            self._target.keep(data)

    def _violate(self, kind: str, detail: str, data: bytes) -> None:
        self._told[kind] += 1
        if self._told[kind] <= _TOLD:
            file = self._save / f"{self._target.name}-{re.sub(r'[^A-Za-z0-9]+', '-', kind)}-{self._told[kind]}"
            file.write_bytes(data)
            self.violations.append(f"{self._target.name}: {kind}: {detail}; input {file}")

    def batch(self, count: int, limit: int) -> None:
        inputs = [self._target.make(self._rng) for _ in range(count)]
        faulthandler.dump_traceback_later(_HANG_S, exit=True)
        for data in inputs:
            self.one(data)
        self._target.settle()
        faulthandler.cancel_dump_traceback_later()
        if _peak_bytes() > limit:
            for data in inputs:
                _forget_peak()
                self.one(data)
                if _peak_bytes() > limit:
                    self._violate("memory", f"{_peak_bytes() - limit + _MOST_BYTES >> 20} MiB", data)
            _forget_peak()

    @property
    def told(self) -> Counter[str]:
        """Returns how often each kind of violation was met."""
        return self._told


def _serve(
    connection: Connection, name: str, count: int, seed: int, broken: str, save: str, current: str, update: bool
) -> None:
    """Runs in a process of its own."""
    kept = CORPUS / f"{name}.json"
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm") as scratch, open(current, "r+b") as file:
        target = TARGETS[name](Path(scratch))
        if kept.exists():
            for text in json.loads(kept.read_text()):
                target.keep(base64.b64decode(text))
        if broken:
            BROKEN[broken](target)
        work = _Work(target, seed, Path(save), mmap.mmap(file.fileno(), 0))
        work.batch(min(count, 64), 1 << 62)  # what is made once, and stays
        _forget_peak()
        base = _peak_bytes()
        done = min(count, 64)
        while done < count:
            connection.send(("done", done))
            work.batch(min(_BATCH, count - done), base + _MOST_BYTES)
            done += min(_BATCH, count - done)
        target.close()
        if update and (found := target.kept(_KEPT_INPUTS, _KEPT_BYTES)):
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps(sorted({base64.b64encode(data).decode() for data in found}), indent=0) + "\n")
        connection.send(
            ("end", {"outcomes": work.outcomes, "violations": work.violations, "told": work.told, "slowest_s": work.slowest_s,
                     "grown_mib": (_peak_bytes() - base) >> 20})
        )  # fmt: skip


def run(
    count: int, seed: int, *, targets: tuple[str, ...] = tuple(TARGETS), broken: str = "", save: Path | None = None,
    update: bool = False,
) -> Report:  # fmt: skip
    """Gives the targets `count` inputs in all, by their shares.

    broken: one of BROKEN. save: where inputs of violations go. update: whether what led to something new goes to the corpus.
    """
    report = Report("fuzz", seed)
    save = save or Path(tempfile.mkdtemp(prefix="fuzz-inputs-"))
    save.mkdir(parents=True, exist_ok=True)
    context = mp.get_context("spawn")
    total = sum(TARGETS[name].share for name in targets)
    counts = {name: max(1, round(count * TARGETS[name].share / total)) for name in targets}
    with progress_bar(sum(counts.values()), "fuzz") as advance:
        for name in targets:
            began = time.monotonic()
            current = save / f"{name}-current"
            current.write_bytes(bytes(_INPUT_BYTES))
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_serve, args=(theirs, name, counts[name], seed, broken, str(save), str(current), update), daemon=True
            )
            process.start()
            theirs.close()
            before = 0
            found: dict[str, Any] = {}
            try:
                while not found:
                    kind, value = mine.recv()
                    if kind == "end":
                        found = value
                        value = counts[name]
                    advance(value - before, f"{name}, {len(report.violations)} violations")
                    before = value
            except EOFError:
                process.join()
                report.violations.append(
                    f"{name}: the process ended with status {process.exitcode}; its last input is {current}"
                )
                data = current.read_bytes()
                current.write_bytes(data[8 : 8 + int.from_bytes(data[:8], "little")])
                report.counts[f"{name}: inputs"] += before
                continue
            process.join()
            current.unlink()
            report.violations += found["violations"]
            report.counts[f"{name}: inputs"] += counts[name]
            report.counts["inputs"] += counts[name]
            for word, times in found["outcomes"].items():
                report.counts[f"{name}: {word}"] += times
            for word, times in found["told"].items():
                report.counts[f"{name}: VIOLATION {word}"] += times
            seconds = time.monotonic() - began
            report.figures[name] = {
                "seconds": round(seconds, 1), "inputs_per_s": round(counts[name] / seconds), "grown_mib": found["grown_mib"],
                "slowest_s": round(found["slowest_s"], 3),
            }  # fmt: skip
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--save", type=Path, help="directory for inputs of violations")
    parser.add_argument("--update-corpus", action="store_true", help=f"keep inputs that led to something new in {CORPUS.name}/")
    parser.add_argument("--input", type=Path, help="give this one input to the one target, in this process")
    options = parser.parse_args()
    if options.input is not None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
            print(TARGETS[options.targets[0]](Path(scratch)).take(options.input.read_bytes()))
        return 0
    return run(
        options.count, options.seed, targets=tuple(options.targets), save=options.save, update=options.update_corpus
    ).finish()


if __name__ == "__main__":
    sys.exit(main())
