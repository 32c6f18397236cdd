"""What Prometheus asks for: the counts and sizes of a store and of its door, read when they are asked for.

Nothing here stands on a hot path: the parts of the store count for themselves, and `Metrics.render` looks at them. Labels are
bounded: tables, samplers, columns, methods, and fixed words; never an actor, a learner, an episode or a connection. A counter
falls only when the process starts anew, or a table of its name is made anew.

Some names that one might look for are others here, for a reason:

  items             is `steps`: what a table holds are steps.
  evicted_steps     is `removed_steps_total`: capacity removes, a cache evicts (`cache_evictions_total`).
  her_relabel_ratio is `her_relabeled_total` over `her_items_total`: a ratio of all time cannot be told for the last minute.
  lmdb_reader_lag_txns  is not there: readers live for one look at a segment, and sealed segments, which most are, have none.
  sample_seconds{stage="send"}  has an empty table: when an answer has left, the door no longer knows of which table it was.
"""

import functools
import itertools
import logging
import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.utils import floatToGoString

from replaysvc import __version__
from replaysvc.activity import Activity
from replaysvc.errors import NotFoundError, PermissionDeniedError, ReplayError, UnauthenticatedError, UnavailableError
from replaysvc.replay import Replay
from replaysvc.storage.descriptions import FORMAT
from replaysvc.table import Table
from replaysvc.views import HistogramView

log = logging.getLogger(__name__)

PREFIX = "replaysvc_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_TABLES = 256
"""So many tables are told of, the first by name; `tables` counts all."""

_SAMPLES = ("Sample", "SampleLarge")
_REFUSALS = (UnauthenticatedError.grpc_status, PermissionDeniedError.grpc_status)
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_COUNTER, _GAUGE, _HISTOGRAM = "counter", "gauge", "histogram"


class Family(NamedTuple):
    """A metric: its type, the names of its labels, and what it says, with the unit."""

    kind: str
    labels: tuple[str, ...]
    help: str


