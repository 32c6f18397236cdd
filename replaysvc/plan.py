"""The command `plan`: what a training run will take, before it is begun. On the command line of `cli`."""

import json
import math
import tempfile
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

import replaysvc
from replaysvc.capacity import Needs, StepSize, Training, disk_bytes_of, needs_of
from replaysvc.chunk_steps import choose_chunk_steps
from replaysvc.cli import Json, failures, opened
from replaysvc.errors import InvalidRequestError
from replaysvc.interface import Table
from replaysvc.look import app

__all__ = ["app"]

_SAMPLE_CHUNKS = 20  # full ones, of random actions, that tell how well an environment's steps compress
_LEAST_SAMPLE_STEPS = 2000
_MILLION = 1_000_000


@app.command()
def plan(
    steps: Annotated[float, typer.Option("--steps", help="training steps in all, in millions")],
    environments: Annotated[int, typer.Option(help="environments that are stepped side by side")] = 1,
    rollout_steps: Annotated[int, typer.Option(help="steps that each makes between two updates of the policy")] = 1000,
    rollout_seconds: Annotated[float, typer.Option(help="seconds that this takes")] = 5.0,
    rate: Annotated[float | None, typer.Option(help="steps a second of all together, instead of these three")] = None,
    env: Annotated[str, typer.Option(help="Gymnasium environment to measure, under random actions")] = "",
    store: Annotated[str, typer.Option(help="service or store directory with a table to measure, HOST:PORT or DIR")] = "",
    table: Annotated[str, typer.Option(help="that table")] = "",
    capacity: Annotated[float | None, typer.Option(help="steps that the table keeps, in millions; all if left out")] = None,
    hit_rate: Annotated[float, typer.Option(help="share of uniform draws to be answered from memory, 0 to 1")] = 1.0,
    cores: Annotated[float | None, typer.Option(help="busy all the time; one an environment and 2 if left out")] = None,
    price: Annotated[float | None, typer.Option(help="of a core for an hour, in any money")] = None,
    as_json: Json = False,
) -> None:
    """Tell the time, disk, memory and cost of a training run."""
    with failures():
        training = Training(
            steps=_steps("steps", steps), environments=environments, rollout_steps=rollout_steps, rollout_s=rollout_seconds,
            steps_per_s=rate,
        )  # fmt: skip
        size = _size(env, store, table)
        kept = None if capacity is None else _steps("capacity", capacity)
        needs = needs_of(training, size, capacity_steps=kept, hit_rate=hit_rate, cores=cores, core_hour_price=price)
        if as_json:
            print(json.dumps(asdict(needs) | {"step": None if size is None else asdict(size)}))
        else:
            _print(needs, size)


def _steps(name: str, millions: float) -> int:
    if not math.isfinite(millions):
        raise InvalidRequestError(f"{name}: expected a number of millions, found {millions}")
    return round(millions * _MILLION)


def _size(env: str, store: str, table: str) -> StepSize | None:
    """Returns what a step takes, measured of an environment or of a stored table; None if neither is named."""
    if env and (store or table):
        raise InvalidRequestError("env: expected either an environment or a stored table to measure, found both")
    if bool(store) != bool(table):
        raise InvalidRequestError("store, table: expected both to name a stored table, found one")
    if env:
        return _of_environment(env)
    if not store:
        return None
    with opened(store) as replay:
        return _of_table(replay.table(table))


def _of_environment(env_id: str) -> StepSize:
    from replay_client.gym.sampled import record_random_steps, signature_of  # needs the gym extra

    try:
        signature = signature_of(env_id)
        steps = max(_LEAST_SAMPLE_STEPS, _SAMPLE_CHUNKS * choose_chunk_steps(signature, replaysvc.TableConfig()))
        with tempfile.TemporaryDirectory() as folder, replaysvc.open(f"{folder}/store") as replay:
            return _of_table(record_random_steps(env_id, replay, "sample", steps))
    except ModuleNotFoundError as error:
        raise InvalidRequestError(f"env: {error.name} is missing; it needs: pip install 'replaysvc[gym]'") from error


def _of_table(table: Table) -> StepSize:
    stats, signature = table.stats(), table.signature
    if not stats.steps:
        raise InvalidRequestError(f"table {stats.name}: expected steps to measure, found none")
    cached = sum(spec.stored_dtype.itemsize * math.prod(spec.shape) for spec in signature.columns)
    chunk_steps = stats.steps / stats.chunks
    return StepSize(
        raw_bytes=signature.raw_step_bytes, disk_bytes=disk_bytes_of(stats.stored_bytes / stats.chunks) / chunk_steps,
        cached_bytes=cached * (1 + 1 / chunk_steps), chunk_steps=chunk_steps,
    )  # fmt: skip


def _print(needs: Needs, size: StepSize | None) -> None:
    rows: list[tuple[str, Any]] = [
        ("steps", f"{needs.steps:,}"),
        ("throughput", f"{needs.steps_per_s:,.0f} steps/s"),
        ("wall time", _duration(needs.wall_s)),
    ]
    if size is not None and needs.disk_bytes is not None and needs.memory_bytes is not None:
        ratio = size.raw_bytes / size.disk_bytes
        rows += [
            ("a step", f"{size.disk_bytes:,.1f} bytes on disk, {size.raw_bytes:,.0f} raw ({ratio:.1f}x)"),
            ("on disk", f"{_bytes(needs.disk_bytes)} for {needs.kept_steps:,} steps"),
            ("written", f"{_bytes(needs.disk_bytes_per_s or 0)}/s"),
            ("memory", f"{_bytes(needs.memory_bytes)}, with {needs.hit_rate:.0%} of uniform draws answered from it"),
        ]
    if needs.cost is not None:
        rows.append(("cost", f"{needs.cost:,.2f}"))
    grid = RichTable(show_header=False)
    for row in rows:
        grid.add_row(*row)
    Console().print(grid)


def _duration(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds:,.0f} s ({seconds / 60:.1f} minutes)"
    hours = seconds / 3600
    return f"{hours:,.2f} hours" + (f" ({hours / 24:,.1f} days)" if hours >= 48 else "")


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
