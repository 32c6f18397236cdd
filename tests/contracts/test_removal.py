"""What leaves a table: for capacity, or because somebody asked; and what is drawn afterwards, the same on both doors."""

import threading

import numpy as np
import pytest

from replaysvc import (
    Episodes,
    EpisodeUniform,
    FieldSpec,
    Fifo,
    Goal,
    Her,
    Lifo,
    Prioritized,
    Recency,
    Remover,
    Sequences,
    Signature,
    Stack,
    TableConfig,
    Terminated,
    Transitions,
    Uniform,
)
from replaysvc.errors import InvalidRequestError, NotFoundError, NotReadyError
from tests.builders import (
    GOALS,
    assert_same,
    make_table,
    open_door,
    write_episode,
    write_goal_episode,
)
from tests.statistics import check_draws

ANY = {
    "uniform": Uniform(), "prioritized": Prioritized(alpha=1.0), "recent": Recency(half_life=5.0), "fair": EpisodeUniform(),
}  # fmt: skip


def append_episodes(table, lengths, *, first, end="terminated"):
    """Writes episodes numbered from `first` on, each durable before the next begins."""
    with table.writer() as writer:
        for episode, length in enumerate(lengths, first):
            write_episode(writer, length, episode=episode, end=end)
            writer.flush()


def kept(table):
    """Returns {episode: (first step, length)} of what is stored, and checks that the counters say the same."""
    records = table.episodes(limit=1000)
    stats = table.stats()
    assert stats.episodes == len(records)
    assert stats.steps == sum(record.length - record.first_step for record in records)
    return {record.episode_id: (record.first_step, record.length) for record in records}


def test_oldest_steps_go_exactly_as_many_as_must(door):
    table = make_table(door, [4], capacity_steps=10, chunk_steps=1)
    assert kept(table) == {0: (0, 4)}
    append_episodes(table, [6, 1, 4], first=1)
    assert kept(table) == {1: (1, 6), 2: (0, 1), 3: (0, 4)}
    check_draws(table.sample(4000, seed=1).positions, dict.fromkeys(range(5, 15), 1.0))
    assert table.stats().removed_steps_total == 5
    with pytest.raises(NotFoundError):
        table.read_episode(0)
    with pytest.raises(InvalidRequestError):
        table.read_episode(1, 0)
    assert table.read_episode(1)["observation"].tolist() == [101, 102, 103, 104, 105, 106]


def test_oldest_episodes_go_whole(door):
    table = make_table(door, capacity_steps=10, remover=Remover.OLDEST_EPISODES, chunk_steps=3)
    append_episodes(table, [4, 4], first=0)
    assert kept(table) == {0: (0, 4), 1: (0, 4)}
    append_episodes(table, [4], first=2)
    assert kept(table) == {1: (0, 4), 2: (0, 4)}
    append_episodes(table, [9], first=3)
    assert kept(table) == {3: (0, 9)}
    assert set(table.sample(200, Transitions(n_step=2), seed=1).positions.tolist()) == set(range(12, 21))


@pytest.mark.timeout(30)
def test_open_episodes_go_when_it_is_their_turn_and_their_writers_go_on(door):
    table = make_table(door, capacity_steps=6, remover=Remover.OLDEST_EPISODES)
    early = table.writer()
    write_episode(early, 2, end="open")
    early.flush()
    assert table.sample(1, Sequences(length=2)).episode_id.tolist() == [0]
    append_episodes(table, [3, 3], first=1)
    assert kept(table) == {1: (0, 3), 2: (0, 3)}
    early.append(2, 20.0, 3, terminated=True)
    early.close()
    assert kept(table) == {0: (2, 3), 2: (0, 3)}
    batch = table.sample(100, Transitions(n_step=5), seed=2)
    assert set(zip(batch.episode_id.tolist(), batch.t.tolist(), strict=True)) == {(0, 2), (2, 0), (2, 1), (2, 2)}
    for what in (Sequences(length=2, period=1), Episodes()):
        assert set(table.sample(50, what, seed=2).episode_id.tolist()) == {2}


