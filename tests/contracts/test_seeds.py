"""The same seed, table state and request give the same batch: at once, later, over either door and after a restart."""

import numpy as np
import pytest

import replay_client
from replaysvc import (
    AtEnd,
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
    Stack,
    TableConfig,
    Terminated,
    Transitions,
    Uniform,
    WeightNorm,
)
from replaysvc.errors import NotReadyError
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server
from tests.builders import GOALS, assert_same, goal_observation, make_goal_table, write_goal_episode

ANY = {
    "uniform": Uniform(), "prioritized": Prioritized(alpha=1.0), "recent": Recency(half_life=5.0), "fair": EpisodeUniform(),
    "table": Prioritized(alpha=0.5, norm=WeightNorm.TABLE),
}  # fmt: skip


def own_reward(achieved, desired, info):
    return -np.abs(achieved - desired).sum(axis=-1)


KINDS = [
    (what, sampler)
    for sampler in ANY
    for what in (
        Transitions(),
        Transitions(n_step=3, stack=Stack(frames=3, columns=("state",)), her=Her(goal=Goal.EPISODE)),
        Transitions(her=Her(reward=own_reward, terminated=Terminated.STORED, ratio=0.5)),
        Sequences(length=4, period=2, at_end=AtEnd.SHIFT, n_step=2, stack=2),
        Sequences(length=4, her=Her(goal=Goal.FINAL), at_end=AtEnd.DROP),
        Episodes(max_steps=8, her=Her(goal=Goal.FUTURE, open_episodes=True)),
    )
]


def test_a_seed_gives_the_same_batch_over_both_doors_and_after_a_restart(tmp_path):
    """Of every kind of request, from a table that capacity and a deletion have gone through."""
    with Replay(tmp_path / "s") as replay:
        server = Server(replay, "127.0.0.1:0")
        server.start()
        with replay_client.connect(f"127.0.0.1:{server.port}") as client:
            table = make_goal_table(client, [7, 5, 3, 8, 6, 4, 7], samplers=ANY, capacity_steps=36, chunk_steps=3)
            with table.writer() as writer:
                write_goal_episode(writer, 5, episode=7, end="open")
            table.delete_episodes([4])
            table.update_priorities(np.arange(9, 45), 1.0 + np.arange(36) % 5)
            first = [table.sample(20, what, sampler=sampler, seed=3) for what, sampler in KINDS]
            for (what, sampler), batch in zip(KINDS, first, strict=True):
                assert_same(replay.table("t").sample(20, what, sampler=sampler, seed=3), batch)
        server.stop(5.0)
    with Replay(tmp_path / "s") as replay:
        for (what, sampler), batch in zip(KINDS, first, strict=True):
            assert_same(replay.table("t").sample(20, what, sampler=sampler, seed=3), batch)
        other = [replay.table("t").sample(20, what, sampler=sampler, seed=4) for what, sampler in KINDS]
        assert all((one.positions != two.positions).any() for one, two in zip(first, other, strict=True))


class Script:
    """Actors that write, learners that sample, update and use queues up, and somebody who deletes, by chance."""

    def __init__(self, table, seed):
        self.table, self.rng = table, np.random.default_rng(seed)
        self.writers = [table.writer(actor=str(i)) for i in range(3)]
        self.episodes, self.lengths = [0, 0, 0], [0, 0, 0]
        self.begun = 0

    def write(self):
        i = int(self.rng.integers(3))
        for _ in range(int(self.rng.integers(1, 6))):
            if not self.lengths[i]:
                self.episodes[i], self.begun = self.begun, self.begun + 1
                self.writers[i].begin(goal_observation(self.episodes[i], 0))
            self.lengths[i] += 1
            end = bool(self.rng.random() < 0.15)
            self.writers[i].append(0, -1.0, goal_observation(self.episodes[i], self.lengths[i]), truncated=end)
            self.lengths[i] *= not end
        self.writers[i].flush()

    def learn(self):
        what, sampler = KINDS[int(self.rng.integers(len(KINDS)))]
        batch = sampled(self.table, what, sampler)
        if batch is not None:
            for name in ("prioritized", "table"):
                self.table.update_priorities(batch.positions, self.rng.integers(0, 9, len(batch)), sampler=name)

    def use_queues_up(self):
        for what, names in QUEUES.items():
            size = int(self.rng.integers(1, 4))
            found = [sampled(self.table, what, name, size=size, seed=None) for name in names]
            assert (found[0] is None) == (found[1] is None)
            assert found[0] is None or (found[0].positions == found[1].positions).all()

    def delete(self):
        closed = [record.episode_id for record in self.table.episodes(closed_only=True)]
        if len(closed) > 2:
            assert self.table.delete_episodes([closed[int(self.rng.integers(len(closed)))]]) == 1

    def run(self, rounds):
        for _ in range(rounds):
            self.write()
            self.learn()
            if self.rng.random() < 0.3:
                self.use_queues_up()
            if self.rng.random() < 0.15:
                self.delete()
        for writer in self.writers:
            writer.close()


QUEUES = {
    Transitions(n_step=2): ("steps", "steps_too"),
    Sequences(length=3, period=2): ("pieces", "pieces_too"),
    Episodes(max_steps=9): ("whole", "whole_too"),
}


def sampled(table, what, sampler, *, size=20, seed=5):
    """Returns a batch, None if there is nothing to draw."""
    try:
        return table.sample(size, what, sampler=sampler, seed=seed)
    except NotReadyError:
        return None


def drained(table, what, sampler):
    """Returns all that a queue still hands out."""
    batches = iter(lambda: sampled(table, what, sampler, size=1, seed=None), None)
    return [int(batch.positions[0]) for batch in batches]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "bounds",
    [
        {"capacity_steps": 60},
        {"capacity_episodes": 6},
        {"capacity_steps": 60, "remover": Remover.OLDEST_EPISODES},
        {"capacity_steps": 25, "remover": Remover.LOWEST_PRIORITY},
    ],
    ids=["steps", "episodes", "whole episodes", "priorities"],
)
@pytest.mark.parametrize("seed", [2, 8])
def test_a_table_that_came_and_went_gives_the_batches_of_one_that_was_just_opened(tmp_path, bounds, seed):
    """What is kept up to date from step to step is the same as what is made anew; so is what is left in the queues."""
    kinds = {"steps": Fifo(2), "pieces": Lifo(), "whole": Fifo()}
    samplers = ANY | kinds | {f"{name}_too": kind for name, kind in kinds.items()}
    config = TableConfig(chunk_steps=3, samplers=samplers, **bounds)
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", GOALS, config)
        Script(table, seed).run(60)
        assert table.stats().removed_steps_total > 20
        before = [sampled(table, what, sampler) for what, sampler in KINDS]
        left = {name: drained(table, what, name) for what, (name, _) in QUEUES.items()}
        assert sum(batch is not None for batch in before) > 5
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        for (what, sampler), batch in zip(KINDS, before, strict=True):
            again = sampled(table, what, sampler)
            assert (again is None) == (batch is None)
            if batch is not None:
                assert_same(again, batch)
        assert {name: drained(table, what, other) for what, (name, other) in QUEUES.items()} == left
        assert all(drained(table, what, name) == [] for what, (name, _) in QUEUES.items())
