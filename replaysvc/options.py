"""How a table draws, waits and forgets: its samplers, its limiter and its remover, each a frozen dataclass or an enum."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, TypeAlias

from replaysvc.checks import check_number, shown
from replaysvc.errors import ConfigurationError, InvalidRequestError, SpecMismatchError

MAX_PRIORITY = 1e30  # chosen by hand: its fourth power, summed over any table, is a float64 still
PRIORITY_BOUND = 1.0000001e30  # as a float32, 1e30 is a little more
MAX_SAMPLERS = 16


class WeightNorm(Enum):
    """By which maximum importance weights are divided, so that none is above 1."""

    BATCH = "batch"  # the largest weight in the batch
    TABLE = "table"  # the largest weight that any item of the table could have


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each item is as likely as any other."""


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Items are drawn in proportion to priority^alpha, one from each of `batch_size` equal strata (Schaul et al. 2016).

    alpha: 0 draws uniformly among items whose priority is not 0, 1 in proportion to the priority.
    beta: importance weights are (N * P)^-beta divided by a maximum, see `norm`; `sample(beta=...)` overrides it, for annealing.
    initial_priority: an extra of shape () and a float dtype that gives the priority of a new step; None: new steps get the
      largest priority now in the table, 1 in a table that has none.
    """

    alpha: float = 0.6
    beta: float = 0.4
    norm: WeightNorm = WeightNorm.BATCH
    initial_priority: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", check_number("alpha", self.alpha, 0, 4, whole=False))
        object.__setattr__(self, "beta", check_number("beta", self.beta, 0, 4, whole=False))
        try:
            object.__setattr__(self, "norm", WeightNorm(self.norm))
        except ValueError:
            raise SpecMismatchError("norm", f"one of {[norm.value for norm in WeightNorm]}", repr(self.norm)) from None
        if self.initial_priority is not None and (not isinstance(self.initial_priority, str) or not self.initial_priority):
            raise SpecMismatchError("initial_priority", "the name of an extra, or None", repr(self.initial_priority))


@dataclass(frozen=True, slots=True)
class Recency:
    """Newer items are likelier: an item `half_life` items older than another is half as likely."""

    half_life: float = 100_000.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "half_life", check_number("half_life", self.half_life, 1e-3, 1e15, whole=False))


@dataclass(frozen=True, slots=True)
class EpisodeUniform:
    """First an episode, each as likely as any other, then one of its items: short episodes are not drowned by long ones."""


@dataclass(frozen=True, slots=True)
class Fifo:
    """A queue: the oldest complete item first, each handed out `max_times_sampled` times and then no more."""

    max_times_sampled: int = 1

    def __post_init__(self) -> None:
        times = check_number("max_times_sampled", self.max_times_sampled, 1, 1 << 30)
        object.__setattr__(self, "max_times_sampled", times)


@dataclass(frozen=True, slots=True)
class Lifo:
    """A stack: the newest complete item first, each handed out `max_times_sampled` times and then no more."""

    max_times_sampled: int = 1

    def __post_init__(self) -> None:
        times = check_number("max_times_sampled", self.max_times_sampled, 1, 1 << 30)
        object.__setattr__(self, "max_times_sampled", times)


Sampler: TypeAlias = Uniform | Prioritized | Recency | EpisodeUniform | Fifo | Lifo

_KINDS: dict[str, Any] = {
    "uniform": Uniform, "prioritized": Prioritized, "recency": Recency, "episode_uniform": EpisodeUniform, "fifo": Fifo,
    "lifo": Lifo,
}  # fmt: skip


def check_sampler(samplers: Mapping[str, Sampler], name: str) -> Sampler:
    """Returns the sampler `name` of a table. Raises InvalidRequestError."""
    if name not in samplers:
        raise InvalidRequestError(f"sampler: expected one of {sorted(samplers)}, found {shown(name)}")
    return samplers[name]


def check_prioritized(samplers: Mapping[str, Sampler], name: str) -> None:
    """Raises ConfigurationError if the sampler `name` of a table has no priorities, InvalidRequestError if there is none."""
    if not isinstance(sampler := check_sampler(samplers, name), Prioritized):
        raise ConfigurationError(f"sampler {name}: expected a prioritized one to update, found {sampler!r}")


def sampler_to_json(sampler: Sampler) -> dict[str, Any]:
    """Returns the plain form that `sampler_from_json` reads."""
    (kind,) = (name for name, known in _KINDS.items() if type(sampler) is known)
    values = {name: value.value if isinstance(value, Enum) else value for name, value in asdict(sampler).items()}
    return {"kind": kind, **values}


def sampler_from_json(name: str, data: Any) -> Sampler:
    """Returns the sampler that `sampler_to_json` described. Raises InvalidRequestError."""
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str) or data["kind"] not in _KINDS:
        raise SpecMismatchError(f"samplers.{name}", f"a kind among {sorted(_KINDS)}", repr(data))
    kind = _KINDS[data["kind"]]
    values = {key: value for key, value in data.items() if key != "kind"}
    unknown = set(values) - set(kind.__dataclass_fields__)
    if unknown:
        raise InvalidRequestError(f"samplers.{name}: unknown option {sorted(unknown)[0]!r}")
    sampler: Sampler = kind(**values)
    return sampler


class LostActor(Enum):
    """What becomes of the open episodes of a writer that is gone."""

    TRUNCATE = "truncate"  # they end with their last stored step, as truncated, with `end_reason` "lost_actor"
    KEEP_OPEN = "keep_open"


class WhenFull(Enum):
    """What `append` does while the client's buffer is full of chunks that the server has not acknowledged."""

    BLOCK = "block"  # waits
    RAISE = "raise"  # raises CapacityError at once; nothing of the step is taken


