"""Several batches in one answer: what each of them is, and what bounds all of them together."""

import numpy as np
import pytest

from replaysvc import FieldSpec, Signature
from replaysvc.batch import assemble
from replaysvc.errors import InvalidRequestError
from replaysvc.options import Prioritized, Uniform
from replaysvc.requests import Episodes, Her, Sequences, Transitions
from replaysvc.rpc import convert
from replaysvc.rpc.admission import Call
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS, assert_same, flat, make_goal_table, make_table, write_episodes
from tests.frames import decode_frame


@pytest.fixture
def table(replay, serve, connect):
    """A client's table of 40 steps, with priorities that differ."""
    client = connect(serve().address)
    table = make_table(client, [25, 15], samplers={"uniform": Uniform(), "prioritized": Prioritized(alpha=1.0, beta=1.0)})
    positions = np.arange(40)
    table.update_priorities(positions, positions + 1.0)
    return table


@pytest.fixture
def sent(table, monkeypatch):
    """The requests that a stream of the table sends."""
    sent, start_sample = [], table._client.connection.start_sample

    def noted(request, timeout_s):
        sent.append(pb.SampleRequest.FromString(request))
        return start_sample(request, timeout_s)

    monkeypatch.setattr(table._client.connection, "start_sample", noted)
    return sent


WINDOWS = {"transitions": Transitions(n_step=2), "sequences": Sequences(length=4), "episodes": Episodes()}


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("name", WINDOWS)
def test_an_answer_of_several_batches_is_that_of_the_engine(replay, table, raw, name, sampler):
    """And each batch's weights are divided by the largest of that batch."""
    what = WINDOWS[name]
    request = table._batches(8, what, sampler, None, 0.0)
    data = pb.SampleRequest.FromString(request._request)
    data.batches, data.seed = 3, 7
    call = raw._channel.unary_unary("/replaysvc.v1.ReplayFrames/Sample")
    found = assemble(SCALARS, what, decode_frame(call(data.SerializeToString(), timeout=30), {}))
    columns = replay.engine("t").draw(8, what, sampler=sampler, seed=7, beta=None, timeout_s=0.0, batches=3)
    assert_same(found, assemble(SCALARS, what, {column.name: column for column in columns}))
    assert len(found) == 24
    weights = found.importance_weight.reshape(3, 8)
    np.testing.assert_array_equal(weights.max(axis=1), 1.0)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_streamed_batches_are_each_as_sample_gives_it(table, sent, sampler):
    single = flat(table.sample(8, sampler=sampler))
    stream = table.stream(8, sampler=sampler, prefetch=8)
    batches = [next(stream) for _ in range(16)]
    assert {request.batches for request in sent} == {4}
    for batch in batches:
        columns = flat(batch)
        assert {name: (values.dtype, values.shape) for name, values in columns.items()} == {
            name: (values.dtype, values.shape) for name, values in single.items()
        }
        assert (batch.next_observation == batch.observation + 1).all()
        assert (batch.action == batch.t).all()
        assert batch.importance_weight.max() == 1.0
    assert len({batch.positions.tobytes() for batch in batches}) == 16


