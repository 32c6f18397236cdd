"""What a window must hold, column by column, worked out of plain lists of steps; `model` says which windows there are.

Every value can be read by eye: observation t of episode number e has state 1000 * e + t, and the place that was reached as its
achieved goal. Nothing here shares code or ideas with the engine: windows are cut as they are described.
"""

from dataclasses import dataclass, field
from unittest.mock import ANY

import numpy as np

from replaysvc import DenseReward, FieldSpec, Goal, RaggedArray, Signature, SparseReward, StackPadding, Terminated, Transitions

SIGNATURE = Signature(
    {
        "state": FieldSpec("state", (1,), np.int64),
        "reading": FieldSpec("reading", (2,), np.float32),
        "words": FieldSpec("words", (3,), np.int32, ragged=True),
        "achieved_goal": FieldSpec("achieved_goal", (2,), np.float32),
        "desired_goal": FieldSpec("desired_goal", (2,), np.float32),
    },
    FieldSpec("action", (), np.int64),
    log_prob=FieldSpec("log_prob", (), np.float32),
    carry=(FieldSpec("h", (2,), np.float32), FieldSpec("c", (), np.float32)),
    legal=FieldSpec("legal", (3,), np.uint8, ragged=True),
    given=FieldSpec("given", (), np.float32),
)
ZEROS = {
    "state": [0], "reading": [0.0, 0.0], "words": [], "action": 0, "log_prob": 0.0, "carry/0": [0.0, 0.0], "carry/1": 0.0,
    "legal": [], "given": 0.0,
}  # fmt: skip


_COLUMNS = (
    "observation", "next_observation", "action", "reward", "discount", "terminated", "truncated", "extras", "mask", "is_first",
)  # fmt: skip


def own_reward(achieved, desired, info):
    """A learner's own reward: minus the distance along both axes."""
    return -np.abs(achieved - desired).sum(axis=-1)


def own_success(achieved, desired):
    """A learner's own notion of success: at most one apart."""
    return np.abs(achieved - desired).max(axis=-1) <= 1


def judge(her, achieved, desired):
    """Returns (reward, success) of one achieved goal."""
    distance = sum((a - d) ** 2 for a, d in zip(achieved, desired, strict=True)) ** 0.5
    if isinstance(her.reward, SparseReward):
        success = distance <= her.reward.threshold
        return (her.reward.success if success else her.reward.failure), success
    if isinstance(her.reward, DenseReward):
        return -her.reward.scale * distance, distance <= her.reward.threshold
    apart = [abs(a - d) for a, d in zip(achieved, desired, strict=True)]
    return -sum(apart), max(apart) <= 1


@dataclass
class Step:
    """What `append` was given, plain; `after` is the observation after it."""

    action: int
    reward: float
    extras: dict
    after: dict
    position: int = -1
    at_s: float = -1.0


@dataclass(eq=False)
class Episode:
    """An episode as far as it is committed. `first` is its first step that is not removed; `end` "" while it has none."""

    actor: str
    policy_version: int
    metadata: dict
    start: dict  # its first observation
    steps: list = field(default_factory=list)
    id: int = -1
    first: int = 0
    end: str = ""
    started_at_s: float = -1.0
    lost: tuple = ()  # when its lease ran out, in the order of positions

    @property
    def live(self):
        """Returns the steps that are stored."""
        return self.steps[self.first :]

    def seen(self, t):
        """Returns observation t."""
        return self.steps[t - 1].after if t else self.start


def stacked(stack):
    """Returns the observations that are stacked."""
    if stack.frames == 1:
        return set()
    return {name.removeprefix("observation/") for name in stack.columns} or {"state", "reading", "words"}


def goals_of(goal, episode, t):
    """Returns the goals that may take the place of the desired one in a window that begins at step t."""
    end = len(episode.steps)
    after = {Goal.FUTURE: range(t, end), Goal.FINAL: range(end - 1, end), Goal.EPISODE: range(episode.first, end)}[goal]
    return [episode.seen(j + 1)["achieved_goal"] for j in after]


