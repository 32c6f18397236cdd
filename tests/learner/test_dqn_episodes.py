"""What a vector environment does and what is stored of it, column by column, in the three autoreset modes.

Environment 0 counts from 0 and terminates after 2 steps; environment 1 counts from 100 and is truncated after 3. Both take
6 vector steps. The reward of a step is the number it reaches. Vector step v = 0, 1, ... sends action v % 2 to environment 0
and always 1 to environment 1.
"""

import contextlib

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dqn.episodes import EpisodeRecorder, autoreset_mode, row
from replaysvc import Signature
from tests.learner.toys import Counter

VECTOR_STEPS = 6


def record(replay, mode, **recorder_state):
    """Returns the table, after 6 vector steps, and the episodes that were reported as ended."""
    envs = SyncVectorEnv([lambda: Counter(0, 2, truncates=False), lambda: Counter(100, 3, truncates=True)], autoreset_mode=mode)
    table = replay.create_table("counts", Signature.from_env(envs))
    ended = []
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(table.writer(actor=f"env-{i}")) for i in range(2)]
        recorder = EpisodeRecorder(writers, autoreset_mode(envs))
        recorder.policy_version = 7
        recorder.begin(envs.reset()[0])
        for v in range(VECTOR_STEPS):
            actions = np.array([v % 2, 1])
            step = envs.step(actions)
            ended += recorder.record(actions, step)
            over = step[2] | step[3]
            if mode is AutoresetMode.DISABLED and over.any():
                recorder.begin(envs.reset(options={"reset_mask": over})[0], over)
    envs.close()
    return table, ended


def stored(table, actor):
    """Returns the stored episodes of an actor, the oldest first: numbers seen, actions, rewards, how it ended."""
    episodes = []
    for record in reversed(table.episodes(actor=actor)):
        columns = table.read_episode(record.episode_id)
        end = "terminated" if record.terminated else "truncated" if record.truncated else "open"
        assert columns["terminated"].tolist() == [False] * (record.length - 1) + [record.terminated]
        assert columns["truncated"].tolist() == [False] * (record.length - 1) + [record.truncated]
        assert record.return_ == columns["reward"].sum()
        numbers = columns["observation"][:, 0].tolist()
        episodes.append((numbers, columns["action"].tolist(), columns["reward"].tolist(), end))
    return episodes


def test_next_step_does_not_store_the_row_of_the_reset(replay):
    table, _ = record(replay, AutoresetMode.NEXT_STEP)
    assert stored(table, "env-0") == [
        ([0, 1, 2], [0, 1], [1, 2], "terminated"),
        ([10, 11, 12], [1, 0], [11, 12], "terminated"),  # vector steps 3 and 4: the action of step 2 was ignored
    ]
    assert stored(table, "env-1") == [
        ([100, 101, 102, 103], [1, 1, 1], [101, 102, 103], "truncated"),
        ([110, 111, 112], [1, 1], [111, 112], "open"),  # its row of step 2 is stored, though environment 0 was reset in it
    ]
    assert table.stats().steps == 9  # of 12 rows, 3 were resets


WITHOUT_RESET_ROWS = {
    "env-0": [
        ([0, 1, 2], [0, 1], [1, 2], "terminated"),
        ([10, 11, 12], [0, 1], [11, 12], "terminated"),
        ([20, 21, 22], [0, 1], [21, 22], "terminated"),
    ],
    "env-1": [
        ([100, 101, 102, 103], [1, 1, 1], [101, 102, 103], "truncated"),
        ([110, 111, 112, 113], [1, 1, 1], [111, 112, 113], "truncated"),
    ],
}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name)
def test_final_observation_is_the_last_of_its_episode_and_not_the_first_of_the_next(replay, mode):
    table, _ = record(replay, mode)
    assert {actor: stored(table, actor) for actor in WITHOUT_RESET_ROWS} == WITHOUT_RESET_ROWS
    assert table.stats().steps == 12


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_reported_returns_are_the_sums_of_the_stored_rewards(replay, mode):
    table, ended = record(replay, mode)
    reported = sorted((episode.env, episode.return_, episode.length) for episode in ended)
    closed = sorted((int(r.actor[-1]), r.return_, r.length) for r in table.episodes(closed_only=True))
    assert reported == closed
    assert (0, 3.0, 2) in reported  # 1 + 2
    assert (1, 306.0, 3) in reported  # 101 + 102 + 103


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_episodes_carry_the_policy_version_and_metadata_given_before_they_start(replay, mode):
    table, _ = record(replay, mode)
    assert {(r.actor, r.policy_version, r.metadata["env"]) for r in table.episodes()} == {("env-0", 7, 0), ("env-1", 7, 1)}


def test_disabled_step_without_the_reset_is_refused(replay):
    envs = SyncVectorEnv([lambda: Counter(0, 1, truncates=False)], autoreset_mode=AutoresetMode.DISABLED)
    table = replay.create_table("counts", Signature.from_env(envs))
    with table.writer() as writer:
        recorder = EpisodeRecorder([writer], AutoresetMode.DISABLED)
        recorder.begin(envs.reset()[0])
        step = envs.step(np.array([0]))
        recorder.record(np.array([0]), step)
        with pytest.raises(RuntimeError):
            recorder.record(np.array([0]), step)
    assert table.stats().steps == 1


def test_environment_that_does_not_name_its_mode_is_taken_for_next_step():
    envs = SyncVectorEnv([lambda: Counter(0, 1, truncates=False)])
    del envs.metadata["autoreset_mode"]
    assert autoreset_mode(envs) is AutoresetMode.NEXT_STEP


def test_row_follows_the_nesting():
    batch = {"position": np.array([1, 2]), "arms": (np.array([3, 4]), np.array([5, 6]))}
    assert row(batch, 1) == {"position": 2, "arms": (4, 6)}