@pytest.mark.parametrize("kind", ["embedded", "client"])
@pytest.mark.parametrize("bound", [{"capacity_steps": 8, "remover": Remover.OLDEST_EPISODES}, {"capacity_episodes": 2}])
def test_episodes_that_went_whole_stay_away_after_a_restart(tmp_path, kind, bound):
    """The oldest of three ended after the second began, so a chunk of it is still on the disk behind one that is kept."""
    with open_door(kind, tmp_path / "s") as door:
        table = make_table(door, **bound)
        early = table.writer()
        write_episode(early, 2, end="open")
        early.flush()
        append_episodes(table, [3], first=1)
        early.append(2, 20.0, 3)
        early.append(3, 30.0, 4, terminated=True)
        early.close()
        append_episodes(table, [3], first=2)
        assert kept(table) == {1: (0, 3), 2: (0, 3)}
        before = table.sample(50, seed=3)
    with open_door(kind, tmp_path / "s") as door:
        assert kept(door.table("t")) == {1: (0, 3), 2: (0, 3)}
        assert_same(door.table("t").sample(50, seed=3), before)


@pytest.mark.parametrize("remover", [Remover.OLDEST_STEPS, Remover.OLDEST_EPISODES])
def test_capacity_in_episodes(door, remover):
    table = make_table(door, capacity_episodes=2, remover=remover)
    append_episodes(table, [3, 2, 5, 1], first=0)
    assert kept(table) == {2: (0, 5), 3: (0, 1)}
    check_draws(table.sample(2000, seed=3).positions, dict.fromkeys(range(5, 11), 1.0))
    assert set(table.sample(50, Episodes(), seed=3).episode_id.tolist()) == {2, 3}


@pytest.mark.parametrize("remover", list(Remover))
def test_capacity_in_bytes(door, rng, remover):
    """Episodes of 100 steps of 2 KiB that nothing compresses: five fit 1 MiB, and the sixth removes one."""
    signature = Signature(FieldSpec("o", (512,), np.int32), FieldSpec("a", (), np.int64))
    table = make_table(door, signature=signature, capacity_bytes=1 << 20, remover=remover, chunk_steps=10)
    with table.writer() as writer:
        for _ in range(8):
            writer.begin(rng.integers(0, 1 << 30, 512, dtype=np.int32))
            for t in range(100):
                writer.append(t, 0.0, rng.integers(0, 1 << 30, 512, dtype=np.int32), truncated=t == 99)
            writer.flush()
    stats = table.stats()
    assert 700_000 < stats.stored_bytes <= 1 << 20
    found = kept(table)
    assert table.sample(50, seed=4).action.max() < 100
    if remover is not Remover.OLDEST_STEPS:
        assert set(found.values()) == {(0, 100)}
    if remover is not Remover.LOWEST_PRIORITY:
        assert min(found) >= 3


def test_episode_whose_highest_priority_is_lowest_goes_first(door):
    config = {"capacity_steps": 9, "remover": Remover.LOWEST_PRIORITY, "samplers": {"p": Prioritized(alpha=1.0)}}
    table = make_table(door, [3, 3, 3], **config)
    table.update_priorities(range(9), [5, 0, 0, 2, 2, 2, 3, 1, 1], sampler="p")
    append_episodes(table, [3], first=3)
    assert kept(table) == {0: (0, 3), 2: (0, 3), 3: (0, 3)}  # the new steps have the largest priority, 5
    check_draws(table.sample(2500, sampler="p", seed=5).positions, {0: 5, 6: 3, 7: 1, 8: 1, 9: 5, 10: 5, 11: 5})
    table.update_priorities([0], [1], sampler="p")
    append_episodes(table, [2], first=4)
    assert kept(table) == {2: (0, 3), 3: (0, 3), 4: (0, 2)}


