"""What an actor may rely on, the same on both doors."""

import numpy as np
import pytest

from replaysvc import FieldSpec, Signature, TableConfig, Transitions
from replaysvc.errors import AlreadyExistsError, InvalidRequestError, NotFoundError, SpecMismatchError, UnavailableError
from tests.builders import SCALARS, write_episode, write_episodes

VECTOR = Signature(
    FieldSpec("o", (2,), np.float32), FieldSpec("a", (), np.int8), log_prob=FieldSpec("log_prob", (), np.float32, finite=True)
)


def test_read_episode_returns_what_was_written_with_the_final_observation(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=3))
    write_episodes(table, [8, 2])
    episode = table.read_episode(0)
    assert episode["observation"].tolist() == list(range(9))
    assert episode["action"].tolist() == list(range(8))
    assert episode["reward"].tolist() == [10 * t for t in range(8)]
    assert episode["terminated"].tolist() == [False] * 7 + [True]
    assert not episode["truncated"].any()
    assert table.read_episode(1)["observation"].tolist() == [100, 101, 102]


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (2, 3), (2, 4), (3, 6), (1, 8), (7, 8)])
def test_read_episode_by_range(door, start, stop):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=3))
    write_episodes(table, [8])
    episode = table.read_episode(0, start, stop)
    assert episode["observation"].tolist() == list(range(start, stop + 1))
    assert episode["action"].tolist() == list(range(start, stop))
    assert episode["terminated"].tolist() == [t == 7 for t in range(start, stop)]


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (0, 9), (5, 5), (6, 2)])
def test_read_episode_outside_its_steps_is_refused(door, start, stop):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [8])
    with pytest.raises(InvalidRequestError):
        table.read_episode(0, start, stop)


def test_unknown_episode_is_not_found(door):
    table = door.create_table("t", SCALARS)
    with pytest.raises(NotFoundError):
        table.read_episode(5)


def test_episode_records_tell_the_story(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=2))
    with table.writer(actor="actor-7") as writer:
        write_episode(writer, 3, episode=0, policy_version=12, metadata={"seed": 7, "name": "größe"})
        write_episode(writer, 4, episode=1, end="truncated")
        write_episode(writer, 5, episode=2, end="open")
        writer.flush()
        newest, middle, oldest = table.episodes()
    assert (oldest.episode_id, oldest.length, oldest.return_, oldest.actor) == (0, 3, 30.0, "actor-7")
    assert (oldest.terminated, oldest.truncated, oldest.closed, oldest.policy_version) == (True, False, True, 12)
    assert oldest.metadata == {"seed": 7, "name": "größe"}
    assert (middle.length, middle.return_, middle.terminated, middle.truncated) == (4, 64.0, False, True)
    assert (newest.length, newest.closed, newest.policy_version, newest.first_step) == (5, False, -1, 0)
    assert [record.episode_id for record in table.episodes(closed_only=True)] == [1, 0]
    assert [record.episode_id for record in table.episodes(before_id=2, limit=1)] == [1]
    assert table.episodes(actor="nobody") == []


def test_sum_of_stored_rewards_is_the_return(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=4))
    with table.writer() as writer:
        writer.begin(0)
        for t in range(10):
            writer.append(0, 100.0 if t == 9 else 0.0, t + 1, terminated=t == 9)
    assert table.episodes()[0].return_ == 100.0
    assert table.read_episode(0)["reward"].sum() == 100.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"next_observation": np.zeros(3, np.float32)}, r"observation: expected shape \(2,\), found shape \(3,\)"),
        ({"next_observation": np.zeros(2, np.complex64)}, "observation: expected dtype float32, found dtype complex64"),
        ({"next_observation": [object(), object()]}, "observation: expected dtype float32, found dtype object"),
        ({"next_observation": np.array([1e300, 0])}, "observation: expected values within the range of float32"),
        ({"next_observation": None}, "observation"),
        ({"next_observation": "text"}, "observation"),
        ({"action": 300}, "action: expected values within the range of int8"),
        ({"action": 0.5}, "action: expected dtype int8, found dtype float64"),
        ({"reward": float("nan")}, "reward: expected finite values, found nan"),
        ({"reward": np.zeros(1)}, r"reward: expected shape \(\), found shape \(1,\)"),
        ({"extras": {"log_prob": np.inf}}, "log_prob: expected finite values, found inf"),
        ({"extras": None}, "extras: expected keys"),
        ({"extras": {"log_prob": 0.0, "other": 1}}, "extras: expected keys"),
        ({"terminated": "yes"}, "terminated"),
    ],
)
def test_a_bad_step_is_refused_by_field_and_can_be_appended_corrected(door, change, words):
    table = door.create_table("t", VECTOR)
    good = {"action": 1, "reward": 2.0, "next_observation": np.ones(2, np.float32), "extras": {"log_prob": -1.0}}
    with table.writer() as writer:
        writer.begin(np.zeros(2, np.float32))
        writer.append(**good)
        with pytest.raises(SpecMismatchError, match=words):
            writer.append(**good | change)
        writer.append(**good, terminated=True)
    episode = table.read_episode(0)
    assert episode["action"].tolist() == [1, 1]
    assert episode["observation"].tolist() == [[0, 0], [1, 1], [1, 1]]
    assert episode["log_prob"].tolist() == [-1, -1]


