"""What a learner gets, the same on both doors."""

import numpy as np
import pytest

from replaysvc import FieldSpec, Limiter, Signature, TableConfig, Transitions
from replaysvc.errors import InvalidRequestError, NotFoundError, NotReadyError, SpecMismatchError
from tests.builders import SCALARS, write_episode, write_episodes


def by_anchor(batch):
    """Returns {(episode, t): row of the batch}."""
    return {(int(e), int(t)): i for i, (e, t) in enumerate(zip(batch.episode_id, batch.t, strict=True))}


def test_one_step_transitions_of_one_episode_are_exactly_its_steps(door):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [3])
    batch = table.sample(200, Transitions(gamma=0.5), seed=1)
    rows = by_anchor(batch)
    assert sorted(rows) == [(0, 0), (0, 1), (0, 2)]
    for (_, t), i in rows.items():
        assert batch.observation[i] == t
        assert batch.next_observation[i] == t + 1
        assert batch.action[i] == t
        assert batch.reward[i] == 10 * t
        assert batch.positions[i] == t
        assert batch.terminated[i] == (t == 2)
        assert not batch.truncated[i]
        assert batch.discount[i] == (0.0 if t == 2 else 0.5)
    assert batch.probability == pytest.approx(np.full(200, 1 / 3))
    assert (batch.importance_weight == 1).all()


def test_batch_has_the_declared_dtypes(door):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [4])
    batch = table.sample(8)
    kinds = {name: str(value.dtype) for name, value in batch.asdict().items()}
    assert kinds == {
        "observation": "int64", "next_observation": "int64", "action": "int64", "reward": "float32", "discount": "float32",
        "terminated": "bool", "truncated": "bool", "positions": "int64", "episode_id": "int64", "t": "int64",
        "probability": "float64", "importance_weight": "float32", "age_s": "float32", "policy_version": "int64",
    }  # fmt: skip
    assert len(batch) == 8


def test_three_step_return_worked_by_hand(door):
    """Rewards 0, 10, 20, 30, gamma 1/2, terminated after four steps."""
    table = door.create_table("t", SCALARS)
    write_episodes(table, [4])
    batch = table.sample(200, Transitions(n_step=3, gamma=0.5), seed=2)
    rows = by_anchor(batch)
    expected = {  # reward, discount, next observation, terminated
        0: (0 + 5 + 5, 0.125, 3, False),
        1: (10 + 10 + 7.5, 0.0, 4, True),
        2: (20 + 15, 0.0, 4, True),
        3: (30, 0.0, 4, True),
    }
    for (_, t), i in rows.items():
        assert (batch.reward[i], batch.discount[i], batch.next_observation[i], batch.terminated[i]) == expected[t]
    assert len(rows) == 4


def test_truncation_within_n_steps_keeps_the_bootstrap_with_the_steps_really_summed(door):
    """Two steps of reward 1, truncated, n = 3, gamma 0.9: return 1.9, discount 0.81, the true final observation."""
    table = door.create_table("t", SCALARS)
    with table.writer() as writer:
        writer.begin(0)
        writer.append(0, 1.0, 1)
        writer.append(0, 1.0, 7, truncated=True)
        write_episode(writer, 3, episode=1)
    batch = table.sample(100, Transitions(n_step=3, gamma=0.9), seed=3)
    i = by_anchor(batch)[0, 0]
    assert batch.reward[i] == pytest.approx(1.9)
    assert batch.discount[i] == pytest.approx(0.81)
    assert not batch.terminated[i]
    assert batch.truncated[i]
    assert batch.next_observation[i] == 7


def test_one_step_target_of_a_timeout_bootstraps(door):
    table = door.create_table("t", SCALARS)
    with table.writer() as writer:
        writer.begin(0)
        writer.append(0, 1.0, 1, truncated=True)
    batch = table.sample(1, Transitions(gamma=0.99))
    value_of_next = 10.0
    assert float(batch.reward[0] + batch.discount[0] * value_of_next) == pytest.approx(10.9)


@pytest.mark.parametrize("chunk_steps", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("n_step", [1, 2, 4, 7])
def test_windows_are_right_whatever_the_chunk_length(door, chunk_steps, n_step):
    lengths = [1, 2, 5, 9]
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=chunk_steps))
    write_episodes(table, lengths, end="truncated")
    batch = table.sample(400, Transitions(n_step=n_step, gamma=1.0), seed=4)
    assert set(by_anchor(batch)) == {(e, t) for e, length in enumerate(lengths) for t in range(length)}
    for i in range(400):
        e, t = int(batch.episode_id[i]), int(batch.t[i])
        k = min(n_step, lengths[e] - t)
        assert batch.observation[i] == 100 * e + t
        assert batch.next_observation[i] == 100 * e + t + k
        assert batch.reward[i] == sum(10 * u + e for u in range(t, t + k))
        assert batch.truncated[i] == (t + k == lengths[e])
        assert batch.discount[i] == 1.0


