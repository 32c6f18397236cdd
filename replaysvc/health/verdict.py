"""Whether all is well, and what to do if not: sentences for whoever runs the service.

A low share of cache hits is no fault, nor is a limiter that holds one side back while the other one goes on: that is its work.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from replaysvc.health.participants import SeenActor
from replaysvc.types import TableStats
from replaysvc.views import BacklogView, DiskOutlook, LearnerView, Reason, TableCounts, Verdict

STALL_S, LONG_STALL_S = 5.0, 30.0  # that a commit takes: worth a word; as good as broken
LEVELS = ("failing", "warning", "note")
_FULL = 0.9  # of the queue
_TOLD = 3  # actors or learners by name
_DAYS = 3.0  # until the disk is full, that are worth a word
_MIB = 1 << 20


class SeenTable(NamedTuple):
    """A table, as one look has found it; rates are those of the last ten seconds."""

    stats: TableStats
    counts: TableCounts
    steps_in_per_s: float
    items_out_per_s: float


class Seen(NamedTuple):
    """All that a verdict stands on. status: of the gRPC door. disk: None if its file system cannot be asked. set_aside: tables
    that could not be loaded."""

    status: str
    tables: Sequence[SeenTable]
    disk: DiskOutlook | None
    backlog: BacklogView
    actors: Sequence[SeenActor]
    learners: Sequence[LearnerView]
    set_aside: Sequence[str]


def verdict(seen: Seen) -> Verdict:
    """Returns whether all is well, and what to do."""
    starved = {learner.table for learner in seen.learners if learner.state == "waiting"}
    reasons = [*_of_disk(seen.disk), *_of_backlog(seen.backlog), *_of_set_aside(seen.set_aside)]
    for table in seen.tables:
        reasons += _of_table(table, table.stats.name in starved)
    reasons += [*_of_actors(seen.actors), *_of_learners(seen.learners, seen.tables)]
    return judged(seen.status, reasons)


def judged(status: str, reasons: Sequence[Reason]) -> Verdict:
    """Returns the verdict of reasons, which stand in it the worst first. status: of the gRPC door."""
    found = sorted(reasons, key=lambda reason: LEVELS.index(reason.level))
    worst = found[0].level if found and found[0].level != "note" else "ok"
    return Verdict(status="draining" if status == "draining" else worst, reasons=tuple(found))


def of_table(whole: Verdict, table: str) -> Verdict:
    """Returns what a verdict says of one table, and of the service as a whole."""
    return judged(whole.status, [reason for reason in whole.reasons if reason.table in (None, table)])


def _of_table(table: SeenTable, starved: bool) -> Iterator[Reason]:
    """Yields what is wrong with a table. starved: a learner waits for most of its time."""
    stats, waiting, why = table.stats, table.counts.waiting, table.counts.inserting_waits_for

    def said(level: str, sentence: str) -> Reason:
        return Reason(level=level, table=stats.name, sentence=f"table {stats.name}: {sentence}")

    if stats.fault:
        yield said("failing", f"it takes no more steps ({stats.fault}); start the service again")
    if stats.waiting_for and (starved or waiting.get("sample")) and not table.steps_in_per_s:
        yield said("warning", f"samplers wait: {stats.waiting_for}, and nobody writes; start actors, or change the limiter")
    if why and waiting.get("insert") and not table.items_out_per_s:
        yield said("warning", f"writers wait: {why}, and nobody samples; start a learner, or change the limiter")
    if stats.quarantined_chunks or stats.quarantined_segments:
        yield said(
            "warning",
            f"{stats.quarantined_chunks} chunks and {stats.quarantined_segments} segments were damaged and set aside; stop the "
            "service, run `replaysvc fsck --repair`, and look at the disk",
        )
    if stats.lost_segments:
        sentence = f"segments are missing at {stats.lost_segments} places; restore a snapshot if you need their steps"
        yield said("warning", sentence)


def _of_disk(outlook: DiskOutlook | None) -> Iterator[Reason]:
    if outlook is None:
        sentence = "the file system of the store cannot be asked how much is free; the log has the cause"
        yield Reason(level="warning", table=None, sentence=sentence)
        return
    disk, left = outlook.view, outlook.days_left
    free, reserve = f"{disk.free_bytes // _MIB:,} MiB", f"{disk.reserve_bytes // _MIB:,} MiB"
    if disk.refuses:
        sentence = f"the disk is full: {free} are free, and appends are refused below {reserve}"
        level, remedy = "failing", "free space, lower a capacity, or delete episodes and compact"
    elif disk.free_bytes < 2 * disk.reserve_bytes:
        sentence = f"the disk is nearly full: {free} are free, and appends are refused below {reserve}"
        level, remedy = "warning", "free space, or lower a capacity"
    elif left is not None and left < _DAYS:
        sentence = f"the disk is full in about {left:.2g} days at the growth of the last hour ({free} are free)"
        level, remedy = "warning", "give tables a capacity, or the store a larger disk"
    else:
        return
    yield Reason(level=level, table=None, sentence=f"{sentence}; {remedy}")


def _of_backlog(backlog: BacklogView) -> Iterator[Reason]:
    if backlog.oldest_s >= STALL_S:
        level = "failing" if backlog.oldest_s >= LONG_STALL_S else "warning"
        sentence = f"writing stalls: a commit has been going on for {backlog.oldest_s:.0f} s"
        remedy = "look at what else uses the disk, and at its health"
        yield Reason(level=level, table=None, sentence=f"{sentence}; {remedy}")
    elif backlog.limit_bytes and backlog.held_bytes > _FULL * backlog.limit_bytes:
        share = backlog.held_bytes / backlog.limit_bytes
        sentence = f"the queue of commits is {share:.0%} full, and writers are told to come again"
        yield Reason(level="warning", table=None, sentence=f"{sentence}; the disk is slower than the actors")


def _of_set_aside(names: Sequence[str]) -> Iterator[Reason]:
    if names:
        sentence = f"{len(names)} tables could not be loaded and were set aside ({', '.join(names[:_TOLD])})"
        remedy = "the log says why, and `replaysvc fsck --repair` brings back what is whole"
        yield Reason(level="warning", table=None, sentence=f"{sentence}; {remedy}")


def _of_actors(actors: Sequence[SeenActor]) -> Iterator[Reason]:
    for state in ("lost", "stale"):
        bad = [actor for actor in actors if actor.view.state == state]
        for table, view, _, _ in bad[:_TOLD]:
            yield Reason(level="warning", table=table, sentence=f"actor {view.name or '(no name)'}: {view.sentence}")
        if len(bad) > _TOLD:
            yield Reason(level="warning", table=None, sentence=f"{len(bad) - _TOLD:,} more actors are {state}")


def _of_learners(learners: Sequence[LearnerView], tables: Sequence[SeenTable]) -> Iterator[Reason]:
    """Yields who waits though somebody writes: it is the limiter's work. Where nobody does, the table says it."""
    written = {table.stats.name for table in tables if table.steps_in_per_s}
    waiting = [learner for learner in learners if learner.state == "waiting" and learner.table in written]
    remedy = "it gets more if more is written, or if the limiter allows more samples per insert"
    for learner in waiting[:_TOLD]:
        yield Reason(level="note", table=learner.table, sentence=f"learner {learner.name}: {learner.sentence}; {remedy}")
    if len(waiting) > _TOLD:
        yield Reason(level="note", table=None, sentence=f"{len(waiting) - _TOLD:,} more learners wait")