def test_writer_keeps_no_reference_to_the_arrays_it_was_given(door):
    table = door.create_table("t", VECTOR)
    observation = np.zeros(2, np.float32)
    with table.writer() as writer:
        writer.begin(observation)
        for t in range(3):
            observation[:] = t + 1
            writer.append(t, 0.0, observation, extras={"log_prob": 0.0}, truncated=t == 2)
        observation[:] = 99
    assert table.read_episode(0)["observation"][:, 0].tolist() == [0, 1, 2, 3]


def test_calls_in_the_wrong_order_are_refused(door):
    table = door.create_table("t", SCALARS)
    writer = table.writer()
    with pytest.raises(InvalidRequestError, match="call begin first"):
        writer.append(0, 0.0, 0)
    writer.begin(0)
    with pytest.raises(InvalidRequestError, match="open at step 0"):
        writer.begin(0)
    writer.append(0, 0.0, 1, terminated=True)
    with pytest.raises(InvalidRequestError, match="call begin first"):
        writer.append(0, 0.0, 1)
    writer.close()
    writer.close()
    for call in (lambda: writer.begin(0), lambda: writer.append(0, 0.0, 0), writer.flush):
        with pytest.raises(UnavailableError, match="closed"):
            call()


def test_abandoned_episode_keeps_its_steps_and_stays_without_an_end(door):
    table = door.create_table("t", SCALARS)
    with table.writer() as writer:
        write_episode(writer, 3, episode=0, end="open")
        writer.abandon()
        write_episode(writer, 2, episode=1)
    assert table.read_episode(0)["observation"].tolist() == [0, 1, 2, 3]
    assert [record.closed for record in table.episodes()] == [True, False]


@pytest.mark.parametrize("metadata", [{"a": float("nan")}, {"a": object()}, {"a": "x" * 70_000}])
def test_metadata_that_json_cannot_hold_are_refused(door, metadata):
    table = door.create_table("t", SCALARS)
    with table.writer() as writer, pytest.raises(SpecMismatchError, match="metadata"):
        writer.begin(0, metadata=metadata)


def test_writer_sends_a_part_filled_chunk_by_itself(door):
    table = door.create_table("t", SCALARS, TableConfig(flush_interval_s=0.01))
    writer = table.writer()
    write_episode(writer, 2, end="open")
    assert len(table.sample(4, timeout_s=10.0)) == 4
    writer.close()


def test_tables_are_made_listed_and_deleted(door):
    door.create_table("b", SCALARS)
    door.create_table("a", SCALARS, TableConfig(capacity_steps=50))
    assert door.tables() == ["a", "b"]
    assert door.table("a").config == TableConfig(capacity_steps=50)
    assert door.table("a").signature == SCALARS
    door.delete_table("a")
    assert door.tables() == ["b"]
    with pytest.raises(NotFoundError):
        door.delete_table("a")


def test_create_table_again(door):
    door.create_table("t", SCALARS, TableConfig(capacity_steps=70))
    with pytest.raises(AlreadyExistsError):
        door.create_table("t", SCALARS)
    again = door.create_table("t", SCALARS, exist_ok=True)
    assert again.config.capacity_steps == 70
    with pytest.raises(AlreadyExistsError, match="another signature"):
        door.create_table("t", VECTOR, exist_ok=True)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "x" * 65, "a\n", "ä"])
def test_bad_table_names_are_refused(door, name):
    with pytest.raises(SpecMismatchError, match="table"):
        door.create_table(name, SCALARS)
    assert door.tables() == []


def test_writing_to_a_deleted_table_says_so(door):
    table = door.create_table("t", SCALARS)
    writer = table.writer()
    write_episode(writer, 2)
    writer.flush()
    door.delete_table("t")
    with pytest.raises(NotFoundError):  # noqa: PT012 - an embedded writer learns of it at once, a client's at the flush
        write_episode(writer, 2)
        writer.flush()


def test_capacity_keeps_the_newest_steps_exactly(door):
    table = door.create_table("t", SCALARS, TableConfig(capacity_steps=25, chunk_steps=10))
    write_episodes(table, [20, 20, 20])
    stats = table.stats()
    assert (stats.steps, stats.first_position, stats.next_position) == (25, 35, 60)
    assert stats.removed_steps_total == 35
    positions = table.sample(2000, seed=1).positions
    assert (positions.min(), positions.max()) == (35, 59)
    assert [record.episode_id for record in table.episodes()] == [2, 1]
    with pytest.raises(NotFoundError):
        table.read_episode(0)


