"""What is told of episodes: a list with filters, points for a plot, and of one episode its columns and pages of its steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replaysvc.admin.context import Admin
from replaysvc.admin.images import layout_of
from replaysvc.admin.numbers import first_values
from replaysvc.embedded_table import EmbeddedTable
from replaysvc.errors import InvalidRequestError, NotFoundError
from replaysvc.options import Prioritized
from replaysvc.requests import EpisodeFilter
from replaysvc.spec import FieldSpec, Signature, leaves
from replaysvc.types import EpisodeRecord

MOST_EPISODES = 200  # on a page
MOST_STEPS = 1000
_PAGE_BYTES = 8 << 20  # of steps, as they are read and decoded
_PAGE_VALUES = 200_000  # that are told at once
_PAGE_PRIORITIES = 10_000
SHOWN_VALUES = 64  # of a step, in one column
_GOALS = ("desired_goal", "achieved_goal")


def end_of(record: EpisodeRecord) -> str:
    """Returns how an episode ended, or that it did not."""
    if record.end_reason:
        return record.end_reason
    return "terminated" if record.terminated else "truncated" if record.truncated else "open"


def told_episode(record: EpisodeRecord) -> dict[str, Any]:
    """Returns what is told of an episode."""
    return {
        "episode_id": record.episode_id, "actor": record.actor, "length": record.length, "first_step": record.first_step,
        "return": record.return_, "terminated": record.terminated, "truncated": record.truncated, "closed": record.closed,
        "end": end_of(record), "policy_version": record.policy_version, "started_at_s": record.started_at_s,
        "metadata": record.metadata,
    }  # fmt: skip


def episodes_of(
    admin: Admin, name: str, limit: int, before_id: int | None, actor: str | None, where: EpisodeFilter
) -> dict[str, Any]:
    """Returns a page of episodes, the newest first. Raises NotFoundError."""
    records = admin.replay.table(name).episodes(limit=limit, before_id=before_id, actor=actor, where=where)
    more = records[-1].episode_id if len(records) == limit else None
    return {"episodes": [told_episode(record) for record in records], "next_before_id": more}


def points_of(admin: Admin, name: str, limit: int) -> dict[str, Any]:
    """Returns columns of the newest episodes, oldest first. Raises NotFoundError."""
    found = admin.replay.engine(name).looking.episode_columns(limit)
    ends = np.where(found.terminated, "terminated", np.where(found.truncated, "truncated", "open"))
    return {
        "episode_id": found.episode_id, "length": found.length, "return": found.return_, "end": ends.tolist(),
        "policy_version": found.policy_version, "started_at_s": found.started_at_s,
    }  # fmt: skip


def record_of(table: EmbeddedTable, episode_id: int) -> EpisodeRecord:
    """Returns the record of one episode. Raises NotFoundError."""
    for record in table.episodes(limit=1, before_id=min(episode_id + 1, (1 << 63) - 1)):
        if record.episode_id == episode_id:
            return record
    raise NotFoundError(f"table {table.name}: no episode {episode_id}")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of episodes, as the user sees them: a leaf of the signature. offset: 1 of an observation, which has one more."""

    spec: FieldSpec
    offset: int

    @property
    def kind(self) -> str:
        """Returns how it is best shown."""
        if self.spec.ragged:
            return "ragged"
        if layout_of(self.spec) is not None:
            return "image"
        return {0: "scalar", 1: "vector"}.get(len(self.spec.shape), "array")

    def told(self) -> dict[str, Any]:
        """Returns what is told of it."""
        spec = self.spec
        return {
            "name": spec.name, "dtype": spec.dtype.name, "shape": spec.shape, "kind": self.kind, "length_offset": self.offset,
        }


def columns_of(signature: Signature) -> dict[str, Column]:
    """Returns the columns of a table's episodes by name."""
    trees = [(signature.observation, 1), *((tree, 0) for tree in (signature.action, signature.reward))]
    trees += [(tree, 0) for tree in signature.extras.values()]
    return {leaf.name: Column(leaf, offset) for tree, offset in trees for leaf in leaves(tree)}


def column_of(signature: Signature, name: str) -> Column:
    """Returns the column `name`. Raises NotFoundError."""
    columns = columns_of(signature)
    if name not in columns:
        raise NotFoundError(f"column {name[:100]!r} does not exist; there are {', '.join(list(columns)[:20])}")
    return columns[name]