def test_lowest_priority_leaves_open_episodes_alone(door):
    config = {"capacity_steps": 6, "remover": Remover.LOWEST_PRIORITY, "samplers": {"p": Prioritized(alpha=1.0)}}
    table = make_table(door, **config)
    writer = table.writer()
    write_episode(writer, 3, episode=0, end="open")
    writer.flush()
    append_episodes(table, [3], first=1)
    table.update_priorities(range(6), [1, 1, 1, 9, 9, 9], sampler="p")
    append_episodes(table, [3], first=2)
    assert 0 in kept(table)
    assert table.stats().steps <= 6
    writer.close()


@pytest.mark.parametrize("chunk_steps", [2, 64])
def test_deleted_episodes_are_gone_for_every_sampler_and_every_call(door, chunk_steps):
    samplers = ANY | {"fifo": Fifo(), "lifo": Lifo(), "steps": Fifo()}
    table = make_table(door, [3, 4, 2, 3], samplers=samplers, chunk_steps=chunk_steps)
    assert table.sample(1, sampler="fifo").positions.tolist() == [0]
    table.update_priorities([7, 8, 0], [2, 4, 9])
    pieces = Sequences(length=2)  # drawn once before, so that what is kept of them must be brought up to date
    assert table.sample(1, pieces, sampler="prioritized").mask is not None
    assert table.delete_episodes([1, 3]) == 2
    assert kept(table) == {0: (0, 3), 2: (0, 2)}
    left = {0, 1, 2, 7, 8}
    for sampler in ANY:
        for what in (Transitions(n_step=3), Transitions(), Sequences(length=2), Episodes()):
            batch = table.sample(200, what, sampler=sampler, seed=6)
            assert set(batch.episode_id.tolist()) == {0, 2}
            assert set(batch.positions.tolist()) <= left
    check_draws(table.sample(2000, seed=7).positions, dict.fromkeys(sorted(left), 1.0))
    check_draws(table.sample(2000, sampler="fair", seed=7).positions, {0: 2, 1: 2, 2: 2, 7: 3, 8: 3})
    check_draws(table.sample(2000, sampler="prioritized", seed=7).positions, {0: 9, 1: 1, 2: 1, 7: 2, 8: 4})
    check_draws(table.sample(2000, pieces, sampler="prioritized", seed=7).positions, {0: 9, 2: 1, 7: 2})
    assert table.sample(9, pieces, sampler="prioritized", seed=7).probability.max() == pytest.approx(9 / 12)
    assert table.stats().queues["fifo"] == 4
    with pytest.raises(NotReadyError):
        table.sample(5, sampler="fifo")
    assert table.sample(4, sampler="fifo").positions.tolist() == [1, 2, 7, 8]
    assert table.sample(5, sampler="lifo").positions.tolist() == [8, 7, 2, 1, 0]
    for sampler in ("fifo", "lifo"):
        with pytest.raises(NotReadyError):
            table.sample(1, sampler=sampler)
    for episode in (1, 3):
        with pytest.raises(NotFoundError):
            table.read_episode(episode)
    assert table.update_priorities([3, 9, 8], [7, 7, 7]) == (1, 2)
    assert table.read_episode(2)["observation"].tolist() == [200, 201, 202]


def test_unknown_and_repeated_ids_are_harmless(door):
    table = make_table(door, [2, 2])
    assert table.delete_episodes([7, 1, 1, 100]) == 1
    assert table.delete_episodes([1]) == 0
    assert table.delete_episodes([]) == 0
    assert kept(table) == {0: (0, 2)}
    assert set(table.sample(40, seed=1).positions.tolist()) == {0, 1}


def test_open_episode_is_not_deleted_nor_any_other_of_the_same_call(door):
    table = make_table(door, [2])
    writer = table.writer()
    write_episode(writer, 2, episode=1, end="open")
    writer.flush()
    with pytest.raises(InvalidRequestError, match="1"):
        table.delete_episodes([0, 1])
    assert kept(table) == {0: (0, 2), 1: (0, 2)}
    writer.append(2, 20.0, 103, terminated=True)
    writer.flush()
    assert table.delete_episodes([1]) == 1
    write_episode(writer, 1, episode=2)
    writer.close()
    assert kept(table) == {0: (0, 2), 2: (0, 1)}


