"""Guards of speed that do not depend on the machine's: counts of calls, and ratios to numpy in the same process."""

import sys
import time

import numpy as np
import pytest

from replaysvc import FieldSpec, Her, Sequences, Signature, Transitions

EPISODES, STEPS = 20, 500
COLUMNS = {"observation": 17, "achieved_goal": 3, "desired_goal": 3}
SIGNATURE = Signature(
    {name: FieldSpec(name, (size,), np.float32) for name, size in COLUMNS.items()}, FieldSpec("action", (6,), np.float32)
)
FLAT = Signature(FieldSpec("observation", (17,), np.float32), FieldSpec("action", (6,), np.float32))
KINDS = {
    "transitions": (Transitions(), "uniform"),
    "3-step": (Transitions(n_step=3), "uniform"),
    "4 frames": (Transitions(stack=4), "uniform"),
    "hindsight": (Transitions(her=Her()), "uniform"),
    "prioritized": (Transitions(), "prioritized"),
    "sequences": (Sequences(length=8, period=4), "uniform"),
}
# Chosen by hand, with what was found when they were written.
SLOWER_THAN_NUMPY = 16  # 5 to 8
CALLS_A_STEP = 50  # 39, a full chunk's encoding shared by its steps
CALLS_A_BATCH = 600  # 429, of transitions
DEPENDS_ON_DATA = 64  # calls that one batch takes and another does not, such as for episodes that end within n steps: 31


def seen(walk, t):
    return {"observation": walk[t], "achieved_goal": walk[t, :3], "desired_goal": walk[-1, :3]}


@pytest.fixture
def table(replay, rng):
    table = replay.create_table("t", SIGNATURE)
    with table.writer() as writer:
        for _ in range(EPISODES):
            walk = rng.standard_normal((STEPS + 1, 17), np.float32).cumsum(axis=0)
            writer.begin(seen(walk, 0))
            for t in range(STEPS):
                writer.append(walk[t, :6], -1.0, seen(walk, t + 1), truncated=t == STEPS - 1)
    return table


def calls(what):
    """Returns how many functions, of Python and C, this thread calls within `what`."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        what()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_takes_as_many_calls_however_large_it_is(table, kind):
    """A call for each item, anywhere on the way, would make a batch of 2048 take at least 1792 more. Of several batches the
    least counts: one may meet what others do not, such as an item that must be drawn again."""
    what, sampler = KINDS[kind]
    table.sample(32, what, sampler=sampler)  # makes the set of items
    least = {size: min(calls(lambda n=size: table.sample(n, what, sampler=sampler)) for _ in range(10)) for size in (256, 2048)}
    assert least[2048] <= least[256] + DEPENDS_ON_DATA, least


def test_a_batch_takes_few_calls(table):
    table.sample(256)
    assert min(calls(lambda: table.sample(256)) for _ in range(10)) <= CALLS_A_BATCH


def test_updated_priorities_take_as_many_calls_however_many_they_are(table):
    batches = {size: table.sample(size, sampler="prioritized") for size in (256, 2048)}
    least = {
        size: min(calls(lambda b=batch: table.update_priorities(b.positions, np.abs(b.reward))) for _ in range(3))
        for size, batch in batches.items()
    }
    assert least[2048] <= least[256] + DEPENDS_ON_DATA, least


def test_an_appended_step_takes_few_calls(replay, rng):
    table = replay.create_table("t", FLAT)
    walk = rng.standard_normal((1025, 17), np.float32).cumsum(axis=0)
    with table.writer() as writer:

        def append():
            writer.begin(walk[0])
            for t in range(1024):
                writer.append(walk[t, :6], -1.0, walk[t + 1], truncated=t == 1023)

        append()
        assert min(calls(append) for _ in range(3)) <= CALLS_A_STEP * 1024


def test_a_batch_takes_a_few_times_as_long_as_fancy_indexing(replay, rng):
    """The same columns out of plain arrays, in turn; the least of many, since other work disturbs only upward."""
    steps = 20_000
    table = replay.create_table("t", FLAT)
    walk = rng.standard_normal((steps + 1, 17), np.float32).cumsum(axis=0)
    actions, rewards = rng.standard_normal((steps, 6), np.float32), np.ones(steps, np.float32)
    with table.writer() as writer:
        writer.begin(walk[0])
        for t in range(steps):
            writer.append(actions[t], rewards[t], walk[t + 1], truncated=t == steps - 1)

    def index():
        at = rng.integers(0, steps, 256)
        return walk[at], actions[at], rewards[at], walk[at + 1]

    least = {}
    for _ in range(300):
        for what in (index, lambda: table.sample(256)):
            began = time.perf_counter()
            what()
            name = what.__name__
            least[name] = min(least.get(name, np.inf), time.perf_counter() - began)
    assert least["<lambda>"] < SLOWER_THAN_NUMPY * least["index"], least
