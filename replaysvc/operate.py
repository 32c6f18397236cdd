"""The commands of whoever looks after a store: fsck, snapshot, restore, compact. On the command line of `cli`.

Exit statuses of `fsck`: 0 clean; 1 all damage was repaired; 2 damage is left; 3 it cannot be checked. All else as in `cli`.
Progress goes to stderr, if that is a terminal; the report to stdout.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from replaysvc.cli import Json, Shown, Target, TlsCa, TlsCertificate, TlsKey, TokenFile, app, failures, opened
from replaysvc.maintenance.fsck import Report, Severity, check
from replaysvc.maintenance.restore import restore as restore_snapshot

__all__ = ["app"]

_SHOWN = 20  # findings of one place; all of them are in the JSON
_MIB = 1 << 20


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Gives what is told of progress: (bytes done, bytes in all, what is done now)."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(True),
        TimeRemainingColumn(),
        TextColumn("{task.fields[at]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None, at="")
        yield lambda done, whole, at: bar.update(task, completed=done, total=max(whole, 1), at=at)


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        yield


@app.command()
def fsck(
    directory: Annotated[Path, typer.Argument(help="a store that no service has open, or a snapshot")],
    repair: Annotated[bool, typer.Option("--repair", help="move what is damaged to quarantine, keep what is whole")] = False,
    as_json: Json = False,
) -> None:
    """Check every byte of a store; change nothing without --repair. Exits with 0 clean, 1 repaired, 2 damage left, 3 cannot."""
    with _progress("checking") as tell:
        report = check(directory, repair=repair, progress=tell)
    if as_json:
        print(json.dumps(asdict(report) | {"path": str(report.path), "status": report.status}))
    else:
        _print_report(report)
    if report.cannot and not as_json:
        print(f"replaysvc: cannot check: {report.cannot}", file=sys.stderr)
    raise typer.Exit(report.status)


def _print_report(report: Report) -> None:
    by_place: dict[str, int] = {}
    told: set[tuple[str, str]] = set()
    for finding in report.findings:
        by_place[finding.place] = by_place.get(finding.place, 0) + 1
        if by_place[finding.place] <= _SHOWN:
            print(f"{finding.severity}: {finding.place}: {finding.sentence}")
            if finding.repaired and (finding.place, finding.repaired) not in told:
                told.add((finding.place, finding.repaired))
                print(f"  repaired: {finding.repaired}")
        elif by_place[finding.place] == _SHOWN + 1:
            print(f"{finding.severity}: {finding.place}: and more; --json tells all")
    if report.cannot:
        return
    damage = [finding for finding in report.findings if finding.severity is Severity.DAMAGE]
    left = sum(not finding.repaired for finding in damage)
    end = (
        "clean"
        if not damage
        else f"{len(damage)} findings of damage, all repaired"
        if not left
        else f"{left} findings of damage left; of damaged segments {report.kept:,} chunks can be kept, {report.lost:,} are lost"
    )
    print(
        f"{report.path}: {end}; {report.tables} tables, {report.segments} segments, {report.chunks:,} chunks,"
        f" {report.chunk_bytes / _MIB:,.1f} MiB of chunks, {report.seconds:.1f} s"
    )


@app.command()
def snapshot(
    target: Target,
    name: Annotated[
        str, typer.Argument(help="of a service: a name for its --snapshot-dir; of a store directory: a new directory")
    ],
    as_json: Json = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Make a complete copy of a store, mostly of hard links, while it is in use."""
    started = time.monotonic()
    with failures(), opened(target, Shown(token_file, tls_ca, tls_certificate, tls_key)) as replay:
        with _waiting("making the snapshot"):
            replay.snapshot(name)
        seconds = time.monotonic() - started
        if as_json:
            print(json.dumps({"snapshot": name, "seconds": seconds}))
        else:
            print(f"snapshot {name}: complete, {seconds:.1f} s")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="directory of a snapshot")],
    directory: Annotated[Path, typer.Argument(help="of the new store: absent or empty")],
    verify: Annotated[bool, typer.Option("--verify", help="check every checksum of the copy, too")] = False,
    as_json: Json = False,
) -> None:
    """Make a store of a snapshot, that shares nothing with it."""
    started = time.monotonic()
    with failures():
        with _progress("restoring") as tell:
            done = restore_snapshot(source, directory, verify=verify, progress=tell)
        seconds = time.monotonic() - started
        if as_json:
            print(json.dumps(asdict(done) | {"path": os.fspath(done.path), "seconds": seconds}))
            return
        made_at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(done.made_at_s))
        checked = "every checksum holds" if verify else "as its manifest says; --verify checks every checksum"
        print(
            f"store {done.path}: {done.files} files, {done.size / _MIB:,.1f} MiB, as of {made_at}; {checked}; {seconds:.1f} s"
        )


@app.command()
def compact(
    target: Target,
    table: Annotated[str | None, typer.Argument(help="one table; all if left out")] = None,
    as_json: Json = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Give the disk space of removed and deleted steps back, as far as that can be."""
    with failures(), opened(target, Shown(token_file, tls_ca, tls_certificate, tls_key)) as replay:
        freed = {}
        for name in [table] if table else replay.tables():
            with _waiting(f"compacting {name}"):
                freed[name] = replay.table(name).compact()
            if not as_json:
                left = replay.table(name).stats().disk_bytes
                print(f"table {name}: {freed[name] / _MIB:,.1f} MiB freed, {left / _MIB:,.1f} MiB left")
        if as_json:
            print(json.dumps({"freed_bytes": freed}))
        elif not freed:
            print("no tables")
