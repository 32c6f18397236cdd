"""Sequences: where they begin, what they hold and where they stop, the same on both doors."""

import numpy as np
import pytest

from replaysvc import AtEnd, Episodes, EpisodeUniform, FieldSpec, Recency, Sequences, Signature, TableConfig, Transitions
from replaysvc.errors import InvalidRequestError, NotReadyError, SpecMismatchError
from tests.builders import SCALARS, make_table, write_episode, write_episodes
from tests.statistics import check_draws

PAD, SHIFT, DROP = AtEnd.PAD, AtEnd.SHIFT, AtEnd.DROP

# steps of the episode, length, period, at_end -> (name, first step, real steps) of each sequence, worked by hand
LAYOUTS = [
    (2, 3, 3, PAD, [(0, 0, 2)]),
    (2, 3, 3, SHIFT, [(0, 0, 2)]),
    (2, 3, 1, SHIFT, [(0, 0, 2)]),
    (3, 3, 3, PAD, [(0, 0, 3)]),
    (3, 3, 3, SHIFT, [(0, 0, 3)]),
    (3, 3, 3, DROP, [(0, 0, 3)]),
    (7, 3, 3, PAD, [(0, 0, 3), (3, 3, 3), (6, 6, 1)]),
    (7, 3, 3, SHIFT, [(0, 0, 3), (3, 3, 3), (6, 4, 3)]),
    (7, 3, 3, DROP, [(0, 0, 3), (3, 3, 3)]),
    (7, 3, 2, PAD, [(0, 0, 3), (2, 2, 3), (4, 4, 3)]),
    (7, 3, 2, SHIFT, [(0, 0, 3), (2, 2, 3), (4, 4, 3)]),
    (8, 3, 2, PAD, [(0, 0, 3), (2, 2, 3), (4, 4, 3), (6, 6, 2)]),
    (8, 3, 2, SHIFT, [(0, 0, 3), (2, 2, 3), (4, 4, 3), (6, 5, 3)]),
    (8, 3, 2, DROP, [(0, 0, 3), (2, 2, 3), (4, 4, 3)]),
    (10, 8, 4, PAD, [(0, 0, 8), (4, 4, 6)]),
    (10, 8, 4, SHIFT, [(0, 0, 8), (4, 2, 8)]),
    (5, 3, 1, PAD, [(0, 0, 3), (1, 1, 3), (2, 2, 3)]),
    (5, 2, 4, PAD, [(0, 0, 2), (4, 4, 1)]),
    (5, 2, 4, SHIFT, [(0, 0, 2), (4, 3, 2)]),
    (4, 2, 4, PAD, [(0, 0, 2)]),
    (4, 2, 4, SHIFT, [(0, 0, 2)]),
    (1, 1, 1, DROP, [(0, 0, 1)]),
    (60, 25, 20, PAD, [(0, 0, 25), (20, 20, 25), (40, 40, 20)]),
    (60, 25, 20, SHIFT, [(0, 0, 25), (20, 20, 25), (40, 35, 25)]),
]


def check_row(batch, i, episode, steps, length, begin, real, end="terminated"):
    """Asserts that row i of the batch is the sequence of `real` steps from `begin` on, padded to `length`."""
    t = np.arange(begin, begin + real)
    pad = length - real
    final = 100 * episode + steps
    assert (batch.episode_id[i], batch.t[i]) == (episode, begin)
    assert batch.mask[i].tolist() == [True] * real + [False] * pad
    assert batch.is_first[i].tolist() == [u == 0 for u in t] + [False] * pad
    assert batch.observation[i].tolist() == [100 * episode + u for u in t] + [final] * pad
    assert batch.next_observation[i].tolist() == [100 * episode + u + 1 for u in t] + [final] * pad
    assert batch.action[i].tolist() == [*t.tolist(), *[0] * pad]
    assert batch.reward[i].tolist() == [10 * u + episode for u in t] + [0] * pad
    last = [u == steps - 1 for u in t] + [False] * pad
    assert batch.terminated[i].tolist() == [flag and end == "terminated" for flag in last]
    assert batch.truncated[i].tolist() == [flag and end == "truncated" for flag in last]
    assert batch.discount[i].tolist() == [0.0 if flag and end == "terminated" else 0.5 for flag in last[:real]] + [0.0] * pad


