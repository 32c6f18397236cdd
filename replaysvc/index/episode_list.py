"""What a table's index tells of many episodes: records, the newest first, and columns over them.

Not thread-safe: the table's lock is held around every call, and none takes long, however many episodes there are.
"""

import numpy as np

from replaysvc.index.chunk_links import NONE
from replaysvc.index.fields import EPISODE_FIELDS
from replaysvc.index.table_index import LOST, TERMINATED, TRUNCATED, TableIndex
from replaysvc.requests import EpisodeFilter
from replaysvc.types import Array, EpisodeRecord
from replaysvc.views import EpisodeColumns

_LOOKED_AT = 1 << 16  # episodes that a call looks through
_TOLD = 256  # and records that it returns


def list_episodes(
    index: TableIndex, limit: int, before_id: int, actor: str | None, closed_only: bool, where: EpisodeFilter | None
) -> tuple[list[EpisodeRecord], int | None]:
    """Returns records without metadata, the newest episode first, of ids below `before_id`: `limit` at most, and not always all
    that there are; and the id below which to look for more, None if there are none.
    """
    columns, base = index.episodes, index.episodes.base
    stop = max(0, min(before_id - base, len(columns)))
    start = max(0, stop - _LOOKED_AT)
    part = {name: columns[name][start:stop] for name in EPISODE_FIELDS}
    wanted = part["first_row"] != NONE
    if actor is not None:
        wanted &= part["actor"] == index.actor_number(actor)
    if closed_only:
        wanted &= (part["flags"] & (TERMINATED | TRUNCATED)) != 0
    if where is not None:
        wanted &= _meets(part, where)
    most = min(limit, _TOLD)
    found = np.flatnonzero(wanted)[::-1][:most]
    part = {name: values[found] for name, values in part.items()}
    records = _records(index, base + start + found, part)
    if len(found) == most:
        return records, records[-1].episode_id
    return records, base + start if start else None


def _meets(part: dict[str, Array], where: EpisodeFilter) -> Array:
    """Returns bool [n]: which episodes, of which `part` has the fields, meet a filter."""
    flags = part["flags"]
    meets = np.ones(len(flags), np.bool_)
    ends = {
        "terminated": (TERMINATED, TERMINATED), "truncated": (TERMINATED | TRUNCATED | LOST, TRUNCATED),
        "lost_actor": (TERMINATED | LOST, LOST), "open": (TERMINATED | TRUNCATED, 0),
    }  # fmt: skip
    if where.end is not None:
        mask, expected = ends[where.end]
        meets &= (flags & mask) == expected
    for name, low, high in (
        ("length", where.min_length, where.max_length), ("return_", where.min_return, where.max_return),
        ("policy_version", where.min_policy_version, where.max_policy_version),
    ):  # fmt: skip
        if low is not None:
            meets &= part[name] >= low
        if high is not None:
            meets &= part[name] <= high
    return meets


def _records(index: TableIndex, ids: Array, part: dict[str, Array]) -> list[EpisodeRecord]:
    flags = part["flags"].tolist()
    fields = (
        ids, part["actor"], part["length"], index.first_live_step(part["first_row"]), part["return_"], part["policy_version"],
        part["started_at_s"],
    )  # fmt: skip
    return [
        EpisodeRecord(
            episode_id=number, actor=index.actor(actor), length=length, first_step=first, return_=total,
            terminated=bool(flag & TERMINATED), truncated=bool(flag & TRUNCATED), closed=bool(flag & (TERMINATED | TRUNCATED)),
            policy_version=version, started_at_s=started, metadata={}, end_reason="lost_actor" if flag & LOST else "",
        )
        for flag, number, actor, length, first, total, version, started in zip(
            flags, *(values.tolist() for values in fields), strict=True
        )
    ]  # fmt: skip


def newest_columns(index: TableIndex, limit: int) -> EpisodeColumns:
    """Returns the columns of the `limit` newest episodes of which steps are stored."""
    columns = index.episodes
    first_row, count = columns["first_row"], limit
    while True:  # episodes that were removed stand between the others
        at = np.flatnonzero(first_row[-count:] != NONE)[-limit:] + max(0, len(first_row) - count)
        if len(at) == limit or count >= len(first_row):
            break
        count *= 4
    flags = columns["flags"][at]
    return EpisodeColumns(
        episode_id=at + columns.base, length=columns["length"][at], return_=columns["return_"][at],
        terminated=(flags & TERMINATED) != 0, truncated=(flags & TRUNCATED) != 0,
        closed=(flags & (TERMINATED | TRUNCATED)) != 0, lost_actor=(flags & LOST) != 0,
        policy_version=columns["policy_version"][at], started_at_s=columns["started_at_s"][at],
    )  # fmt: skip
