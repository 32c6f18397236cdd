"""Queues, recency, episodes in equal shares and whole episodes, the same on both doors."""

import threading

import numpy as np
import pytest

from replaysvc import (
    AtEnd,
    Episodes,
    EpisodeUniform,
    FieldSpec,
    Fifo,
    Lifo,
    Recency,
    Sequences,
    Signature,
    TableConfig,
    Transitions,
    Uniform,
)
from replaysvc.errors import InvalidRequestError, NotReadyError
from tests.builders import SCALARS, make_table, open_door, write_episode, write_episodes
from tests.statistics import check_draws


def drawn(table, size, what=None, sampler="queue", **options):
    """Returns the positions of a batch, in the order in which they came."""
    return table.sample(size, what or Transitions(), sampler=sampler, **options).positions.tolist()


def test_fifo_hands_out_each_step_once_the_oldest_first(door):
    table = make_table(door, [5, 2], samplers={"queue": Fifo(), "uniform": Uniform()})
    batch = table.sample(3, sampler="queue")
    assert batch.positions.tolist() == [0, 1, 2]
    assert batch.observation.tolist() == [0, 1, 2]
    assert batch.probability.tolist() == [1.0] * 3
    assert batch.importance_weight.tolist() == [1.0] * 3
    assert drawn(table, 3) == [3, 4, 5]
    with pytest.raises(NotReadyError):
        drawn(table, 2)
    assert drawn(table, 1) == [6]
    for _ in range(2):
        with pytest.raises(NotReadyError):
            drawn(table, 1)
    assert set(drawn(table, 100, sampler="uniform", seed=1)) == set(range(7))
    assert (table.stats().steps, table.stats().episodes) == (7, 2)


def test_lifo_hands_out_the_newest_first(door):
    table = make_table(door, [3], samplers={"queue": Lifo()})
    assert drawn(table, 2) == [2, 1]
    write_episodes(table, [2])
    assert drawn(table, 2) == [4, 3]
    assert drawn(table, 1) == [0]
    with pytest.raises(NotReadyError):
        drawn(table, 1)


@pytest.mark.parametrize(("kind", "expected"), [(Fifo, [0, 0, 1, 1, 2, 2]), (Lifo, [2, 2, 1, 1, 0, 0])])
def test_items_are_handed_out_as_often_as_configured_and_no_more(door, kind, expected):
    table = make_table(door, [3], samplers={"queue": kind(max_times_sampled=2)})
    assert drawn(table, 3) + drawn(table, 1) + drawn(table, 2) == expected
    with pytest.raises(NotReadyError):
        drawn(table, 1)
    write_episodes(table, [1])
    assert drawn(table, 2) == [3, 3]


def test_several_queues_of_a_table_are_independent(door):
    table = make_table(door, [3], samplers={"a": Fifo(), "b": Fifo(), "c": Lifo()})
    assert drawn(table, 3, sampler="a") == [0, 1, 2]
    assert drawn(table, 2, sampler="b") == [0, 1]
    assert drawn(table, 2, Transitions(n_step=3), sampler="c") == [2, 1]
    assert drawn(table, 1, sampler="b") == [2]


def test_a_queue_hands_out_one_kind_of_window(door):
    table = make_table(door, [9], samplers={"queue": Fifo(), "other": Fifo()})
    assert drawn(table, 1, Transitions(n_step=3)) == [0]
    for what in (Transitions(), Transitions(n_step=2), Sequences(length=3), Episodes()):
        with pytest.raises(InvalidRequestError, match="queue"):
            drawn(table, 1, what)
    assert drawn(table, 1, Transitions(n_step=3, gamma=0.5)) == [1]
    assert drawn(table, 1, Sequences(length=3), sampler="other") == [0]
    for what in (Sequences(length=2), Sequences(length=3, period=1), Sequences(length=3, at_end=AtEnd.DROP), Transitions()):
        with pytest.raises(InvalidRequestError, match="other"):
            drawn(table, 1, what, sampler="other")
    assert drawn(table, 2, Sequences(length=3), sampler="other") == [3, 6]


