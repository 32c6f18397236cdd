"""replaysvc beside other replay buffers: the same rollouts, one run, in turn, round after round.

    python tests/bench/versus.py [--rounds 5] [--seconds 2] [--only uniform insert] [--subjects service reverb]

Every subject is a process that lives as long as the run (peer.py says which there are). In each round each workload is asked
of each subject, one at a time, in an order that moves on by one; so what else the machine does meets all of them. Absolute
figures drift: what counts are the ratios of a round. Every number is appended to a file of JSON lines as it comes; report.py
makes the tables and the plots of it, at the end here, and again by hand.
"""

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress

from tests.bench import report, rollouts
from tests.bench.peer import SUBJECTS, Peer, python_of
from tests.bench.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "plots" / "versus.jsonl"


def start(names: list[str], data: Path, scratch: Path, running: contextlib.ExitStack, console: Console) -> list[Peer]:
    """Returns the subjects that run here. They start one after the other: some take both cores for it."""
    peers = []
    for name in names:
        python = python_of(SUBJECTS[name].environment)
        if python is None:
            continue
        peer = running.enter_context(Peer(SUBJECTS[name], python, data, scratch / name))
        try:
            peer.await_ready()
        except RuntimeError as error:
            console.print(f"{name} is left out: {error}", markup=False)
            continue
        peers.append(peer)
    return peers


def compare(peers: list[Peer], chosen: list[str], rounds: int, seconds: float, out: TextIO, console: Console) -> None:
    """Asks every workload of every subject, `rounds` times over; a subject's failed workload is not asked again."""
    failed: set[tuple[str, str]] = set()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=rounds * len(chosen))
        for number in range(rounds):
            for name in chosen:
                progress.update(bar, description=f"round {number + 1}: {name}", advance=1)
                if WORKLOADS[name].once and number:
                    continue
                for i in range(len(peers)):
                    peer = peers[(number + i) % len(peers)]
                    if name not in peer.workloads or (peer.subject.name, name) in failed:
                        continue
                    line: dict[str, Any] = {"round": number, "workload": name, "subject": peer.subject.name}
                    try:
                        line |= peer.ask(name, seconds)
                    except RuntimeError as error:
                        console.print(f"left out: {error}", markup=False)
                        failed.add((peer.subject.name, name))
                        continue
                    out.write(json.dumps(line | {"unit": WORKLOADS[name].unit}) + "\n")
                    out.flush()


def machine() -> dict[str, Any]:
    """Returns what the figures depend on."""
    names = ("numpy", "grpcio", "zstandard")
    versions = {"python": platform.python_version()} | {name: version(name) for name in names}
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "system": platform.machine(), **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="SUBJECT")
    parser.add_argument("--episodes", type=int, default=20, help="of HalfCheetah, 1,000 steps each")
    parser.add_argument("--frames", type=int, default=10_000, help="of MsPacman")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in WORKLOADS if name in options.only]
    with (
        tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as running, options.out.open("w") as out,
    ):  # fmt: skip
        about = machine() | {"rounds": options.rounds, "seconds": options.seconds}
        out.write(json.dumps(about | {"episodes": options.episodes, "frames": options.frames}) + "\n")
        if about["load"] > 0.5:
            console.print(f"something else runs here (load {about['load']}): mind the spread")
        with console.status("rollouts"):
            rollouts.make(Path(scratch) / "rollouts", options.episodes, options.frames)
        peers = start(options.subjects, Path(scratch) / "rollouts", Path(scratch), running, console)
        compare(peers, chosen, options.rounds, options.seconds, out, console)
    report.main(options.out)


if __name__ == "__main__":
    sys.exit(main())
