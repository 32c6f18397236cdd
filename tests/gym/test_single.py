"""RecordToReplay: what a loop over one environment leaves in the table."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import Autoreset, TimeLimit

from replay_client.gym import RecordToReplay
from replaysvc import FieldSpec, Signature, TableConfig, Transitions
from replaysvc.errors import InvalidRequestError, NotFoundError, SpecMismatchError, UnavailableError, WriterFencedError
from replaysvc.writer import Writer
from tests.gym.loops import REAL, Counting, Episode, assert_stored, draw_actions, lossless, make, play
from tests.waiting import wait_until

LOG_PROB = {"log_prob": FieldSpec("log_prob", (), np.float32)}


def run(env, actions, *, seed=None):
    """A user's loop; stops when the actions are used up."""
    env.reset(seed=seed)
    over = False
    for action in actions:
        if over:
            env.reset()
        _, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated


@pytest.mark.parametrize("name", REAL)
def test_a_recorded_loop_stores_what_a_plain_loop_sees(door, name):
    plain, env = make(name), make(name)
    actions = draw_actions(plain.action_space, 40, seed=3)
    table = door.create_table("t", lossless(env))
    recorded = RecordToReplay(env, table)
    run(recorded, actions, seed=11)
    recorded.close()
    assert_stored(table, play(plain, actions, seed=11))
    plain.close()


def test_the_wrapper_returns_what_the_environment_does(replay):
    env = RecordToReplay(Counting((2,)), replay.create_table("t", lossless(Counting())))
    assert env.reset(seed=1) == (0, {})
    assert env.step(5) == (1, 0.0, False, False, {})
    assert env.step(6) == (2, 10.0, True, False, {})
    env.close()


def test_float64_observations_become_the_declared_float32(replay):
    env = make("PointMaze_UMaze-v3")
    table = replay.create_table("t", Signature.from_env(env))
    recorded = RecordToReplay(env, table)
    first, _ = recorded.reset(seed=4)
    assert first["achieved_goal"].dtype == np.float64
    recorded.step(np.zeros(2, np.float32))
    recorded.close()
    goals = table.read_episode(0)["observation"]["achieved_goal"]  # goals are kept without loss
    np.testing.assert_array_equal(goals[0], first["achieved_goal"].astype(np.float32))


def test_a_reset_in_mid_episode_keeps_the_steps_without_an_end(door):
    table = door.create_table("t", lossless(Counting()))
    with RecordToReplay(Counting((3,)), table) as env:
        env.reset()
        env.step(7)
        env.step(8)
        run(env, [1, 2, 3])
    assert_stored(table, [Episode([0, 1, 2], [7, 8], [0, 10]), Episode([100, 101, 102, 103], [1, 2, 3], [0, 10, 20], True)])


def test_a_reset_right_after_a_reset_stores_nothing(replay):
    table = replay.create_table("t", lossless(Counting()))
    with RecordToReplay(Counting((1,)), table) as env:
        env.reset()
        run(env, [9])
    assert_stored(table, [Episode([100, 101], [9], [0], True)])


def test_close_stores_the_open_episode_and_closes_writer_and_environment(door):
    closed = []
    inner = Counting((5,))
    inner.close = lambda: closed.append("environment")
    table = door.create_table("t", lossless(inner))
    env = RecordToReplay(inner, table)
    run(env, [1, 2])
    env.close()
    env.close()
    assert closed == ["environment", "environment"]  # as Gymnasium's wrappers pass it on
    assert_stored(table, [Episode([0, 1, 2], [1, 2], [0, 10])])
    with pytest.raises(UnavailableError, match="closed"):
        env.reset()


def test_flush_makes_the_steps_of_an_open_episode_durable(door):
    table = door.create_table("t", lossless(Counting()))
    with RecordToReplay(Counting((5,)), table) as env:
        run(env, [1, 2])
        env.flush()
        assert table.stats().steps == 2


def test_an_environment_is_closed_even_if_its_steps_cannot_be_stored(replay):
    closed = []
    inner = Counting((5,))
    inner.close = lambda: closed.append(True)
    env = RecordToReplay(inner, replay.create_table("t", lossless(inner)))
    run(env, [1])
    replay.delete_table("t")
    with pytest.raises(NotFoundError):
        env.close()
    assert closed == [True]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_reward_of_the_last_step_is_stored(replay, end):
    """A14: a reward that comes with the last step only was lost with the last tuple."""
    env = Counting((1, 2, 3), end=end)
    table = replay.create_table("t", lossless(env))
    with RecordToReplay(env, table) as recorded:
        run(recorded, [0] * 6)
    assert [record.return_ for record in sorted(table.episodes(), key=lambda r: r.episode_id)] == [0.0, 10.0, 30.0]