def expected(what, episode, t, width, goal):
    """Returns {path: value} of the window of `width` steps that begins at step t; goal: the new one, None if not relabelled."""
    n = getattr(what, "n_step", 1)
    whole = stop = min(t + width + n - 1, len(episode.steps))
    rewards = [step.reward for step in episode.steps]
    terminated, truncated = (episode.end == end and stop == len(episode.steps) for end in ("terminated", "truncated"))
    own = False
    if goal is not None:
        judged = {u: judge(what.her, episode.seen(u + 1)["achieved_goal"], goal) for u in range(t, stop)}
        rewards = {u: reward for u, (reward, _) in judged.items()}
        if what.her.terminated is Terminated.SUCCESS:
            successes = [u for u, (_, success) in judged.items() if success]
            terminated = bool(successes)
            truncated = truncated and not successes
            stop = successes[0] + 1 if successes else stop
            own = not what.her.declared
    final = whole if own else stop

    def frame(name, u):
        return ZEROS[name] if u < 0 and what.stack.padding is StackPadding.ZERO else episode.seen(min(max(u, 0), final))[name]

    def observation(name, u):
        if name == "desired_goal" and goal is not None:
            return goal
        if name in stacked(what.stack):
            return [frame(name, v) for v in range(u - what.stack.frames + 1, u + 1)]
        return episode.seen(min(u, final))[name]

    rows = []
    for u in range(t, t + width):
        there = u < stop
        summed = range(u, min(u + n, stop))
        last = there and u + len(summed) == stop
        row = {f"observation/{name}": observation(name, u) for name in episode.start}
        row |= {f"next_observation/{name}": observation(name, min(u + n, max(final, u + 1))) for name in episode.start}
        step = episode.steps[u] if there else None
        row["action"] = step.action if there else 0
        row |= {f"extras/{name}": step.extras[name] if there else ZEROS[name] for name in episode.steps[0].extras}
        row["reward"] = sum(what.gamma ** (v - u) * rewards[v] for v in summed)
        row["discount"] = what.gamma ** len(summed) if there and not (last and terminated) else 0.0
        row["terminated"], row["truncated"] = last and terminated, last and truncated
        row["mask"], row["is_first"] = there, u == 0
        if own and not there:  # the server does not know, so these stay as they were stored
            row |= {name: ANY for name in row if name.split("/")[0] in ("observation", "next_observation", "action", "extras")}
        if own and last and terminated and not isinstance(what, Transitions):
            row |= {name: ANY for name in row if name.startswith("next_")}
        rows.append(row)
    if isinstance(what, Transitions):
        (row,) = rows
        del row["mask"], row["is_first"]
        return row
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name in columns:
        if name.startswith("extras/") and name.split("/")[1] in getattr(what, "state", ()):
            columns[name] = columns[name][0]
    return columns


def flat(tree, path):
    """Returns {path: column} of what is nested."""
    if isinstance(tree, dict | tuple):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {name: column for key, part in parts for name, column in flat(part, f"{path}/{key}").items()}
    return {path: tree}


def plain(column):
    """Returns an array as lists."""
    return [plain(item) for item in column] if isinstance(column, RaggedArray) else column.tolist()


def columns_of(batch):
    """Returns {path: column} of all that a window is made of, and checks the dtypes."""
    found = {
        path: column for name in _COLUMNS for path, column in flat(getattr(batch, name), name).items() if column is not None
    }
    declared = {spec.name: spec.dtype for spec in SIGNATURE.columns}
    declared |= {"discount": np.float32, "terminated": bool, "truncated": bool, "mask": bool, "is_first": bool}
    for path, column in found.items():
        dtype = column.values.dtype if isinstance(column, RaggedArray) else column.dtype
        assert dtype == declared[path.removeprefix("next_").removeprefix("extras/")], path
    return found