class Remover(Enum):
    """What goes when a table is over its capacity. Steps of open episodes go too, when it is their turn."""

    OLDEST_STEPS = "oldest_steps"  # exactly as many as must; an episode may lose its beginning
    OLDEST_EPISODES = "oldest_episodes"  # whole episodes, the one that began first
    LOWEST_PRIORITY = "lowest_priority"  # whole closed episodes, the one whose highest priority is lowest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiter:
    """Keeps sampling and inserting in step, by the formula of Reverb (Cassirer et al. 2021), with steps as inserts.

    With inserted = steps ever inserted, sampled = items ever sampled (a sequence or episode is one item), stored = steps now in
    the table, diff = inserted * samples_per_insert - sampled:
      sampling n items waits unless stored >= min_steps and diff - n >= min_diff
      inserting m steps waits unless stored + m <= min_steps or diff + m * samples_per_insert <= max_diff
    Exactly at a bound nothing waits. Steps are inserted by chunks: where a chunk and a batch would wait for each other for
    ever, because `max_diff - min_diff` has no room for both, the chunk is inserted.

    min_steps: steps that must be stored before anything is sampled.
    samples_per_insert: items sampled for each step inserted, on average; None: only `min_steps` limits.
    error_buffer: how far sampling and inserting may run ahead of each other: (min_diff, max_diff), or a number e, which means
      min_steps * samples_per_insert -+ e.
    """

    min_steps: int = 1
    samples_per_insert: float | None = None
    error_buffer: float | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_steps", check_number("min_steps", self.min_steps, 1, 1 << 48))
        if self.samples_per_insert is None:
            if self.error_buffer is not None:
                raise SpecMismatchError("error_buffer", "None without samples_per_insert", repr(self.error_buffer))
            return
        ratio = check_number("samples_per_insert", self.samples_per_insert, 1e-9, 1e9, whole=False)
        object.__setattr__(self, "samples_per_insert", ratio)
        buffer = self.error_buffer
        if isinstance(buffer, tuple | list):
            if len(buffer) != 2:
                raise SpecMismatchError("error_buffer", "a number or (min_diff, max_diff)", repr(buffer))
            settled: Any = tuple(check_number("error_buffer", bound, -1e18, 1e18, whole=False) for bound in buffer)
        elif buffer is None:
            raise SpecMismatchError("error_buffer", "a number or (min_diff, max_diff) beside samples_per_insert", "None")
        else:
            settled = check_number("error_buffer", buffer, 0, 1e18, whole=False)
        object.__setattr__(self, "error_buffer", settled)
        low, high = self.min_diff, self.max_diff
        if high - low < 2 * max(1.0, ratio):
            raise SpecMismatchError(
                "error_buffer", f"max_diff - min_diff of at least 2 * max(1, samples_per_insert) = {2 * max(1.0, ratio):g}",
                f"{high - low:g}",
            )  # fmt: skip
        if low > ratio * self.min_steps or high < ratio * self.min_steps:
            raise SpecMismatchError(
                "error_buffer", f"min_diff <= samples_per_insert * min_steps = {ratio * self.min_steps:g} <= max_diff, else "
                "nothing could ever go on", f"{low:g} and {high:g}",
            )  # fmt: skip

    @property
    def min_diff(self) -> float:
        """Returns the least diff that sampling may leave; -inf without samples_per_insert."""
        return self._bound(-1)

    @property
    def max_diff(self) -> float:
        """Returns the largest diff that inserting may leave; inf without samples_per_insert."""
        return self._bound(1)

    def _bound(self, sign: int) -> float:
        if self.samples_per_insert is None or self.error_buffer is None:
            return sign * math.inf
        if isinstance(self.error_buffer, tuple):
            return self.error_buffer[0 if sign < 0 else 1]
        return self.min_steps * self.samples_per_insert + sign * self.error_buffer

    @staticmethod
    def queue(size: int, samples_per_insert: float = 1.0) -> "Limiter":
        """Returns the limiter of a queue: at most `size` steps wait to be sampled, and what was sampled waits no more."""
        size = check_number("size", size, 1, 1 << 48)
        return Limiter(samples_per_insert=samples_per_insert, error_buffer=(0.0, size * samples_per_insert))

    def to_json(self) -> dict[str, Any]:
        """Returns the plain form that `from_json` reads."""
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> "Limiter":
        """Returns the limiter that `to_json` described. Raises InvalidRequestError."""
        if not isinstance(data, Mapping):
            raise SpecMismatchError("limiter", "an object", repr(data))
        unknown = set(data) - set(Limiter.__dataclass_fields__)
        if unknown:
            raise InvalidRequestError(f"limiter: unknown option {sorted(unknown)[0]!r}")
        return Limiter(**data)
