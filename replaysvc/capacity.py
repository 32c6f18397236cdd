"""How much of everything a training run will take: arithmetic alone, with no store and no clock."""

from dataclasses import dataclass

from replaysvc.checks import check_number

_BASE_BYTES = 200 << 20  # of a server, beside its caches and what grows with the data
_CHUNK_BYTES = 150  # of memory for each chunk that is stored
_PAGE_BYTES, _PAGE_HEAD_BYTES = 4096, 16  # of the store's files
_NOTE_BYTES = 130  # of the disk for each chunk, beside its bytes: its index record and its place in the tree
_PRIORITY_BYTES = 10  # and for each step, in each prioritized sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a run makes its steps.

    steps: in all. environments: stepped side by side. rollout_steps: that each of them makes before the policy is updated;
    rollout_s: seconds that this takes, the update included. steps_per_s: of all together, instead of these three.
    """

    steps: int
    environments: int = 1
    rollout_steps: int = 1000
    rollout_s: float = 5.0
    steps_per_s: float | None = None

    def __post_init__(self) -> None:
        check_number("steps", self.steps, 1, 1 << 60)
        check_number("environments", self.environments, 1, 1 << 30)
        check_number("rollout_steps", self.rollout_steps, 1, 1 << 40)
        check_number("rollout_s", self.rollout_s, 1e-6, 1e9, whole=False)
        if self.steps_per_s is not None:
            check_number("steps_per_s", self.steps_per_s, 1e-6, 1e12, whole=False)

    @property
    def rate(self) -> float:
        """Returns the steps a second of all environments together."""
        return self.steps_per_s or self.environments * self.rollout_steps / self.rollout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """Bytes of one step, as measured: raw as (s, a, r, s'), on the disk, and decoded in the cache; and the steps of a chunk."""

    raw_bytes: float
    disk_bytes: float
    cached_bytes: float
    chunk_steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run takes. None: nothing is known of it.

    wall_s: seconds. kept_steps: of the last ones, those that stay stored. disk_bytes: of those. memory_bytes: of the service,
    with a cache that answers the share `hit_rate` of uniform draws.
    """

    steps: int
    steps_per_s: float
    wall_s: float
    kept_steps: int
    disk_bytes: float | None
    disk_bytes_per_s: float | None
    memory_bytes: float | None
    hit_rate: float
    cost: float | None


def disk_bytes_of(chunk_bytes: float) -> float:
    """Returns what a chunk of so many encoded bytes takes of the disk: large ones whole pages, small ones share pages; and what
    the store notes of it."""
    paged = chunk_bytes if chunk_bytes < _PAGE_BYTES / 2 else -(-(chunk_bytes + _PAGE_HEAD_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
    return paged + _NOTE_BYTES


def needs_of(
    training: Training, size: StepSize | None = None, *, capacity_steps: int | None = None, hit_rate: float = 1.0,
    prioritized: int = 1, cores: float | None = None, core_hour_price: float | None = None,
) -> Needs:  # fmt: skip
    """Returns what `training` takes.

    capacity_steps: kept in the table; None: all. hit_rate: the share of uniform draws that memory answers, 0 to 1, which is the
    share of the steps that are cached. prioritized: samplers of that kind. cores: that run all the time, environments and
    service together; None: one an environment, and two. core_hour_price: of each, in whatever money; None: no cost.

    Raises:
      SpecMismatchError: a number out of range.
    """
    check_number("hit_rate", hit_rate, 0, 1, whole=False)
    check_number("prioritized", prioritized, 0, 16)
    kept = training.steps
    if capacity_steps is not None:
        kept = min(kept, check_number("capacity", capacity_steps, 1, 1 << 60))
    busy = training.environments + 2 if cores is None else check_number("cores", cores, 0.01, 1e9, whole=False)
    wall_s = training.steps / training.rate
    cost = None
    if core_hour_price is not None:
        cost = check_number("core_hour_price", core_hour_price, 0, 1e9, whole=False) * busy * wall_s / 3600
    disk = rate = memory = None
    if size is not None:
        disk, rate = kept * size.disk_bytes, training.rate * size.disk_bytes
        index = kept / size.chunk_steps * _CHUNK_BYTES + kept * prioritized * _PRIORITY_BYTES
        memory = _BASE_BYTES + index + hit_rate * kept * size.cached_bytes
    return Needs(
        steps=training.steps, steps_per_s=training.rate, wall_s=wall_s, kept_steps=kept, disk_bytes=disk, disk_bytes_per_s=rate,
        memory_bytes=memory, hit_rate=hit_rate, cost=cost,
    )  # fmt: skip