def page_steps(signature: Signature) -> int:
    """Returns how many steps are told at once at most, whatever columns are asked for."""
    values = sum(
        min(math.prod(column.spec.shape), SHOWN_VALUES)
        for column in columns_of(signature).values()
        if column.kind != "image"
    )  # fmt: skip
    return max(1, min(MOST_STEPS, _PAGE_BYTES // max(1, signature.raw_step_bytes), _PAGE_VALUES // max(1, values)))


def episode_of(admin: Admin, name: str, episode_id: int) -> dict[str, Any]:
    """Returns an episode and what columns it has. Raises NotFoundError."""
    table = admin.replay.table(name)
    columns = columns_of(table.signature)
    goals = {end: [column for column in columns if column.split("/")[-1] == end] for end in _GOALS}
    desired, achieved = (found[0] if len(found) == 1 else None for found in goals.values())
    samplers = [key for key, sampler in table.config.samplers.items() if isinstance(sampler, Prioritized)]
    return told_episode(record_of(table, episode_id)) | {
        "columns": [column.told() for column in columns.values()], "samplers": sorted(samplers),
        "page_steps": page_steps(table.signature), "goals": {"desired": desired, "achieved": achieved},
    }  # fmt: skip


def page_of(
    table: EmbeddedTable, record: EpisodeRecord, start: int | None, stop: int | None, most: int
) -> tuple[int, int, str]:
    """Returns which steps to tell of those asked for, and what is to be said of it. Raises InvalidRequestError."""
    start = record.first_step if start is None else start
    stop = min(record.length, start + most) if stop is None else stop
    if not record.first_step <= start < stop:
        raise InvalidRequestError(
            f"start, stop: expected a range within the stored steps [{record.first_step}, {record.length}), found "
            f"[{start}, {stop})"
        )
    shown = min(stop, record.length, start + most)
    if shown <= start:
        raise InvalidRequestError(f"start: expected a step before {record.length}, found {start}")
    note = f"{most:,} steps at most are told at once" if shown < min(stop, record.length) else ""
    return start, shown, note


def steps_of(
    admin: Admin, name: str, episode_id: int, wanted: Sequence[str], start: int | None, stop: int | None
) -> dict[str, Any]:
    """Returns values of steps [start, stop) by column. Raises NotFoundError, InvalidRequestError, ChunkCorruptError."""
    table = admin.replay.table(name)
    columns = {column: column_of(table.signature, column) for column in dict.fromkeys(wanted)}
    if not columns:
        raise InvalidRequestError("column: expected at least one, found none")
    for column in columns.values():
        if column.kind == "image":
            raise InvalidRequestError(f"column {column.spec.name}: it holds images, which come by image and strip")
    start, stop, note = page_of(table, record_of(table, episode_id), start, stop, page_steps(table.signature))
    found = dict(_flat(table.read_episode(episode_id, start, stop)))
    told = {}
    for key, column in columns.items():
        values, cut = first_values(found[key], SHOWN_VALUES)
        told[key] = {"dtype": column.spec.dtype.name, "shape": column.spec.shape, "values": values}
        if cut:
            told[key]["cut"] = True
    return {"start": start, "stop": stop, "columns": told, "note": note}


def _flat(values: Any, path: str = "") -> list[tuple[str, Any]]:
    """Returns the columns of an episode by their paths, however deep they are nested."""
    if not isinstance(values, dict | tuple):
        return [(path, values)]
    parts = values if isinstance(values, dict) else dict(enumerate(values))
    return [pair for name, part in parts.items() for pair in _flat(part, f"{path}/{name}" if path else str(name))]


def priorities_of(admin: Admin, name: str, episode_id: int, start: int | None, stop: int | None) -> dict[str, Any]:
    """Returns the priorities of steps [start, stop) by sampler. Raises NotFoundError, InvalidRequestError."""
    table = admin.replay.table(name)
    start, stop, _ = page_of(table, record_of(table, episode_id), start, stop, _PAGE_PRIORITIES)
    return {
        "start": start, "stop": stop,
        "samplers": admin.replay.engine(name).looking.episode_priorities(episode_id, start, stop),
    }  # fmt: skip