@pytest.mark.parametrize("chunk_steps", [1, 2, 3, 5, 64])
def test_every_layout_is_right_whatever_the_chunk_length(door, chunk_steps):
    """An episode for each layout, one after another in one table, so that any step of a neighbour would show."""
    lengths = [layout[0] for layout in LAYOUTS]
    starts = [sum(lengths[:episode]) for episode in range(len(lengths))]
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=chunk_steps))
    write_episodes(table, lengths, end=("truncated", "terminated")[chunk_steps % 2])
    for length, period, at_end in dict.fromkeys(layout[1:4] for layout in LAYOUTS):
        what = Sequences(length=length, period=period, at_end=at_end, gamma=0.5)
        batch = table.sample(1500, what, sampler="prioritized", seed=1)  # in strata, so that every sequence is drawn
        assert batch.observation.shape == (1500, length)
        assert (batch.observation // 100 == batch.episode_id[:, None]).all()
        assert (np.diff(batch.observation, axis=1) == 1)[batch.mask[:, 1:]].all()
        rows = {(int(e), int(p)): i for i, (e, p) in enumerate(zip(batch.episode_id, batch.positions, strict=True))}
        for episode, (steps, *options, expected) in enumerate(LAYOUTS):
            if options != [length, period, at_end]:
                continue
            found = {position - starts[episode] for e, position in rows if e == episode}
            assert found == {name for name, _, _ in expected}, (steps, *options)
            for name, begin, real in expected:
                row = rows[episode, starts[episode] + name]
                check_row(batch, row, episode, steps, length, begin, real, ("truncated", "terminated")[chunk_steps % 2])


def test_steps_at_a_sequence_have_their_own_flags_and_discounts(door):
    """Three episodes of three steps: one terminated, one truncated, one open."""
    table = door.create_table("t", SCALARS)
    with table.writer() as writer:
        for episode, end in enumerate(("terminated", "truncated", "open")):
            write_episode(writer, 3, episode=episode, end=end)
    batch = table.sample(60, Sequences(length=4, gamma=0.5), seed=1)
    expected = {
        0: ([False, False, True, False], [False] * 4, [0.5, 0.5, 0, 0]),
        1: ([False] * 4, [False, False, True, False], [0.5, 0.5, 0.5, 0]),
        2: ([False] * 4, [False] * 4, [0.5, 0.5, 0.5, 0]),
    }
    for i, episode in enumerate(batch.episode_id.tolist()):
        found = (batch.terminated[i].tolist(), batch.truncated[i].tolist(), batch.discount[i].tolist())
        assert found == expected[episode]
        assert batch.next_observation[i].tolist() == [100 * episode + t for t in (1, 2, 3, 3)]
    assert set(batch.episode_id.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("chunk_steps", [1, 2, 64])
def test_n_step_returns_within_a_sequence_look_past_it_but_never_past_the_episode(door, chunk_steps):
    """Rewards 0, 10, 20, 30, 40; n = 3, gamma 1/2: a sequence of two at step 0, 2 and 4."""
    table = make_table(door, [5, 3], chunk_steps=chunk_steps)
    batch = table.sample(60, Sequences(length=2, n_step=3, gamma=0.5), seed=2)
    expected = {  # position: rewards, discounts, next observations, terminated, mask
        0: ([10, 27.5], [0.125, 0.125], [3, 4], [False, False], [True, True]),
        2: ([45, 50], [0, 0], [5, 5], [True, True], [True, True]),
        4: ([40, 0], [0, 0], [5, 5], [True, False], [True, False]),
        5: ([1 + 5.5 + 5.25, 11 + 10.5], [0, 0], [103, 103], [True, True], [True, True]),
        7: ([21, 0], [0, 0], [103, 103], [True, False], [True, False]),
    }
    for i, position in enumerate(batch.positions.tolist()):
        found = (batch.reward[i], batch.discount[i], batch.next_observation[i], batch.terminated[i], batch.mask[i])
        assert tuple(value.tolist() for value in found) == expected[position]
    assert set(batch.positions.tolist()) == set(expected)


def test_truncation_within_n_steps_of_a_sequence_keeps_the_bootstrap(door):
    table = make_table(door, [3], end="truncated")
    batch = table.sample(4, Sequences(length=3, n_step=2, gamma=0.5), seed=2)
    for i in range(4):
        assert batch.reward[i].tolist() == [5, 20, 20]
        assert batch.discount[i].tolist() == [0.25, 0.25, 0.5]
        assert batch.truncated[i].tolist() == [False, True, True]
        assert not batch.terminated[i].any()
        assert batch.next_observation[i].tolist() == [2, 3, 3]


RECURRENT = Signature(
    FieldSpec("o", (), np.int64),
    FieldSpec("a", (), np.int64),
    carry=(FieldSpec("h", (2,), np.float32), FieldSpec("c", (), np.float64)),
    log_prob=FieldSpec("log_prob", (), np.float32),
)


@pytest.mark.parametrize("at_end", [PAD, SHIFT])
def test_recurrent_state_is_that_of_the_first_step_and_other_extras_are_there_for_all(door, at_end):
    table = door.create_table("t", RECURRENT, TableConfig(chunk_steps=3))
    with table.writer() as writer:
        writer.begin(0)
        for t in range(8):
            extras = {"carry": (np.array([t, -t], np.float32), t / 4), "log_prob": t + 0.5}
            writer.append(t, 0.0, t + 1, extras=extras, truncated=t == 7)
    batch = table.sample(30, Sequences(length=5, burn_in=2, at_end=at_end, state=("carry",)), seed=3)
    begin = 5 if at_end is PAD else 3
    assert set(batch.t.tolist()) == {0, begin}
    hidden, cell = batch.extras["carry"]
    assert (hidden.shape, cell.shape) == ((30, 2), (30,))
    for i, t in enumerate(batch.t.tolist()):
        assert hidden[i].tolist() == [t, -t]
        assert cell[i] == t / 4
        real = min(5, 8 - t)
        assert batch.extras["log_prob"][i].tolist() == [t + u + 0.5 for u in range(real)] + [0] * (5 - real)


def test_state_that_is_no_extra_is_refused(door):
    table = door.create_table("t", RECURRENT)
    with pytest.raises(InvalidRequestError, match="memory"):
        table.sample(1, Sequences(length=2, state=("memory",)))


def test_batch_of_sequences_has_the_declared_dtypes_and_its_masks(door):
    table = make_table(door, [4])
    batch = table.sample(2, Sequences(length=3))
    kinds = {name: (str(value.dtype), value.shape) for name, value in batch.asdict().items()}
    assert kinds == {
        "observation": ("int64", (2, 3)), "next_observation": ("int64", (2, 3)), "action": ("int64", (2, 3)),
        "reward": ("float32", (2, 3)), "discount": ("float32", (2, 3)), "terminated": ("bool", (2, 3)),
        "truncated": ("bool", (2, 3)), "mask": ("bool", (2, 3)), "is_first": ("bool", (2, 3)), "positions": ("int64", (2,)),
        "episode_id": ("int64", (2,)), "t": ("int64", (2,)), "probability": ("float64", (2,)), "age_s": ("float32", (2,)),
        "importance_weight": ("float32", (2,)), "policy_version": ("int64", (2,)),
    }  # fmt: skip
    assert table.sample(2).mask is None


def test_anchors_are_drawn_uniformly_whatever_the_episode(door):
    """Lengths 1, 4 and 7 in sequences of 3 every 2 steps: 1 + 2 + 3 anchors."""
    table = make_table(door, [1, 4, 7], chunk_steps=2)
    batch = table.sample(12_000, Sequences(length=3, period=2), seed=4)
    assert batch.probability == pytest.approx(np.full(12_000, 1 / 6))
    check_draws(batch.positions, dict.fromkeys([0, 1, 3, 5, 7, 9], 1 / 6))


def test_episodes_and_recency_count_sequences(door):
    """Two sequences of the first episode, four of the second; a half-life of one item."""
    samplers = {"episodes": EpisodeUniform(), "recent": Recency(half_life=1.0)}
    table = make_table(door, [4, 8], samplers=samplers)
    what = Sequences(length=2)
    batch = table.sample(8000, what, sampler="episodes", seed=5)
    check_draws(batch.positions, {0: 1 / 4, 2: 1 / 4, 4: 1 / 8, 6: 1 / 8, 8: 1 / 8, 10: 1 / 8})
    batch = table.sample(8000, what, sampler="recent", seed=5)
    shares = {10: 32 / 63, 8: 16 / 63, 6: 8 / 63, 4: 4 / 63, 2: 2 / 63, 0: 1 / 63}
    check_draws(batch.positions, shares)
    assert batch.probability == pytest.approx([shares[p] for p in batch.positions.tolist()])


def test_interleaved_episodes_of_several_writers_never_mix(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=2))
    writers = [table.writer(actor=f"actor-{i}") for i in range(8)]
    for i, writer in enumerate(writers):
        writer.begin(1000 * i)
    for t in range(11):
        for i, writer in enumerate(writers):
            writer.append(i, 1.0, 1000 * i + t + 1, truncated=t == 10)
        writers[t % 8].flush()
    for writer in writers:
        writer.close()
    batch = table.sample(300, Sequences(length=4, period=3, n_step=2, gamma=1.0), seed=5)
    first = batch.action[:, :1]
    assert set(first[:, 0].tolist()) == set(range(8))
    place = batch.t[:, None] + np.arange(4)
    assert (batch.mask == (place < 11)).all()
    assert (batch.observation == 1000 * first + np.minimum(place, 11)).all()
    assert (batch.next_observation == 1000 * first + np.minimum(place + 2, 11)).all()
    assert (batch.action == np.where(batch.mask, first, 0)).all()


def test_slices_of_one_episode_in_one_batch_have_names_of_their_own(door):
    """Four strata of equal priority: each of the four sequences of the only episode once."""
    table = make_table(door, [8])
    batch = table.sample(4, Sequences(length=2), sampler="prioritized", seed=1)
    assert sorted(batch.positions.tolist()) == [0, 2, 4, 6]
    assert (batch.episode_id == 0).all()


def test_too_short_episodes_give_nothing_and_the_words_say_so(door):
    table = make_table(door, [2, 3, 1])
    with pytest.raises(NotReadyError, match="sequence"):
        table.sample(4, Sequences(length=4, at_end=DROP))
    with pytest.raises(NotReadyError, match="sequence"):
        table.sample(4, Sequences(length=4, at_end=DROP), timeout_s=0.05)
    with pytest.raises(NotReadyError):
        next(table.stream(4, Sequences(length=4, at_end=DROP), timeout_s=0.05))
    write_episodes(table, [4])
    assert table.sample(4, Sequences(length=4, at_end=DROP)).episode_id.tolist() == [3] * 4


def test_sequence_longer_than_every_episode_is_padded(door):
    table = make_table(door, [2, 3])
    batch = table.sample(20, Sequences(length=50, gamma=0.5), seed=1)
    for i, episode in enumerate(batch.episode_id.tolist()):
        check_row(batch, i, episode, 2 + episode, 50, 0, 2 + episode)
    batch = table.sample(20, Sequences(length=50, at_end=SHIFT), seed=1)
    assert set(batch.t.tolist()) == {0}
    assert set(batch.mask.sum(axis=1).tolist()) == {2, 3}


def anchors(table, what, seed=1):
    """Returns {position: first step} of all sequences that a large batch holds, each of which it checks."""
    batch = table.sample(200, what, seed=seed)
    place = batch.t[:, None] + np.arange(what.length)
    expected = 100 * batch.episode_id[:, None] + place
    assert (batch.observation == expected)[batch.mask].all()
    assert (batch.next_observation == expected + 1)[batch.mask].all()
    assert (batch.action == place)[batch.mask].all()
    assert (batch.is_first == ((place == 0) & batch.mask)).all()
    found = dict(zip(batch.positions.tolist(), batch.t.tolist(), strict=True))
    assert batch.probability == pytest.approx(np.full(200, 1 / len(found)))
    return found


def test_sequences_of_an_open_episode_grow_with_it(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=64))
    writer = table.writer()
    writer.begin(0)
    expected = {  # steps stored: PAD, SHIFT, DROP
        2: ({0: 0}, {0: 0}, None),
        3: ({0: 0}, {0: 0}, {0: 0}),
        5: ({0: 0, 3: 3}, {0: 0, 3: 2}, {0: 0}),
        6: ({0: 0, 3: 3}, {0: 0, 3: 3}, {0: 0, 3: 3}),
        7: ({0: 0, 3: 3, 6: 6}, {0: 0, 3: 3, 6: 4}, {0: 0, 3: 3}),
    }
    for t in range(7):
        writer.append(t, 0.0, t + 1, terminated=t == 6)
        if t + 1 not in expected:
            continue
        writer.flush()
        for at_end, found in zip((PAD, SHIFT, DROP), expected[t + 1], strict=True):
            if found is not None:
                assert anchors(table, Sequences(length=3, at_end=at_end)) == found
            else:
                with pytest.raises(NotReadyError):
                    table.sample(1, Sequences(length=3, at_end=at_end))
    writer.close()


