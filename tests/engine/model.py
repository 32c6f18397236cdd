"""A replay table of plain lists and slow code, which says what the real one must give, whatever was done to both."""

from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import pytest

from replaysvc import (
    AtEnd,
    Episodes,
    EpisodeUniform,
    Fifo,
    Lifo,
    Limiter,
    Prioritized,
    Recency,
    Remover,
    Transitions,
    WeightNorm,
)
from tests.engine.model_windows import Episode, columns_of, expected, goals_of, plain


class Item(NamedTuple):
    """What can be drawn: named by the position of its anchor step, and the step that its window begins with."""

    position: int
    episode: Episode
    anchor: int
    start: int


def is_queue(sampler):
    """Returns whether a sampler uses up what it hands out."""
    return sampler in ("fifo", "lifo")


class Model:
    """The table. Chunks are committed one at a time, so that what capacity removes is known step by step."""

    def __init__(self, config):
        self.config, self.limiter = config, config.limiter
        self.episodes = []  # by id
        self.next_position = self.inserted = self.sampled = 0
        self.losses = 0
        self.newest = None  # the episode of the newest chunk
        self.leaves = {name: {} for name, sampler in config.samplers.items() if isinstance(sampler, Prioritized)}
        self.handed_out = {"fifo": Counter(), "lifo": Counter()}

    @property
    def stored(self):
        """Returns the episodes of which steps are stored."""
        return [episode for episode in self.episodes if episode.live]

    @property
    def size(self):
        """Returns how many steps are stored."""
        return sum(len(episode.live) for episode in self.episodes)

    # -- what is done to it -------------------------------------------------------------------------------------------

    def leaf(self, name, priority):
        """Returns priority^alpha, and 0 for 0."""
        return priority ** self.config.samplers[name].alpha if priority else 0.0

    def commit(self, episode, steps, end, now_s):
        """Takes in one chunk."""
        if episode.id < 0:
            episode.id, episode.started_at_s = len(self.episodes), now_s
            self.episodes.append(episode)
        for step in steps:
            step.position, step.at_s = self.next_position, now_s
            self.next_position += 1
        for name, leaves in self.leaves.items():
            largest = max(leaves.values(), default=0.0) or 1.0
            given = self.config.samplers[name].initial_priority is not None
            leaves |= {s.position: self.leaf(name, s.extras["given"]) if given else largest for s in steps}
        episode.steps += steps
        episode.end = end
        self.inserted += len(steps)
        self.newest = episode
        self._remove_excess()

    def _drop(self, episode, count):
        for leaves in self.leaves.values():
            for step in episode.live[:count]:
                del leaves[step.position]
        episode.first += count

    def _too_many_episodes(self):
        return self.config.capacity_episodes is not None and len(self.stored) > self.config.capacity_episodes

    def _too_many_steps(self):
        return self.config.capacity_steps is not None and self.size > self.config.capacity_steps

    def _remove_excess(self):
        def over():
            return self._too_many_steps() or self._too_many_episodes()

        remover = self.config.remover
        while remover is Remover.LOWEST_PRIORITY and over():
            closed = [episode for episode in self.stored if episode.end and episode is not self.newest]
            if not closed:
                break
            leaves = next(iter(self.leaves.values()))
            lowest = min(closed, key=lambda episode: (max(leaves[step.position] for step in episode.live), episode.id))
            self._drop(lowest, len(lowest.live))
        while self._too_many_episodes() if remover is Remover.OLDEST_STEPS else over():
            others = [episode for episode in self.stored if episode is not self.newest]
            if not others:
                break
            oldest = min(others, key=lambda episode: episode.id)  # the one that began first
            self._drop(oldest, len(oldest.live))
        while self._too_many_steps():
            self._drop(min(self.stored, key=lambda episode: episode.live[0].position), 1)

    def delete(self, ids, open_episodes):
        """Deletes episodes; returns how many were there, None if one is open, unasked, and nothing is deleted."""
        there = [episode for episode in self.stored if episode.id in ids]
        if not open_episodes and not all(episode.end for episode in there):
            return None
        for episode in there:
            self._drop(episode, len(episode.live))
        return len(there)

    def lose(self, episode):
        """Ends an open episode whose writer is gone."""
        self.losses += 1
        episode.end, episode.lost = "truncated", (self.next_position - 0.5, self.losses)

    def update(self, name, positions, priorities):
        """Sets priorities; returns (applied, ignored)."""
        last = {p: x for p, x in zip(positions, priorities, strict=True) if p in self.leaves[name]}
        self.leaves[name] |= {p: self.leaf(name, x) for p, x in last.items()}
        return len(last), len(positions) - len(last)

    # -- what can be drawn --------------------------------------------------------------------------------------------

    def items(self, what, *, complete=False):
        """Returns the items, oldest first; complete: those that a queue may hand out."""
        found, back = [], what.stack.frames - 1
        for episode in self.stored:
            closed, length = bool(episode.end), len(episode.steps)
            if what.her is not None and not what.her.open_episodes and not closed:
                continue
            for anchor, start, full in self._anchors(what, length, episode.first, back):
                done = closed or (full and start + getattr(what, "length", 1) + getattr(what, "n_step", 1) - 1 <= length)
                if isinstance(what, Episodes):
                    whole = episode.first == 0 and length <= what.max_steps
                    done, allowed = closed, whole and (closed or what.open_episodes)
                else:
                    allowed = episode.first == 0 or anchor - back >= episode.first
                if allowed and anchor >= episode.first and (done or not complete):
                    found.append(Item(episode.steps[anchor].position, episode, anchor, start))
        return sorted(found, key=lambda item: item.position)

    @staticmethod
    def _anchors(what, length, first, back):
        """Returns (anchor, first step of its window, whether it is full) of an episode of `length` steps."""
        if isinstance(what, Transitions):
            return [(t, t, True) for t in range(length)]
        if isinstance(what, Episodes):
            return [(0, 0, True)]
        begins = [t for t in range(0, length, what.period) if t + what.length <= length]
        found = [(t, t, True) for t in begins]
        rest = len(begins) * what.period
        if what.at_end is not AtEnd.DROP and rest < length and (not begins or begins[-1] + what.length < length):
            earliest = first + back if first else 0  # where the first stack is whole
            found.append((rest, rest if what.at_end is AtEnd.PAD else max(earliest, length - what.length), False))
        return found

    def chances(self, sampler, what):
        """Returns {position: chance} of the items that a sampler may draw; queues have none."""
        options, items = self.config.samplers[sampler], self.items(what)
        if isinstance(options, Prioritized):
            shares = {item.position: self.leaves[sampler][item.position] for item in items}
            shares = {position: share for position, share in shares.items() if share}
        elif isinstance(options, Recency):
            shares = {item.position: 2 ** (-age / options.half_life) for age, item in enumerate(reversed(items))}
        elif isinstance(options, EpisodeUniform):
            each = Counter(item.episode.id for item in items)
            shares = {item.position: 1 / each[item.episode.id] for item in items}
        else:
            shares = {item.position: 1.0 for item in items}
        return {position: share / sum(shares.values()) for position, share in shares.items()}

    def queue(self, sampler, what):
        """Returns the positions that a queue would hand out, one after the other."""
        closed_only = isinstance(what, Episodes) or (what.her is not None and not what.her.open_episodes)
        span = getattr(what, "length", 1) + getattr(what, "n_step", 1) - 1

        def completed(item):
            length = len(item.episode.steps)
            last = length - 1 if closed_only else min(item.anchor + span, length) - 1
            if item.episode.lost and (closed_only or item.anchor + span > length):
                return *item.episode.lost, item.position  # complete when it was lost
            return item.episode.steps[last].position, 0, item.position

        options = self.config.samplers[sampler]
        order = sorted(self.items(what, complete=True), key=completed, reverse=isinstance(options, Lifo))
        left = [(item.position, options.max_times_sampled - self.handed_out[sampler][item.position]) for item in order]
        assert isinstance(options, Fifo | Lifo)
        return [position for position, times in left for _ in range(times)]

    # -- the limiter --------------------------------------------------------------------------------------------------

    def sample_waits(self, count):
        """Returns whether the limiter lets `count` items not be sampled now."""
        limiter = self.limiter
        if self.size < limiter.min_steps or limiter.samples_per_insert is None:
            return self.size < limiter.min_steps
        return self.inserted * Fraction(limiter.samples_per_insert) - self.sampled - count < Fraction(limiter.min_diff)

    def insert_waits(self, count):
        """Returns whether the limiter lets `count` steps not be inserted now."""
        limiter = self.limiter
        if limiter.samples_per_insert is None or self.size + count <= limiter.min_steps:
            return False
        diff = (self.inserted + count) * Fraction(limiter.samples_per_insert) - self.sampled
        return diff > Fraction(limiter.max_diff)

    def set_limiter(self, limiter: Limiter):
        """Puts another limiter in the place of this one."""
        self.limiter = limiter

    # -- comparing ----------------------------------------------------------------------------------------------------

    def can_sample(self, sampler, what, count):
        """Returns whether a batch can be drawn now."""
        if self.sample_waits(count):
            return False
        return len(self.queue(sampler, what)) >= count if is_queue(sampler) else bool(self.chances(sampler, what))

    def check_batch(self, batch, what, sampler, count, beta, now_s):
        """Asserts that a batch is one that this table may give, in every column, and counts it."""
        assert len(batch) == count
        positions = batch.positions.tolist()
        if is_queue(sampler):
            assert positions == self.queue(sampler, what)[:count]
            chances = dict.fromkeys(positions, 1.0)
        else:
            chances = self.chances(sampler, what)
        self._check_chances(batch, sampler, chances, beta)
        items = {item.position: item for item in self.items(what, complete=is_queue(sampler))}
        drawn = [items[position] for position in positions]  # KeyError: no such item
        width = 1 if isinstance(what, Transitions) else getattr(what, "length", max(len(item.episode.steps) for item in drawn))
        columns = columns_of(batch)
        ends = [
            [0, 0],
            [0.0, 0.0],
        ]  # how often the first and the last of the goals that may be were drawn; what to expect
        assert (batch.relabeled is None) == (what.her is None)
        for i, item in enumerate(drawn):
            episode, goal = item.episode, None
            step = episode.steps[item.start]
            assert (batch.episode_id[i], batch.t[i]) == (episode.id, item.start)
            assert (batch.policy_version[i], batch.age_s[i]) == (episode.policy_version, now_s - step.at_s)
            if what.her is not None:
                assert what.her.ratio not in (0.0, 1.0) or batch.relabeled[i] == (what.her.ratio == 1.0)
                if batch.relabeled[i]:
                    goal = batch.observation["desired_goal"][i].reshape(-1, 2)[0].tolist()
                    goals = goals_of(what.her.goal, episode, item.start)
                    assert goal in goals, f"goal of item {i}, {item.start} of episode {episode.id}: {goal}"
                    for end in (0, -1):
                        ends[0][end] += goal == goals[end]
                        ends[1][end] += 1 / len(goals)
            rows = expected(what, episode, item.start, width, goal)
            assert rows.keys() == columns.keys()
            for name, value in rows.items():
                found = plain(columns[name][i]) if name not in ("reward", "discount") else columns[name][i]
                wanted = pytest.approx(value, rel=1e-6, abs=1e-6) if name in ("reward", "discount") else value
                where = f"{name} of item {i}, {item.start} of episode {episode.id} ({episode.first} to {len(episode.steps)})"
                assert wanted == found, f"{where}: expected {wanted}, found {found}"
        assert all(often or expected < 25 for often, expected in zip(*ends, strict=True))  # by chance once in e^25
        self.sampled += count
        if is_queue(sampler):
            self.handed_out[sampler].update(positions)

    def _check_chances(self, batch, sampler, chances, beta):
        positions, count = batch.positions.tolist(), len(batch)
        assert set(positions) <= set(chances)
        mine = [chances[position] for position in positions]
        assert batch.probability.tolist() == pytest.approx(mine, rel=1e-6)
        options = self.config.samplers[sampler]
        weights = [1.0] * count
        if isinstance(options, Prioritized):
            beta = options.beta if beta is None else beta
            size = len(chances)
            among = mine if options.norm is WeightNorm.BATCH else chances.values()
            largest = max((size * chance) ** -beta for chance in among)
            weights = [(size * chance) ** -beta / largest for chance in mine]
            drawn = Counter(positions)  # one of each of as many equal strata
            assert all(count * chance - 2 < drawn[position] < count * chance + 2 for position, chance in chances.items())
        assert batch.importance_weight.tolist() == pytest.approx(weights, rel=1e-6)
