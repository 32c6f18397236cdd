"""What can be asked for: windows (transitions, sequences, whole episodes), frame stacks, hindsight goals; lists of episodes.

Each is frozen and checks itself when it is made. All windows combine: any can be stacked and relabelled, and comes from any
sampler.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from replaysvc.checks import check_flag, check_number, check_text, shown
from replaysvc.errors import SpecMismatchError

ComputeReward: TypeAlias = Callable[[Any, Any, Any], Any]
"""(achieved goals [N, ...], desired goals [N, ...], info) -> rewards [N], as in Gymnasium-Robotics; `info` is an empty dict."""

_MAX_STACK = 64
_MAX_LENGTH = 1 << 20
_MAX_RETURN = 1e38  # of what is compared with a return; chosen by hand: a float32 holds it


def client_reward(achieved: Any, desired: Any, info: Any) -> Any:
    """Stands in, on the server, for a reward function that only the learner's process has; is never called."""
    raise NotImplementedError


def client_success(achieved: Any, desired: Any) -> Any:
    """Stands in, on the server, for a success function that only the learner's process has; is never called."""
    raise NotImplementedError


def _settle_enum(options: Any, name: str, kind: type[Enum]) -> None:
    """Turns the text of an enum's value into the member, so that both may be written."""
    value = getattr(options, name)
    try:
        object.__setattr__(options, name, kind(value))
    except ValueError:
        raise SpecMismatchError(name, f"one of {[member.value for member in kind]}", shown(value)) from None


def _settle_names(options: Any, name: str) -> None:
    value = getattr(options, name)
    names: tuple[Any, ...] = (None,)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        try:
            names = tuple(value)
        except TypeError:  # an array of no dimension
            names = (None,)
    try:
        object.__setattr__(options, name, tuple(check_text(name, part) for part in names))
    except SpecMismatchError:
        raise SpecMismatchError(name, "a tuple of names", shown(value)) from None


class StackPadding(Enum):
    """What stands in a frame stack before the first step of an episode."""

    REPEAT = "repeat"  # the episode's first observation, again and again
    ZERO = "zero"


class AtEnd(Enum):
    """What becomes of the steps at an episode's end that no full sequence covers."""

    PAD = "pad"  # one more sequence begins at the next multiple of `period`; what is past the end is masked
    SHIFT = "shift"  # one more sequence is shifted back so that it ends with the last step
    DROP = "drop"  # they are in no sequence


class Goal(Enum):
    """Which achieved goal takes the place of the desired one (Andrychowicz et al. 2017, section 4.5)."""

    FUTURE = "future"  # after a step drawn from the window's first step to the episode's last
    FINAL = "final"  # after the episode's last step
    EPISODE = "episode"  # after any step of the episode


class Terminated(Enum):
    """What `terminated` says of a relabelled step."""

    SUCCESS = "success"  # whether the step reaches the new goal; the window ends there
    STORED = "stored"  # what the environment said


@dataclass(frozen=True, slots=True)
class SparseReward:
    """`success` where the Euclidean distance between achieved and desired goal is at most `threshold`, else `failure`."""

    threshold: float = 0.05
    success: float = 0.0
    failure: float = -1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", check_number("threshold", self.threshold, 0, 1e30, whole=False))
        for name in ("success", "failure"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), -1e30, 1e30, whole=False))


@dataclass(frozen=True, slots=True)
class DenseReward:
    """-`scale` * distance (Euclidean norm) between achieved and desired goal; a distance within `threshold` is a success."""

    scale: float = 1.0
    threshold: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_number("scale", self.scale, -1e30, 1e30, whole=False))
        object.__setattr__(self, "threshold", check_number("threshold", self.threshold, 0, 1e30, whole=False))


@dataclass(frozen=True, slots=True)
class Her:
    """Relabels a share of the windows with goals that were reached (hindsight experience replay, Andrychowicz et al. 2017).

    goal: which reached goal. It is always the achieved goal *after* a step of the same episode.
    ratio: chance of each window to be relabelled, 0 to 1.
    reward: how the rewards of a relabelled window are made from its *next* achieved goals: a `SparseReward` or `DenseReward`
      (made by the server), or a function like an environment's own `compute_reward` (called in the learner's process, once a
      batch; it gets arrays).
    terminated: `Terminated.SUCCESS` recomputes it and ends the window at the first success, `Terminated.STORED` keeps what is
      stored. A reward function knows no success, so with one SUCCESS needs `success`.
    success: (achieved, desired) -> bool [N], only beside a reward function.
    achieved, desired: the goals' columns: names in the observation's dict, or paths such as `observation/achieved_goal`.
    open_episodes: also relabel within episodes that have no end yet, by what is stored of them. Without it, windows come from
      closed episodes alone.
    """

    goal: Goal = Goal.FUTURE
    ratio: float = 0.8
    reward: SparseReward | DenseReward | ComputeReward = SparseReward()
    terminated: Terminated = Terminated.SUCCESS
    success: Callable[[Any, Any], Any] | None = None
    achieved: str = "achieved_goal"
    desired: str = "desired_goal"
    open_episodes: bool = False

    def __post_init__(self) -> None:
        _settle_enum(self, "goal", Goal)
        _settle_enum(self, "terminated", Terminated)
        object.__setattr__(self, "ratio", check_number("ratio", self.ratio, 0, 1, whole=False))
        for name in ("achieved", "desired"):
            try:
                check_text(name, getattr(self, name))
            except SpecMismatchError as error:
                raise SpecMismatchError(name, "the name of an observation", error.found) from None
        object.__setattr__(self, "open_episodes", check_flag("open_episodes", self.open_episodes))
        if not self.declared and not callable(self.reward):
            raise SpecMismatchError("reward", "a SparseReward, a DenseReward or a function", shown(self.reward))
        if self.success is not None and (self.declared or not callable(self.success)):
            raise SpecMismatchError("success", "a function, beside a reward that is a function", shown(self.success))
        if not self.declared and self.terminated is Terminated.SUCCESS and self.success is None:
            raise SpecMismatchError(
                "terminated", "Terminated.STORED, or `success` beside a reward function, which tells no success", "SUCCESS"
            )

    @property
    def declared(self) -> bool:
        """Returns whether the server can make the rewards."""
        return isinstance(self.reward, SparseReward | DenseReward)


