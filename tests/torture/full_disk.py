"""A service whose disk is filled and freed at random times, while it is written to, sampled from and asked for everything else.

Nobody may see more of it than a wait: writers go on where they were, samplers never stop, deletion works and gives space back,
a restart on the full disk succeeds. What cannot be done is refused as CapacityError and can be done later. At the end all that
was acknowledged is there, once. The disk is a tmpfs, an ext4 image, or a limit on the size of files, in a mount namespace of
the script's own.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import replay_client
from replaysvc import ClientConfig, StoreConfig, TableConfig
from replaysvc.errors import CapacityError, ReplayError, UnavailableError
from replaysvc.replay import Replay
from tests.processes import ServiceProcess
from tests.service.raw import Raw, chunks_of
from tests.torture.full_disk_cast import DISKS, SIGNATURE, MiB, Sampler, Writer, noise, problem
from tests.torture.report import Report, progress_bar

_SETTINGS = """
state_interval_s = 0.2
commit_interval_s = 0.01
disk_reserve_bytes = 4194304
recent_cache_bytes = 1048576
faulted_cache_bytes = 1048576
"""
_INSIDE = "--inside"
_LONGEST_GAP_S = 15.0  # that the sampler may wait for a batch; the machine may be busy
_RECOVERY_S = 20.0  # within which appends are taken again; clients pause for 2 s between attempts
_KEPT = 350  # episodes of 17 KB in the table that has no capacity


class Round:
    """One store on one disk, from its making to the look at what is left."""

    def __init__(self, root: Path, kind: str, seed: str, report: Report) -> None:
        self._rng, self._report, self._kind, self._where = random.Random(seed), report, kind, f"{kind}, round {seed}"
        self._disk = DISKS[kind](root)
        settings = root / "settings.toml"
        settings.write_text(_SETTINGS + f'snapshot_dir = "{self._disk.path}/snapshots"\n')
        (self._disk.path / "snapshots").mkdir()
        self._service = ServiceProcess(self._disk.path / "store", "--config", str(settings))
        self._service.log = root / "log"
        self._halt = threading.Event()
        self._full = False
        self._params: tuple[int, bytes] | None = None
        self._deleted: set[int] = set()
        self._probe_number = 0

    def _violate(self, sentence: str) -> None:
        self._report.violations.append(f"{self._where}: {sentence}")

    def run(self, seconds: float, sabotage: str = "") -> None:
        """Plays the round. `sabotage` does something at the end that must be noticed."""
        try:
            self._service.start()
            self._disk.attach(self._service.pid)
            options = ClientConfig(reconnect_timeout_s=120.0, buffer_bytes=MiB)
            with replay_client.connect(self._service.address, config=options) as client:
                self._play(client, seconds, sabotage)
            self._service.terminate()
            self._inspect_embedded(sabotage)
            if "Traceback" in (log := self._service.log.read_text()):
                self._violate(f"the service logged a traceback: {log[log.index('Traceback') :][:1500]}")
        finally:
            if self._service._process is not None:
                self._service.kill()
            self._disk.close()

    def _play(self, client: Any, seconds: float, sabotage: str) -> None:
        small = {"segment_bytes": MiB, "chunk_steps": 4}
        keep = client.create_table("keep", SIGNATURE, TableConfig(**small))
        client.create_table("ring", SIGNATURE, TableConfig(**small, capacity_episodes=100))
        client.create_table("probe", SIGNATURE, TableConfig(**small, capacity_bytes=2 * MiB))
        tables = ("keep", "ring")
        self._writers = [Writer(client, tables[i % 2], i, self._halt, self._report) for i in range(4)]
        for writer in self._writers:
            writer.start()
        _until(lambda: all(writer.durable for writer in self._writers), 60.0)
        self._sampler = Sampler(client, tables, self._halt, self._report)
        self._sampler.start()
        events = [
            *[self._fill] * 5, *[self._free] * 3, *[self._delete] * 3, *[self._put_params] * 2, *[self._probe] * 4,
            self._snapshot, self._restart,
        ]  # fmt: skip
        first = [self._fill_up, self._probe, self._put_params, self._delete, self._snapshot]  # each once for certain
        first = [] if sabotage else [*first, *[self._restart] * self._rng.randrange(2), self._free]
        end, before = time.monotonic() + seconds, len(self._report.violations)
        while (first or time.monotonic() < end) and len(self._report.violations) - before < 3:
            event = first.pop(0) if first else self._rng.choice(events)
            event(client, keep)
            if len(keep.episodes(limit=1000)) > _KEPT:
                self._delete(client, keep, 50)
            time.sleep(self._rng.uniform(0.05, 0.4))
        if sabotage == "kill":
            self._service.kill()
        self._free(client, keep)
        self._halt.set()
        for thread in (*self._writers, self._sampler):
            thread.join(90)
            if thread.is_alive():
                self._violate(f"{thread.name} did not end")
        self._report.counts["episodes acknowledged"] += sum(len(writer.durable) for writer in self._writers)
        self._report.counts["batches sampled"] += self._sampler.batches
        for name, value in (("flush", max(w.longest_s for w in self._writers)), ("sample", self._sampler.longest_s)):
            self._report.figures[f"longest {name}, s"] = round(max(value, self._report.figures.get(f"longest {name}, s", 0)), 2)
        if self._sampler.longest_s > _LONGEST_GAP_S:
            self._violate(f"no batch was drawn for {self._sampler.longest_s:.1f} s")
        self._inspect("client", client)

    # -- events ---------------------------------------------------------------------------------------------------------

    def _fill_up(self, client: Any, keep: Any) -> None:
        self._fill(client, keep, 0)

    def _fill(self, client: Any, keep: Any, leave: int | None = None) -> None:
        self._disk.fill(self._rng.choice((0, 0, 4096, 40_000, 200_000, MiB, 3 * MiB)) if leave is None else leave)
        self._full = True
        self._report.counts["disk filled"] += 1

    def _free(self, client: Any, keep: Any) -> None:
        """Frees the disk: appends must be taken again."""
        self._disk.empty()
        if not self._full:
            return
        self._full = False
        self._report.counts["disk freed"] += 1
        before = [len(writer.durable) for writer in self._writers]
        moved = lambda: all(  # noqa: E731
            len(writer.durable) > count or not writer.is_alive()
            for writer, count in zip(self._writers, before, strict=True)
        )  # fmt: skip
        if not _until(moved, _RECOVERY_S):
            stuck = [w.number for w, count in zip(self._writers, before, strict=True) if len(w.durable) <= count]
            stats = keep.stats()
            self._violate(
                f"writers {stuck} still wait {_RECOVERY_S:g} s after the disk was freed ({self._disk.free_bytes} bytes free; "
                f"fault: {stats.fault!r}): {self._service.log.read_text()[-600:]}"
            )

    def _delete(self, client: Any, keep: Any, count: int = 0) -> None:
        """Deletes the oldest episodes; on a full disk, too."""
        ids = sorted(record.episode_id for record in keep.episodes(limit=1000, closed_only=True))
        ids = ids[: count or min(len(ids) // 2, self._rng.randrange(1, 4))]
        if not ids:
            return
        try:
            if keep.delete_episodes(ids) != len(ids):
                self._violate("fewer episodes were deleted than were there")
            self._deleted |= set(ids)
            self._report.counts[f"deletions, disk {'full' if self._full else 'free'}"] += 1
        except ReplayError as error:
            self._violate(f"delete_episodes, disk {'full' if self._full else 'free'}: {error.name}: {error}")

    def _put_params(self, client: Any, keep: Any) -> None:
        version = 0 if self._params is None else self._params[0] + 1
        data = self._rng.randbytes(self._rng.choice((100, 100_000, MiB)))
        try:
            client.put_params("policy", data, version=version)
            self._params = version, data
            self._report.counts["params put"] += 1
        except CapacityError:
            self._report.counts["params refused"] += 1
            if not self._full:
                self._violate("put_params was refused on a disk with space")
        if self._params is not None and tuple(client.get_params("policy")) != self._params:
            self._violate("params: other ones than were put")

    def _snapshot(self, client: Any, keep: Any) -> None:
        folder = self._disk.path / "snapshots"
        try:
            client.snapshot("s")
            self._report.counts["snapshots made"] += 1
            shutil.rmtree(folder / "s")
        except CapacityError:
            self._report.counts["snapshots refused"] += 1
        except ReplayError as error:
            self._violate(f"snapshot: {error.name}: {error}")
        if left := [path.name for path in folder.iterdir()]:
            self._violate(f"a snapshot that was refused, or removed, left {left}")

    def _probe(self, client: Any, keep: Any) -> None:
        """Appends by hand, to see the status that clients hide."""
        raw = Raw(self._service.address)
        try:
            self._probe_number += 1
            values = np.concatenate([noise(99, 5 * self._probe_number + i) for i in range(5)])

            def write(writer: Any, length: int) -> None:
                writer.begin(0)
                for t in range(length):
                    writer.append(0, 0.0, 0, terminated=t == length - 1, extras={"noise": values[t]})

            chunks = chunks_of(len(values), signature=SIGNATURE, chunk_steps=8, write=write)
            raw.append(chunks, session=self._probe_number.to_bytes(16, "big"), table="probe")
            self._report.counts["probes stored"] += 1
        except CapacityError:
            self._report.counts["probes refused"] += 1
            if not self._full:
                self._violate("an append was refused on a disk with space")
        except UnavailableError:
            self._report.counts["probes: service busy"] += 1
        except ReplayError as error:
            self._violate(f"append, disk {'full' if self._full else 'free'}: {error.name}: {error}")
        finally:
            raw.close()

    def _restart(self, client: Any, keep: Any) -> None:
        """Ends the service and starts it again, whatever state the disk is in."""
        kill = self._rng.random() < 0.5
        if kill:
            self._service.kill()
        else:
            self._service.terminate()
        self._report.counts[f"restarts, disk {'full' if self._full else 'free'}"] += 1
        try:
            self._service.start()
        except AssertionError as error:
            self._violate(f"the service does not start on a {'full' if self._full else 'free'} disk: {str(error)[-500:]}")
            self._disk.empty()
            self._service.start()
        self._disk.attach(self._service.pid)
        self._sampler.forgive()

    # -- looks ----------------------------------------------------------------------------------------------------------

    def _inspect_embedded(self, sabotage: str) -> None:
        """Opens the store without a service: nothing may be damaged."""
        if sabotage == "lose":
            shutil.rmtree(max((self._disk.path / "store/tables/keep").glob("seg-*")))
        config = StoreConfig(recent_cache_bytes=MiB, faulted_cache_bytes=MiB, disk_reserve_bytes=0)
        with Replay(self._disk.path / "store", config) as replay:
            self._inspect("store", replay)
        if damaged := list((self._disk.path / "store/quarantine").iterdir()):
            self._violate(f"{damaged} was quarantined")

    def _inspect(self, door: str, replay: Any) -> None:
        """Compares what is stored with what was acknowledged."""
        for name in ("keep", "ring"):
            table = replay.table(name)
            records = table.episodes(limit=100_000, closed_only=True)
            found: dict[tuple[int, int], int] = {}
            for record in records:
                writer, number = record.metadata["w"], record.metadata["n"]
                if (writer, number) in found:
                    self._violate(f"{door}: episode {number} of writer {writer} is stored twice")
                found[writer, number] = record.episode_id
                if record.first_step == 0 and (wrong := problem(table.read_episode(record.episode_id), writer, number)):
                    self._violate(f"{door}: episode {number} of writer {writer}: {wrong}")
            if back := self._deleted & set(found.values()) if name == "keep" else set():
                self._violate(f"{door}: deleted episodes {sorted(back)} are there")
            missing = [
                (w.number, n) for w in self._writers if w.table == name for n in w.durable if (w.number, n) not in found
            ]  # fmt: skip
            if name == "keep":
                lost = len(missing) - len(self._deleted)
            else:  # capacity removes the oldest: what is missing of a writer comes before what is there of it
                first = {w: min((n for v, n in found if v == w), default=0) for w, _ in missing}
                lost = sum(n > first[w] for w, n in missing)
            if lost > 0:
                self._violate(f"{door}: {lost} acknowledged episodes of table {name} are gone")
            self._report.counts["episodes compared"] += len(found)


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def run(count: int, seed: int, *, kinds: tuple[str, ...] = tuple(DISKS), seconds: float = 8.0, sabotage: str = "") -> Report:
    """Plays `count` rounds of so many seconds, the kinds of disk in turn. The process needs a mount namespace of its own."""
    report = Report("full_disk", seed)
    with progress_bar(count, "full disk") as advance:
        for number in range(count):
            kind = kinds[number % len(kinds)]
            with tempfile.TemporaryDirectory(prefix="full-disk-", dir="/dev/shm") as root:
                Round(Path(root), kind, f"{seed}/{number}", report).run(seconds, sabotage)
            report.counts[f"rounds on {kind}"] += 1
            advance(1, f"{len(report.violations)} violations")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each round, with the look at its end not counted")
    parser.add_argument("--kinds", nargs="+", default=list(DISKS), choices=list(DISKS))
    parser.add_argument("--sabotage", choices=("kill", "lose"), default="", help="to see violations")
    parser.add_argument("--results", type=Path, help="file for the result, in place of the usual one")
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        words = ["unshare", "--mount", "--propagation", "private"]
        allowed = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
        if allowed.returncode:
            print(
                f"full_disk: expected to be allowed a mount namespace of its own, found: {allowed.stderr.strip()}",
                file=sys.stderr,
            )
            return 2
        os.execvp(words[0], [*words, sys.executable, "-m", "tests.torture.full_disk", *sys.argv[1:], _INSIDE])
    sys.argv.remove(_INSIDE)  # of the command that the report tells
    report = run(options.count, options.seed, kinds=tuple(options.kinds), seconds=options.seconds, sabotage=options.sabotage)
    return report.finish(options.results)


if __name__ == "__main__":
    sys.exit(main())
