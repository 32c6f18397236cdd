"""Tables and episodes that come and go: the same on both doors."""

import pickle

import pytest

from replaysvc import Episodes, Fifo, Limiter, Prioritized, Sequences, Stack, TableConfig, Uniform
from replaysvc.errors import InvalidRequestError, NotFoundError, NotReadyError, SpecMismatchError
from replaysvc.replay import Replay
from replaysvc.spec import FieldSpec, Signature
from tests.builders import SCALARS, write_episode, write_episodes


def test_episodes_of_writers_that_are_gone_can_be_deleted_when_asked(door):
    table = door.create_table("t", SCALARS)
    with table.writer() as writer:
        write_episode(writer, 3, end="open")
        writer.abandon()
        write_episode(writer, 2, episode=1)
    with pytest.raises(InvalidRequestError, match="open_episodes=True"):
        table.delete_episodes([0, 1])
    assert table.stats().steps == 5
    assert table.delete_episodes([0, 1], open_episodes=True) == 2
    assert (table.stats().steps, table.stats().open_episodes) == (0, 0)


def test_writer_whose_open_episode_was_deleted_is_told_so(door):
    table = door.create_table("t", SCALARS)
    writer = table.writer()
    write_episode(writer, 3, end="open")
    writer.flush()
    table.delete_episodes([0], open_episodes=True)
    writer.append(3, 30.0, 4)
    with pytest.raises(InvalidRequestError, match="deleted.*new writer"):
        writer.flush()
    with pytest.raises(InvalidRequestError, match="deleted"):
        writer.close()


def test_a_table_that_was_deleted_and_made_anew_takes_episodes_of_the_same_actor(door):
    for _ in range(3):
        table = door.create_table("again", SCALARS)
        write_episodes(table, [2], actor="a")
        assert table.stats().steps == 2
        door.delete_table("again")


def test_a_handle_of_a_table_that_was_deleted_does_nothing_to_another_of_its_name(door):
    config = TableConfig(samplers={"uniform": Uniform(), "prioritized": Prioritized(alpha=1.0)})
    old = door.create_table("t", SCALARS, config)
    write_episodes(old, [3])
    batch, stream, writer = old.sample(3), old.stream(2), old.writer()
    next(stream)
    door.delete_table("t")
    other = Signature(FieldSpec("o", (5,), "uint8"), FieldSpec("a", (), "int64"))
    new = door.create_table("t", other, config)
    with new.writer() as anew:
        anew.begin([0] * 5)
        anew.append(0, 0.0, [1] * 5, terminated=True)
    calls = [
        lambda: old.sample(1), old.stats, old.compact, old.episodes,
        lambda: old.update_priorities(batch.positions, [0.0] * 3), lambda: old.delete_episodes([0]),
        lambda: old.set_limiter(Limiter(min_steps=2)), lambda: old.read_episode(0), lambda: old.sample(1, Episodes()),
        lambda: write_episodes(old, [1]),
    ]  # fmt: skip
    if not isinstance(door, Replay):  # an embedded table is of its process alone
        pickled = pickle.loads(pickle.dumps(old))
        calls += [pickled.stats, lambda: pickled.sample(1)]
    for call in calls:
        with pytest.raises(NotFoundError, match="was deleted"):
            call()
    # a stream's next request may have come while there was no table of the name at all
    with pytest.raises(NotFoundError, match="was deleted|does not exist"):
        [next(stream) for _ in range(9)]
    with pytest.raises(NotFoundError, match="was deleted"):  # noqa: PT012 - an embedded writer learns of it at once
        write_episode(writer, 1)
        writer.flush()
    assert new.sample(8, sampler="prioritized").probability.tolist() == [1.0] * 8
    assert (new.stats().steps, new.stats().limiter["min_steps"]) == (1, 1)
    assert new.read_episode(0)["observation"].tolist() == [[0] * 5, [1] * 5]


@pytest.mark.parametrize("kind", [Uniform, Fifo])
def test_samplers_of_other_classes_are_refused_since_they_would_not_come_back_from_the_disk(kind):
    class Mine(kind):
        pass

    with pytest.raises(SpecMismatchError, match=r"samplers\.mine: expected a sampler such as"):
        TableConfig(samplers={"mine": Mine()})


def test_a_request_that_gets_nothing_does_not_bind_a_queue(door):
    table = door.create_table("t", SCALARS, TableConfig(samplers={"queue": Fifo(), "uniform": Uniform()}))
    write_episodes(table, [3])
    with pytest.raises(NotReadyError, match="0 of 1 items"):
        table.sample(1, Sequences(length=50, at_end="drop"), sampler="queue")
    assert table.sample(3, sampler="queue").t.tolist() == [0, 1, 2]


def test_the_largest_priority_may_be_given_by_a_writer_too(door):
    """As a float32, 1e30 is a little more."""
    signature = Signature(FieldSpec("o", (), "int64"), FieldSpec("a", (), "int64"), given=FieldSpec("given", (), "float32"))
    config = TableConfig(samplers={"prioritized": Prioritized(alpha=1.0, initial_priority="given"), "uniform": Uniform()})
    table = door.create_table("t", signature, config)
    with table.writer() as writer:
        writer.begin(0)
        with pytest.raises(SpecMismatchError, match="given"):
            writer.append(0, 0.0, 1, extras={"given": 1.1e30})
        writer.append(0, 0.0, 1, terminated=True, extras={"given": 1e30})
    assert table.sample(1, sampler="prioritized").probability[0] == 1


def test_names_may_come_from_a_generator_and_nothing_else_but_names():
    assert Stack(2, columns=(name for name in ["a", "b"])).columns == ("a", "b")
    assert Sequences(length=2, state=(name for name in ["carry"])).state == ("carry",)
    for wrong in (None, 3, "carry", ["a", None]):
        with pytest.raises(SpecMismatchError, match="state"):
            Sequences(length=2, state=wrong)


@pytest.mark.parametrize("wrong", [3, "x", {}])
def test_a_configuration_that_is_none_is_refused(door, wrong):
    with pytest.raises(InvalidRequestError, match="config"):
        door.create_table("t", SCALARS, wrong)


def test_a_batch_shows_its_shapes_and_not_its_values(door):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [3])
    assert "reward: float32[2]" in repr(table.sample(2))