@pytest.mark.parametrize("kind", [Fifo, Lifo])
def test_seed_of_a_queue_is_refused(door, kind):
    table = make_table(door, [3], samplers={"queue": kind()})
    with pytest.raises(InvalidRequestError, match="seed"):
        drawn(table, 1, seed=3)
    assert len(drawn(table, 3)) == 3


def test_only_windows_that_are_wholly_stored_are_handed_out(door):
    """Of an open episode of four steps the first two have a whole three-step window, and it has one whole sequence."""
    samplers = {"steps": Fifo(), "pieces": Fifo(), "episodes": Fifo()}
    table = door.create_table("t", SCALARS, TableConfig(samplers=samplers))
    three, pieces = Transitions(n_step=3, gamma=1.0), Sequences(length=3)
    writer = table.writer()
    write_episode(writer, 4, end="open")
    writer.flush()
    assert drawn(table, 2, three, sampler="steps") == [0, 1]
    assert drawn(table, 1, pieces, sampler="pieces") == [0]
    for what, sampler in ((three, "steps"), (pieces, "pieces"), (Episodes(), "episodes")):
        with pytest.raises(NotReadyError):
            drawn(table, 1, what, sampler=sampler)
    writer.append(4, 40.0, 5, truncated=True)
    writer.close()
    batch = table.sample(3, three, sampler="steps")
    assert batch.positions.tolist() == [2, 3, 4]
    assert batch.reward.tolist() == [20 + 30 + 40, 30 + 40, 40]
    batch = table.sample(1, pieces, sampler="pieces")
    assert batch.mask.tolist() == [[True, True, False]]
    assert drawn(table, 1, Episodes(), sampler="episodes") == [0]


