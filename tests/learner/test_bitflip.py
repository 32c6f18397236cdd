"""BitFlip by hand, what the network sees of its observations, and learning it by hindsight through a service."""

import warnings
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import replay_client
from dqn.batches import window
from dqn.bitflip import BitFlip, bitflip_config
from dqn.episodes import EpisodeRecorder, autoreset_mode, row, stacked
from dqn.evaluator import evaluation_seeds, greedy_episodes, judge
from dqn.learner import Trainer
from dqn.network import QNetwork, params_to_bytes
from dqn.task import make_envs, make_network, make_table
from replay_client import Params
from tests.processes import ServiceProcess


def started(state, goal):
    """Returns BitFlip at `state` with another goal."""
    env = BitFlip(len(state))
    env.reset(seed=0)
    env._state, env._goal = np.array(state, np.float32), np.array(goal, np.float32)
    return env


def test_gymnasiums_checker_finds_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("dqn.bitflip:BitFlip-v0", bits=4).unwrapped)


def test_action_flips_its_bit_until_the_goal_is_reached():
    env = started([0, 1, 0], [1, 1, 1])
    observation, reward, terminated, truncated, info = env.step(0)
    assert {name: part.tolist() for name, part in observation.items()} == {
        "observation": [1, 1, 0], "achieved_goal": [1, 1, 0], "desired_goal": [1, 1, 1],
    }  # fmt: skip
    assert (reward, terminated, truncated, info) == (-1.0, False, False, {"is_success": False})
    observation, reward, terminated, truncated, info = env.step(2)
    assert observation["achieved_goal"].tolist() == [1, 1, 1]
    assert (reward, terminated, truncated, info) == (0.0, True, False, {"is_success": True})


def test_as_many_steps_as_bits_truncate():
    env = started([0, 0, 0], [1, 1, 1])
    assert [env.step(0)[1:4] for _ in range(3)] == [(-1.0, False, False), (-1.0, False, False), (-1.0, False, True)]


def test_success_in_the_last_step_is_a_termination_and_no_truncation():
    env = started([0, 0], [1, 1])
    env.step(0)
    assert env.step(1)[1:4] == (0.0, True, False)


def test_rewards_of_many_goals_are_computed_at_once():
    achieved = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    rewards = BitFlip(2).compute_reward(achieved, np.array([[0, 1], [0, 1], [0, 0]], np.float32), {})
    assert rewards.tolist() == [0, -1, 0]
    assert rewards.dtype == np.float32


def test_start_and_goal_differ_and_every_pair_of_unequal_ones_comes():
    env = BitFlip(2)
    env.reset(seed=0)
    pairs = set()
    for _ in range(200):
        observation, _ = env.reset()
        pairs.add((*observation["observation"].tolist(), *observation["desired_goal"].tolist()))
    assert len(pairs) == 12  # of 16, less 4 equal ones
    assert all(pair[:2] != pair[2:] for pair in pairs)


def test_same_seed_same_episode():
    first, second = BitFlip(15).reset(seed=4)[0], BitFlip(15).reset(seed=4)[0]
    assert all(np.array_equal(first[part], second[part]) for part in first)


def test_observations_that_were_given_out_do_not_change():
    env = started([0, 0, 0], [1, 1, 1])
    before = env.step(0)[0]
    env.step(1)
    assert before["observation"].tolist() == before["achieved_goal"].tolist() == [1, 0, 0]


class FirstNumbers(torch.nn.Module):
    """Gives out what it is given."""

    def forward(self, inputs):
        return inputs


def test_network_sees_observation_and_desired_goal_flattened_and_joined():
    network = QNetwork(6, 2, (4,))
    network.layers = FirstNumbers()
    observation = {
        "achieved_goal": torch.full((2, 2), 9.0), "desired_goal": torch.tensor([[5, 6], [7, 8]], dtype=torch.float64),
        "observation": torch.tensor([[[1, 2], [3, 4]], [[10, 20], [30, 40]]]),
    }  # fmt: skip
    assert network(observation).tolist() == [[1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 7, 8]]
    assert network(observation).dtype == torch.float32
    assert network.greedy({name: part.numpy() for name, part in observation.items()}).tolist() == [5, 3]


