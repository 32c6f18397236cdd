"""What a store tells of itself to whoever watches it: plain frozen data, for the doors, the metrics and the commands.

Looking changes nothing: it builds no structure, moves no count and no generator. Times are in seconds, sizes in bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replaysvc.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramView:
    """A histogram: `counts[i]` values were at most `bounds[i]` and above the bound before; the last of them, above all bounds.

    counts has one entry more than bounds. total is the sum of the values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeView:
    """Ages of stored steps. ages_s: float64 [n], ascending: of n steps that are evenly spaced among all that are stored, so its
    quantiles are those of the table. steps: how many are stored."""

    ages_s: Array
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityView:
    """Priorities of evenly spaced stored steps. values: float64 [n], as they were given (before the exponent alpha).

    zero_share: share of them that is 0, never drawn. powered_total, powered_largest: sum and maximum over all steps of
    priority^alpha, exact.
    """

    values: Array
    alpha: float
    zero_share: float
    powered_total: float
    powered_largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawView:
    """What a sampler would draw now. ages_s: float64 [n], of the drawn steps; probability: float64 [n], their chance at each
    draw; uniform_probability: 1 / stored steps, to compare."""

    ages_s: Array
    probability: Array
    uniform_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopStep:
    """One of the steps with the largest priorities. priority: as given; probability: of one draw."""

    position: int
    episode_id: int
    t: int
    priority: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerView:
    """A sampler of a table. kind: "Uniform", "Prioritized", ... options: its fields. built: whether it was drawn from, or
    updated, so that its structure is there. available: of a queue in use, how many items it can hand out now, else None."""

    name: str
    kind: str
    options: Mapping[str, Any]
    built: bool
    available: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnView:
    """Bytes of one column. raw_bytes: in declared dtypes; stored_bytes: on disk, without headers. chunks: how many were looked
    at; lossless_chunks: those of them that were declared float16 and kept lossless."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    raw_bytes: int
    stored_bytes: int
    chunks: int
    lossless_chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorView:
    """An actor, as the process has seen it. steps, episodes: committed since it started. open_episodes: now. policy_version:
    the newest that it wrote with, -1 if it gave none. last_seen_s: seconds since it was last heard of, by a step or by a
    sign of life. state: "writing", "idle", "stale" or "lost", with a sentence on it, where a service tells; else ""."""

    name: str
    steps: int
    episodes: int
    open_episodes: int
    sessions: int
    policy_version: int
    last_seen_s: float
    state: str = ""
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeColumns:
    """Of the newest stored episodes, oldest first: one array [n] each. lost_actor: which the service itself truncated."""

    episode_id: Array
    length: Array
    return_: Array
    terminated: Array
    truncated: Array
    closed: Array
    lost_actor: Array
    policy_version: Array
    started_at_s: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCounts:
    """Counts since the process started, beyond those of TableStats.

    sampled_items: by sampler. waited_s and waiting: by side, "insert" and "sample": seconds spent waiting for the limiter, and
    how many wait now. inserting_waits_for: why one step could not be inserted now, "" if it could. ended_episodes: by end,
    "terminated", "truncated", "lost_actor". removed_steps: by reason, "capacity", "deleted", "damaged". cache_evictions:
    chunks that made room for others in RAM; cache_budget_bytes: how much of it there is. her_items, her_relabeled: items
    drawn with a hindsight request, and those that got another goal. sample_age_steps: how far behind the newest step
    the sampled ones lay. stages: seconds of each stage of a batch, "index" (choosing), "read" (from disk),
    "decompress", "assemble". columns: bytes of what was committed.
    """

    sampled_items: Mapping[str, int]
    waited_s: Mapping[str, float]
    waiting: Mapping[str, int]
    inserting_waits_for: str
    ended_episodes: Mapping[str, int]
    removed_steps: Mapping[str, int]
    cache_evictions: int
    cache_budget_bytes: int
    her_items: int
    her_relabeled: int
    sample_age_steps: HistogramView
    stages: Mapping[str, HistogramView]
    columns: tuple[ColumnView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """One segment file of a table. used_bytes: of its pages; allocated_bytes: what the disk gives it. chunks: that it holds,
    with those removed since; live_chunks: of them, those still in the table."""

    name: str
    sealed: bool
    used_bytes: int
    allocated_bytes: int
    map_bytes: int
    chunks: int
    live_chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStorage:
    """How a table lies on disk. commit_s: whole commits; sync_s: their last part, in which the disk makes them durable.
    readers: of the active segment."""

    segments: tuple[SegmentView, ...]
    commit_s: HistogramView
    sync_s: HistogramView
    readers: int
    quarantined_chunks: int
    quarantined_segments: int
    lost_segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskView:
    """The file system of a store. used_bytes: all files of the store; set_aside_bytes of them are a file that gives way to what
    must be noted when the disk is full. free_bytes: that may be written; root_bytes: that the file system keeps for root
    besides. refuses: whether appends are refused since less than reserve_bytes are free."""

    used_bytes: int
    set_aside_bytes: int = 0
    root_bytes: int = 0
    free_bytes: int
    total_bytes: int
    reserve_bytes: int
    refuses: bool

    @property
    def full_share(self) -> float:
        """Returns how full the file system is for who is not root, 0 to 1, as `df` tells it."""
        taken = self.total_bytes - self.root_bytes - self.free_bytes
        return taken / max(1, taken + self.free_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogView:
    """What waits for a commit. oldest_s: for how long the commit under way has been going on, 0.0 if there is none."""

    requests: int
    held_bytes: int
    limit_bytes: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotView:
    """A finished snapshot. bytes: of its files, most of them shared with the store."""

    name: str
    made_at_s: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubView:
    """How far the scrub is. running: whether it may read at all. done_bytes of whole_bytes of this round; rounds: that were
    finished; damaged: chunks found damaged since the start; finished_at_s: when a round last ended, None if none did."""

    running: bool
    done_bytes: int
    whole_bytes: int
    rounds: int
    damaged: int
    finished_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A long piece of work. state: "running", "done" or "failed"; done of whole: how far, whole 0 if that is not known. who:
    that asked for it. message: what came of it, or why it failed."""

    number: int
    kind: str
    table: str
    who: str
    state: str
    started_at_s: float
    seconds: float
    done: int = 0
    whole: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerView:
    """One who samples: a token's name, or a connection. items, batches: since it was first seen. waited_share: of the last
    minute, how much it waited for data or a limiter, 0 to 1. last_wait: why it last got nothing. rates are of the last
    minute. state: "sampling", "waiting" or "idle", with a sentence on it, where a service tells; else ""."""

    name: str
    table: str
    sampler: str
    items: int
    batches: int
    items_per_s: float
    batches_per_s: float
    mean_s: float
    waited_share: float
    last_wait: str
    last_seen_s: float
    state: str = ""
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts:
    """Calls of a door. seconds: by (method, code); waits: by method, those of them that found nothing for them yet. Bytes by
    direction, "received" and "sent". refused: by code, those that were turned away before anything was read. inflight: by kind
    of worker; held_bytes: memory held for requests and answers."""

    seconds: Mapping[tuple[str, str], HistogramView] = field(default_factory=dict)
    waits: Mapping[str, int] = field(default_factory=dict)
    received_bytes: int = 0
    sent_bytes: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    inflight: Mapping[str, int] = field(default_factory=dict)
    held_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why all is not well, and what to do. level: "failing", "warning" or "note": worth to know, and no fault. table: which it
    is about, None: the whole service."""

    level: str
    table: str | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether all is well. status: "ok", "warning", "failing" or "draining": it is being stopped. reasons: the worst first."""

    status: str
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOutlook:
    """How full the disk is, and when it will be. growth_bytes_per_day: as in the last hour, None in the first ten minutes.
    days_left: None: never at that growth, or not known."""

    view: DiskView
    growth_bytes_per_day: float | None
    days_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityView:
    """Who writes and who samples, and whether all is well. actors: by table, those that were heard of last, the newest first.
    newest_policy_version: None if none is known. Where the store is embedded nobody is told apart who samples, and nothing is
    said of states, verdict and disk; nor by a service that is older than this."""

    actors: Mapping[str, tuple[ActorView, ...]]
    learners: tuple[LearnerView, ...]
    newest_policy_version: int | None
    verdict: Verdict | None = None
    disk: DiskOutlook | None = None