def test_a_time_limit_is_stored_as_truncated_and_bootstraps(door):
    """The time limit of an endless task must not look like its end: 1 + 0.99 * 10 = 10.9, not 1."""
    inner = Counting((100,))
    table = door.create_table("t", lossless(inner))
    with RecordToReplay(TimeLimit(inner, 1), table) as env:
        run(env, [0])
    batch = table.sample(1, Transitions(gamma=0.99), seed=0)
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False], [True])
    assert batch.next_observation.tolist() == [1]
    np.testing.assert_allclose(1 + batch.discount * 10, [10.9], rtol=1e-6)


def test_an_extra_is_set_before_each_step(door):
    table = door.create_table("t", lossless(Counting(), **LOG_PROB))
    with RecordToReplay(Counting((2,)), table) as env:
        env.reset()
        env.extras = {"log_prob": -0.5}
        env.step(1)
        env.extras = {"log_prob": -0.25}
        env.step(2)
    assert table.read_episode(0)["log_prob"].tolist() == [-0.5, -0.25]


def test_an_extra_holds_for_one_step_only(replay):
    """A forgotten value is refused, not repeated, and the environment has not moved."""
    inner = Counting((3,))
    table = replay.create_table("t", lossless(inner, **LOG_PROB))
    with RecordToReplay(inner, table) as env:
        env.reset()
        env.extras = {"log_prob": -0.5}
        env.step(1)
        with pytest.raises(SpecMismatchError, match=r"extras: expected keys \['log_prob'\] before each step, found keys \[\]"):
            env.step(2)
        assert inner.t == 1
        env.extras = {"log_prob": -1.0}
        env.step(2)
    assert_stored(table, [Episode([0, 1, 2], [1, 2], [0, 10])])


def test_extras_come_from_a_function_of_observation_and_action(replay):
    table = replay.create_table("t", lossless(Counting(), both=FieldSpec("both", (2,), np.int64)))
    with RecordToReplay(Counting((3,)), table, extras=lambda observation, action: {"both": [observation, action]}) as env:
        run(env, [7, 8, 9])
    assert table.read_episode(0)["both"].tolist() == [[0, 7], [1, 8], [2, 9]]


def test_an_extra_that_is_set_wins_over_the_function(replay):
    extras = {"a": FieldSpec("a", (), np.int64), "b": FieldSpec("b", (), np.int64)}
    table = replay.create_table("t", lossless(Counting(), **extras))
    with RecordToReplay(Counting((2,)), table, extras=lambda observation, action: {"a": 1, "b": 1}) as env:
        env.reset()
        env.extras = {"b": 2}
        env.step(0)
        env.step(0)
    episode = table.read_episode(0)
    assert (episode["a"].tolist(), episode["b"].tolist()) == ([1, 1], [2, 1])


@pytest.mark.parametrize("extras", [3, {"log_prob": "high"}, {"log_prob": [0.5, 0.5]}, {"log_prob": 0.5, "other": 1}])
def test_extras_that_do_not_fit_are_refused_before_the_environment_moves(replay, extras):
    inner = Counting((3,))
    with RecordToReplay(inner, replay.create_table("t", lossless(inner, **LOG_PROB))) as env:
        env.reset()
        env.extras = extras
        with pytest.raises(SpecMismatchError):
            env.step(1)
        assert inner.seen == []


def test_extras_are_found_below_other_wrappers(replay):
    table = replay.create_table("t", lossless(Counting(), **LOG_PROB))
    with TimeLimit(RecordToReplay(Counting((2,)), table), 10) as env:
        env.reset()
        env.set_wrapper_attr("extras", {"log_prob": -0.5})
        env.step(1)
    assert table.read_episode(0)["log_prob"].tolist() == [-0.5]


def test_policy_version_and_metadata_mark_the_episodes_that_begin_afterwards(door):
    table = door.create_table("t", lossless(Counting()))
    with RecordToReplay(Counting((2,)), table, actor="left", policy_version=3, metadata={"task": "a"}) as env:
        env.reset()
        env.policy_version, env.episode_metadata = 4, None
        env.step(0)
        env.step(0)
        run(env, [0])
    marks = [(r.actor, r.policy_version, r.metadata) for r in sorted(table.episodes(), key=lambda r: r.episode_id)]
    assert marks == [("left", 3, {"task": "a"}), ("left", 4, {})]


def test_a_step_before_reset_or_after_the_end_is_refused_before_the_environment_sees_it(replay):
    inner = Counting((1,))
    table = replay.create_table("t", lossless(inner))
    with RecordToReplay(inner, table) as env:
        with pytest.raises(InvalidRequestError, match="call reset first"):
            env.step(1)
        run(env, [2])
        with pytest.raises(InvalidRequestError, match="call reset first"):
            env.step(3)
        assert inner.seen == [2]
    assert_stored(table, [Episode([0, 1], [2], [0], True)])


def test_an_action_that_does_not_fit_is_refused_before_the_environment_moves(replay):
    inner = Counting((2,))
    table = replay.create_table("t", lossless(inner))
    with RecordToReplay(inner, table) as env:
        env.reset()
        with pytest.raises(SpecMismatchError, match="action"):
            env.step([1, 2])
        env.step(4)
        env.step(5)
    assert_stored(table, [Episode([0, 1, 2], [4, 5], [0, 10], True)])