@dataclass(frozen=True, slots=True)
class Stack:
    """`frames` observations [t - frames + 1, t] in place of the one at t, oldest first, on an axis of their own after the batch
    (and time) axes. Steps before the episode's first are padded.

    columns: which observations, by name in the observation's dict or by path; empty: all of them but goals.
    """

    frames: int
    padding: StackPadding = StackPadding.REPEAT
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", check_number("frames", self.frames, 1, _MAX_STACK))
        _settle_enum(self, "padding", StackPadding)
        _settle_names(self, "columns")


def _settle_common(options: Any) -> None:
    """Checks what all windows share: gamma, n_step, stack, her."""
    object.__setattr__(options, "gamma", check_number("gamma", options.gamma, 0, 1, whole=False))
    stack = options.stack
    if not isinstance(stack, Stack):
        object.__setattr__(options, "stack", Stack(check_number("stack", stack, 1, _MAX_STACK)))
    if options.her is not None and not isinstance(options.her, Her):
        raise SpecMismatchError("her", "a Her or None", shown(options.her))


@dataclass(frozen=True, slots=True)
class Transitions:
    """Asks for n-step transitions (Sutton and Barto 2018, section 7.1).

    A transition anchored at step t sums up to `n_step` rewards, fewer where the episode (or what is stored of it) ends.
    `stack`: frames to stack, a number or a `Stack`. `her`: hindsight goals.
    """

    n_step: int = 1
    gamma: float = 0.99
    stack: Stack | int = 1
    her: Her | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_step", check_number("n_step", self.n_step, 1, 10_000))
        _settle_common(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Asks for sequences of `length` consecutive steps of one episode, for recurrent agents (Kapturowski et al. 2019).

    length: steps, of which the first `burn_in` only warm the recurrent state up. An episode still being written counts as
      long as what is stored of it.
    period: sequences begin every so many steps from the episode's start; None: `length`, so that none overlap.
    at_end: what becomes of the steps at the end that no full sequence covers.
    n_step: each step's reward and next_observation are those of an n-step transition, which may look past the sequence.
    state: extras that are returned at the first step alone ([B, ...] instead of [B, T, ...]): the recurrent state.
    """

    length: int
    burn_in: int = 0
    period: int | None = None
    at_end: AtEnd = AtEnd.PAD
    n_step: int = 1
    gamma: float = 0.99
    stack: Stack | int = 1
    state: tuple[str, ...] = ()
    her: Her | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_number("length", self.length, 1, _MAX_LENGTH))
        object.__setattr__(self, "burn_in", check_number("burn_in", self.burn_in, 0, self.length - 1))
        period = self.length if self.period is None else self.period
        object.__setattr__(self, "period", check_number("period", period, 1, _MAX_LENGTH))
        object.__setattr__(self, "n_step", check_number("n_step", self.n_step, 1, 10_000))
        _settle_enum(self, "at_end", AtEnd)
        _settle_names(self, "state")
        _settle_common(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Asks for whole episodes of at most `max_steps` steps, all stored, as one batch padded to the longest of them.

    Longer episodes are not drawn. Only closed ones are, unless `open_episodes`.
    """

    max_steps: int = 1000
    gamma: float = 0.99
    open_episodes: bool = False
    stack: Stack | int = 1
    her: Her | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_steps", check_number("max_steps", self.max_steps, 1, _MAX_LENGTH))
        object.__setattr__(self, "open_episodes", check_flag("open_episodes", self.open_episodes))
        _settle_common(self)


Window: TypeAlias = Transitions | Sequences | Episodes


EPISODE_ENDS = ("terminated", "truncated", "lost_actor", "open")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """Asks for those episodes alone that meet all that is given. Bounds are inclusive; None asks for nothing.

    end: "terminated"; "truncated" by its writer, and not terminated; "lost_actor", truncated by the service since its writer
      was gone; "open", without an end so far.
    min_length, max_length: steps from the episode's start. min_return, max_return: sum of its rewards so far.
    min_policy_version, max_policy_version: that its first steps were made with; -1 of one that told none.
    """

    end: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_return: float | None = None
    max_return: float | None = None
    min_policy_version: int | None = None
    max_policy_version: int | None = None

    def __post_init__(self) -> None:
        if self.end is not None and (not isinstance(self.end, str) or self.end not in EPISODE_ENDS):
            raise SpecMismatchError("end", f"one of {list(EPISODE_ENDS)}", shown(self.end))
        most = (1 << 63) - 1
        for what, low, high, whole in (
            ("length", 0, most, True), ("policy_version", -1, most, True),
            ("return", -_MAX_RETURN, _MAX_RETURN, False),
        ):  # fmt: skip
            bounds = []
            for name in (f"min_{what}", f"max_{what}"):
                value = getattr(self, name)
                if value is not None:
                    value = check_number(name, value, low, high, whole=whole)
                    object.__setattr__(self, name, value)
                bounds.append(value)
            if None not in bounds and bounds[0] > bounds[1]:
                raise SpecMismatchError(f"max_{what}", f"at least min_{what}={bounds[0]}", str(bounds[1]))
