"""What the model's test does by chance: tables, requests, what is written; and steps whose values can be read by eye."""

import numpy as np
from hypothesis import strategies as st

from replaysvc import (
    AtEnd,
    DenseReward,
    Episodes,
    EpisodeUniform,
    Fifo,
    Goal,
    Her,
    Lifo,
    Prioritized,
    Recency,
    Remover,
    Sequences,
    SparseReward,
    Stack,
    StackPadding,
    TableConfig,
    Terminated,
    Transitions,
    Uniform,
    WeightNorm,
)
from tests.engine.model_windows import Step, own_reward, own_success

NEVER_S = 3600.0  # no chunk is sent by the clock: which steps are committed is known
SEEDED = ("uniform", "prioritized", "by_table", "recency", "fair")
QUEUES = ("fifo", "lifo")
PRIORITIZED = ("prioritized", "by_table")

stacks = st.builds(
    Stack,
    st.integers(1, 3),
    padding=st.sampled_from(StackPadding),
    columns=st.sampled_from([(), ("state",), ("observation/reading", "words")]),
)
rewards = st.sampled_from([SparseReward(threshold=0.5, success=10.0), SparseReward(1.5), DenseReward(scale=2.0, threshold=1.5)])
hers = st.none() | st.builds(
    Her,
    goal=st.sampled_from(Goal),
    ratio=st.sampled_from([0.0, 0.5, 1.0]),
    reward=rewards,
    terminated=st.sampled_from(Terminated),
    open_episodes=st.booleans(),
)
own_hers = st.builds(
    Her,
    goal=st.sampled_from(Goal),
    ratio=st.sampled_from([0.5, 1.0]),
    reward=st.just(own_reward),
    terminated=st.sampled_from(Terminated),
    success=st.just(own_success),
    open_episodes=st.booleans(),
)
common = {"gamma": st.sampled_from([1.0, 0.5, 0.9]), "stack": stacks, "her": hers | own_hers}
windows = st.one_of(
    st.builds(Transitions, n_step=st.integers(1, 5), **common),
    st.builds(
        Sequences,
        length=st.integers(1, 6),
        period=st.none() | st.integers(1, 7),
        at_end=st.sampled_from(AtEnd),
        n_step=st.integers(1, 4),
        state=st.sampled_from([(), ("carry",), ("log_prob", "carry", "legal")]),
        **common,
    ),
    st.builds(Episodes, max_steps=st.integers(1, 12), open_episodes=st.booleans(), **common),
)
priorities = st.sampled_from([0.0, 0.25, 0.5, 3.0, 20.0, 1e-6])
seeds = st.none() | st.integers(0, (1 << 64) - 1)
prioritized = {
    "beta": st.sampled_from([0.0, 0.4, 1.0]),
    "norm": st.sampled_from(WeightNorm),
    "initial_priority": st.none() | st.just("given"),
}
samplers = st.fixed_dictionaries(
    {
        "uniform": st.just(Uniform()),
        "prioritized": st.builds(Prioritized, alpha=st.sampled_from([1.0, 0.6]), **prioritized),
        "by_table": st.builds(Prioritized, alpha=st.sampled_from([1.0, 0.0, 2.0]), **prioritized),
        "recency": st.builds(Recency, st.sampled_from([0.5, 3.0, 1000.0])),
        "fair": st.just(EpisodeUniform()),
        "fifo": st.builds(Fifo, st.integers(1, 3)),
        "lifo": st.builds(Lifo, st.integers(1, 3)),
    }
)
configs = st.builds(
    TableConfig,
    chunk_steps=st.integers(1, 7),
    capacity_steps=st.none() | st.integers(6, 30),
    capacity_episodes=st.none() | st.integers(1, 5),
    remover=st.sampled_from(Remover),
    samplers=samplers,
    flush_interval_s=st.just(NEVER_S),
)
writes = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, 4), min_size=1, max_size=9),
        st.sampled_from(["", "terminated", "terminated", "truncated", "truncated"]),
        st.sampled_from([True, True, False]),
    ),
    min_size=1,
    max_size=4,
)


def observation(number, t, place):
    """Returns observation t of an episode, reached at `place`; no two have the same achieved goal, so it tells t."""
    return {
        "state": [1000 * number + t], "reading": [t / 4, number % 64], "words": [number, t, place][: t % 4],
        "achieved_goal": [place, 8 * number + t / 1024], "desired_goal": [50, 8 * number],
    }  # fmt: skip


def step(number, t, place):
    """Returns step t of an episode, which leads to `place`."""
    extras = {
        "log_prob": -t - 0.5, "carry/0": [t + 1.0, number], "carry/1": t + 0.25,
        "legal": [t, number % 8, 3][: (t + number) % 4], "given": ((3 * t + number) % 5) / 2,
    }  # fmt: skip
    return Step(100 * number + t + 1, (t % 3) + 0.5 * (number % 4) + 1, extras, observation(number, t + 1, place))


def given(extras):
    """Returns extras as `append` wants them."""
    nested = {name: value for name, value in extras.items() if "/" not in name}
    return nested | {"carry": (np.array(extras["carry/0"], np.float32), extras["carry/1"])}


def arrays(value):
    """Returns an observation as the writer wants it."""
    dtypes = {"state": np.int64, "words": np.int32}
    return {name: np.array(part, dtypes.get(name, np.float32)) for name, part in value.items()}