@pytest.mark.parametrize("chunk_steps", [1, 3, 64])
def test_episode_that_lost_its_beginning_gives_the_sequences_that_are_left_whole(door, chunk_steps):
    """Fourteen steps of which capacity keeps the last nine, 5 to 13: sequences begin at 6, 8 and 10."""
    table = make_table(door, [14], chunk_steps=chunk_steps, capacity_steps=9)
    assert anchors(table, Sequences(length=4, period=2, at_end=DROP)) == {6: 6, 8: 8, 10: 10}
    assert anchors(table, Sequences(length=5, period=2, at_end=PAD)) == {6: 6, 8: 8, 10: 10}
    assert anchors(table, Sequences(length=5, period=2, at_end=SHIFT)) == {6: 6, 8: 8, 10: 9}


def test_full_table_gives_only_starts_of_which_every_step_is_left(door):
    """Of 5 + 3 + 3 + 3 steps capacity keeps ten: the first episode has one step left, too few for a sequence of three."""
    table = make_table(door, [5, 3, 3, 3], capacity_steps=10)
    assert anchors(table, Sequences(length=3, period=1, at_end=DROP)) == {5: 0, 8: 0, 11: 0}


def test_episodes_nearly_as_long_as_the_capacity_are_sampled_at_any_time(door):
    """The capacity is one step more than an episode: the boundary is somewhere else at every draw."""
    table = door.create_table("t", SCALARS, TableConfig(capacity_steps=1000))
    with table.writer() as writer:
        for episode in range(2):
            writer.begin(5000 * episode)
            for t in range(999):
                writer.append(t, 0.0, 5000 * episode + t + 1, truncated=t == 998)
                if t % 111 == 110:
                    writer.flush()
                    for at_end in (PAD, SHIFT, DROP):
                        batch = table.sample(64, Sequences(length=4, period=1, at_end=at_end))
                        place = batch.t[:, None] + np.arange(4)
                        assert (batch.observation == 5000 * batch.episode_id[:, None] + place)[batch.mask].all()
                        assert (batch.next_observation - batch.observation == 1)[batch.mask].all()
                        assert (batch.positions >= 999 * batch.episode_id).all()
    assert table.stats().steps == 1000


