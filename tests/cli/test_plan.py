"""`replaysvc plan`: the worked examples, what is measured, and what is refused."""

import json

import pytest

import replaysvc as package
from tests.builders import SCALARS, write_episodes


def test_worked_examples_come_out(replaysvc):
    done = replaysvc("plan", "--steps", 100, "--environments", 100, "--rollout-steps", 1000)
    assert (done.returncode, done.stderr) == (0, "")
    assert "20,000 steps/s" in done.stdout
    assert "1.39 hours" in done.stdout
    assert "27.78 hours" in replaysvc("plan", "--steps", 1000, "--rate", 10_000).stdout


def test_json_has_the_same_numbers(replaysvc):
    told = json.loads(replaysvc("plan", "--steps", 100, "--environments", 100, "--price", 0.05, "--json").stdout)
    assert (told["steps"], told["steps_per_s"], told["wall_s"]) == (100_000_000, 20_000.0, 5000.0)
    assert told["cost"] == pytest.approx(0.05 * 102 * 5000 / 3600)
    assert told["step"] is told["disk_bytes"] is None


def test_environment_is_measured(replaysvc):
    told = json.loads(replaysvc("plan", "--steps", 1, "--env", "CartPole-v1", "--json").stdout)
    step = told["step"]
    assert step["raw_bytes"] == 2 * 4 * 4 + 8 + 4  # two observations of 4 float32, an int64 action, a float32 reward
    assert 5 < step["disk_bytes"] < 44
    assert told["disk_bytes"] == pytest.approx(step["disk_bytes"] * 1_000_000)
    assert "memory" in replaysvc("plan", "--steps", 1, "--env", "CartPole-v1").stdout


def test_stored_table_is_measured(tmp_path, replaysvc):
    with package.open(tmp_path / "store") as replay:
        write_episodes(replay.create_table("t", SCALARS), [100] * 5)
    told = json.loads(replaysvc("plan", "--steps", 2, "--store", "store", "--table", "t", "--hit-rate", 0.5, "--json").stdout)
    assert told["hit_rate"] == 0.5
    assert told["step"]["chunk_steps"] == 100
    assert told["disk_bytes"] == pytest.approx(told["step"]["disk_bytes"] * 2_000_000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", 0], "steps: expected a whole number from 1"),
        (["--steps", "nan"], "steps: expected a number of millions, found nan"),
        (["--steps", 1, "--env", "NoSuch-v0"], "env: NoSuch-v0 cannot be made"),
        (["--steps", 1, "--store", "here"], "store, table: expected both"),
        (["--steps", 1, "--env", "CartPole-v1", "--table", "t"], "env: expected either"),
        (["--steps", 1, "--store", "nowhere", "--table", "t"], "nowhere"),
        (["--steps", 1, "--hit-rate", 2], "hit_rate: expected a number from 0 to 1"),
    ],
)
def test_what_makes_no_plan_is_one_sentence(refused, options, words):
    status, sentence = refused("plan", *options)
    assert status
    assert words in sentence