def test_interleaved_episodes_of_several_writers_never_mix(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=2))
    writers = [table.writer(actor=f"actor-{i}") for i in range(3)]
    for i, writer in enumerate(writers):
        writer.begin(1000 * i)
    for t in range(7):
        for i, writer in enumerate(writers):
            writer.append(i, 1.0, 1000 * i + t + 1, truncated=t == 6)
        writers[t % 3].flush()
    for writer in writers:
        writer.close()
    batch = table.sample(300, Transitions(n_step=3, gamma=1.0), seed=5)
    assert (batch.observation // 1000 == batch.action).all()
    assert (batch.next_observation // 1000 == batch.action).all()
    assert (batch.next_observation - batch.observation == np.minimum(3, 7 - batch.t)).all()
    assert {record.actor for record in table.episodes()} == {"actor-0", "actor-1", "actor-2"}


def test_steps_of_an_open_episode_are_sampleable_after_flush(door):
    table = door.create_table("t", SCALARS)
    writer = table.writer()
    write_episode(writer, 5, end="open")
    writer.flush()
    batch = table.sample(100, Transitions(n_step=3, gamma=0.5), seed=6)
    assert set(batch.t.tolist()) == {0, 1, 2, 3, 4}
    last = by_anchor(batch)[0, 4]
    assert (batch.next_observation[last], batch.discount[last]) == (5, 0.5)
    assert not batch.terminated.any()
    assert not batch.truncated.any()
    writer.close()


def test_empty_table_says_why_it_is_not_ready(door):
    table = door.create_table("t", SCALARS, TableConfig(limiter=Limiter(min_steps=10_000)))
    write_episodes(table, [32])
    with pytest.raises(NotReadyError, match="32 of 10,000 steps"):
        table.sample(4)
    assert "32 of 10,000 steps" in table.stats().waiting_for
    assert not table.stats().ready


def test_a_wait_for_data_ends_at_its_deadline(door):
    table = door.create_table("t", SCALARS)
    with pytest.raises(NotReadyError, match="0 of 1 steps"):
        table.sample(4, timeout_s=0.05)


def test_same_seed_gives_the_same_batch_and_no_seed_does_not(door):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [500])
    first, second = table.sample(64, seed=9), table.sample(64, seed=9)
    assert (first.positions == second.positions).all()
    assert (table.sample(64).positions != table.sample(64).positions).any()


def test_uniform_draws_match_their_distribution(door):
    """100,000 seeded draws over 50 steps: each count within 5 standard errors of 2,000."""
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=7))
    write_episodes(table, [20, 30])
    counts = np.bincount(table.sample(100_000, seed=11).positions, minlength=50)
    assert len(counts) == 50
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1 << 40}, "batch_size"),
        ({"batch_size": 4, "sampler": "nosuch"}, "sampler"),
        ({"batch_size": 4, "seed": -1}, "seed"),
        ({"batch_size": 4, "timeout_s": -1.0}, "timeout_s"),
    ],
)
def test_bad_requests_are_refused_by_field_and_the_table_goes_on(door, arguments, words):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [4])
    with pytest.raises(InvalidRequestError, match=words):
        table.sample(**arguments)
    assert len(table.sample(4)) == 4


def test_bad_window_options_fail_when_they_are_made():
    with pytest.raises(SpecMismatchError, match="n_step"):
        Transitions(n_step=0)
    with pytest.raises(SpecMismatchError, match="gamma"):
        Transitions(gamma=float("nan"))


def test_stream_yields_batches_like_sample(door):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [20])
    stream = table.stream(16, Transitions(gamma=1.0), prefetch=3)
    for _ in range(10):
        batch = next(stream)
        assert (batch.next_observation == batch.observation + 1).all()
        assert len(batch) == 16
    stream.close()


NESTED = Signature(
    {
        "image": FieldSpec("image", (2, 3), np.uint8),
        "state": (FieldSpec("a", (2,), np.float32), FieldSpec("b", (), np.float64)),
        "achieved_goal": FieldSpec("achieved_goal", (2,), np.float64),
    },
    {"move": FieldSpec("move", (2,), np.float32), "grip": FieldSpec("grip", (), np.bool_)},
    log_prob=FieldSpec("log_prob", (), np.float32),
    carry=(FieldSpec("h", (3,), np.float32), FieldSpec("c", (3,), np.float32)),
)