def test_a_sequence_of_one_step_is_a_transition(door):
    table = make_table(door, [3, 2])
    one, other = table.sample(50, Sequences(length=1), seed=3), table.sample(50, Transitions(), seed=3)
    steps = {int(p): (int(r), bool(e)) for p, r, e in zip(other.positions, other.reward, other.terminated, strict=True)}
    for i, position in enumerate(one.positions.tolist()):
        assert (one.reward[i, 0], one.terminated[i, 0]) == steps[position]
    assert set(one.positions.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    "options", [{"length": 0}, {"length": 4, "burn_in": 4}, {"length": 4, "period": 0}, {"length": 4, "at_end": "stretch"},
                {"length": 4, "state": "carry"}, {"length": 4, "n_step": 0}],
)  # fmt: skip
def test_bad_sequence_options_fail_when_they_are_made(options):
    with pytest.raises(SpecMismatchError, match=list(options)[-1]):
        Sequences(**options)


@pytest.mark.parametrize("what", [Sequences(length=8), Sequences(length=8, at_end=AtEnd.SHIFT), Episodes(max_steps=10)])
def test_column_without_values_is_padded_with_none(door, what):
    fields = FieldSpec("o", (2,), np.float32), FieldSpec("a", (0,), np.float32)
    table = door.create_table("t", Signature(*fields, extra=FieldSpec("extra", (0, 3), np.int64)))
    with table.writer() as writer:
        for length in (2, 9):
            writer.begin(np.zeros(2, np.float32))
            for t in range(length):
                extras = {"extra": np.zeros((0, 3), np.int64)}
                writer.append(np.zeros(0, np.float32), 1.0, np.ones(2, np.float32), terminated=t == length - 1, extras=extras)
    batch = table.sample(16, what, seed=0)
    assert batch.action.shape == (*batch.reward.shape, 0)
    assert batch.extras["extra"].shape == (*batch.reward.shape, 0, 3)