def test_table_with_everything_deleted_is_empty_and_can_be_filled_again(door):
    table = make_table(door, [3, 2], samplers=ANY | {"fifo": Fifo()})
    assert table.delete_episodes([0, 1]) == 2
    assert (table.stats().steps, table.stats().episodes) == (0, 0)
    for sampler in (*ANY, "fifo"):
        with pytest.raises(NotReadyError):
            table.sample(1, sampler=sampler)
    append_episodes(table, [2], first=2)
    for sampler in ANY:
        assert set(table.sample(40, sampler=sampler, seed=1).positions.tolist()) == {5, 6}
    assert table.sample(2, sampler="fifo").positions.tolist() == [5, 6]


def test_deleted_steps_make_room_under_the_capacity(door):
    table = make_table(door, [4, 4], capacity_steps=10, chunk_steps=1)
    table.delete_episodes([1])
    append_episodes(table, [6], first=2)
    assert kept(table) == {0: (0, 4), 2: (0, 6)}
    append_episodes(table, [2], first=3)
    assert kept(table) == {0: (2, 4), 2: (0, 6), 3: (0, 2)}
    check_draws(table.sample(3000, seed=8).positions, dict.fromkeys([2, 3, *range(8, 16)], 1.0))


@pytest.mark.parametrize("chunk_steps", [3, 64])
def test_steps_that_went_are_drawn_no_more_though_their_chunk_is_still_there(door, chunk_steps):
    table = make_table(door, [10, 4], capacity_steps=9, chunk_steps=chunk_steps)
    check_draws(table.sample(3000, seed=10).positions, dict.fromkeys(range(5, 14), 1.0))
    check_draws(table.sample(3000, sampler="prioritized", seed=10).positions, dict.fromkeys(range(5, 14), 1.0))
    assert table.update_priorities([3, 4, 5], [9, 9, 9]) == (1, 2)
    assert table.sample(300, seed=10).t[table.sample(300, seed=10).episode_id == 0].min() == 5
    assert set(table.sample(100, Sequences(length=2), seed=10).positions.tolist()) == {6, 8, 10, 12}
    assert set(table.sample(100, Episodes(), seed=10).episode_id.tolist()) == {1}


@pytest.mark.parametrize("kind", ["embedded", "client"])
@pytest.mark.parametrize("chunk_steps", [1, 4, 64])
def test_steps_that_went_for_capacity_stay_away_after_a_restart(tmp_path, kind, chunk_steps):
    with open_door(kind, tmp_path / "s") as door:
        make_table(door, [12], samplers=ANY | {"fifo": Fifo()}, capacity_steps=9, chunk_steps=chunk_steps)
    with open_door(kind, tmp_path / "s") as door:
        table = door.table("t")
        for sampler in ANY:
            batch = table.sample(900, sampler=sampler, seed=11)
            assert set(batch.positions.tolist()) <= set(range(3, 12)), sampler
            if sampler != "recent":
                assert batch.probability == pytest.approx(np.full(900, 1 / 9)), sampler
            assert set(table.sample(90, Sequences(length=2), sampler=sampler).positions.tolist()) <= {4, 6, 8, 10}
        assert table.sample(9, sampler="fifo").positions.tolist() == list(range(3, 12))
        assert table.update_priorities([2, 3], [5, 1]) == (1, 1)


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_deletion_holds_after_a_restart(tmp_path, kind):
    with open_door(kind, tmp_path / "s") as door:
        table = make_table(door, [3, 4, 2], samplers=ANY, chunk_steps=2)
        table.delete_episodes([1])
        before = [table.sample(50, sampler=sampler, seed=9) for sampler in ANY]
    for _ in range(2):
        with open_door(kind, tmp_path / "s") as door:
            table = door.table("t")
            assert kept(table) == {0: (0, 3), 2: (0, 2)}
            for sampler, batch in zip(ANY, before, strict=True):
                assert_same(table.sample(50, sampler=sampler, seed=9), batch)
            with pytest.raises(NotFoundError):
                table.read_episode(1)
            assert table.delete_episodes([1]) == 0
    with open_door(kind, tmp_path / "s") as door:
        append_episodes(door.table("t"), [1], first=3)
        assert kept(door.table("t")) == {0: (0, 3), 2: (0, 2), 3: (0, 1)}


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_room_made_by_a_deletion_brings_nothing_back_after_a_restart(tmp_path, kind):
    """Capacity took steps 0 and 1 of the first episode, whose chunk is still on the disk."""
    with open_door(kind, tmp_path / "s") as door:
        table = make_table(door, [4, 4], capacity_steps=6, chunk_steps=64)
        assert table.delete_episodes([1]) == 1
        assert table.stats().steps == 2
    with open_door(kind, tmp_path / "s") as door:
        table = door.table("t")
        assert table.stats().steps == 2
        for sampler in ("uniform", "prioritized"):
            assert set(table.sample(50, sampler=sampler, seed=1).positions.tolist()) == {2, 3}


