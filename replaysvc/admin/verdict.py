"""Whether all is well, and what to do if not: sentences for whoever runs the service.

A low share of cache hits is no fault, nor is a limiter that holds one side back while the other one goes on: that is its work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replaysvc.views import BacklogView, DiskView

STALL_S, LONG_STALL_S = 5.0, 30.0  # that a commit takes: worth a word; as good as broken
_FULL = 0.9  # of the queue
_TOLD = 3  # actors by name
_DAYS = 3.0  # until the disk is full, that are worth a word
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reason:
    """level: "warning" or "failing". table: which it is about, None: the whole service."""

    level: str
    table: str | None
    sentence: str


def verdict(
    status: str, rows: Sequence[Mapping[str, Any]], disk: DiskView, left: float | None, backlog: BacklogView,
    actors: Sequence[Mapping[str, Any]], set_aside: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Returns {"status", "reasons"}, the worst reasons first.

    status: of the gRPC door. rows: of the tables, with the damage that each has. left: days until the disk is full. actors: as
    `participants` tells of them. set_aside: tables that could not be loaded.
    """
    reasons = [*_of_disk(disk, left), *_of_backlog(backlog), *_of_set_aside(set_aside)]
    for row in rows:
        reasons += _of_table(row)
    reasons += _of_actors(actors)
    reasons.sort(key=lambda reason: reason.level != "failing")
    worst = "failing" if any(reason.level == "failing" for reason in reasons) else "warning" if reasons else "ok"
    return {"status": "draining" if status == "draining" else worst, "reasons": reasons}


def _of_table(row: Mapping[str, Any]) -> list[Reason]:
    name, found = row["name"], []

    def say(level: str, sentence: str) -> None:
        found.append(Reason(level, name, f"table {name}: {sentence}"))

    if row["fault"]:
        say("failing", f"it takes no more steps ({row['fault']}); start the service again")
    waiting = row["waiting"]
    if row["sampling_waits_for"] and waiting["sample"] and not row["steps_in_per_s"]:
        say("warning", f"samplers wait: {row['sampling_waits_for']}, and nobody writes; start actors, or change the limiter")
    if row["inserting_waits_for"] and waiting["insert"] and not row["items_out_per_s"]:
        why = row["inserting_waits_for"]
        say("warning", f"writers wait: {why}, and nobody samples; start a learner, or change the limiter")
    if row["quarantined_chunks"] or row["quarantined_segments"]:
        say(
            "warning",
            f"{row['quarantined_chunks']} chunks and {row['quarantined_segments']} segments were damaged and set aside; "
            "stop the service, run `replaysvc fsck --repair`, and look at the disk",
        )
    if row["lost_segments"]:
        say("warning", f"segments are missing at {row['lost_segments']} places; restore a snapshot if you need their steps")
    return found


def _of_disk(disk: DiskView, left: float | None) -> list[Reason]:
    free, reserve = f"{disk.free_bytes // _MIB:,} MiB", f"{disk.reserve_bytes // _MIB:,} MiB"
    if disk.refuses:
        sentence = f"the disk is full: {free} are free, and appends are refused below {reserve}"
        return [Reason("failing", None, f"{sentence}; free space, lower a capacity, or delete episodes and compact")]
    if disk.free_bytes < 2 * disk.reserve_bytes:
        sentence = f"the disk is nearly full: {free} are free, and appends are refused below {reserve}"
        return [Reason("warning", None, f"{sentence}; free space, or lower a capacity")]
    if left is not None and left < _DAYS:
        sentence = f"the disk is full in {left:.1f} days at the growth of the last hour ({free} are free)"
        return [Reason("warning", None, f"{sentence}; give tables a capacity, or the store a larger disk")]
    return []


def _of_backlog(backlog: BacklogView) -> list[Reason]:
    if backlog.oldest_s >= STALL_S:
        level = "failing" if backlog.oldest_s >= LONG_STALL_S else "warning"
        sentence = f"writing stalls: a commit has been going on for {backlog.oldest_s:.0f} s"
        return [Reason(level, None, f"{sentence}; look at what else uses the disk, and at its health")]
    if backlog.limit_bytes and backlog.held_bytes > _FULL * backlog.limit_bytes:
        share = backlog.held_bytes / backlog.limit_bytes
        sentence = f"the queue of commits is {share:.0%} full, and writers are told to come again"
        return [Reason("warning", None, f"{sentence}; the disk is slower than the actors")]
    return []


def _of_set_aside(names: Sequence[str]) -> list[Reason]:
    if not names:
        return []
    sentence = f"{len(names)} tables could not be loaded and were set aside ({', '.join(names[:_TOLD])})"
    return [Reason("warning", None, f"{sentence}; the log says why, and `replaysvc fsck --repair` brings back what is whole")]


def _of_actors(actors: Sequence[Mapping[str, Any]]) -> list[Reason]:
    found = []
    for state in ("lost", "stale"):
        bad = [actor for actor in actors if actor["state"] == state]
        for actor in bad[:_TOLD]:
            found.append(Reason("warning", actor["table"], f"actor {actor['name'] or '(no name)'}: {actor['sentence']}"))
        if len(bad) > _TOLD:
            found.append(Reason("warning", None, f"{len(bad) - _TOLD} more actors are {state}; see the page of actors"))
    return found