def test_network_has_an_input_for_each_bit_of_state_and_goal():
    assert make_network(bitflip_config(7)).layers[0].in_features == 14


class NoGoal(gym.Env):
    observation_space = gym.spaces.Dict({"observation": gym.spaces.Box(0, 1, (2,)), "desired_goal": gym.spaces.Discrete(2)})
    action_space = gym.spaces.Discrete(2)


def test_observations_that_the_network_cannot_see_are_refused():
    gym.register("ReplayTestNoGoal-v0", entry_point=NoGoal)
    with pytest.raises(ValueError, match="desired_goal"):
        make_network(bitflip_config(env_id="ReplayTestNoGoal-v0", env_options={}))


def test_rows_stack_to_the_batch_that_they_came_from():
    batch = {"a": np.arange(4).reshape(2, 2), "b": (np.arange(2), np.arange(2.0))}
    again = stacked([row(batch, 0), row(batch, 1)])
    assert np.array_equal(again["a"], batch["a"])
    assert [part.tolist() for part in again["b"]] == [[0, 1], [0, 1]]


def test_verdict_on_bitflip_goes_by_success():
    """A network that always flips bit 0 succeeds where the goal is one flip away, in the first step: of 2 bits, in one of 3."""
    config = bitflip_config(2, solved_success=0.3, evaluation_episodes=200)
    network = make_network(config)
    for parameter in network.parameters():
        parameter.data.zero_()
    network.layers[-1].bias.data[0] = 1.0
    data = params_to_bytes(network, {"updates": 0, "steps_learned": 0})
    verdict = judge(make_network(config), Params(1, data), config, None)
    wins = sum(value == 0.0 for value in verdict["returns"])
    assert verdict["success_rate"] == wins / 200 == pytest.approx(1 / 3, abs=0.1)
    assert verdict["solved"]
    assert not judge(make_network(config), Params(1, data), bitflip_config(2, solved_success=0.5), None)["solved"]


def act_at_random(table, config, episodes):
    """Stores `episodes` episodes of random actions."""
    envs = make_envs(config, 1)
    rng = np.random.default_rng(config.seed)
    with table.writer() as writer:
        recorder = EpisodeRecorder([writer], autoreset_mode(envs))
        for _ in range(episodes):
            over = np.array([True])
            recorder.begin(envs.reset(seed=[int(rng.integers(1 << 31))], options={"reset_mask": over})[0])
            while True:
                actions = rng.integers(config.env_options["bits"], size=1)
                step = envs.step(actions)
                if recorder.record(actions, step):
                    break


def success_rate(config, replay, updates):
    """Returns how often a learner succeeds after `updates` batches of random actions' episodes."""
    table = make_table(replay, config)
    if not table.stats().steps:
        act_at_random(table, config, 300)
    trainer = Trainer.create(config)
    for i in range(updates):
        trainer.update(table.sample(config.batch_size, window(config), sampler=config.sampler, seed=i))
    outcomes = greedy_episodes(trainer.network, config, evaluation_seeds(config, 0))
    return sum(outcome.success for outcome in outcomes) / len(outcomes)


def test_bitflip_is_learned_in_hindsight_and_not_without_through_a_service(tmp_path):
    """Both learn from the same random actions, of which one episode in thirteen finds its goal."""
    config = bitflip_config(6, hidden=(64,), batch_size=128, target_update_rate=0.02)
    with ServiceProcess(tmp_path / "store") as service, replay_client.connect(service.address) as replay:
        rates = [success_rate(replace(config, her_ratio=ratio), replay, 1000) for ratio in (0.8, 0.0)]
    assert rates[0] >= 0.9
    assert rates[1] <= 0.3
