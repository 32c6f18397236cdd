"""Each line of the README's tables of windows and samplers runs, over both doors."""

import re
from pathlib import Path

import numpy as np
import pytest

import replay_client
from replay_client import FieldSpec, Signature

README = (Path(__file__).parents[1] / "README.md").read_text()
SECTION = README[README.index("## Every way to sample") : README.index("## What it is not")]
ROWS = re.findall(r"^\| (.*) \| `([^`]*)` \|$", SECTION, re.MULTILINE)
SIGNATURE = Signature(
    {name: FieldSpec(name, (3,), np.float32) for name in ("observation", "achieved_goal", "desired_goal")},
    FieldSpec("action", (2,), np.float32),
    carry=FieldSpec("carry", (4,), np.float32),
)


class Environment:
    """What the lines use of one: a reward function on `unwrapped`."""

    unwrapped: "Environment"

    def __init__(self):
        self.unwrapped = self

    def compute_reward(self, achieved, desired, info):
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)


def seen(episode, t):
    return {name: np.full(3, t / 100 + episode, np.float32) for name in ("observation", "achieved_goal", "desired_goal")}


@pytest.fixture
def names(door):
    """What the lines may speak of: all public names, `table` with the README's configuration, `env`, and a batch."""
    public = {name: getattr(replay_client, name) for name in replay_client.__all__}
    (block,) = re.findall(r"^```py\n(config = .*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
    exec(block, public)
    table = door.create_table("reach", SIGNATURE, public["config"])
    extras = {"carry": np.zeros(4, np.float32)}
    with table.writer() as writer:
        for episode in range(12):
            writer.begin(seen(episode, 0))
            for t in range(100):
                writer.append(np.zeros(2, np.float32), -1.0, seen(episode, t + 1), truncated=t == 99, extras=extras)
    return public | {"table": table, "env": Environment(), "batch": table.sample(256)}


def test_every_window_and_sampler_has_a_line():
    lines = " ".join(line for _, line in ROWS)
    for name in ("n_step", "stack", "Sequences", "AtEnd", "Episodes", "Her", "seed", "beta", "update_priorities"):
        assert name in lines
    (block,) = re.findall(r"samplers=\{\n(.*?)\n    \},", SECTION, re.DOTALL)
    for sampler in set(re.findall(r'"(\w+)":', block)) - {"uniform"}:  # which is the default
        assert f'sampler="{sampler}"' in lines


@pytest.mark.parametrize("line", [line for _, line in ROWS], ids=[f"{i}" for i in range(len(ROWS))])
def test_a_line_of_the_tables_runs(names, line):
    exec(line, names)


def test_the_gymnasium_lines_record(door):
    gymnasium = pytest.importorskip("gymnasium")
    (block,) = re.findall(r"^```py\n(from replay_client.gym .*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
    table = door.create_table("cartpole", Signature.from_env(gymnasium.make("CartPole-v1")))
    names = {"gymnasium": gymnasium, "table": table}
    exec(block, names)
    for env in (names["env"], names["envs"]):
        env.reset(seed=0)
        env.step(env.action_space.sample())
        env.close()
    assert table.stats().steps == 9
