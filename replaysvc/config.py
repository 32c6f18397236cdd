"""Options, each a frozen dataclass that checks itself when it is made: a wrong one never gets as far as a server.

`TableConfig` travels with the table and is stored beside it. `StoreConfig` belongs to one server or embedded object,
`ClientConfig` to one connection. Reading environment variables and files is the command line's business, not this module's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, get_args

from replaysvc.checks import NAME, check_flag, check_number
from replaysvc.errors import InvalidRequestError, SpecMismatchError
from replaysvc.options import (
    MAX_SAMPLERS,
    Fifo,
    Lifo,
    Limiter,
    LostActor,
    Prioritized,
    Remover,
    Sampler,
    Uniform,
    WhenFull,
    sampler_from_json,
    sampler_to_json,
)

MiB = 1 << 20
MAX_MESSAGE_BYTES = 64 * MiB  # one gRPC message, both ways; larger data are streamed or refused
MAX_LARGE_BYTES = 1024 * MiB  # one batch that is streamed in pieces
SHARED_COLUMN_BYTES = 32 << 10  # columns of a batch that are as large may lie in shared memory
MAX_UPDATES = 1 << 20  # priorities set, or episodes deleted, in one call
EPISODES_PAGE_BYTES = 8 * MiB  # a list of episode records ends when it is as large, and the client asks for the next page


def _settle_numbers(options: Any, bounds: Mapping[str, tuple[float, float]], *, whole: bool = True) -> None:
    """Checks numbers of a frozen dataclass, and keeps them as plain ones; None stays where it is the default."""
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        if value is not None or type(options).__dataclass_fields__[name].default is not None:
            object.__setattr__(options, name, check_number(name, value, low, high, whole=whole))


def _settle_choice(options: Any, name: str, kind: type[Enum]) -> None:
    """Keeps a member of an enum, which may be given by its value."""
    value = getattr(options, name)
    try:
        object.__setattr__(options, name, kind(value))
    except ValueError:
        raise SpecMismatchError(name, f"one of {[member.value for member in kind]}", repr(value)) from None


def _default_samplers() -> dict[str, Sampler]:
    return {"uniform": Uniform(), "prioritized": Prioritized()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """How one table keeps its steps, and how it gives them out.

    capacity_steps: steps kept for sampling. capacity_bytes: stored bytes kept. capacity_episodes: episodes kept. None: no
      bound. The disk may hold one segment and one commit more than a bound.
    remover: what goes when the table is over a bound.
    chunk_steps: steps in a full chunk; None: chosen from the row size: about 4 KiB of the largest column for states, and
      for images 16 to 176 frames, as many as make about 1 MiB.
    flush_interval_s: seconds after which a writer sends a chunk that is not full, so that a slow environment shows.
    segment_bytes: bytes of one segment file; None: 1 GiB, or a hundredth of `capacity_bytes` if that is less (at least 64 MiB).
    samplers: the table's samplers by name. Several of one kind are independent: each prioritized one has its own priorities.
    limiter: when sampling and inserting wait for each other.
    lease_s: seconds for which nothing may be heard of a writer before it counts as gone; clients say that they are alive,
      however slow their environments. lost_actor: what then becomes of its open episodes.
    """

    capacity_steps: int | None = None
    capacity_bytes: int | None = None
    capacity_episodes: int | None = None
    remover: Remover = Remover.OLDEST_STEPS
    chunk_steps: int | None = None
    flush_interval_s: float = 1.0
    segment_bytes: int | None = None
    samplers: Mapping[str, Sampler] = field(default_factory=_default_samplers)
    limiter: Limiter = Limiter()
    lease_s: float = 120.0
    lost_actor: LostActor = LostActor.TRUNCATE

    def __post_init__(self) -> None:
        sizes = {"capacity_steps": (1, 1 << 48), "capacity_bytes": (MiB, 1 << 50), "capacity_episodes": (1, 1 << 48)}
        _settle_numbers(self, sizes | {"chunk_steps": (1, 65_535), "segment_bytes": (MiB, 64 << 30)})
        _settle_numbers(self, {"flush_interval_s": (0.001, 3600), "lease_s": (1, 7 * 86_400)}, whole=False)
        _settle_choice(self, "remover", Remover)
        _settle_choice(self, "lost_actor", LostActor)
        self._check_samplers()
        if type(self.limiter) is not Limiter:
            raise SpecMismatchError("limiter", "a Limiter", repr(self.limiter))
        if self.capacity_steps is not None and self.limiter.min_steps > self.capacity_steps:
            raise SpecMismatchError(
                "limiter.min_steps", f"at most capacity_steps={self.capacity_steps}", str(self.limiter.min_steps)
            )

    def _check_samplers(self) -> None:
        samplers = self.samplers
        if not isinstance(samplers, Mapping) or not 1 <= len(samplers) <= MAX_SAMPLERS:
            raise SpecMismatchError("samplers", f"a dict of 1 to {MAX_SAMPLERS} samplers by name", repr(samplers))
        for name, sampler in samplers.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise SpecMismatchError("samplers", "names of letters, digits, '_', '.' or '-'", repr(name))
            if type(sampler) not in get_args(Sampler):  # of a subclass, its name would not come back from the disk
                raise SpecMismatchError(f"samplers.{name}", "a sampler such as Uniform() or Prioritized()", repr(sampler))
        object.__setattr__(self, "samplers", dict(samplers))
        if self.remover is Remover.LOWEST_PRIORITY and not any(isinstance(s, Prioritized) for s in samplers.values()):
            raise SpecMismatchError("remover", "a prioritized sampler for lowest_priority to go by", f"only {sorted(samplers)}")

    @property
    def bounded(self) -> bool:
        """Returns whether anything is removed for capacity."""
        return (self.capacity_steps, self.capacity_bytes, self.capacity_episodes) != (None, None, None)

    def counts_each_batch(self, sampler: str) -> bool:
        """Returns whether a batch that is drawn ahead, and that nobody takes, would be missed."""
        return self.limiter.samples_per_insert is not None or isinstance(self.samplers.get(sampler), Fifo | Lifo)

    def to_json(self) -> dict[str, Any]:
        """Returns the plain form that `from_json` reads."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        samplers = {name: sampler_to_json(sampler) for name, sampler in self.samplers.items()}
        choices = {"remover": self.remover.value, "lost_actor": self.lost_actor.value}
        return values | choices | {"samplers": samplers, "limiter": self.limiter.to_json()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "TableConfig":
        """Returns the configuration that `to_json` described; an unknown name is refused."""
        values = dict(data)
        if "min_steps_to_sample" in values:  # of tables made by 0.1.0
            values["limiter"] = {"min_steps": values.pop("min_steps_to_sample")}
        unknown = set(values) - set(TableConfig.__dataclass_fields__)
        if unknown:
            raise InvalidRequestError(f"TableConfig: unknown option {sorted(unknown)[0]!r}")
        if isinstance(samplers := values.get("samplers"), Mapping):
            values["samplers"] = {name: sampler_from_json(name, sampler) for name, sampler in samplers.items()}
        if "limiter" in values:
            values["limiter"] = Limiter.from_json(values["limiter"])
        return TableConfig(**values)

    @property
    def full_segment_bytes(self) -> int:
        """Returns the size at which a segment is full."""
        if self.segment_bytes is not None:
            return self.segment_bytes
        if self.capacity_bytes is not None:
            return max(64 * MiB, min(1024 * MiB, self.capacity_bytes // 100))
        return 1024 * MiB

    def limited(self, limiter: Limiter) -> "TableConfig":
        """Returns the same configuration with another limiter."""
        return replace(self, limiter=limiter)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """How one process keeps a store, whatever its tables.

    recent_cache_bytes: RAM for decoded chunks as they are committed; faulted_cache_bytes: for those read back from disk.
      Both are shared evenly by the tables that exist.
    commit_interval_s: a commit gathers what arrives within this time; a writer that waits in `flush` is not kept waiting.
    commit_bytes: a commit is made at once when this much is gathered.
    queue_bytes: bytes that may wait for a commit; beyond it, appends are refused with CapacityError, to be sent again.
    state_interval_s: what a table remembers besides its steps (priorities, queues, limiter counts) is saved so often, and when
      the store is closed.
    disk_reserve_bytes: appends are refused with CapacityError while the file system has less free, so that what the store must
      note besides always finds room.
    scrub_bytes_per_s: how fast sealed segments are read again, round after round, to find damage early; 0: only when
      somebody asks.
    snapshot_dir: directory in which a server makes the snapshots that clients ask for; None: they may ask for none.
    """

    recent_cache_bytes: int = 1024 * MiB
    faulted_cache_bytes: int = 256 * MiB
    commit_interval_s: float = 0.05
    commit_bytes: int = 32 * MiB
    queue_bytes: int = 256 * MiB
    state_interval_s: float = 5.0
    disk_reserve_bytes: int = 256 * MiB
    scrub_bytes_per_s: int = 10 * MiB
    snapshot_dir: str | None = None

    def __post_init__(self) -> None:
        caches = {"recent_cache_bytes": (MiB, 1 << 44), "faulted_cache_bytes": (MiB, 1 << 44)}
        _settle_numbers(self, caches | {"commit_bytes": (1 << 16, 1 << 30), "queue_bytes": (MiB, 1 << 36)})
        _settle_numbers(self, {"disk_reserve_bytes": (0, 1 << 50), "scrub_bytes_per_s": (0, 1 << 40)})
        _settle_numbers(self, {"commit_interval_s": (0, 10), "state_interval_s": (0.01, 3600)}, whole=False)
        if self.snapshot_dir is not None and (not isinstance(self.snapshot_dir, str) or not self.snapshot_dir):
            raise SpecMismatchError("snapshot_dir", "the path of a directory, or None", repr(self.snapshot_dir))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How one connection behaves.

    reconnect_timeout_s: a call rides out a server that does not answer for this long before it raises UnavailableError.
    call_timeout_s: longest one attempt of a call may take.
    buffer_bytes: encoded chunks that writers may hold unacknowledged; beyond it `append` does as `when_full` says.
    append_bytes: most bytes of chunks in one append message.
    shared_bytes: memory that the client shares with a server on its own host, which puts large batches there. Batches that are
      kept beyond it, or that share none (0), come through the socket.
    compressed: whether the server may compress what it sends through the socket of a batch: it does so to large columns that
      become small quickly, such as frames of a game.
    """

    reconnect_timeout_s: float = 60.0
    call_timeout_s: float = 30.0
    buffer_bytes: int = 64 * MiB
    append_bytes: int = 16 * MiB
    when_full: WhenFull = WhenFull.BLOCK
    shared_bytes: int = 256 * MiB
    compressed: bool = True

    def __post_init__(self) -> None:
        _settle_numbers(self, {"buffer_bytes": (MiB, 1 << 36), "append_bytes": (1 << 10, MAX_MESSAGE_BYTES // 2)})
        _settle_numbers(self, {"shared_bytes": (0, 1 << 40)})
        _settle_numbers(self, {"reconnect_timeout_s": (0, 86_400), "call_timeout_s": (0.01, 3600)}, whole=False)
        _settle_choice(self, "when_full", WhenFull)
        object.__setattr__(self, "compressed", check_flag("compressed", self.compressed))