def test_partly_removed_episode_names_its_first_stored_step(door):
    table = door.create_table("t", SCALARS, TableConfig(capacity_steps=15, chunk_steps=10))
    write_episodes(table, [40])
    record = table.episodes()[0]
    assert (record.length, record.first_step, record.return_) == (40, 25, 7800.0)
    assert table.read_episode(0, record.first_step)["action"].tolist() == list(range(25, 40))
    whole = table.read_episode(0)
    assert (whole["action"].tolist(), whole["observation"].tolist()) == (list(range(25, 40)), list(range(25, 41)))
    assert table.read_episode(0, stop=30)["action"].tolist() == list(range(25, 30))
    with pytest.raises(InvalidRequestError, match=r"\[25, 40\)"):
        table.read_episode(0, 0)


def test_stats_count_what_happened(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=5))
    write_episodes(table, [12, 3])
    table.sample(7)
    stats = table.stats()
    assert (stats.name, stats.steps, stats.episodes, stats.chunks, stats.open_episodes) == ("t", 15, 2, 4, 0)
    assert (stats.appended_steps_total, stats.sampled_items_total, stats.sample_calls_total) == (15, 7, 1)
    assert stats.raw_bytes == 15 * (8 + 8 + 8 + 4)
    assert 0 < stats.stored_bytes < stats.disk_bytes
    assert stats.ready
    assert stats.waiting_for == ""


def test_params_are_versioned(door):
    with pytest.raises(NotFoundError):
        door.get_params("policy")
    door.put_params("policy", b"one", version=3)
    assert door.get_params("policy") == (3, b"one")
    assert door.get_params("policy", newer_than=2) == (3, b"one")
    assert door.get_params("policy", newer_than=3) is None
    door.put_params("policy", b"one", version=3)
    with pytest.raises(AlreadyExistsError):
        door.put_params("policy", b"two", version=3)
    with pytest.raises(AlreadyExistsError):
        door.put_params("policy", b"two", version=2)
    large = bytes(range(256)) * 50_000
    door.put_params("policy", large, version=4)
    assert door.get_params("policy", newer_than=3) == (4, large)


def test_bad_params_are_refused(door):
    with pytest.raises(SpecMismatchError, match="version"):
        door.put_params("policy", b"", version=-1)
    with pytest.raises(SpecMismatchError, match="params"):
        door.put_params("../x", b"", version=1)


def test_numbers_of_numpy_are_numbers(door):
    table = door.create_table("t", SCALARS, TableConfig(capacity_steps=np.int64(100), flush_interval_s=np.float32(1)))
    with table.writer() as writer:
        write_episode(writer, 6, policy_version=np.int64(3))
    batch = table.sample(np.int64(4), Transitions(np.int32(2), np.float64(0.5)), seed=np.uint64(1))
    episode = table.read_episode(batch.episode_id[0], np.int64(1), np.int64(4))
    assert episode["action"].tolist() == [1, 2, 3]
    assert table.episodes(limit=np.int64(1))[0].policy_version == 3
    assert table.config == TableConfig(capacity_steps=100)


def test_batches_belong_to_the_caller(door):
    table = door.create_table("t", SCALARS)
    write_episodes(table, [5])
    batch = table.sample(8)
    for values in batch.asdict().values():
        values[:] = 0


@pytest.mark.parametrize(
    "reward",
    [{"shape": (2,)}, {"dtype": "complex64"}, {"dtype": "float64"}, {"dtype": "int32"}],
    ids=lambda change: str(change),
)
def test_rewards_that_no_return_could_be_summed_from_are_refused_at_once(reward):
    spec = FieldSpec(**({"name": "r", "shape": (), "dtype": "float32"} | reward))
    with pytest.raises(SpecMismatchError, match="reward"):
        Signature(SCALARS.observation, SCALARS.action, reward=spec)


def test_infinite_reward_is_refused_whatever_its_spec_says(door):
    signature = Signature(SCALARS.observation, SCALARS.action, reward=FieldSpec("r", (), "float32"))
    table = door.create_table("t", signature)
    with table.writer() as writer:
        writer.begin(0)
        for reward in (np.inf, np.nan, 1e300):
            with pytest.raises(SpecMismatchError, match="reward"):
                writer.append(0, reward, 1)
        writer.append(0, 1.0, 1, terminated=True)
    assert table.episodes()[0].return_ == 1.0


def test_error_within_the_block_of_a_writer_is_what_the_caller_hears_of(door):
    table = door.create_table("t", SCALARS)
    with pytest.raises(KeyError), table.writer() as writer:  # noqa: PT012 - what is raised is the block's own
        write_episode(writer, 2)
        door.delete_table("t")
        raise KeyError
