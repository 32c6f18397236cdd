"""A store and a model of it, plain lists and slow code, go through the same chance events and are compared in all they tell.

`make test` runs a bounded number, the same each time; `--hypothesis-profile=torture` looks for new ones, for many minutes.
"""

import shutil
import tempfile
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replaysvc import Limiter, StoreConfig, TableConfig, Transitions
from replaysvc.errors import InvalidRequestError, NotFoundError, NotReadyError, WaitTimeoutError, WriterFencedError
from replaysvc.replay import Replay
from replaysvc.storage import System
from replaysvc.storage.segment import Segment
from tests.engine.model import Model
from tests.engine.model_inputs import (
    PRIORITIZED,
    QUEUES,
    SEEDED,
    arrays,
    configs,
    given,
    observation,
    priorities,
    seeds,
    step,
    windows,
    writes,
)
from tests.engine.model_windows import SIGNATURE, Episode, flat, plain

SMALL = StoreConfig(recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)


def same(first, second):
    """Returns whether two batches are equal in every column."""
    first, second = (
        {name: plain(column) for key, part in batch.asdict().items() for name, column in flat(part, key).items()}
        for batch in (first, second)
    )
    return first == second


class Counting(System):
    """Counts how often a process of this test came to each crash point."""

    seen: ClassVar = Counter()

    def crashpoint(self, name):
        self.seen[name] += 1

    def link(self, source, target):
        self.copy(source, target)  # a snapshot is opened beside its store here, which one process cannot do with shared files


@pytest.fixture(autouse=True, scope="module")
def small_segments():
    """Ends segments after a few commits, long before they are full, so that some are removed, compacted and merged."""
    full = property(lambda segment: segment.used_bytes >= 76 << 10)
    with mock.patch.object(TableConfig, "full_segment_bytes", 1 << 18), mock.patch.object(Segment, "full", full):
        yield
    for point in ("remove.after_rename", "compact.renamed", "merge.renamed"):
        assert Counting.seen[point] > 0, point


class Actor:
    """A writer, the episode that it writes, and the steps of it that are not committed yet."""

    def __init__(self, table, name):
        self.writer, self.name = table.writer(name, limit_timeout_s=0.0), name
        self.episode, self.buffered = None, []