def nested_observation(t):
    return {
        "achieved_goal": np.full(2, t + 1 / 3),
        "state": (np.array([t, -t], np.float32), np.float64(t / 2)),
        "image": np.full((2, 3), t, np.uint8),
    }


def test_nested_observations_actions_and_extras_come_back_as_declared(door):
    table = door.create_table("t", NESTED)
    with table.writer() as writer:
        writer.begin(nested_observation(0))
        for t in range(6):
            extras = {"log_prob": np.float32(-t), "carry": (np.full(3, t, np.float32), np.full(3, t + 0.1, np.float32))}
            action = {"grip": np.bool_(t % 2), "move": np.array([t, t + 0.25], np.float32)}
            writer.append(action, float(t), nested_observation(t + 1), terminated=t == 5, extras=extras)
    batch = table.sample(50, seed=1)
    for i, t in enumerate(batch.t.tolist()):
        assert (batch.observation["image"][i] == t).all()
        assert batch.observation["state"][0][i].tolist() == [t, -t]
        assert batch.next_observation["state"][1][i] == (t + 1) / 2
        assert batch.observation["achieved_goal"][i].tolist() == [t + 1 / 3] * 2
        assert batch.action["move"][i].tolist() == [t, t + 0.25]
        assert batch.action["grip"][i] == t % 2
        assert batch.extras["log_prob"][i] == -t
        assert batch.extras["carry"][1][i].tolist() == [np.float32(t + 0.1)] * 3
    assert batch.observation["image"].dtype == np.uint8
    assert batch.observation["state"][1].dtype == np.float64
    assert batch.asdict()["log_prob"].shape == (50,)


def test_large_values_kept_around_an_offset_come_back_near(door):
    """Millimetre moves at 20 km, in one dimension of two: float16 alone would lose ten metres."""
    table = door.create_table(
        "t", Signature(FieldSpec("o", (2,), np.float64), FieldSpec("a", (), np.int64)), TableConfig(chunk_steps=16)
    )
    positions = 20_000 + 0.001 * np.arange(65)
    with table.writer() as writer:
        writer.begin(np.array([positions[0], 0.0]))
        for t in range(64):
            writer.append(0, 0.0, np.array([positions[t + 1], 0.5 * (t + 1)]), truncated=t == 63)
    batch = table.sample(300, seed=2)
    assert np.abs(batch.observation[:, 0] - positions[batch.t]).max() < 0.0001
    assert np.abs(batch.next_observation[:, 0] - positions[batch.t + 1]).max() < 0.0001
    assert table.stats().lossless_fallbacks_total == 0


def test_values_that_no_float16_holds_are_kept_exact_and_counted(door):
    table = door.create_table(
        "t", Signature(FieldSpec("o", (), np.float32), FieldSpec("a", (), np.int64)), TableConfig(chunk_steps=4)
    )
    values = np.array([1e30, -1e30, 1e-30, 5, 7e4, 1, 2, 3, 4], np.float32)
    with table.writer() as writer:
        writer.begin(values[0])
        for t in range(8):
            writer.append(0, 0.0, values[t + 1], truncated=t == 7)
    batch = table.sample(100, seed=3)
    assert (batch.observation[batch.t < 4] == values[batch.t[batch.t < 4]]).all()
    assert (batch.next_observation[batch.t < 4] == values[batch.t[batch.t < 4] + 1]).all()
    assert table.stats().lossless_fallbacks_total >= 1


def test_unknown_table_is_not_found(door):
    with pytest.raises(NotFoundError, match="nosuch"):
        door.table("nosuch").sample(1)


def test_batches_drawn_ahead_know_nothing_of_later_priorities_and_those_drawn_one_by_one_do(door):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [4])
    ahead, one_by_one = (table.stream(64, sampler="prioritized", prefetch=prefetch) for prefetch in (8, 1))
    for stream in (ahead, ahead, one_by_one, one_by_one):
        assert set(next(stream).t.tolist()) == {0, 1, 2, 3}
    table.update_priorities([0, 1, 2, 3], [1.0, 0.0, 0.0, 0.0])
    assert set(next(ahead).t.tolist()) == {0, 1, 2, 3}  # drawn with the one before it
    assert set(next(one_by_one).t.tolist()) == {0}
    for _ in range(16):
        batch = next(ahead)
    assert set(batch.t.tolist()) == {0}
    ahead.close()
    one_by_one.close()