_T = ("table",)
FAMILIES: dict[str, Family] = {
    # the door
    "rpc_seconds": Family(
        _HISTOGRAM, ("method", "code"), "Seconds that calls were handled, by method and gRPC status; without the time that "
        "answers take to leave. Calls whose caller was refused are in refused_calls_total alone."),
    "rpc_inflight": Family(_GAUGE, ("kind",), "Calls that are handled now, by kind of worker."),
    "rpc_held_bytes": Family(_GAUGE, (), "Bytes of memory held for requests and for answers on their way."),
    "rpc_bytes_total": Family(_COUNTER, ("direction",), "Bytes of messages received and sent, without gRPC's own."),
    "refused_calls_total": Family(_COUNTER, ("code",), "Calls refused since their caller is not known, or may not make them."),
    "learners": Family(_GAUGE, (), "Learners that drew, or tried to, within the last minute."),
    # writing
    "append_steps_total": Family(_COUNTER, _T, "Steps committed since the table was made, over restarts."),
    "append_episodes_total": Family(_COUNTER, ("table", "end"), "Episodes that ended since the start, by end."),
    "commits_total": Family(_COUNTER, _T, "Durable commits since the start."),
    "commit_queue_bytes": Family(_GAUGE, (), "Bytes of requests that wait for their commit."),
    "commit_queue_requests": Family(_GAUGE, (), "Requests that wait for their commit."),
    "commit_age_seconds": Family(_GAUGE, (), "Seconds since the commit under way began, 0 if there is none."),
    "duplicate_chunks_total": Family(_COUNTER, _T, "Chunks that were sent again, and not stored again, since the start."),
    # sampling
    "sample_items_total": Family(_COUNTER, ("table", "sampler"), "Items drawn since the start."),
    "sample_calls_total": Family(_COUNTER, _T, "Draws since the start; one may be of several batches."),
    "sample_seconds": Family(
        _HISTOGRAM, ("table", "stage"), "Seconds of each stage of a draw: index (choosing), read (from disk), decompress, "
        "assemble; and send (until the answer has left), of all tables together."),
    "sample_age_steps": Family(_HISTOGRAM, _T, "Steps by which sampled ones lay behind the newest, of every fourth draw."),
    "samples_per_insert": Family(_GAUGE, _T, "Items sampled for each step inserted, by the limiter's counts, over restarts."),
    "samples_per_insert_target": Family(_GAUGE, _T, "What the limiter aims at; absent where it does not."),
    "rate_limited_seconds_total": Family(
        _COUNTER, ("table", "side"), "Seconds that calls waited for the limiter, or for data, by side: insert, sample. At "
        "least so many: a remote caller waits for a second, and asks again."),
    "waiting": Family(_GAUGE, ("table", "side"), "Calls that wait so now."),
    "her_items_total": Family(_COUNTER, _T, "Items drawn with a request for hindsight goals since the start."),
    "her_relabeled_total": Family(_COUNTER, _T, "Those of her_items_total that got another goal."),
    "priority_sum": Family(_GAUGE, ("table", "sampler"), "Sum of priority^alpha over all steps; of samplers in use."),
    "priority_max": Family(_GAUGE, ("table", "sampler"), "Largest priority^alpha of a step; of samplers in use."),
    "priority_updates_total": Family(_COUNTER, _T, "Priorities set since the start."),
    "stale_priority_updates_total": Family(
        _COUNTER, _T, "Priorities ignored since the start: of steps that were removed, or given again later in the same call."),
    # what is stored
    "tables": Family(_GAUGE, (), f"Tables of the store. Of more than {MOST_TABLES}, the first by name are told of."),
    "steps": Family(_GAUGE, _T, "Steps in the table."),
    "episodes": Family(_GAUGE, _T, "Episodes in the table, open ones too."),
    "open_episodes": Family(_GAUGE, _T, "Episodes that are being written."),
    "removed_steps_total": Family(_COUNTER, ("table", "reason"), "Steps removed since the start: capacity, deleted, damaged."),
    "raw_bytes": Family(_GAUGE, _T, "Bytes of the table's steps in declared dtypes, observations twice: (s, a, r, s')."),
    "stored_bytes": Family(_GAUGE, _T, "Bytes of the table's chunks, compressed."),
    "disk_bytes": Family(_GAUGE, _T, "Bytes that the table's segments take on the disk."),
    "compress_ratio": Family(
        _GAUGE, ("table", "column"), "Bytes in declared dtypes over bytes stored, of what was committed since the start."),
    "lossless_chunks_total": Family(
        _COUNTER, ("table", "column"), "Chunks committed since the start whose column was declared float16 and kept lossless."),
    "lossless_chunk_columns": Family(_GAUGE, _T, "Columns of stored chunks that were declared float16 and are kept lossless."),
    # the cache
    "cache_hits_total": Family(
        _COUNTER, _T, "Sampled items whose chunk was in RAM, since the start. A share of sample_items_total: "
        "cache_misses_total counts chunks."),
    "cache_misses_total": Family(
        _COUNTER, _T, "Chunks read from disk for samples since the start; one may serve several items."),
    "cache_evictions_total": Family(_COUNTER, _T, "Chunks that made room for others in RAM since the start."),
    "cache_bytes": Family(_GAUGE, _T, "Bytes of decoded chunks in RAM."),
    "cache_budget_bytes": Family(_GAUGE, _T, "Most bytes of them."),
    # the disk
    "lmdb_used_bytes": Family(_GAUGE, _T, "Bytes of the pages in use of the segment that is appended to."),
    "lmdb_map_bytes": Family(_GAUGE, _T, "Bytes up to which that segment may grow."),
    "lmdb_readers": Family(_GAUGE, _T, "Most readers that it had at once."),
    "lmdb_commit_seconds": Family(_HISTOGRAM, _T, "Seconds of whole write transactions since the start."),
    "lmdb_sync_seconds": Family(_HISTOGRAM, _T, "Seconds of their ends, in which the disk makes them durable."),
    "segments": Family(_GAUGE, _T, "Segments that the table's chunks are in, a file each."),
    "store_bytes": Family(_GAUGE, (), "Bytes that all files of the store take, as of the last minute."),
    "disk_free_bytes": Family(_GAUGE, (), "Bytes free on the store's file system."),
    "disk_total_bytes": Family(_GAUGE, (), "Bytes of the store's file system."),
    "disk_reserve_bytes": Family(_GAUGE, (), "Bytes that appends leave free; below it they are refused."),
    "corrupt_chunks_total": Family(_COUNTER, _T, "Chunks found damaged since the start."),
    "quarantined_chunks": Family(_GAUGE, _T, "Chunks set aside as damaged."),
    "quarantined_segments": Family(_GAUGE, _T, "Segments set aside as damaged."),
    "lost_segments": Family(_GAUGE, _T, "Places in the table's chain of segments where some are gone."),
    "quarantined_tables": Family(_GAUGE, (), "Tables that could not be loaded and were set aside."),
    "scrub_bytes": Family(_GAUGE, (), "Bytes that this round of the scrub has read."),
    "scrub_fraction": Family(_GAUGE, (), "Share of this round of the scrub that is done, 0 to 1."),
    "scrub_rounds_total": Family(_COUNTER, (), "Rounds of the scrub that were finished since the start."),
    "scrub_damage_total": Family(_COUNTER, (), "Chunks that the scrub found damaged since the start."),
    "last_snapshot_timestamp_seconds": Family(
        _GAUGE, (), "When the newest snapshot in snapshot_dir was made, in seconds since 1970; absent without one."),
    "params_version": Family(_GAUGE, (), "Largest version of a parameter set; absent without one."),
    # the process
    "fault": Family(_GAUGE, _T, "1 if the table takes no appends until the service is started again, else 0."),
    "draining": Family(_GAUGE, (), "1 from the moment that the service is to stop, else 0."),
    "build_info": Family(
        _GAUGE, ("version", "python", "format"), "1; its labels say what runs, and up to which format it reads stores."),
    "memory_bytes": Family(
        _GAUGE, ("kind",), "Bytes of RAM of the process: anon, file (pages of files, which the system takes back when it needs "
        "them), shmem."),
}  # fmt: skip
"""All metrics but those of `process_`, by their names without the prefix."""

