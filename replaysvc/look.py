"""The commands `episodes` and `show`: what is stored, for people. On the command line of `cli`."""

import json
import time
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from replaysvc.cli import Json, Shown, Target, TlsCa, TlsCertificate, TlsKey, TokenFile, failures, opened
from replaysvc.errors import NotFoundError
from replaysvc.interface import Table
from replaysvc.operate import app
from replaysvc.ragged import RaggedArray
from replaysvc.requests import EPISODE_ENDS, EpisodeFilter
from replaysvc.types import EpisodeRecord

__all__ = ["app"]

_SHOWN_STEPS = 20  # unless a range is asked for
_SHOWN_VALUES = 6  # of a field, in a table

Name = Annotated[str, typer.Argument(help="the table")]


@app.command()
def episodes(
    target: Target,
    table: Name,
    actor: Annotated[str | None, typer.Option(help="only of this actor")] = None,
    limit: Annotated[int, typer.Option(help="how many, the newest first")] = 20,
    closed_only: Annotated[bool, typer.Option("--closed-only", help="only those that have ended")] = False,
    end: Annotated[str | None, typer.Option(help=f"only those with this end: {', '.join(EPISODE_ENDS)}")] = None,
    min_return: Annotated[float | None, typer.Option(help="smallest sum of rewards")] = None,
    max_return: Annotated[float | None, typer.Option(help="largest")] = None,
    min_length: Annotated[int | None, typer.Option(help="fewest steps")] = None,
    max_length: Annotated[int | None, typer.Option(help="most")] = None,
    min_policy_version: Annotated[int | None, typer.Option(help="oldest policy, by its version")] = None,
    max_policy_version: Annotated[int | None, typer.Option(help="newest")] = None,
    as_json: Json = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """List stored episodes, the newest first."""
    with failures(), opened(target, Shown(token_file, tls_ca, tls_certificate, tls_key)) as replay:
        where = EpisodeFilter(
            end=end, min_return=min_return, max_return=max_return, min_length=min_length, max_length=max_length,
            min_policy_version=min_policy_version, max_policy_version=max_policy_version,
        )  # fmt: skip
        records = replay.table(table).episodes(limit=limit, actor=actor, closed_only=closed_only, where=where)
        if as_json:
            print(json.dumps([asdict(record) for record in records]))
            return
        if not records:
            print("no episodes")
            return
        grid = RichTable("episode", "actor", "steps", "return", "end", "policy", "started")
        for record in records:
            grid.add_row(*_row(record))
        Console().print(grid)


def _row(record: EpisodeRecord) -> tuple[str, ...]:
    steps = f"{record.length:,}" + (f" (from {record.first_step:,})" if record.first_step else "")
    policy = "" if record.policy_version < 0 else str(record.policy_version)
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started_at_s))
    return str(record.episode_id), escape(record.actor), steps, f"{record.return_:,.6g}", record.end, policy, started


@app.command()
def show(
    target: Target,
    table: Name,
    episode: Annotated[int, typer.Argument(help="its number, as `episodes` lists it")],
    start: Annotated[int | None, typer.Option(help="first step [default: the first that is stored]")] = None,
    stop: Annotated[int | None, typer.Option(help="step before which to end [default: 20 steps on]")] = None,
    as_json: Json = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Print steps of an episode."""
    with failures(), opened(target, Shown(token_file, tls_ca, tls_certificate, tls_key)) as replay:
        stored = replay.table(table)
        record = _record(stored, episode)
        first = record.first_step if start is None else start
        last = min(record.length, first + _SHOWN_STEPS) if stop is None else stop
        columns = dict(_flat(stored.read_episode(episode, first, last)))
        if as_json:
            values = {name: _plain(column) for name, column in columns.items()}
            print(json.dumps({"episode": asdict(record), "start": first, "stop": last, "columns": values}))
            return
        console = Console()
        names = ("episode", "actor", "steps", "return", "end", "policy", "started")
        console.print(", ".join(f"{name} {value}" for name, value in zip(names, _row(record), strict=True) if value))
        grid = RichTable("step", *(escape(name) for name in columns))
        for t in range(last - first):
            grid.add_row(str(first + t), *(escape(_short(column[t])) for column in columns.values()))
        console.print(grid)
        if last < record.length:
            console.print(f"{record.length - last:,} more steps: --start {last}")


def _record(table: Table, episode: int) -> EpisodeRecord:
    for record in table.episodes(limit=1, before_id=episode + 1):
        if record.episode_id == episode:
            return record
    raise NotFoundError(f"table {table.name}: no episode {episode}")


def _flat(columns: Any, path: str = "") -> list[tuple[str, Any]]:
    """Returns the columns by their paths, however deep they are nested."""
    if not isinstance(columns, dict | tuple):
        return [(path, columns)]
    parts = columns if isinstance(columns, dict) else dict(enumerate(columns))
    return [pair for name, part in parts.items() for pair in _flat(part, f"{path}/{name}" if path else str(name))]


def _plain(column: Any) -> Any:
    """Returns what JSON can hold; numbers that are no numbers there are strings."""
    if isinstance(column, RaggedArray):
        return [_plain(column[i]) for i in range(len(column))]
    if column.dtype.kind in "fc" and not np.isfinite(column).all():
        return np.where(np.isfinite(column), column.astype(object), column.astype(str).astype(object)).tolist()
    return column.astype(str).tolist() if column.dtype.kind == "c" else column.tolist()


def _short(value: Any) -> str:
    """Returns a value as a cell: all of a few numbers, else its shape and range."""
    array = np.asarray(value)
    if array.size <= _SHOWN_VALUES:
        return " ".join(f"{each:.4g}" if array.dtype.kind == "f" else str(each) for each in array.ravel())
    shape = "x".join(map(str, array.shape))
    return f"{array.dtype} {shape}, {array.min():.4g} to {array.max():.4g}"
