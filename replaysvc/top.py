"""The command `top`: what goes on in a store, again and again. On the command line of `cli`.

Nothing that a store or service says is trusted to be fit for a terminal: names and sentences are shown as plain text.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from replaysvc.checks import check_number
from replaysvc.cli import Json, Shown, Target, TlsCa, TlsCertificate, TlsKey, TokenFile, failures, opened
from replaysvc.errors import UnavailableError, WaitTimeoutError
from replaysvc.health.participants import STALE_RULE
from replaysvc.interface import Replay
from replaysvc.plan import app
from replaysvc.views import DiskOutlook, LearnerView, Reason, Verdict
from replaysvc.watch import Actor, Frame, Row, asked_of, framed, look

__all__ = ["app"]

_SHOWN = 20  # actors, and learners; all of them are in the JSON
_NAME_CELLS = 32  # of a terminal, which a name may take
_LEAST_CELLS = 8  # of it, however narrow the terminal
_SENTENCE_CELLS = 400
_FILE_CELLS = 120  # of a line that goes to a file
_STYLES = {
    "ok": "bold green", "warning": "bold yellow", "failing": "bold red", "draining": "bold yellow", "unknown": "bold",
}  # fmt: skip
_TROUBLE = {"lost": "yellow", "stale": "yellow", "waiting": "yellow"}  # states that stand out

Cells = tuple[str | Text, ...]


@app.command(epilog=STALE_RULE)
def top(
    target: Target,
    table: Annotated[str | None, typer.Option("--table", help="only this one")] = None,
    once: Annotated[bool, typer.Option("--once", help="print one frame, made of two looks, and end")] = False,
    interval: Annotated[float, typer.Option(help="seconds from one look to the next")] = 2.0,
    as_json: Json = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Show what goes on in a service or store, until Ctrl-C; where there is no terminal, once."""
    with contextlib.suppress(KeyboardInterrupt), failures():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal gets its cursor back
        check_number("interval", interval, 0.1, 3600, whole=False)
        with opened(target, Shown(token_file, tls_ca, tls_certificate, tls_key)) as replay:
            _show(_frames(replay, target, table, interval), once=once, as_json=as_json)


def _show(frames: Iterator[Frame], *, once: bool, as_json: bool) -> None:
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal or "COLUMNS" in os.environ else _FILE_CELLS)
    if once or not terminal or (console.is_dumb_terminal and not as_json):
        next(frames)  # which has no rates yet
        frame = next(frames)
        if as_json:
            print(json.dumps(frame.asdict()))
        else:
            console.print(drawn(frame))
    elif as_json:
        for frame in frames:
            print(json.dumps(frame.asdict()), flush=True)
    else:
        with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            for frame in frames:
                live.update(drawn(frame), refresh=True)


def _frames(replay: Replay, target: str, table: str | None, interval_s: float) -> Iterator[Frame]:
    """Yields a frame each interval, without end; where the service is gone, the last one again, which then says so."""
    before, frame, ask = None, None, asked_of(replay)
    while True:
        try:
            now = look(replay, ask, table)
        except (UnavailableError, WaitTimeoutError) as error:
            if frame is None:
                raise
            gone = Reason(level="failing", table=None, sentence=f"{error}; trying again")
            frame = replace(frame, verdict=Verdict(status="failing", reasons=(gone,)))
        else:
            frame, before = framed(target, before, now), now
        yield frame
        time.sleep(interval_s)


def drawn(frame: Frame) -> Group:
    """Returns a frame as a terminal has it."""
    steps, many = sum(row.steps for row in frame.tables), "" if len(frame.tables) == 1 else "s"
    status = "unknown" if frame.verdict is None else frame.verdict.status
    parts: list[Text | RichTable] = [
        Text.assemble(
            _plain(frame.target, 2 * _NAME_CELLS), time.strftime("  %H:%M:%S  ", time.localtime(frame.at_s)),
            _plain(status, _NAME_CELLS, _STYLES.get(status, "")),
            f"  {len(frame.tables):,} table{many}, {steps:,} steps, {_on_disk(frame)}",
        )
    ]  # fmt: skip
    if frame.verdict is None:
        parts.append(Text("this service is older, and does not say whether all is well"))
    for reason in frame.verdict.reasons if frame.verdict is not None else ():
        parts.append(_plain(f"{reason.level}: {reason.sentence}", _SENTENCE_CELLS, _STYLES.get(reason.level, "")))
    words = ["table"], ["steps", "steps/s", "items/s", "per insert", "cache", "on disk", "open", "state"]
    parts += _grid(words, [_table_cells(row) for row in frame.tables])
    for row in frame.tables:
        for side, sentence in (("sampling", row.sampling_waits_for), ("inserting", row.inserting_waits_for)):
            if sentence:
                parts.append(_plain(f"{row.name}: {side} waits: {sentence}", _SENTENCE_CELLS))
    words = ["actor", "table"], ["steps", "steps/s", "episodes", "open", "policy", "behind", "seen", "state"]
    parts += _grid(words, [_actor_cells(each) for each in frame.actors or ()], _SHOWN)
    words = ["learner", "table", "sampler"], ["items", "items/s", "batches/s", "mean ms", "waits", "seen", "state"]
    busiest = sorted(frame.learners or (), key=lambda each: (-each.items_per_s, each.last_seen_s))
    parts += _grid(words, [_learner_cells(each) for each in busiest], _SHOWN)
    return Group(*parts)