@pytest.mark.parametrize(("prefetch", "together"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (8, 4), (64, 32)])
def test_two_requests_or_more_are_under_way(table, sent, prefetch, together):
    stream = table.stream(4, prefetch=prefetch)
    next(stream)
    assert {request.batches for request in sent} == {together}
    before_the_first = sent[: max(1, prefetch // together)]
    assert sum(request.batches for request in before_the_first) <= prefetch
    assert len(sent) <= len(before_the_first) + 1


def test_batches_of_one_answer_do_not_share_memory_that_is_written_to(table):
    stream = table.stream(8, prefetch=8)
    batches = [next(stream) for _ in range(4)]
    for number, batch in enumerate(batches):
        batch.reward[:] = number
        batch.observation[:] = -number
    for number, batch in enumerate(batches):
        assert (batch.reward == number).all()
        assert (batch.observation == -number).all()


def test_large_batches_come_alone(serve, connect):
    client = connect(serve().address)
    table = client.create_table("t", Signature(FieldSpec("o", (84, 84), np.uint8), FieldSpec("a", (), np.int64)))
    batches = table._batches(128, Transitions(), "uniform", None, 0.0)
    assert batches._together(64) == 1


@pytest.mark.parametrize(
    "what", [Transitions(n_step=10_000), Sequences(length=2, n_step=10_000), Sequences(length=1000, n_step=1000)], ids=repr
)
def test_long_windows_are_not_put_together_beyond_what_the_server_does(table, what):
    """Each of them is within its bounds, and many together would not be."""
    stream = table.stream(50, what, prefetch=64)
    for _ in range(3):
        assert len(next(stream)) == 50


def test_hindsight_by_a_function_of_the_learner_sees_each_window(serve, connect):
    client = connect(serve().address)
    table = make_goal_table(client, [20, 20])
    her = Her(ratio=1.0, reward=lambda achieved, desired, info: (achieved == desired).all(-1) * 2.0, terminated="stored")
    stream = table.stream(8, Transitions(her=her), prefetch=8)
    for _ in range(8):
        batch = next(stream)
        reached = (batch.next_observation["achieved_goal"] == batch.next_observation["desired_goal"]).all(-1)
        np.testing.assert_array_equal(batch.reward, reached * 2.0)


def test_older_server_gives_one_batch_an_answer(table, monkeypatch):
    monkeypatch.setattr(convert, "batches_of", lambda request: 1)
    stream = table.stream(8, prefetch=8)
    assert [len(next(stream)) for _ in range(10)] == [8] * 10


@pytest.mark.parametrize(
    "request_",
    [
        pb.SampleRequest(table="t", batch_size=1, batches=(1 << 20) + 1),
        pb.SampleRequest(table="t", batch_size=1, batches=(1 << 32) - 1),
        pb.SampleRequest(table="t", batch_size=1 << 20, batches=1 << 20),
        pb.SampleRequest(table="t", batch_size=1 << 18, batches=5),
        pb.SampleRequest(table="t", batch_size=1024, batches=1024, transitions=pb.Transitions(n_step=2)),
        pb.SampleRequest(table="t", batch_size=0, batches=4),
    ],
    ids=str,
)
def test_bounds_are_of_all_batches_together(table, raw, request_):
    with pytest.raises(InvalidRequestError):
        raw.call("Sample", request_)


def test_memory_is_held_for_all_batches_together(table, raw, monkeypatch):
    held, hold_answer = [], Call.hold_answer
    monkeypatch.setattr(Call, "hold_answer", lambda call, size: held.append(size) or hold_answer(call, size))
    for count in (1, 8):
        raw.call("Sample", pb.SampleRequest(table="t", batch_size=1000, batches=count))
    single, eight = max(held[: len(held) // 2]), max(held)
    assert eight == 8 * single


def test_limiter_counts_all_batches(replay, serve, connect):
    table = connect(serve().address).create_table("t", SCALARS)
    write_episodes(table, [20])
    stream = table.stream(4, prefetch=8)
    next(stream)
    stream.close()
    assert table.stats().sampled_items_total % 16 == 0


def test_what_sequences_share_counts_once(serve, connect):
    """32 sequences of 80 steps take 32 * (81 * 68 + 80 * 28) bytes, of which 8 fit into 2 MiB."""
    client = connect(serve().address)
    table = client.create_table("t", Signature(FieldSpec("o", (17,), np.float32), FieldSpec("a", (6,), np.float32)))
    batches = table._batches(32, Sequences(length=80), "uniform", None, 0.0)
    assert batches._extent.sent_bytes == 32 * (81 * 68 + 80 * 28)
    assert batches._together(64) == 8