Found = Iterator[tuple[str, tuple[str, ...], float | HistogramView]]
"""Names of families, values of labels, and values: a number or a HistogramView."""


class Metrics:
    """Tells Prometheus of a store and its door. Thread-safe.

    `load` and `status` are those of the gRPC server.
    """

    def __init__(
        self, replay: Replay, activity: Activity, load: Callable[[], tuple[dict[str, int], int]], status: Callable[[], str]
    ) -> None:
        self._replay, self._activity, self._load, self._status = replay, activity, load, status
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """Returns all metrics as of now in Prometheus's text format, and its content type."""
        return _text(self._found()).encode() + generate_latest(self._registry), CONTENT_TYPE

    def _found(self) -> Found:
        yield from _door(self._activity, *self._load())
        yield from _process(self._status())
        with suppress(UnavailableError):  # the store is closing: what was found so far is told
            names = self._replay.tables()
            yield "tables", (), len(names)
            for name in names[:MOST_TABLES]:
                yield from self._of_table(name)
            yield from _store(self._replay)

    def _of_table(self, name: str) -> Found:
        try:
            found = list(_table(name, self._replay.engine(name)))  # all of it or nothing
        except (NotFoundError, UnavailableError):  # deleted, or closed, meanwhile
            return
        except (ReplayError, OSError) as error:
            log.warning("table %s: it cannot be told of: %s", name, error)
            return
        yield from found


