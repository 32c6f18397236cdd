"""What is measured, and what of it the design promises."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """`words`: what a reader is told. `once`: a number that does not change from round to round."""

    words: str
    unit: str
    once: bool = False


STEPS, ITEMS = "steps/s", "transitions/s"
WORKLOADS = {
    "memory": Workload("memory of a stored HalfCheetah step", "B/step", once=True),
    "insert": Workload("insert, HalfCheetah, one step at a time", STEPS),
    "insert-images": Workload("insert, MsPacman, one step at a time", STEPS),
    "uniform": Workload("uniform, 256 transitions", ITEMS),
    "uniform-call": Workload("uniform, 256, asked one by one", ITEMS),
    "uniform-half": Workload("uniform, 256, cache 1/2 of the data", ITEMS),
    "uniform-cold": Workload("uniform, 256, cache 1/10 of the data", ITEMS),
    "uniform-mixed": Workload("uniform, 256, while an actor writes", ITEMS),
    "prioritized": Workload("prioritized, 256, each batch updated", ITEMS),
    "sequences": Workload("sequences, 32 of 80 steps", "sequences/s"),
    "her": Workload("hindsight goals, 256", ITEMS),
    "stack-256": Workload("MsPacman, 256, 4 frames and the next", ITEMS),
    "stack-32": Workload("MsPacman, 32, 4 frames and the next", ITEMS),
    "stack-256-tcp": Workload("MsPacman, 256, over a socket", ITEMS),
    "stack-32-cold": Workload("MsPacman, 32, cache 1/10 of the data", ITEMS),
    "learners-1": Workload("1 learner, uniform 256", ITEMS),
    "learners-2": Workload("2 learners, uniform 256 each", ITEMS),
    "learners-4": Workload("4 learners, uniform 256 each", ITEMS),
    "actors-1": Workload("1 actor", STEPS),
    "actors-4": Workload("4 actors", STEPS),
    "actors-16": Workload("16 actors", STEPS),
    "disk": Workload("disk, HalfCheetah", "B/step", once=True),
    "disk-images": Workload("disk, MsPacman", "B/step", once=True),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that the design promises: (`workload` of `subject`) / (`beside_workload` of `beside`), at least."""

    workload: str
    subject: str
    beside: str
    at_least: float
    beside_workload: str = ""

    @property
    def other(self) -> str:
        return self.beside_workload or self.workload


TARGETS = (
    Target("uniform", "service", "reverb", 20),
    Target("prioritized", "service", "reverb", 10),
    Target("sequences", "service", "reverb", 5),
    Target("uniform-cold", "service", "reverb", 1.5, "uniform"),
    Target("stack-256", "service", "reverb", 5),
    Target("stack-256-tcp", "service", "reverb", 1, "stack-256"),
    Target("insert", "service", "reverb", 5),
    Target("uniform", "embedded", "torchrl-memmap", 1),
    Target("sequences", "embedded", "torchrl-memmap", 1),
)
RAW_RATIOS = {"disk": 4.0, "disk-images": 100.0}  # raw (s, a, r, s') to disk, at least
