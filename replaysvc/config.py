"""Options, each a frozen dataclass that checks itself when it is made: a wrong one never gets as far as a server.

`TableConfig` travels with the table and is stored beside it. `StoreConfig` belongs to one server or embedded object,
`ClientConfig` to one connection. Reading environment variables and files is the command line's business, not this module's.
"""

import numbers
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from replaysvc.errors import InvalidRequestError, SpecMismatchError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MiB = 1 << 20
MAX_MESSAGE_BYTES = 64 * MiB  # one gRPC message, both ways; larger data are streamed or refused
EPISODES_PAGE_BYTES = 8 * MiB  # a list of episode records ends when it is as large, and the client asks for the next page


def check_name(what: str, name: str) -> str:
    """Returns `name` if it may name a table or parameter set: it becomes a directory name.

    Raises:
      SpecMismatchError: other than letters, digits, `_`, `.`, `-` (up to 64, the first a letter or digit).
    """
    if not isinstance(name, str) or not NAME.fullmatch(name) or ".." in name:
        raise SpecMismatchError(what, "1 to 64 letters, digits, '_', '.' or '-', the first a letter or digit", repr(name))
    return name


def check_number(field: str, value: object, low: float, high: float, *, whole: bool = True) -> Any:
    """Returns `value` as a plain int (or float, if not `whole`); numpy's numbers are taken too.

    Raises:
      SpecMismatchError: no number, or not within [low, high].
    """
    kind: Any = numbers.Integral if whole else numbers.Real
    if isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high:  # a NaN is within nothing
        return int(value) if whole else float(value)
    raise SpecMismatchError(field, f"{'a whole number' if whole else 'a number'} from {low} to {high}", repr(value))


def _settle_numbers(options: Any, bounds: Mapping[str, tuple[float, float]], *, whole: bool = True) -> None:
    """Checks numbers of a frozen dataclass, and keeps them as plain ones; None stays where it is the default."""
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        if value is not None or type(options).__dataclass_fields__[name].default is not None:
            object.__setattr__(options, name, check_number(name, value, low, high, whole=whole))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """How one table keeps its steps.

    capacity_steps: steps kept for sampling; the oldest chunks go first. None: no bound.
    capacity_bytes: stored bytes kept; None: no bound. The disk may hold one segment and one commit more than either bound.
    chunk_steps: steps in a full chunk; None: chosen from the row size, so that a column encodes to 4 to 64 KiB for
      states and 16 to 32 frames for images.
    flush_interval_s: seconds after which a writer sends a chunk that is not full, so that a slow environment shows.
    segment_bytes: bytes of one segment file; None: 1 GiB, or a hundredth of `capacity_bytes` if that is less (at least 64 MiB).
    min_steps_to_sample: `sample` finds the table not ready before it holds this many steps.
    """

    capacity_steps: int | None = None
    capacity_bytes: int | None = None
    chunk_steps: int | None = None
    flush_interval_s: float = 1.0
    segment_bytes: int | None = None
    min_steps_to_sample: int = 1

    def __post_init__(self) -> None:
        sizes = {"capacity_steps": (1, 1 << 48), "capacity_bytes": (MiB, 1 << 50), "chunk_steps": (1, 65_535)}
        _settle_numbers(self, sizes | {"segment_bytes": (MiB, 64 << 30), "min_steps_to_sample": (1, 1 << 48)})
        _settle_numbers(self, {"flush_interval_s": (0.001, 3600)}, whole=False)
        if self.capacity_steps is not None and self.min_steps_to_sample > self.capacity_steps:
            raise SpecMismatchError(
                "min_steps_to_sample", f"at most capacity_steps={self.capacity_steps}", str(self.min_steps_to_sample)
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the plain form that `from_json` reads."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "TableConfig":
        """Returns the configuration that `to_json` described; an unknown name is refused."""
        unknown = set(data) - set(TableConfig.__dataclass_fields__)
        if unknown:
            raise InvalidRequestError(f"TableConfig: unknown option {sorted(unknown)[0]!r}")
        return TableConfig(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """How one process keeps a store, whatever its tables.

    recent_cache_bytes: RAM for decoded chunks as they are committed; faulted_cache_bytes: for those read back from disk.
      Both are shared evenly by the tables that exist.
    commit_interval_s: a commit gathers what arrives within this time; a writer that waits in `flush` is not kept waiting.
    commit_bytes: a commit is made at once when this much is gathered.
    queue_bytes: bytes that may wait for a commit; beyond it, appends are refused with CapacityError, to be sent again.
    """

    recent_cache_bytes: int = 1024 * MiB
    faulted_cache_bytes: int = 256 * MiB
    commit_interval_s: float = 0.05
    commit_bytes: int = 32 * MiB
    queue_bytes: int = 256 * MiB

    def __post_init__(self) -> None:
        caches = {"recent_cache_bytes": (MiB, 1 << 44), "faulted_cache_bytes": (MiB, 1 << 44)}
        _settle_numbers(self, caches | {"commit_bytes": (1 << 16, 1 << 30), "queue_bytes": (MiB, 1 << 36)})
        _settle_numbers(self, {"commit_interval_s": (0, 10)}, whole=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How one connection behaves.

    reconnect_timeout_s: a call rides out a server that does not answer for this long before it raises UnavailableError.
    call_timeout_s: longest one attempt of a call may take.
    buffer_bytes: encoded chunks that writers may hold unacknowledged; beyond it `append` waits (backpressure).
    append_bytes: most bytes of chunks in one append message.
    """

    reconnect_timeout_s: float = 60.0
    call_timeout_s: float = 30.0
    buffer_bytes: int = 64 * MiB
    append_bytes: int = 16 * MiB

    def __post_init__(self) -> None:
        _settle_numbers(self, {"buffer_bytes": (MiB, 1 << 36), "append_bytes": (1 << 10, MAX_MESSAGE_BYTES // 2)})
        _settle_numbers(self, {"reconnect_timeout_s": (0, 86_400), "call_timeout_s": (0.01, 3600)}, whole=False)