def _grid(names: tuple[list[str], list[str]], rows: list[Cells], most: int | None = None) -> list[Text | RichTable]:
    """Returns a table of rows, of `most` at most; columns of words come first, and fold before one of numbers is cut."""
    if not rows:
        return []
    words, numbers = names
    columns = [Column(name, overflow="fold", min_width=_LEAST_CELLS) for name in words]
    columns += [Column(name, no_wrap=True, justify="right") for name in numbers]
    grid = RichTable(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows[:most]:
        grid.add_row(*row)
    more = len(rows) - grid.row_count
    return [grid, Text(f"and {more:,} more; --json tells all")] if more else [grid]


def _table_cells(row: Row) -> Cells:
    if row.fault:
        state = Text("fault", "red")
    elif row.sampling_waits_for or row.inserting_waits_for:
        state = Text("waits", "yellow")
    else:
        state = Text("ready", "green")
    per_insert = "-" if row.samples_per_insert is None else f"{row.samples_per_insert:.3g}"
    if row.samples_per_insert_target is not None:
        per_insert += f" of {row.samples_per_insert_target:.3g}"
    return (
        _plain(row.name), f"{row.steps:,}", _rate(row.steps_in_per_s), _rate(row.items_out_per_s), per_insert,
        _share(row.cache_hit_share), _size(row.disk_bytes), f"{row.open_episodes:,}", state,
    )  # fmt: skip


def _actor_cells(actor: Actor) -> Cells:
    seen = actor.seen
    policy = "-" if seen.policy_version < 0 else f"{seen.policy_version:,}"
    behind = "-" if actor.staleness is None else f"{actor.staleness:,}"
    return (
        _plain(seen.name), _plain(actor.table), f"{seen.steps:,}", _rate(actor.steps_per_s), f"{seen.episodes:,}",
        f"{seen.open_episodes:,}", policy, behind, _ago(seen.last_seen_s), _state(seen.state),
    )  # fmt: skip


def _learner_cells(seen: LearnerView) -> Cells:
    return (
        _plain(seen.name), _plain(seen.table), _plain(seen.sampler), f"{seen.items:,}", _rate(seen.items_per_s),
        _rate(seen.batches_per_s), f"{1000 * seen.mean_s:,.2f}", _share(seen.waited_share), _ago(seen.last_seen_s),
        _state(seen.state),
    )  # fmt: skip


def _state(state: str) -> Text:
    return _plain(state or "-", _NAME_CELLS, _TROUBLE.get(state, ""))


def _on_disk(frame: Frame) -> str:
    """Returns what the tables take; and of their disk, how much is used and free, and until when that lasts."""
    tables = f"{_size(sum(row.disk_bytes for row in frame.tables))} on disk"
    return tables if frame.disk is None else f"{tables}, {_room(frame.disk)}"


def _room(disk: DiskOutlook) -> str:
    left = "" if disk.days_left is None else f", full in about {disk.days_left:.2g} days"
    return f"disk {disk.view.full_share:.0%} full, {_size(disk.view.free_bytes)} free{left}"


def _plain(text: str, most_cells: int = _NAME_CELLS, style: str = "") -> Text:
    """Returns text as it may stand in a terminal: no control characters, no markup, no more than so many cells of it."""
    plain = Text("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text), style)
    plain.truncate(most_cells, overflow="ellipsis")
    return plain


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.0f}" if per_s >= 10 or not per_s else f"{per_s:.2g}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:,.1f} MiB"


def _ago(seconds: float) -> str:
    return f"{seconds:,.0f} s ago" if seconds < 600 else f"{seconds / 60:,.0f} min ago"
