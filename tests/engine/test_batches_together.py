"""Several batches that are drawn and gathered at once, and taken apart again: each is what a batch of its own would be."""

import numpy as np
import pytest

from replaysvc import FieldSpec, RaggedArray, Sequences, Signature, TableConfig, Transitions
from replaysvc.batch import assemble, split
from replaysvc.errors import InvalidRequestError, SpecMismatchError
from replaysvc.replay import Replay
from replaysvc.storage import System
from replaysvc.table import sampling
from tests.builders import SCALARS, assert_same, write_episodes
from tests.engine.test_parts import MIXED, write_mixed

NESTED = Signature(
    {"a": FieldSpec("a", (2,), np.float32), "b": (FieldSpec("b", (), np.int64), FieldSpec("c", (3,), np.uint8))},
    FieldSpec("action", (), np.int64),
)


def together(table, size, what, batches, **options):
    """Returns what the engine draws at once, as one batch."""
    defaults = {"sampler": "uniform", "seed": None, "beta": None, "timeout_s": 0.0}
    columns = table._engine.draw(size, what, batches=batches, **(defaults | options))
    return assemble(table.signature, what, {column.name: column for column in columns})


def rows(batch):
    """Returns (position, episode, t, observation) of each item."""
    columns = (batch.positions, batch.episode_id, batch.t, batch.observation)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("what", [Transitions(), Transitions(n_step=2), Sequences(length=3)], ids=repr)
def test_parts_have_the_items_of_the_whole_in_their_order(replay, what):
    table = replay.create_table("t", SCALARS)
    write_episodes(table, [9, 6, 8])
    whole = together(table, 5, what, 4)
    parts = split(whole, 4)
    assert [len(part) for part in parts] == [5] * 4
    assert [row for part in parts for row in rows(part)] == rows(whole)
    again = {name: np.concatenate([np.asarray(part.asdict()[name]) for part in parts]) for name in whole.asdict()}
    for name, values in whole.asdict().items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)


def test_nested_and_ragged_columns_are_taken_apart_too(replay, rng):
    table = replay.create_table("nested", NESTED)
    with table.writer() as writer:
        writer.begin({"a": [0, 0], "b": (0, [0, 0, 0])})
        for t in range(1, 7):
            writer.append(t, 1.0, {"a": [t, -t], "b": (t, [t, t, 0])}, truncated=t == 6)
    for part in split(together(table, 3, Transitions(), 2), 2):
        assert part.observation["a"][:, 0].tolist() == part.observation["b"][0].tolist() == part.t.tolist()
        assert part.next_observation["b"][1].shape == (3, 3)
    mixed = replay.create_table("mixed", MIXED, TableConfig(chunk_steps=4))
    write_mixed(mixed, 4, 9, rng)
    whole = together(mixed, 4, Sequences(length=3), 3)
    for number, part in enumerate(split(whole, 3)):
        assert isinstance(part.extras["tokens"], RaggedArray)
        assert part.extras["tokens"].lead == (4, 3)
        for i in range(4):
            for t in range(3):
                np.testing.assert_array_equal(part.extras["tokens"][i, t], whole.extras["tokens"][4 * number + i, t])


def test_priorities_are_drawn_by_strata_of_each_batch_and_weighed_within_it(replay):
    table = replay.create_table("t", SCALARS)
    write_episodes(table, [4])
    table.update_priorities(np.arange(4), [1.0, 1.0, 1.0, 1.0])
    parts = split(together(table, 4, Transitions(), 50, sampler="prioritized"), 50)
    assert all(sorted(part.positions.tolist()) == [0, 1, 2, 3] for part in parts)
    table.update_priorities(np.arange(4), [1.0, 16.0, 81.0, 0.0])
    for part in split(together(table, 8, Transitions(), 20, sampler="prioritized", beta=1.0), 20):
        expected = part.probability.min() / part.probability
        np.testing.assert_allclose(part.importance_weight, expected, rtol=1e-6)
        assert part.importance_weight.max() == 1


def test_columns_of_the_signature_lie_where_they_were_asked_to(replay, monkeypatch):
    table = replay.create_table("nested", NESTED)
    with table.writer() as writer:
        writer.begin({"a": [0, 0], "b": (0, [0, 0, 0])})
        writer.append(1, 1.0, {"a": [1, 1], "b": (1, [1, 1, 1])}, truncated=True)
    made = []

    def allocate(shape, dtype):
        made.append(np.empty(shape, dtype))
        return made[-1]

    columns = table._engine.draw(
        6, Transitions(), sampler="uniform", seed=1, beta=None, timeout_s=0.0, batches=2, allocate=allocate
    )
    theirs = {column.name for column in columns if any(np.shares_memory(column.values, array) for array in made)}
    assert theirs == {"action", *(f"{n}observation/{path}" for n in ("", "next_") for path in ("a", "b/0", "b/1"))}
    batch = assemble(NESTED, Transitions(), {column.name: column for column in columns})
    assert batch.next_observation["a"].tolist() == [[1, 1]] * 12
    monkeypatch.setattr(sampling, "_PART_STEPS", 5)  # the parts are joined there
    made.clear()
    columns = table._engine.draw(
        6, Transitions(), sampler="uniform", seed=1, beta=None, timeout_s=0.0, batches=2, allocate=allocate
    )
    joined = {column.name: column for column in columns}
    assert any(np.shares_memory(joined["action"].values, array) for array in made)
    assert_same(assemble(NESTED, Transitions(), joined), batch)


def test_more_than_can_be_drawn_at_once_is_refused(replay):
    table = replay.create_table("t", SCALARS)
    write_episodes(table, [4])
    with pytest.raises(SpecMismatchError, match="batches: expected a whole number from 1 to 2, found 3"):
        together(table, 1 << 19, Transitions(), 3)
    with pytest.raises(InvalidRequestError, match="sampler"):
        together(table, 4, Transitions(), 3, sampler="nobody")


def test_no_step_is_younger_than_now_when_the_clock_was_set_back(tmp_path):
    class Clock(System):
        now_s = 1000.0

        def time(self):
            return self.now_s

    clock = Clock()
    with Replay(tmp_path / "s", system=clock) as replay:
        table = replay.create_table("t", SCALARS)
        write_episodes(table, [4])
        clock.now_s += 5
        assert table.sample(3).age_s.tolist() == [5, 5, 5]
        clock.now_s -= 500
        assert table.sample(3).age_s.tolist() == [0, 0, 0]