@pytest.mark.parametrize("remover", list(Remover))
def test_a_window_is_never_half_removed(door, remover):
    """A writer pushes a full table along while three learners sample: every row is whole and of one episode."""
    table = door.create_table(
        "t",
        GOALS,
        TableConfig(capacity_steps=60, chunk_steps=3, remover=remover, samplers={"u": Uniform(), "p": Prioritized()}),
    )
    failures, rounds, done = [], [0, 0, 0], threading.Event()
    requests = [
        (Sequences(length=5, period=2, stack=Stack(frames=3, columns=("state",)), gamma=1.0), "u"),
        (Transitions(n_step=3, her=Her(goal=Goal.FUTURE, terminated=Terminated.STORED)), "p"),
        (Episodes(max_steps=12), "u"),
    ]

    def learn(number):
        what, sampler = requests[number]
        while not done.is_set() or rounds[number] < 3:
            batch = table.sample(16, what, sampler=sampler, timeout_s=20.0)
            rounds[number] += 1
            state = batch.observation["state"]
            newest = state[..., -1, 0] if number == 0 else state[..., 0]
            place = newest.reshape(16, -1) - newest.reshape(16, -1)[:, :1]
            mask = np.ones_like(place, bool) if batch.mask is None else batch.mask
            assert (place == np.arange(place.shape[1]))[mask].all()
            assert (newest.reshape(16, -1)[:, 0] % 1000 == batch.t).all()
            reached = batch.next_observation["achieved_goal"].reshape(16, -1, 2)[:, :, 0]
            line = 1000 * (newest.reshape(16, -1) // 1000)
            assert (reached // 1000 * 1000 == line)[mask].all()
            if number == 0:
                assert (state[..., 0] == line[..., None] + np.maximum(newest[..., None] % 1000 + [-2, -1, 0], 0))[mask].all()
            if number == 1:
                assert (batch.observation["desired_goal"][:, 0] // 1000 * 1000 == line[:, 0]).all()
                assert table.update_priorities(batch.positions, 1.0 + batch.t, sampler="p").applied <= 16

    def watch(number):
        try:
            learn(number)
        except BaseException as error:
            failures.append(error)

    with table.writer() as writer:
        for episode in range(4):
            write_goal_episode(writer, 11, episode=episode)
        writer.flush()
        learners = [threading.Thread(target=watch, args=(number,)) for number in range(3)]
        for learner in learners:
            learner.start()
        for episode in range(4, 50):
            write_goal_episode(writer, 5 + episode % 7, episode=episode)
            if episode % 2:
                writer.flush()
    done.set()
    for learner in learners:
        learner.join()
    assert failures == []
    assert min(rounds) >= 3
    assert table.stats().steps <= 60