class StoreAndModel(RuleBasedStateMachine):
    """Does everything to both. The clock stands still but for one second a rule."""

    @initialize(
        config=configs, what=st.lists(windows, min_size=4, max_size=4), queues=st.tuples(windows, windows), first=writes
    )
    def open(self, config, what, queues, first):
        self.dir = Path(tempfile.mkdtemp())
        self.now_s, self.snapshots, self.written, self.turn = 1000.0, 0, 0, 0
        self.windows, self.queued = what, dict(zip(QUEUES, queues, strict=True))
        self.actors, self.together = {}, False
        self.replay = self.open_store(self.dir / "store")
        self.table = self.replay.create_table("t", SIGNATURE, config)
        self.model = Model(config)
        self.removes = config.capacity_steps is not None or config.capacity_episodes is not None
        self.write(writes=first, together=False)

    def open_store(self, path):
        system = Counting()
        system.time = lambda: self.now_s
        return Replay(path, SMALL, system=system, rng=np.random.default_rng(5))

    def teardown(self):
        if not hasattr(self, "replay"):
            return
        self.replay.close()
        shutil.rmtree(self.dir)

    # -- writing ------------------------------------------------------------------------------------------------------

    def commit(self, actor, end=""):
        if not self.together:
            actor.writer.flush()
        self.model.commit(actor.episode, actor.buffered, end, self.now_s)
        actor.buffered = []

    @rule(writes=writes, together=st.booleans())
    def write(self, writes, together):
        """together: several chunks may make one commit, which changes nothing as long as nothing is removed or held back."""
        self.now_s += 1
        self.together = together and not self.removes and self.model.limiter.samples_per_insert is None
        for number, places, end, flush in writes:
            if number not in self.actors:
                self.actors[number] = Actor(self.table, f"actor-{number}")
            self.write_steps(self.actors[number], places, end, flush)
        for actor in self.actors.values() if self.together else ():
            actor.writer.flush()
            if actor.buffered:
                self.commit(actor)
        self.together = False

    write_more = write  # as likely as two rules

    def write_steps(self, actor, places, end, flush):
        """Appends a step for each place; stops where the limiter lets none in."""
        if actor.episode is None:
            self.begin(actor, places[0])
        ends = [""] * (len(places) - 1) + [end]
        if not all(self.append(actor, place, end) for place, end in zip(places, ends, strict=True)):
            return
        if flush and not self.together and actor.buffered and not self.model.insert_waits(len(actor.buffered)):
            self.commit(actor)

    def begin(self, actor, place):
        self.written += 1
        first = observation(self.written, 0, place)
        actor.episode = Episode(actor.name, self.written % 3 - 1, {"number": self.written}, first)
        actor.writer.begin(arrays(first), metadata=actor.episode.metadata, policy_version=actor.episode.policy_version)

    def append(self, actor, place, end):
        """Appends one step; returns whether the limiter let it in."""
        episode, count = actor.episode, len(actor.buffered) + 1
        number = episode.metadata["number"]
        new = step(number, len(episode.steps) + count - 1, place)
        full = bool(end) or count == self.table.config.chunk_steps
        flags = {end: True} if end else {}
        arguments = (new.action, new.reward, arrays(new.after))
        if full and self.model.insert_waits(count):
            with pytest.raises(WaitTimeoutError):
                actor.writer.append(*arguments, extras=given(new.extras), **flags)
            return False
        actor.writer.append(*arguments, extras=given(new.extras), **flags)
        actor.buffered.append(new)
        if full:
            self.commit(actor, end)
        if end:
            actor.episode = None
        return True

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), how=st.sampled_from(["flush", "abandon", "close"]))
    def part(self, data, how):
        self.now_s += 1
        number = data.draw(st.sampled_from(sorted(self.actors)))
        actor = self.actors[number]
        if actor.buffered and self.model.insert_waits(len(actor.buffered)):
            return
        if how == "close":
            self.close_actor(number)
            return
        if how == "abandon":
            actor.writer.abandon()
        if actor.buffered:
            self.commit(actor)
        if how == "abandon":
            actor.episode = None

    @rule(data=st.data())
    def lose(self, data):
        """The lease of an episode runs out: of one that was given up, or that its writer would go on with, and may not."""
        self.now_s += 1
        held_back = [a.episode for a in self.actors.values() if a.buffered and self.model.insert_waits(len(a.buffered))]
        open_ones = [episode for episode in self.model.stored if not episode.end and episode not in held_back]
        if not open_ones:
            return
        episode = data.draw(st.sampled_from(open_ones))
        engine = self.table._engine
        names = [name for name, known in engine._core.open_episodes.items() if known.episode_id == episode.id]
        assert len(names) == 1
        engine._endings.end_episodes(names)
        self.model.lose(episode)
        for number, actor in list(self.actors.items()):
            if actor.episode is episode:
                self.refuse(number, actor)

    def refuse(self, number, actor):
        """The writer of a lost episode is refused as soon as it has something to store."""
        del self.actors[number]
        if not actor.buffered:
            actor.writer.close()
        else:
            with pytest.raises(WriterFencedError):
                actor.writer.close()

    def close_actor(self, number):
        actor = self.actors.pop(number)
        actor.writer.close()
        if actor.buffered:
            self.model.commit(actor.episode, actor.buffered, "", self.now_s)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def draw(self, table, model, count, what, sampler, **options):
        """Samples and compares; returns the batch, None if there is rightly none."""
        limiter = model.limiter
        if count > limiter.max_diff - limiter.min_diff:
            with pytest.raises(InvalidRequestError, match="batch_size"):
                table.sample(count, what, sampler=sampler, **options)
            return None
        if not model.can_sample(sampler, what, count):
            with pytest.raises(NotReadyError):
                table.sample(count, what, sampler=sampler, **options)
            return None
        batch = table.sample(count, what, sampler=sampler, **options)
        try:
            model.check_batch(batch, what, sampler, count, options.get("beta"), self.now_s)
        except AssertionError as error:
            error.add_note(f"a batch of {count}, by {sampler}, {what}, {options}")
            raise
        return batch

    @rule(
        draws=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(SEEDED), seeds), min_size=1, max_size=5),
        count=st.sampled_from([1, 2, 3, 5, 8, 100]),
        beta=st.sampled_from([None, None, 0.0, 0.7, 4.0]),
        learned=st.lists(priorities, max_size=3),
    )
    def sample(self, draws, count, beta, learned):
        """learned: new priorities of what is drawn, in turn."""
        self.now_s += 1
        for number, sampler, seed in draws:
            batch = self.sample_one(self.windows[number], sampler, count, seed, beta)
            if batch is not None and sampler in PRIORITIZED and learned:
                self.set_priorities(sampler, batch.positions.tolist(), [learned[i % len(learned)] for i in range(count)])

    @rule(what=windows, sampler=st.sampled_from(SEEDED), count=st.integers(1, 8), seed=seeds)
    def sample_another(self, what, sampler, count, seed):
        self.now_s += 1
        self.sample_one(what, sampler, count, seed, None)

    def sample_one(self, what, sampler, count, seed, beta):
        options = {"beta": beta} if sampler in PRIORITIZED else {}
        first = self.draw(self.table, self.model, count, what, sampler, seed=seed, **options)
        if first is not None and seed is not None:
            second = self.draw(self.table, self.model, count, what, sampler, seed=seed, **options)
            assert second is None or same(first, second)
        return first

    @rule(sampler=st.sampled_from(QUEUES), count=st.integers(1, 6))
    def take(self, sampler, count):
        self.now_s += 1
        self.draw(self.table, self.model, count, self.queued[sampler], sampler)

    # -- changing -----------------------------------------------------------------------------------------------------

    @rule(
        sampler=st.sampled_from(PRIORITIZED),
        changes=st.lists(st.tuples(st.integers(-2, 40), priorities), max_size=8),
    )
    def update(self, sampler, changes):
        positions = [max(-1, self.model.next_position - back) for back, _ in changes]
        self.set_priorities(sampler, positions, [priority for _, priority in changes])

    def set_priorities(self, sampler, positions, priorities):
        counts = self.table.update_priorities(np.array(positions, np.int64), priorities, sampler=sampler)
        assert counts == self.model.update(sampler, positions, priorities)
        for bad in (np.nan, np.inf, -1.0, 1e31):
            with pytest.raises(InvalidRequestError):
                self.table.update_priorities([*positions, 0], [*priorities, bad], sampler=sampler)

    @rule(back=st.lists(st.integers(-1, 8), max_size=3), open_episodes=st.booleans())
    def delete(self, back, open_episodes):
        ids = [max(0, len(self.model.episodes) - number) for number in back]
        if any(actor.episode is not None and actor.episode.id in ids for actor in self.actors.values()):
            open_episodes = False  # else the writer would be refused
        expected = self.model.delete(ids, open_episodes)
        if expected is None:
            with pytest.raises(InvalidRequestError, match="open"):
                self.table.delete_episodes(ids)
        else:
            assert self.table.delete_episodes(ids, open_episodes=open_episodes) == expected

    @rule(
        ratio=st.sampled_from([None, 0.5, 1.0, 4.0]), steps=st.integers(1, 6), low=st.integers(0, 30), high=st.integers(0, 60)
    )
    def limit(self, ratio, steps, low, high):
        limiter = Limiter(min_steps=steps)
        if ratio is not None:  # near enough to where the table is now that both sides will wait
            diff = ratio * self.model.inserted - self.model.sampled
            chunk = self.table.config.chunk_steps
            least = min(ratio * steps, diff - low)
            most = max(ratio * (steps + chunk), diff + high, least + 2 * max(1, ratio), least + ratio * chunk)
            limiter = Limiter(min_steps=steps, samples_per_insert=ratio, error_buffer=(least, most))
        self.set_limiter(limiter)

    def set_limiter(self, limiter):
        self.table.set_limiter(limiter)
        self.model.limiter = limiter

    # -- leaving and coming back --------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 3), how=st.sampled_from(["reopen", "reopen", "snapshot"]))
    def leave(self, number, how):
        self.reopen(number) if how == "reopen" else self.snapshot(number)

    def reopen(self, number):
        self.now_s += 1
        for name, actor in sorted(self.actors.items()):
            if actor.buffered and self.model.insert_waits(len(actor.buffered)):
                self.set_limiter(Limiter())
            self.close_actor(name)
        before = {name: self.draw(self.table, self.model, 4, self.windows[number], name, seed=3) for name in SEEDED}
        self.replay.close()
        self.replay = self.open_store(self.dir / "store")
        self.table = self.replay.table("t")
        assert self.table.config.limiter == self.model.limiter
        self.compare(self.table, self.model)
        for name, batch in before.items():
            again = self.draw(self.table, self.model, 4, self.windows[number], name, seed=3)
            assert batch is None or again is None or same(batch, again)

    def snapshot(self, number):
        self.snapshots += 1
        path = self.dir / f"snapshot-{self.snapshots}"
        self.replay.snapshot(path)
        model = deepcopy(self.model)
        with self.open_store(path) as copy:  # which draws by generators in the state of those here
            table = copy.table("t")
            self.compare(table, model)
            for name in (*SEEDED, *QUEUES):
                what = self.queued.get(name, self.windows[number])
                there = self.draw(table, model, 2, what, name)
                here = self.draw(self.table, self.model, 2, what, name)
                assert (there is None) == (here is None)
                assert here is None or same(there, here)
        shutil.rmtree(path)

    # -- comparing ----------------------------------------------------------------------------------------------------

    @invariant()
    def counters_and_records_agree(self):
        if hasattr(self, "model"):
            self.turn += 1
            stored = self.model.stored
            self.compare(self.table, self.model, read=stored[self.turn % len(stored) :][:1] if stored else [])

    def compare(self, table, model, read=None):
        """Compares all but what is drawn; read: the episodes whose every step is compared, None: all."""
        stats = table.stats()
        assert (stats.steps, stats.episodes, stats.next_position) == (model.size, len(model.stored), model.next_position)
        assert (stats.limiter["inserted"], stats.limiter["sampled"]) == (model.inserted, model.sampled)
        assert stats.ready == model.can_sample("uniform", Transitions(), 1)
        records = {record.episode_id: record for record in table.episodes(limit=1000)}
        assert list(records) == [episode.id for episode in reversed(model.stored)]
        for episode in model.stored:
            self.compare_record(records[episode.id], episode)
        for episode in model.stored if read is None else read:
            self.compare_steps(table, episode)
        if read is None:
            for episode in model.episodes:
                if not episode.live:
                    with pytest.raises(NotFoundError):
                        table.read_episode(episode.id)

    def compare_record(self, record, episode):
        assert (record.first_step, record.length) == (episode.first, len(episode.steps))
        assert (record.closed, record.terminated, record.truncated) == (
            bool(episode.end), episode.end == "terminated", episode.end == "truncated",
        )  # fmt: skip
        assert record.return_ == sum(step.reward for step in episode.steps)
        assert (record.actor, record.policy_version) == (episode.actor, episode.policy_version)
        assert record.end_reason == ("lost_actor" if episode.lost else "")
        assert (record.metadata, record.started_at_s) == (episode.metadata, episode.started_at_s)

    def compare_steps(self, table, episode):
        parts = table.read_episode(episode.id, episode.first).items()
        found = {name: plain(column) for key, part in parts for name, column in flat(part, key).items()}
        length = len(episode.steps)
        for name in episode.start:
            expected = [episode.seen(t)[name] for t in range(episode.first, length + 1)]
            assert found.pop(f"observation/{name}") == expected, name
        for name in episode.steps[0].extras:
            assert found.pop(name) == [step.extras[name] for step in episode.live], name
        assert found.pop("action") == [step.action for step in episode.live]
        assert found.pop("reward") == [step.reward for step in episode.live]
        for name in ("terminated", "truncated"):
            assert found.pop(name) == [t == length - 1 and episode.end == name for t in range(episode.first, length)]
        assert found == {}
        if episode.first:
            with pytest.raises(InvalidRequestError):
                table.read_episode(episode.id, episode.first - 1)


_TORTURE = settings.get_current_profile_name() == "torture"
pytestmark = pytest.mark.timeout(0 if _TORTURE else 300)
TestStoreAndModel = StoreAndModel.TestCase
if not _TORTURE:
    TestStoreAndModel.settings = settings(
        max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