def _text(found: Found) -> str:
    """Returns the text of all families, with samples or without.

    The library's own families take an object for each line, and check each label of it again: that takes four times as long,
    and while a thread does it those that serve calls cannot run.
    """
    lines = {
        name: [f"# HELP {PREFIX}{name} {family.help}\n# TYPE {PREFIX}{name} {family.kind}\n"]
        for name, family in FAMILIES.items()
    }
    for name, values, value in found:
        pairs = zip(FAMILIES[name].labels, values, strict=True)
        labels = ",".join([f'{label}="{text.translate(_ESCAPED)}"' for label, text in pairs])
        if isinstance(value, HistogramView):
            lines[name] += _histogram(f"{PREFIX}{name}", labels, value)
        else:
            lines[name].append(f"{PREFIX}{name}{{{labels}}} {_number(value)}\n")
    return "".join(itertools.chain.from_iterable(lines.values()))


def _histogram(name: str, labels: str, view: HistogramView) -> Iterator[str]:
    """Yields how many values were at most each bound, how many in all, and their sum."""
    count, before = 0, f"{labels}," if labels else ""
    for bound, more in zip(_bounds(view.bounds), view.counts, strict=True):
        count += more
        yield f'{name}_bucket{{{before}le="{bound}"}} {count}\n'
    yield f"{name}_count{{{labels}}} {count}\n{name}_sum{{{labels}}} {_number(view.total)}\n"


@functools.cache
def _bounds(bounds: tuple[float, ...]) -> list[str]:
    return [*(_number(bound) for bound in bounds), "+Inf"]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else floatToGoString(value)  # type: ignore[no-untyped-call]


def _door(activity: Activity, inflight: dict[str, int], held_bytes: int) -> Found:
    calls = activity.calls()
    for key, view in calls.seconds.items():
        yield "rpc_seconds", key, view
    for kind, count in inflight.items():
        yield "rpc_inflight", (kind,), count
    yield "rpc_held_bytes", (), held_bytes
    yield "rpc_bytes_total", ("received",), calls.received_bytes
    yield "rpc_bytes_total", ("sent",), calls.sent_bytes
    for code, count in (dict.fromkeys(_REFUSALS, 0) | dict(calls.refused)).items():  # from the start: the first refusal is one
        yield "refused_calls_total", (code,), count
    yield "learners", (), len({learner.name for learner in activity.learners() if learner.last_seen_s < 60})
    sent = [view for method, view in activity.answers().items() if method in _SAMPLES]
    if sent:
        counts = tuple(map(sum, zip(*(view.counts for view in sent), strict=True)))
        total = sum(view.total for view in sent)
        yield "sample_seconds", ("", "send"), HistogramView(bounds=sent[0].bounds, counts=counts, total=total)


def _process(status: str) -> Found:
    yield "draining", (), int(status == "draining")
    yield "build_info", (__version__, platform.python_version(), str(FORMAT)), 1
    for kind, size in memory().items():
        yield "memory_bytes", (kind,), size