def test_sequences_and_episodes_come_in_the_order_in_which_they_became_whole(door):
    """The first episode begins first and ends last."""
    table = door.create_table("t", SCALARS, TableConfig(samplers={"fifo": Fifo(), "whole": Fifo(), "lifo": Lifo()}))
    early, late = table.writer(), table.writer()
    write_episode(early, 2, episode=0, end="open")
    early.flush()
    write_episode(late, 3, episode=1)
    late.flush()
    for t in (2, 3):
        early.append(t, 0.0, t + 1, terminated=t == 3)
    early.close()
    late.close()
    batch = table.sample(3, Sequences(length=3), sampler="fifo")
    assert (batch.observation[:, 0] // 100).tolist() == [1, 0, 0]
    assert batch.t.tolist() == [0, 0, 3]
    assert (table.sample(2, Episodes(), sampler="whole").observation[:, 0] // 100).tolist() == [1, 0]
    assert (table.sample(2, Episodes(), sampler="lifo").observation[:, 0] // 100).tolist() == [0, 1]


def test_a_queue_waits_for_the_items_of_a_batch_and_takes_none_before(door):
    table = make_table(door, [2], samplers={"queue": Fifo()})
    with pytest.raises(NotReadyError):
        drawn(table, 3, timeout_s=0.05)
    found = []
    waiting = threading.Thread(target=lambda: found.append(drawn(table, 3, timeout_s=20.0)))
    waiting.start()
    write_episodes(table, [2])
    waiting.join()
    assert found == [[0, 1, 2]]
    assert drawn(table, 1) == [3]


def test_items_removed_meanwhile_are_passed_over(door):
    table = make_table(door, [4], samplers={"queue": Fifo(), "lifo": Lifo()}, capacity_steps=4)
    assert drawn(table, 1) == [0]
    write_episodes(table, [2])
    assert drawn(table, 1) == [2]
    table.delete_episodes([0])
    assert drawn(table, 2, sampler="lifo") == [5, 4]
    assert drawn(table, 2) == [4, 5]
    for sampler in ("queue", "lifo"):
        with pytest.raises(NotReadyError):
            drawn(table, 1, sampler=sampler)


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_queues_go_on_after_a_restart_where_they_were(tmp_path, kind):
    samplers = {"queue": Fifo(max_times_sampled=2), "lifo": Lifo(), "whole": Fifo()}
    with open_door(kind, tmp_path / "s") as door:
        table = make_table(door, [4, 2], samplers=samplers)
        assert drawn(table, 3, Transitions(n_step=2)) == [0, 0, 1]
        assert drawn(table, 2, sampler="lifo") == [5, 4]
    with open_door(kind, tmp_path / "s") as door:
        table = door.table("t")
        with pytest.raises(InvalidRequestError, match="queue"):
            drawn(table, 1)
        assert drawn(table, 2, Transitions(n_step=2)) == [1, 2]
        write_episodes(table, [1])
        assert drawn(table, 2, sampler="lifo") == [6, 3]
        assert drawn(table, 3, Episodes(), sampler="whole") == [0, 4, 6]
    with open_door(kind, tmp_path / "s") as door:
        table = door.table("t")
        assert drawn(table, 9, Transitions(n_step=2)) == [2, 3, 3, 4, 4, 5, 5, 6, 6]
        assert drawn(table, 3, sampler="lifo") == [2, 1, 0]
        with pytest.raises(NotReadyError):
            drawn(table, 1, Episodes(), sampler="whole")


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_order_in_which_items_became_whole_is_the_same_after_a_restart(tmp_path, kind):
    with open_door(kind, tmp_path / "s") as door:
        table = door.create_table("t", SCALARS, TableConfig(samplers={"pieces": Fifo(), "whole": Lifo()}))
        early, late = table.writer(), table.writer()
        write_episode(early, 2, episode=0, end="open")
        early.flush()
        write_episode(late, 3, episode=1)
        late.flush()
        early.append(2, 0.0, 3, terminated=True)
        early.close()
        late.close()
    with open_door(kind, tmp_path / "s") as door:
        table = door.table("t")
        assert table.sample(2, Sequences(length=3), sampler="pieces").observation[:, 0].tolist() == [100, 0]
        assert table.sample(2, Episodes(), sampler="whole").observation[:, 0].tolist() == [0, 100]


def test_several_learners_of_one_queue_get_each_item_once(door):
    table = make_table(door, [90, 30], samplers={"queue": Fifo()})
    found = [[] for _ in range(4)]

    def learn(mine):
        for _ in range(6):
            mine.extend(drawn(table, 5, timeout_s=20.0))

    threads = [threading.Thread(target=learn, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(p for mine in found for p in mine) == list(range(120))
    assert all(mine == sorted(mine) for mine in found)


def test_stream_of_a_queue_gives_each_item_once_and_ends_with_the_words(door):
    table = make_table(door, [20], samplers={"queue": Fifo()})
    stream = table.stream(5, sampler="queue", prefetch=3, timeout_s=0.2)
    assert sorted(p for _ in range(4) for p in next(stream).positions.tolist()) == list(range(20))
    with pytest.raises(NotReadyError):
        next(stream)


def test_recent_steps_are_likelier_by_their_age_in_items(door):
    """A half-life of one item: the newest of four steps is drawn 8 times in 15."""
    table = make_table(door, [2, 2], samplers={"recent": Recency(half_life=1.0), "slow": Recency(half_life=1e12)})
    batch = table.sample(6000, sampler="recent", seed=1)
    check_draws(batch.positions, {0: 1.0, 1: 2.0, 2: 4.0, 3: 8.0})
    assert batch.probability == pytest.approx(np.array([1, 2, 4, 8])[batch.positions] / 15)
    assert (batch.importance_weight == 1).all()
    check_draws(table.sample(6000, sampler="slow", seed=1).positions, dict.fromkeys(range(4), 1.0))
    write_episodes(table, [1])
    assert table.sample(1000, sampler="recent", seed=2).probability.max() == pytest.approx(16 / 31)


def test_recency_of_a_long_table_stays_finite(door):
    table = make_table(door, [90] * 30, samplers={"recent": Recency(half_life=1.0)})
    batch = table.sample(2000, sampler="recent", seed=3)
    assert batch.positions.max() == 2699
    assert batch.probability == pytest.approx(0.5 ** (2700.0 - batch.positions))


def test_each_episode_is_as_likely_as_any_other_however_short(door):
    table = make_table(door, [1, 3, 6], samplers={"fair": EpisodeUniform()})
    batch = table.sample(9000, sampler="fair", seed=4)
    shares = {0: 6} | dict.fromkeys([1, 2, 3], 2) | dict.fromkeys(range(4, 10), 1)
    check_draws(batch.positions, shares)
    assert batch.probability == pytest.approx([shares[p] / 18 for p in batch.positions.tolist()])
    what = Sequences(length=3, at_end=AtEnd.DROP)  # none, one and two of them
    batch = table.sample(2000, what, sampler="fair", seed=4)
    check_draws(batch.positions, {1: 2, 4: 1, 7: 1})


def test_whole_episodes_are_padded_to_the_longest_of_the_batch(door):
    table = make_table(door, [2, 4, 7], chunk_steps=3)
    shapes = set()
    for seed in range(12):
        batch = table.sample(2, Episodes(max_steps=5, gamma=0.5), seed=seed)
        longest = max(2 if e == 0 else 4 for e in batch.episode_id.tolist())
        assert batch.observation.shape == batch.mask.shape == batch.reward.shape == (2, longest)
        assert batch.t.tolist() == [0, 0]
        shapes.add(longest)
        for i, episode in enumerate(batch.episode_id.tolist()):
            length, pad = 2 + 2 * episode, longest - 2 - 2 * episode
            first, final = 100 * episode, 100 * episode + length
            assert batch.positions[i] == 2 * episode
            assert batch.mask[i].tolist() == [True] * length + [False] * pad
            assert batch.is_first[i].tolist() == [True] + [False] * (longest - 1)
            assert batch.observation[i].tolist() == [*range(first, final), *[final] * pad]
            assert batch.next_observation[i].tolist() == [*range(first + 1, final + 1), *[final] * pad]
            assert batch.action[i].tolist() == [*range(length), *[0] * pad]
            assert batch.reward[i].tolist() == [10 * t + episode for t in range(length)] + [0] * pad
            assert batch.terminated[i].tolist() == [False] * (length - 1) + [True] + [False] * pad
            assert batch.discount[i].tolist() == [0.5] * (length - 1) + [0] * (pad + 1)
            assert batch.probability[i] == 0.5
    assert shapes == {2, 4}


def test_whole_episodes_are_closed_and_wholly_stored(door):
    """Capacity has cut the first of three episodes; a fourth is open."""
    table = make_table(door, [4, 2, 3], capacity_steps=11)
    writer = table.writer()
    write_episode(writer, 3, episode=3, end="open")
    writer.flush()
    check_draws(table.sample(600, Episodes(), seed=5).episode_id, {1: 0.5, 2: 0.5})
    batch = table.sample(600, Episodes(open_episodes=True), seed=5)
    check_draws(batch.episode_id, {1: 1.0, 2: 1.0, 3: 1.0})
    last = int(np.flatnonzero(batch.episode_id == 3)[0])
    assert batch.observation[last].tolist() == [300, 301, 302]
    assert batch.next_observation[last].tolist() == [301, 302, 303]
    assert not batch.terminated[last].any()
    writer.close()


def test_no_episode_that_fits_is_said(door):
    table = make_table(door, [6, 7])
    with pytest.raises(NotReadyError, match="episode"):
        table.sample(1, Episodes(max_steps=5))
    writer = table.writer()
    write_episode(writer, 2, end="open")
    writer.flush()
    with pytest.raises(NotReadyError, match="episode"):
        table.sample(1, Episodes(max_steps=5))
    assert table.sample(3, Episodes(max_steps=5, open_episodes=True)).episode_id.tolist() == [2] * 3
    assert set(table.sample(20, Episodes(max_steps=6)).episode_id.tolist()) == {0}
    writer.close()


def test_batch_of_episodes_may_be_larger_than_one_message(door):
    """Four episodes of 300 frames of 64 KiB: 75 MiB, where one message holds 64."""
    table = door.create_table("t", Signature(FieldSpec("frame", (256, 256), np.uint8), FieldSpec("action", (), np.int64)))
    frame = np.zeros((256, 256), np.uint8)
    with table.writer() as writer:
        writer.begin(frame)
        for t in range(300):
            frame[0, :2] = divmod(t + 1, 256)
            writer.append(t, 0.0, frame, truncated=t == 299)
    batch = table.sample(4, Episodes(), seed=6)
    assert batch.observation.nbytes > 64 << 20
    shown = batch.observation[:, :, 0, :2].astype(int)
    assert (shown[:, :, 0] * 256 + shown[:, :, 1] == np.arange(300)).all()
    assert not batch.observation[:, :, 1:].any()
    assert batch.truncated[:, -1].all()
