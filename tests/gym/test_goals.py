"""Real goal environments: recorded by one line, relabelled with their own reward function, compared with a slow loop."""

import gymnasium
import numpy as np
import pytest

from replay_client import Goal, Her, Sequences, Signature, Terminated, Transitions
from replay_client.gym import RecordToReplay
from tests.gym import loops  # registers the environments

ENVIRONMENTS = ("FetchReach-v4", "PointMaze_UMaze-v3")
GAMMA = 0.9


@pytest.fixture(params=ENVIRONMENTS)
def recorded(request, door):
    """(environment, table, episodes as read back): twelve short episodes of random actions."""
    assert request.param in loops.REAL
    env = gymnasium.make(request.param, max_episode_steps=9)
    table = door.create_table("reach", Signature.from_env(env, keep_float64=True))
    recorder = RecordToReplay(env, table)
    recorder.action_space.seed(1)
    for episode in range(12):
        recorder.reset(seed=episode)
        over = False
        while not over:
            _, _, terminated, truncated, _ = recorder.step(recorder.action_space.sample())
            over = terminated or truncated
    recorder.flush()
    reward = env.unwrapped.compute_reward
    episodes = {record.episode_id: table.read_episode(record.episode_id) for record in table.episodes()}
    assert len(episodes) == 12
    yield reward, table, episodes
    recorder.close()


def reachable(episode, goal_kind, t):
    """Returns the goals that may have been chosen for a window that begins at step t."""
    achieved, last = episode["observation"]["achieved_goal"], len(episode["reward"]) - 1
    steps = {Goal.FUTURE: range(t, last + 1), Goal.FINAL: [last], Goal.EPISODE: range(last + 1)}[goal_kind]
    return [achieved[step + 1] for step in steps]


@pytest.mark.parametrize("kind", list(Goal))
def test_transitions_have_the_rewards_of_the_environment_itself(recorded, kind):
    reward, table, episodes = recorded
    her = Her(kind, ratio=0.7, reward=reward, terminated=Terminated.STORED)
    batch = table.sample(200, Transitions(n_step=3, gamma=GAMMA, her=her), seed=3)
    assert 100 < batch.relabeled.sum() < 180
    for i in range(200):
        episode, t = episodes[int(batch.episode_id[i])], int(batch.t[i])
        steps = range(t, min(t + 3, len(episode["reward"])))
        goal = batch.observation["desired_goal"][i]
        assert (batch.next_observation["desired_goal"][i] == goal).all()
        if not batch.relabeled[i]:
            assert (goal == episode["observation"]["desired_goal"][t]).all()
            rewards = [float(episode["reward"][step]) for step in steps]
        else:
            assert any((goal == other).all() for other in reachable(episode, kind, t))
            after = episode["observation"]["achieved_goal"]
            rewards = [float(np.asarray(reward(after[step + 1], goal, {}))) for step in steps]
        expected = sum(GAMMA**k * r for k, r in enumerate(rewards))
        assert batch.reward[i] == pytest.approx(expected, rel=1e-6, abs=1e-6)
        ends = steps[-1] == len(episode["reward"]) - 1
        assert batch.terminated[i] == (ends and episode["terminated"][-1])
        assert batch.discount[i] == pytest.approx(0.0 if batch.terminated[i] else GAMMA ** len(steps))


def test_sequences_have_the_rewards_of_the_environment_itself(recorded):
    reward, table, episodes = recorded
    what = Sequences(length=5, period=2, gamma=GAMMA, her=Her(ratio=1.0, reward=reward, terminated=Terminated.STORED))
    batch = table.sample(40, what, seed=4)
    assert batch.relabeled.all()
    for i in range(40):
        episode, t = episodes[int(batch.episode_id[i])], int(batch.t[i])
        goal = batch.observation["desired_goal"][i, 0]
        for k in np.flatnonzero(batch.mask[i]).tolist():
            after = episode["observation"]["achieved_goal"][t + k + 1]
            assert (batch.observation["desired_goal"][i, k] == goal).all()
            assert batch.reward[i, k] == pytest.approx(float(np.asarray(reward(after, goal, {}))), rel=1e-6, abs=1e-6)


def test_what_is_stored_stays_as_it_was(recorded):
    reward, table, episodes = recorded
    table.sample(100, Transitions(her=Her(ratio=1.0, reward=reward, terminated=Terminated.STORED)))
    for episode_id, before in episodes.items():
        after = table.read_episode(episode_id)
        np.testing.assert_array_equal(after["reward"], before["reward"])
        for name, values in before["observation"].items():
            np.testing.assert_array_equal(after["observation"][name], values)