def memory(path: Path = Path("/proc/self/status")) -> dict[str, int]:
    """Returns the bytes of RAM that this process takes, by kind; nothing on systems that do not tell."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    kinds = {"RssAnon": "anon", "RssFile": "file", "RssShmem": "shmem"}
    words = [line.split() for line in lines]
    return {kinds[key[:-1]]: int(size) << 10 for key, size, *_ in filter(lambda w: w and w[0][:-1] in kinds, words)}


def _store(replay: Replay) -> Found:
    backlog, scrub = replay.backlog(), replay.scrub()
    yield "commit_queue_bytes", (), backlog.held_bytes
    yield "commit_queue_requests", (), backlog.requests
    yield "commit_age_seconds", (), backlog.oldest_s
    with suppress(ReplayError):  # the file system cannot be asked now
        disk = replay.disk()
        yield "store_bytes", (), disk.used_bytes
        yield "disk_free_bytes", (), disk.free_bytes
        yield "disk_total_bytes", (), disk.total_bytes
        yield "disk_reserve_bytes", (), disk.reserve_bytes
    yield "scrub_bytes", (), scrub.done_bytes
    yield "scrub_fraction", (), scrub.done_bytes / scrub.whole_bytes if scrub.whole_bytes else 0.0
    yield "scrub_rounds_total", (), scrub.rounds
    yield "scrub_damage_total", (), scrub.damaged
    yield "quarantined_tables", (), len(replay.quarantined_tables)
    for snapshot in replay.snapshots()[:1]:
        yield "last_snapshot_timestamp_seconds", (), snapshot.made_at_s
    versions = replay.params_versions().values()
    if versions:
        yield "params_version", (), max(versions)


def _table(name: str, table: Table) -> Found:
    stats, counts, storage, samplers = table.stats(), table.counted(), table.storage(), table.looking.samplers()
    label, unused = (name,), dict.fromkeys((sampler.name for sampler in samplers), 0)
    yield "append_steps_total", label, stats.appended_steps_total
    yield "commits_total", label, stats.commits_total
    yield "duplicate_chunks_total", label, stats.duplicate_chunks_total
    yield "sample_calls_total", label, stats.sample_calls_total
    yield "sample_age_steps", label, counts.sample_age_steps
    inserted, target = stats.limiter["inserted"], stats.limiter["samples_per_insert"]
    if inserted:
        yield "samples_per_insert", label, stats.limiter["sampled"] / inserted
    if target is not None:
        yield "samples_per_insert_target", label, target
    yield "her_items_total", label, counts.her_items
    yield "her_relabeled_total", label, counts.her_relabeled
    yield "priority_updates_total", label, stats.priority_updates_total
    yield "stale_priority_updates_total", label, stats.ignored_updates_total
    for family, by, values in (
        ("append_episodes_total", "end", counts.ended_episodes),
        ("sample_items_total", "sampler", unused | dict(counts.sampled_items)),
        ("sample_seconds", "stage", counts.stages), ("rate_limited_seconds_total", "side", counts.waited_s),
        ("waiting", "side", counts.waiting), ("removed_steps_total", "reason", counts.removed_steps),
    ):  # fmt: skip
        assert FAMILIES[family].labels == ("table", by)
        for key, value in values.items():
            yield family, (name, key), value
    for sampler in samplers:
        if sampler.built and (priorities := table.looking.priorities(sampler.name, 1)) is not None:
            yield "priority_sum", (name, sampler.name), priorities.powered_total
            yield "priority_max", (name, sampler.name), priorities.powered_largest
    yield "steps", label, stats.steps
    yield "episodes", label, stats.episodes
    yield "open_episodes", label, stats.open_episodes
    yield "raw_bytes", label, stats.raw_bytes
    yield "stored_bytes", label, stats.stored_bytes
    yield "disk_bytes", label, stats.disk_bytes
    for column in counts.columns:
        if column.stored_bytes:
            yield "compress_ratio", (name, column.name), column.raw_bytes / column.stored_bytes
        yield "lossless_chunks_total", (name, column.name), column.lossless_chunks
    yield "lossless_chunk_columns", label, stats.lossless_fallbacks_total
    yield "cache_hits_total", label, stats.cache_hits_total
    yield "cache_misses_total", label, stats.cache_misses_total
    yield "cache_evictions_total", label, counts.cache_evictions
    yield "cache_bytes", label, stats.cache_bytes
    yield "cache_budget_bytes", label, counts.cache_budget_bytes
    for segment in storage.segments[-1:]:
        if not segment.sealed:
            yield "lmdb_used_bytes", label, segment.used_bytes
            yield "lmdb_map_bytes", label, segment.map_bytes
    yield "lmdb_readers", label, storage.readers
    yield "lmdb_commit_seconds", label, storage.commit_s
    yield "lmdb_sync_seconds", label, storage.sync_s
    yield "segments", label, len(storage.segments)
    yield "corrupt_chunks_total", label, stats.corrupt_chunks_total
    yield "quarantined_chunks", label, storage.quarantined_chunks
    yield "quarantined_segments", label, storage.quarantined_segments
    yield "lost_segments", label, storage.lost_segments
    yield "fault", label, int(bool(stats.fault))
