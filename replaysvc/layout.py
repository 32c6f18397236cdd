"""What a request means for a table's signature: which columns are stacked, which are goals, which are recurrent state.

The server gathers by it and the client assembles by it, so both refuse alike what does not fit.
"""

from dataclasses import dataclass
from functools import lru_cache

from replaysvc.checks import shown
from replaysvc.errors import InvalidRequestError
from replaysvc.requests import Her, Sequences, Stack, Window
from replaysvc.spec import GOAL_NAMES, Signature, columns_of

_ROOT = "observation"


@dataclass(frozen=True, slots=True)
class Layout:
    """reward: number of the reward's column. frames: of each column of the signature, how many are stacked (0: none).
    achieved, desired: numbers of the goals' columns, -1 without `her`. state: of those wanted at the first step alone."""

    reward: int
    frames: tuple[int, ...]
    achieved: int
    desired: int
    state: frozenset[int]

    @property
    def most_frames(self) -> int:
        """Returns the frames of the highest stack, at least 1."""
        return max(1, *self.frames)


@lru_cache(maxsize=256)  # learners ask for the same again and again
def layout_of(signature: Signature, what: Window) -> Layout:
    """Returns what `what` means for `signature`.

    Raises:
      InvalidRequestError: a stack, goal or state that the signature does not have, or one of a wrong kind.
    """
    assert isinstance(what.stack, Stack)
    stacked = _stacked(signature, what.stack) if what.stack.frames > 1 else set()
    frames = tuple(what.stack.frames if i in stacked else 0 for i in range(len(signature.columns)))
    achieved, desired = (-1, -1) if what.her is None else _goals(signature, what.her)
    if desired >= 0 and (frames[achieved] or frames[desired]):
        raise InvalidRequestError(f"stack.columns: expected no goals beside her, found {what.stack.columns}")
    state = _state(signature, what.state) if isinstance(what, Sequences) else frozenset()
    reward = [spec.name for spec in signature.columns].index("reward")
    return Layout(reward, frames, achieved, desired, state)


def _observation(signature: Signature, field: str, name: str) -> list[int]:
    """Returns the numbers of the observation's columns that `name` means: a path, a key of the dict, or all beneath one."""
    count = signature.observation_columns
    for path in (name, f"{_ROOT}/{name}"):
        found = [i for i in range(count) if (signature.columns[i].name + "/").startswith(path + "/")]
        if found and not _is_length(signature, found[0]):
            return found
    known = [spec.name for spec in signature.columns[:count]]
    raise InvalidRequestError(f"{field}: expected an observation among {known}, found {shown(name)}")


def _is_length(signature: Signature, i: int) -> bool:
    """Returns whether column `i` is the lengths of the one before it, with which it goes."""
    return i > 0 and signature.columns[i - 1].ragged


def _stacked(signature: Signature, stack: Stack) -> set[int]:
    if stack.columns:
        chosen = {i for name in stack.columns for i in _observation(signature, "stack.columns", name)}
    else:
        names = [set(spec.name.split("/")) for spec in signature.columns[: signature.observation_columns]]
        chosen = {i for i, parts in enumerate(names) if not GOAL_NAMES & parts}
    for i in sorted(chosen):
        spec = signature.columns[i]
        if not spec.shape and spec.dtype.kind in "iub" and not _is_length(signature, i):
            raise InvalidRequestError(f"stack: expected observations that are no {spec.dtype} scalars, found {spec.name}")
    return chosen


def _goals(signature: Signature, her: Her) -> tuple[int, int]:
    found = []
    for field, name in (("her.achieved", her.achieved), ("her.desired", her.desired)):
        columns = _observation(signature, field, name)
        spec = signature.columns[columns[0]]
        if len(columns) > 1 or spec.dtype.kind not in "iuf":
            raise InvalidRequestError(f"{field}: expected one column of numbers, found {name!r}")
        found.append(columns[0])
    a, d = (signature.columns[i] for i in found)
    if a.shape != d.shape or a.dtype != d.dtype:
        raise InvalidRequestError(
            f"her.desired: expected the shape and dtype of {a.name}, {a.dtype}{list(a.shape)}, found {d.dtype}{list(d.shape)}"
        )
    return found[0], found[1]


def _state(signature: Signature, names: tuple[str, ...]) -> frozenset[int]:
    numbers = {spec.name: i for i, spec in enumerate(signature.columns)}
    wanted: set[int] = set()
    for name in names:
        if name not in signature.extras:
            raise InvalidRequestError(f"state: expected extras among {sorted(signature.extras)}, found {shown(name)}")
        wanted |= {numbers[column.name] for column in columns_of(signature.extras[name])}
    return frozenset(wanted)