def test_an_environment_that_changes_its_action_does_not_change_what_is_stored(replay):
    class Scribbler(Counting):
        action_space = Box(-1, 1, (2,), np.float32)

        def step(self, action):
            action *= 0
            return super().step(action)

    table = replay.create_table("t", lossless(Scribbler()))
    with RecordToReplay(Scribbler((1,)), table) as env:
        run(env, [np.array([0.5, -1], np.float32)])
    assert table.read_episode(0)["action"].tolist() == [[0.5, -1.0]]


def test_after_a_step_that_could_not_be_stored_the_episode_is_over_until_reset(replay):
    """Going on would join two observations that do not follow each other."""

    class Torn(Counting):
        def step(self, action):
            observation, *rest = super().step(action)
            return (np.zeros(2) if (self.episode, self.t) == (0, 2) else observation, *rest)

    table = replay.create_table("t", lossless(Torn()))
    with RecordToReplay(Torn((4,)), table) as env:
        env.reset()
        env.step(1)
        with pytest.raises(SpecMismatchError, match="observation"):
            env.step(2)
        with pytest.raises(InvalidRequestError, match="call reset first"):
            env.step(3)
        run(env, [5])
    assert_stored(table, [Episode([0, 1], [1], [0]), Episode([100, 101], [5], [0])])


def test_the_reset_step_of_an_autoreset_wrapper_is_not_stored(replay):
    table = replay.create_table("t", lossless(Counting(), **LOG_PROB))
    with RecordToReplay(TimeLimit(Autoreset(Counting((2,))), 100), table) as env:
        env.reset()
        for action in (1, 2, 99, 3, 4):
            env.extras = {"log_prob": -float(action)}
            env.step(action)
            if action == 99:  # which used up its extras like any other
                with pytest.raises(SpecMismatchError, match="extras"):
                    env.step(100)
    assert_stored(table, [Episode([0, 1, 2], [1, 2], [0, 10], True), Episode([100, 101, 102], [3, 4], [0, 10], True)])
    assert table.read_episode(1)["log_prob"].tolist() == [-3.0, -4.0]


def test_dict_actions_are_stored_by_key(replay):
    class Dicts(Counting):
        action_space = gymnasium.spaces.Dict({"move": Box(-1, 1, (2,), np.float32), "jump": Discrete(2)})

    actions = draw_actions(Dicts.action_space, 5, seed=0)
    table = replay.create_table("t", lossless(Dicts()))
    with RecordToReplay(Dicts((3,)), table) as env:
        run(env, [dict(reversed(action.items())) for action in actions])
    assert_stored(table, play(Dicts((3,)), actions, seed=0))


def test_the_client_does_not_import_gymnasium():
    program = "import sys, replay_client; sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def lose_episode(table, env, monkeypatch):
    """Makes the episode that `env` records end since nothing is heard of its writer, as if its process were stopped."""
    with monkeypatch.context() as stopped:
        stopped.setattr(Writer, "open_episode", None)
        wait_until(lambda: table.stats().lost_actor_episodes_total)


def test_recording_goes_on_with_a_new_writer_after_a_pause_longer_than_the_lease(door, monkeypatch, caplog):
    table = door.create_table("t", lossless(Counting()), TableConfig(lease_s=1, flush_interval_s=3600))
    env = RecordToReplay(Counting((5, 2)), table, actor="a", metadata={"seed": 1})
    env.reset()
    env.step(0)
    env.flush()
    lose_episode(table, env, monkeypatch)
    env.step(1)
    with pytest.raises(WriterFencedError):  # this step is not stored, as it was asked for
        env.flush()
    for action in (2, 3, 4):
        env.step(action)
    run(env, [5, 6])
    env.close()
    newest, rest, lost = table.episodes(actor="a")
    assert (lost.length, lost.end_reason) == (1, "lost_actor")
    assert (rest.length, rest.terminated, rest.metadata) == (3, True, {"seed": 1})
    assert table.read_episode(rest.episode_id)["observation"].tolist() == [2, 3, 4, 5]
    assert (newest.length, newest.terminated) == (2, True)
    (warning,) = [record for record in caplog.records if record.name.startswith("replay_client.gym")]
    assert "episode 0 was ended as truncated" in warning.getMessage()


def test_reset_after_a_pause_longer_than_the_lease_begins_with_a_new_writer(door, monkeypatch):
    table = door.create_table("t", lossless(Counting()), TableConfig(lease_s=1, flush_interval_s=3600))
    env = RecordToReplay(Counting((5, 2)), table)
    env.reset()
    env.step(0)
    env.flush()
    lose_episode(table, env, monkeypatch)
    env.step(1)
    with pytest.raises(WriterFencedError):
        env.flush()
    run(env, [5, 6])
    env.close()
    assert [record.length for record in table.episodes()] == [2, 1]
