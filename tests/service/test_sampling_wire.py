"""Sampling over the wire: what the messages mean, that no message can harm, and batches that come in pieces."""

import contextlib
import json
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

import replay_client
from replay_client.connection import error_of
from replay_client.frames import join_pieces
from replay_client.windows import request_of
from replaysvc import FieldSpec, Precision, Signature, StoreConfig, TableConfig
from replaysvc.batch import BatchColumn
from replaysvc.config import MAX_LARGE_BYTES, MAX_UPDATES
from replaysvc.errors import (
    AlreadyExistsError,
    CapacityError,
    ChunkCorruptError,
    ConfigurationError,
    InvalidRequestError,
    LimitedError,
    NotFoundError,
    SpecMismatchError,
    UnavailableError,
)
from replaysvc.options import Fifo, Lifo, Limiter, Prioritized, Uniform
from replaysvc.replay import Replay
from replaysvc.requests import (
    AtEnd,
    DenseReward,
    Episodes,
    Goal,
    Her,
    Sequences,
    SparseReward,
    Stack,
    StackPadding,
    Terminated,
    Transitions,
    client_reward,
    client_success,
)
from replaysvc.rpc import servicer
from replaysvc.rpc.bounds import item_bytes
from replaysvc.rpc.convert import window_of
from replaysvc.rpc.frames import TOTAL, encode_frame, frame_pieces
from replaysvc.rpc.server import Server
from replaysvc.types import UpdateCounts
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS, write_episode, write_episodes
from tests.frames import decode_frame
from tests.service.raw import Raw, chunks_of

MIB = 1 << 20
WIDE = Signature(FieldSpec("observation", (1 << 16,), np.uint8), FieldSpec("action", (), np.int64))
GOALS = Signature(
    {
        "achieved_goal": FieldSpec("achieved_goal", (2,), np.float32),
        "desired_goal": FieldSpec("desired_goal", (2,), np.float32),
        "position": FieldSpec("position", (3,), np.float64),
    },
    FieldSpec("action", (), np.int32),
    state=FieldSpec("state", (8,), np.float32),
)


def reward(achieved, desired, info):
    return np.zeros(len(achieved))


def success(achieved, desired):
    return np.zeros(len(achieved), bool)


# -- what the messages mean ----------------------------------------------------------------------------------------------

WINDOWS = [
    Transitions(),
    Transitions(n_step=7, gamma=0.0),
    Transitions(stack=4),
    Transitions(stack=Stack(64, StackPadding.ZERO, ("position", "observation/x"))),
    Transitions(her=Her()),
    Transitions(her=Her(Goal.FINAL, 0.0, SparseReward(0.0, 0.0, 0.0), Terminated.STORED, None, "a", "b/c", True)),
    Sequences(length=1),
    Sequences(length=80, burn_in=79, period=1, at_end=AtEnd.SHIFT, n_step=5, gamma=0.0, stack=2, state=("h", "c")),
    Sequences(length=3, period=1 << 20, at_end=AtEnd.DROP, her=Her(Goal.EPISODE, 1.0, DenseReward(-2.5, 0.0))),
    Episodes(),
    Episodes(max_steps=1 << 20, gamma=1.0, open_episodes=True, stack=3, her=Her(reward=DenseReward(0.0))),
]


@pytest.mark.parametrize("what", WINDOWS, ids=str)
def test_window_returns_from_its_message(what):
    request = pb.SampleRequest.FromString(request_of(what, table="t").SerializeToString())
    assert window_of(request) == what


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (Transitions(), pb.SampleRequest()),
        (Transitions(gamma=0.0), pb.SampleRequest(transitions=pb.Transitions(n_step=1))),
        (Transitions(her=Her(reward=reward, success=success)), None),
        (Sequences(length=5), pb.SampleRequest(sequences=pb.Sequences(length=5))),
        (Episodes(), pb.SampleRequest(episodes=pb.Episodes())),
        (Episodes(stack=Stack(2)), pb.SampleRequest(episodes=pb.Episodes(stack=pb.Stack(frames=2)))),
        (
            Episodes(her=Her(reward=SparseReward())),
            pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(sparse=pb.SparseReward()))),
        ),
        (
            Episodes(her=Her(reward=DenseReward())),
            pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(dense=pb.DenseReward()))),
        ),
    ],
)
def test_what_is_unset_has_the_default_that_the_protocol_documents(window, message):
    if message is None:
        message = pb.SampleRequest(transitions=pb.Transitions(n_step=1, gamma=0.99, her=pb.Her()))
        window = Transitions(her=Her(reward=client_reward, success=client_success))
    assert window_of(message) == window


def test_reward_functions_stay_with_the_client():
    """The server is told that there is no reward it could make, and stands placeholders in for the functions."""
    asked = Her(Goal.FINAL, 0.5, reward, success=success)
    request = request_of(Episodes(her=asked))
    assert request.episodes.her.WhichOneof("reward") is None
    found = window_of(request).her
    assert (found.reward, found.success, found.declared) == (client_reward, client_success, False)
    assert (found.goal, found.ratio, found.terminated) == (Goal.FINAL, 0.5, Terminated.SUCCESS)
    stored = window_of(request_of(Transitions(her=Her(reward=reward, terminated=Terminated.STORED)))).her
    assert (stored.reward, stored.success, stored.terminated) == (client_reward, None, Terminated.STORED)


def test_every_enum_member_has_a_number_of_its_own():
    for kind, message in ((AtEnd, pb.AtEnd), (StackPadding, pb.StackPadding), (Goal, pb.Goal), (Terminated, pb.Terminated)):
        names = [name for name, number in message.items() if number]
        assert [name.split("_")[-1] for name in names] == [member.name for member in kind]
        assert message.Name(0).endswith("_UNSPECIFIED")


def test_every_field_of_a_window_is_in_its_message():
    for kind in (Transitions, Sequences, Episodes, Stack, SparseReward, DenseReward):
        assert {field.name for field in fields(kind)} == set(getattr(pb, kind.__name__).DESCRIPTOR.fields_by_name)
    functions = {"reward", "success"}
    assert {field.name for field in fields(Her)} - functions == set(pb.Her.DESCRIPTOR.fields_by_name) - {"sparse", "dense"}


@pytest.mark.parametrize("what", [None, "transitions", Stack(2), Her(), Transitions])
def test_what_is_no_window_is_refused_by_the_client(what):
    with pytest.raises(SpecMismatchError, match="what: expected Transitions, Sequences or Episodes"):
        request_of(what)


# -- messages that make no sense -----------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
SEQUENCE = {"length": 4}
HOSTILE = {
    "length unset": pb.SampleRequest(sequences=pb.Sequences()),
    "length too large": pb.SampleRequest(sequences=pb.Sequences(length=(1 << 32) - 1)),
    "burn_in as long as the sequence": pb.SampleRequest(sequences=pb.Sequences(length=4, burn_in=4)),
    "period 0": pb.SampleRequest(sequences=pb.Sequences(**SEQUENCE, period=0)),
    "n_step 0": pb.SampleRequest(sequences=pb.Sequences(**SEQUENCE, n_step=0)),
    "n_step too large": pb.SampleRequest(sequences=pb.Sequences(**SEQUENCE, n_step=10_001)),
    "gamma NaN": pb.SampleRequest(sequences=pb.Sequences(**SEQUENCE, gamma=NAN)),
    "gamma above 1": pb.SampleRequest(episodes=pb.Episodes(gamma=1.01)),
    "unknown at_end": pb.SampleRequest(sequences=pb.Sequences(**SEQUENCE, at_end=4)),
    "negative at_end": pb.SampleRequest(sequences=pb.Sequences(**SEQUENCE, at_end=-1)),
    "too many state names": pb.SampleRequest(sequences=pb.Sequences(**SEQUENCE, state=["x"] * 1001)),
    "empty state name": pb.SampleRequest(sequences=pb.Sequences(**SEQUENCE, state=[""])),
    "max_steps 0": pb.SampleRequest(episodes=pb.Episodes(max_steps=0)),
    "max_steps too large": pb.SampleRequest(episodes=pb.Episodes(max_steps=(1 << 20) + 1)),
    "frames unset": pb.SampleRequest(episodes=pb.Episodes(stack=pb.Stack())),
    "too many frames": pb.SampleRequest(episodes=pb.Episodes(stack=pb.Stack(frames=65))),
    "unknown padding": pb.SampleRequest(episodes=pb.Episodes(stack=pb.Stack(frames=2, padding=3))),
    "too many columns": pb.SampleRequest(episodes=pb.Episodes(stack=pb.Stack(frames=2, columns=["x"] * 1001))),
    "unknown goal": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(goal=99))),
    "unknown terminated": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(terminated=1 << 30))),
    "ratio NaN": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(ratio=NAN))),
    "ratio above 1": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(ratio=1.5))),
    "no achieved goal": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(achieved=""))),
    "threshold NaN": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(sparse=pb.SparseReward(threshold=NAN)))),
    "negative threshold": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(dense=pb.DenseReward(threshold=-1)))),
    "infinite reward": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(sparse=pb.SparseReward(success=INF)))),
    "scale NaN": pb.SampleRequest(episodes=pb.Episodes(her=pb.Her(dense=pb.DenseReward(scale=NAN)))),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_senseless_window_is_refused(name):
    with pytest.raises(InvalidRequestError):
        window_of(HOSTILE[name])


@given(data=st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_message_is_a_window_or_is_refused(data):
    request = pb.SampleRequest()
    try:
        request.sequences.MergeFromString(data)
    except DecodeError:  # gRPC refuses it before it is ours
        return
    with contextlib.suppress(InvalidRequestError):
        assert isinstance(window_of(request), Sequences)


@pytest.mark.parametrize("beta", [NAN, INF, -0.1, 4.1])
def test_beta_out_of_range_is_refused_at_both_ends(raw, replay, serve, connect, monkeypatch, beta):
    write_episodes(replay.create_table("t", SCALARS), [4])
    with pytest.raises(SpecMismatchError, match="beta: expected a number from 0 to 4"):
        raw.call("Sample", pb.SampleRequest(table="t", batch_size=4, sampler="prioritized", beta=beta))
    client = connect(serve().address)
    table = client.table("t")
    monkeypatch.setattr(client.connection, "sample", lambda *arguments: pytest.fail("it was sent"))
    with pytest.raises(SpecMismatchError, match="beta: expected a number from 0 to 4"):
        table.sample(4, sampler="prioritized", beta=beta)


def test_unset_oneof_and_beta_are_the_defaults(raw, replay):
    write_episodes(replay.create_table("t", SCALARS), [4])
    response = raw.call("Sample", pb.SampleRequest(table="t", batch_size=4, seed=1))
    shapes = {column.header.name: tuple(column.header.shape) for column in response.columns}
    assert (shapes["observation"], shapes["reward"]) == ((4,), (4,))


# -- bounds --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "least", "most"),
    [
        # stored: goals 2 * 4 bytes each (lossless), position 3 * 2 (float16), action 4, reward 4, state 8 * 4
        (Transitions(), 2 * (8 + 8 + 6) + 4 + 4 + 32, 84),
        (Transitions(n_step=9, stack=4), 2 * (8 + 8 + 24) + 40, 120),
        (Transitions(stack=4), 2 * (8 + 8) + 5 * 6 + 40, 102),
        (Transitions(stack=Stack(4, columns=("achieved_goal",))), 5 * 8 + 2 * (8 + 6) + 40, 108),
        (Sequences(length=10), 11 * 22 + 10 * 40, 642),
        (Sequences(length=10, n_step=3, stack=4), 13 * (8 + 8) + 16 * 6 + 10 * 40, 704),
        (Sequences(length=10, state=("state",)), 11 * 22 + 10 * 8 + 32, 354),
        (Episodes(max_steps=1000), 84, 1001 * 22 + 1000 * 40),
        (Episodes(max_steps=10, stack=4), 102, 11 * (8 + 8) + 14 * 6 + 10 * 40),
    ],
    ids=str,
)
def test_bytes_of_an_item_are_counted_before_it_is_drawn(what, least, most):
    assert item_bytes(GOALS, what) == (least, most)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("kind", ["transitions", "sequences", "episodes"])
def test_counted_bytes_are_those_of_the_columns_that_are_made(replay, kind, n_step, stack):
    """All episodes have 6 steps, so that the least and the most are one; a column of counts or the like is not counted."""
    what = {
        "transitions": Transitions(n_step=n_step, stack=stack),
        "sequences": Sequences(length=3, n_step=n_step, stack=stack, state=("state",)),
        "episodes": Episodes(max_steps=6, stack=stack),
    }[kind]
    table = replay.create_table("t", GOALS)
    goal = np.zeros(2, np.float32)
    observation = {"achieved_goal": goal, "desired_goal": goal, "position": np.zeros(3)}
    with table.writer() as writer:
        for _ in range(3):
            writer.begin(observation)
            for t in range(6):
                writer.append(t, 0.0, observation, truncated=t == 5, extras={"state": np.zeros(8, np.float32)})
    made = replay.engine("t").draw(8, what, sampler="uniform", seed=1, beta=None, timeout_s=0.0)
    names = {spec.name for spec in GOALS.columns}
    counted = [column.values.nbytes for column in made if column.name.removeprefix("next_") in names]
    assert sum(counted) == 8 * item_bytes(GOALS, what).most


@pytest.mark.parametrize(
    ("batch_size", "what", "sentence"),
    [
        (2000, Transitions(), "within one message of 67108864 bytes"),
        (100, Sequences(length=10), "within one message of 67108864 bytes"),
        (120, Transitions(stack=8), "within one message of 67108864 bytes"),
        (10_000, Episodes(max_steps=1), "within 536870912 bytes"),
        (100, Episodes(max_steps=1, stack=64), None),
        (1000, Episodes(max_steps=1, stack=64), "within 536870912 bytes"),
    ],
    ids=str,
)
def test_batch_that_cannot_be_small_enough_is_refused_before_the_work(
    serve, connect, replay, monkeypatch, batch_size, what, sentence
):
    replay.create_table("t", WIDE)
    drawn = []

    def draw(*args, **options):
        drawn.append(args)
        raise NotFoundError("drawn")

    monkeypatch.setattr(replay.engine("t"), "draw", draw)
    table = connect(serve().address).table("t")
    if sentence is None:
        with pytest.raises(NotFoundError, match="drawn"):
            table.sample(batch_size, what)
        return
    with pytest.raises(InvalidRequestError, match=f"batch_size: expected a batch {sentence}, found about"):
        table.sample(batch_size, what)
    assert drawn == []


@pytest.mark.parametrize(
    ("batch_size", "what", "sentence"),
    [
        (16_000, Sequences(length=100, n_step=1000), r"length: expected batch_size \* \(length \+ n_step \+ stack\)"),
        (16_000, Episodes(max_steps=2000), r"max_steps: expected batch_size \* \(max_steps \+ stack\)"),
    ],
)
def test_windows_of_too_many_steps_are_refused_before_the_work(serve, connect, replay, monkeypatch, batch_size, what, sentence):
    replay.create_table("t", SCALARS)
    monkeypatch.setattr(replay.engine("t"), "draw", lambda *args, **options: pytest.fail("it was drawn"))
    with pytest.raises(InvalidRequestError, match=sentence + " of at most 1048576, found"):
        connect(serve().address).table("t").sample(batch_size, what)


# -- batches in pieces ---------------------------------------------------------------------------------------------------


def columns(rows=5):
    rng = np.random.default_rng(3)
    wide = rng.normal(size=(rows, 2, 3)).astype(np.float16)
    offsets = np.array([1, 2 * rows - 1], np.uint32), np.full((2, 3), 100, np.float32)
    return [
        BatchColumn("x", wide, *offsets),
        BatchColumn("n", rng.integers(0, 9, (rows, 2))),
        BatchColumn("e", np.zeros((0, 2))),
    ]


SPECS = {"x": FieldSpec("x", (3,), np.float32, Precision.FLOAT16)}


@pytest.mark.parametrize("piece_bytes", [1, 7, 8, 9, 64, 333, 1 << 20])
def test_pieces_joined_are_the_frame(piece_bytes):
    pieces = list(frame_pieces(columns(), piece_bytes))
    assert {len(piece) for piece in pieces[:-1]} <= {piece_bytes}
    assert 1 <= len(pieces[-1]) <= piece_bytes
    assert join_pieces(pieces) == encode_frame(columns())


def test_offsets_count_the_flattened_leading_axes():
    decoded = decode_frame(join_pieces(frame_pieces(columns(), 100)), SPECS)["x"]
    assert (decoded.values.shape, decoded.offset_values.shape) == ((5, 2, 3), (2, 3))
    stored = columns()[0]
    expected = stored.values.astype(np.float32)
    expected[0, 1] += 100
    expected[4, 1] += 100
    assert (decoded.widen(SPECS["x"]) == expected).all()


FRAME = encode_frame(columns())
DAMAGED = {
    "no piece": [],
    "empty pieces": [b"", b""],
    "half a length": [TOTAL.pack(len(FRAME))[:7]],
    "a length alone": [TOTAL.pack(len(FRAME))],
    "last byte missing": [TOTAL.pack(len(FRAME)), FRAME[:-1]],
    "a piece missing": [TOTAL.pack(len(FRAME)), FRAME[:64], FRAME[128:]],
    "one byte more": [TOTAL.pack(len(FRAME)), FRAME + b"x"],
    "a piece twice": [TOTAL.pack(len(FRAME)), FRAME[:64], FRAME[:64], FRAME[64:]],
    "huge length": [TOTAL.pack((1 << 64) - 1), FRAME],
    "length above what a batch may have": [TOTAL.pack(MAX_LARGE_BYTES + 1), FRAME],
}


@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_short_or_long_stream_of_pieces_is_refused(name):
    with pytest.raises(ChunkCorruptError, match="frame: expected"):
        join_pieces(DAMAGED[name])


def test_huge_length_is_refused_before_its_bytes_come():
    pieces = iter([TOTAL.pack(MAX_LARGE_BYTES + 1), b"more"])
    with pytest.raises(ChunkCorruptError, match="expected at most 1073741824 bytes, found a length of 1073741825"):
        join_pieces(pieces)
    assert list(pieces) == [b"more"]


def test_pieces_of_a_stream_without_end_are_not_kept():
    taken = []

    def endless():
        yield TOTAL.pack(10)
        while len(taken) < 100:
            taken.append(1)
            yield bytes(4)

    with pytest.raises(ChunkCorruptError, match="expected 10 bytes, found 12"):
        join_pieces(endless())
    assert len(taken) == 3


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_pieces_give_columns_or_are_refused(data):
    pieces = list(frame_pieces(columns(), data.draw(st.integers(50, 200))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(pieces) - 1))
        kind = data.draw(st.sampled_from(["drop", "cut", "swap", "change"]))
        if kind == "drop":
            pieces[at] = b""
        elif kind == "cut":
            pieces[at] = pieces[at][: data.draw(st.integers(0, max(0, len(pieces[at]) - 1)))]
        elif kind == "swap":
            pieces[at], pieces[-1] = pieces[-1], pieces[at]
        elif pieces[at]:
            changed = bytearray(pieces[at])
            changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
            pieces[at] = bytes(changed)
    with contextlib.suppress(ChunkCorruptError), np.errstate(all="ignore"):
        for column in decode_frame(join_pieces(pieces), SPECS).values():
            column.widen(SPECS["x"])


def write_wide(table, lengths):
    """Writes episodes whose observations say episode and step in their first bytes, and are of 64 KiB."""
    with table.writer() as writer:
        for episode, length in enumerate(lengths):
            for t in range(length + 1):
                observation = np.full(1 << 16, t, np.uint8)
                observation[0] = episode
                if t == 0:
                    writer.begin(observation)
                else:
                    writer.append(t, 1.0, observation, truncated=t == length)


def test_episodes_larger_than_a_message_come_whole(serve, connect, replay):
    """24 episodes of 60 and 20 steps, padded to 60, with 61 observations of 64 KiB each: 91 MiB."""
    table = connect(serve().address).create_table("t", WIDE)
    write_wide(table, [60, 20])
    batch = table.sample(24, Episodes(), seed=5)
    assert batch.observation.shape == batch.next_observation.shape == (24, 60, 1 << 16)
    assert set(batch.mask.sum(axis=1)) == {60, 20}
    expected = replay.table("t").sample(24, Episodes(), seed=5)
    assert (batch.observation == expected.observation).all()
    assert (batch.next_observation == expected.next_observation).all()


def replaced_pieces(monkeypatch, change):
    """Makes the server's stream of pieces another one."""
    made = servicer.frame_pieces
    monkeypatch.setattr(servicer, "frame_pieces", lambda columns, size, **options: change(list(made(columns, 64, **options))))


@pytest.mark.parametrize(
    "change",
    [
        lambda pieces: pieces[:-1],
        lambda pieces: [],
        lambda pieces: pieces[1:],
        lambda pieces: [pieces[0], *pieces],
        lambda pieces: [struct.pack("<Q", 1 << 60), *pieces[1:]],
    ],
    ids=["last missing", "none", "first missing", "first twice", "huge length"],
)
def test_damaged_stream_raises_and_the_next_one_is_fine(serve, connect, replay, monkeypatch, change):
    write_episodes(replay.create_table("t", SCALARS), [4, 3])
    table = connect(serve().address).table("t")
    with monkeypatch.context() as patch:
        replaced_pieces(patch, change)
        with pytest.raises(ChunkCorruptError, match="frame"):
            table.sample(4, Episodes())
    assert len(table.sample(4, Episodes())) == 4


def test_refusal_of_a_streamed_batch_says_why(serve, connect, replay):
    table = connect(serve().address).create_table("t", SCALARS)
    with pytest.raises(InvalidRequestError, match="sampler"):
        table.sample(4, Episodes(), sampler="nosuch")


def test_only_a_few_large_batches_are_made_at_once(serve, connect, replay, monkeypatch):
    """Two requests of batches that may have 63 MiB are held in the engine, with twice as much of 640 MiB each; a third would be
    more than it leaves to others and is turned away, a small one not."""
    write_wide(replay.create_table("t", WIDE), [2])
    engine = replay.engine("t")
    inside, go_on = threading.Semaphore(0), threading.Event()
    draw = engine.draw

    def held(batch_size, what, **options):
        if what == Episodes():
            inside.release()
            assert go_on.wait(60)
        return draw(batch_size, what, **options)

    monkeypatch.setattr(engine, "draw", held)
    server = serve(answer_bytes=640 << 20)
    table = connect(server.address).table("t")
    impatient = connect(server.address, reconnect_timeout_s=0.0).table("t")
    batches = []
    threads = [threading.Thread(target=lambda: batches.append(table.sample(1, Episodes()))) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert inside.acquire(timeout=60)
    with pytest.raises(CapacityError, match="bytes of answers are in use"):
        impatient.sample(1, Episodes())
    assert len(impatient.sample(2, Episodes(max_steps=100))) == 2
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert [len(batch) for batch in batches] == [1, 1]
    assert len(impatient.sample(1, Episodes())) == 1


# -- streams -------------------------------------------------------------------------------------------------------------

STREAMS = {
    "uniform": (TableConfig(), Transitions(), "uniform", 4),
    "prioritized": (TableConfig(), Transitions(), "prioritized", 4),
    "sequences": (TableConfig(), Sequences(length=2), "uniform", 4),
    "episodes": (TableConfig(), Episodes(), "uniform", 0),
    "fifo": (TableConfig(samplers={"queue": Fifo(1000)}), Transitions(), "queue", 0),
    "lifo": (TableConfig(samplers={"stack": Lifo(1000)}), Transitions(), "stack", 0),
    "other sampler beside a queue": (
        TableConfig(samplers={"uniform": Uniform(), "queue": Fifo(1000)}), Transitions(), "uniform", 4
    ),
    "least steps alone": (TableConfig(limiter=Limiter(min_steps=2)), Transitions(), "uniform", 4),
    "ratio": (
        TableConfig(limiter=Limiter(samples_per_insert=100.0, error_buffer=(-1e6, 1e6))), Transitions(), "uniform", 0
    ),
}  # fmt: skip


def asked_ahead(client, monkeypatch):
    """Returns a list that gets, for each request that is sent ahead of time, the number of batches that it asks for."""
    started, start_sample = [], client.connection.start_sample

    def noted(request, timeout_s):
        started.append(pb.SampleRequest.FromString(request).batches)
        return start_sample(request, timeout_s)

    monkeypatch.setattr(client.connection, "start_sample", noted)
    return started


@pytest.mark.parametrize("name", STREAMS)
def test_streams_ask_ahead_only_where_it_does_not_count(serve, connect, monkeypatch, name):
    config, what, sampler, ahead = STREAMS[name]
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, config)
    write_episodes(table, [8, 8])
    started = asked_ahead(client, monkeypatch)
    stream = table.stream(2, what, sampler=sampler)
    assert len(next(stream)) == 2
    assert sum(started) == (ahead + 2 if ahead else 0)  # they come two by two
    stream.close()
    assert table.stats().sampled_items_total >= 2
    if not ahead:
        assert table.stats().sampled_items_total == 2


def test_streams_of_long_windows_have_fewer_under_way(serve, connect, monkeypatch):
    """A step has 128 KiB, so two sequences of 16 have 4 MiB, with 3 more steps for stacks 4.75; 128 MiB may be under way."""
    client = connect(serve().address)
    table = client.create_table("t", WIDE)
    write_wide(table, [16])
    started = asked_ahead(client, monkeypatch)
    for stack, most in ((1, 31), (4, 26)):
        started.clear()
        stream = table.stream(2, Sequences(length=16, stack=stack), prefetch=64)
        next(stream)
        assert started == [1] * most
        stream.close()


# -- priorities, limiter, deletion, snapshots ----------------------------------------------------------------------------


@pytest.fixture
def prioritized(replay, raw, serve, connect):
    """A client's table of one episode of 8 steps, with a prioritized sampler of another name beside the usual one."""
    config = TableConfig(samplers={"prioritized": Prioritized(), "other": Prioritized(), "uniform": Uniform()})
    table = replay.create_table("t", SCALARS, config)
    write_episodes(table, [8])
    return connect(serve().address).table("t")


def update(positions=b"", priorities=b"", **options):
    return pb.UpdatePrioritiesRequest(**({"table": "t", "positions": positions, "priorities": priorities} | options))


def test_updated_priorities_are_those_that_are_drawn(prioritized):
    assert prioritized.update_priorities(np.arange(8), np.eye(8)[3]) == UpdateCounts(8, 0)
    assert set(prioritized.sample(16, sampler="prioritized").t) == {3}
    assert len(set(prioritized.sample(64, sampler="other", seed=1).t)) == 8
    assert prioritized.update_priorities([0, 1, 1, 99], [1, 0, 5, 1], sampler="other") == UpdateCounts(2, 2)
    assert prioritized.update_priorities([], []) == UpdateCounts(0, 0)


@pytest.mark.parametrize(
    ("positions", "priorities", "field"),
    [
        (bytes(7), bytes(8), "positions"),
        (bytes(8), bytes(15), "priorities"),
        (bytes(8 * (MAX_UPDATES + 1)), bytes(8), "positions"),
        (bytes(8), bytes(16), "priorities"),
        (bytes(8), np.array([NAN]).tobytes(), "priorities"),
        (bytes(8), np.array([INF]).tobytes(), "priorities"),
        (bytes(8), np.array([-1.0]).tobytes(), "priorities"),
        (bytes(16), np.array([1.0, 1.1e30]).tobytes(), "priorities"),
    ],
    ids=["odd", "cut", "too many", "lengths differ", "NaN", "inf", "negative", "too large"],
)
def test_senseless_update_is_refused_and_changes_nothing(prioritized, raw, positions, priorities, field):
    prioritized.update_priorities(np.arange(8), np.eye(8)[3])
    with pytest.raises(InvalidRequestError, match=field):
        raw.call("UpdatePriorities", update(positions, priorities))
    assert set(prioritized.sample(16, sampler="prioritized").t) == {3}


def test_update_of_a_sampler_without_priorities_is_refused(prioritized):
    with pytest.raises(ConfigurationError):
        prioritized.update_priorities([0], [1.0], sampler="uniform")
    with pytest.raises(InvalidRequestError):
        prioritized.update_priorities([0], [1.0], sampler="nosuch")


@pytest.mark.parametrize(
    ("positions", "priorities", "field"),
    [
        ([0, 1], [1.0], "priorities: expected one for each of 2 positions, found 1"),
        ([0.5], [1.0], "positions: expected int64"),
        ([[0]], [1.0], "positions: expected int64"),
        (0, [1.0], "positions: expected int64"),
        (["a"], [1.0], "positions: expected int64"),
        ([True], [1.0], "positions: expected int64"),
        ([0], ["1"], "priorities: expected float64"),
        ([0], None, "priorities: expected float64"),
        ([0], [[1.0]], "priorities: expected float64"),
        ([[0], [1, 2]], [1.0, 1.0], "positions: expected int64"),
        (range(MAX_UPDATES + 1), np.ones(MAX_UPDATES + 1), "positions: expected at most 1048576"),
    ],
)
def test_update_is_checked_before_it_is_sent(prioritized, monkeypatch, positions, priorities, field):
    monkeypatch.setattr("replay_client.table.send_priorities", lambda *arguments: pytest.fail("it was sent"))
    monkeypatch.setattr("replay_client.priorities.PrioritySender.put", lambda *arguments: pytest.fail("it was taken"))
    for wait in (True, False):
        with pytest.raises(SpecMismatchError, match=field):
            prioritized.update_priorities(positions, priorities, wait=wait)


def test_limiter_of_the_client_holds_at_the_server(serve, connect, replay):
    server = serve()
    table = connect(server.address).create_table("t", SCALARS)
    table.set_limiter(Limiter(min_steps=7))
    assert (replay.engine("t").config.limiter, table.config.limiter) == (Limiter(min_steps=7), Limiter(min_steps=7))
    assert connect(server.address).table("t").config.limiter == Limiter(min_steps=7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        '{"min_steps": 0}',
        '{"min_steps": NaN}',
        '{"nosuch": 1}',
        '{"samples_per_insert": 1}',
        " " * (2 << 20),
    ],
)
def test_senseless_limiter_is_refused(raw, replay, text):
    replay.create_table("t", SCALARS)
    with pytest.raises(InvalidRequestError):
        raw.call("SetLimiter", pb.SetLimiterRequest(table="t", limiter_json=text))
    assert replay.engine("t").config.limiter == Limiter()


@pytest.mark.parametrize(("workers", "places"), [(4, 0), (16, 2)])
def test_only_a_few_appends_wait_for_the_limiter(serve, connect, replay, monkeypatch, workers, places):
    """The engine holds all that may wait; what comes beyond them is told at once that the limiter is why."""
    table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=2, limiter=Limiter.queue(4)))
    write_episodes(table, [4])
    engine = replay.engine("t")
    inside, go_on = threading.Semaphore(0), threading.Event()
    append = engine.append

    def held(*args, wait_s, **options):
        if wait_s:
            inside.release()
            assert go_on.wait(60)
        return append(*args, wait_s=0.0, **options)

    monkeypatch.setattr(engine, "append", held)
    address = serve(max_workers=workers).address
    raws = [Raw(address) for _ in range(places + 1)]
    chunks = chunks_of(4)
    with ThreadPoolExecutor(places + 1) as pool:
        waiting = [pool.submit(raw.append, chunks, session=bytes([i] * 16)) for i, raw in enumerate(raws[:-1])]
        for _ in waiting:
            assert inside.acquire(timeout=60)
        with pytest.raises(LimitedError, match="limiter"):
            raws[-1].append(chunks, session=bytes(16))
        assert not any(call.done() for call in waiting)
        go_on.set()
        for call in waiting:
            with pytest.raises(LimitedError, match="limiter"):
                call.result()
    for raw in raws:
        raw.close()


def test_append_that_waits_goes_on_when_the_limiter_lets_it_in(raw, replay):
    table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=2, samplers={"queue": Fifo()}, limiter=Limiter.queue(4)))
    raw.append(chunks_of(4))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(raw.append, chunks_of(4), session=bytes(16))
        table.sample(4, sampler="queue")
        assert waiting.result(60).last_sequence == 1
    assert table.stats().steps == 8


def test_limiter_that_is_none_is_refused_by_the_client(prioritized):
    with pytest.raises(SpecMismatchError, match="limiter: expected a Limiter"):
        prioritized.set_limiter({"min_steps": 3})


def test_deleted_episodes_are_gone_at_both_doors(serve, connect, replay):
    table = connect(serve().address).create_table("t", SCALARS)
    write_episodes(table, [3, 4, 5])
    assert table.delete_episodes({0, 2, 77}) == 2
    assert [record.episode_id for record in table.episodes()] == [1]
    assert table.delete_episodes(np.array([0, 2])) == 0
    assert table.delete_episodes([]) == 0
    assert set(replay.table("t").sample(32, seed=1).episode_id) == {1}


def test_deletion_of_an_open_episode_is_refused_and_deletes_nothing(serve, connect):
    table = connect(serve().address).create_table("t", SCALARS)
    with table.writer() as writer:
        write_episode(writer, 3)
        write_episode(writer, 3, end="open")
        writer.flush()
        with pytest.raises(InvalidRequestError, match="1"):
            table.delete_episodes([0, 1])
        assert len(table.episodes()) == 2


@pytest.mark.parametrize("ids", [[-1], range(MAX_UPDATES + 1)], ids=["negative", "too many"])
def test_senseless_deletion_is_refused(raw, replay, ids):
    write_episodes(replay.create_table("t", SCALARS), [3])
    with pytest.raises(SpecMismatchError, match="episode_ids"):
        raw.call("DeleteEpisodes", pb.DeleteEpisodesRequest(table="t", episode_ids=ids))
    assert len(replay.table("t").episodes()) == 1


@pytest.mark.parametrize("ids", [3, "12", None, [1.5], ["1"], [1 << 63], [-1], [True], range(MAX_UPDATES + 1)], ids=str)
def test_deletion_is_checked_before_it_is_sent(prioritized, ids):
    with pytest.raises(SpecMismatchError, match="episode_ids"):
        prioritized.delete_episodes(ids)
    assert len(prioritized.episodes()) == 1


@pytest.mark.parametrize("method", ["UpdatePriorities", "SetLimiter", "DeleteEpisodes"])
def test_calls_for_a_table_that_is_not_there_are_refused(raw, method):
    message = {"limiter_json": json.dumps(Limiter().to_json())} if method == "SetLimiter" else {}
    with pytest.raises(NotFoundError):
        raw.call(method, getattr(pb, f"{method}Request")(table="none", **message))


@pytest.fixture
def snapshots(tmp_path):
    """A client of a server that makes snapshots, and where it does."""
    folder = tmp_path / "snapshots"
    with Replay(tmp_path / "kept", StoreConfig(snapshot_dir=str(folder))) as replay:
        server = Server(replay, "127.0.0.1:0")
        server.start()
        with replay_client.connect(server.address) as client:
            yield client, folder
        server.stop(5.0)


def test_snapshot_is_a_store_of_its_own(snapshots):
    client, folder = snapshots
    table = client.create_table("t", SCALARS)
    write_episodes(table, [3])
    client.snapshot("monday")
    write_episodes(table, [4])
    with Replay(folder / "monday") as copy:
        assert copy.table("t").stats().steps == 3
    with pytest.raises(AlreadyExistsError):
        client.snapshot("monday")


@pytest.mark.parametrize("name", ["", "..", "a/b", "/tmp/x", "../x", "a" * 65, ".hidden", "a..b", "a\x00b", "\\x"])
def test_snapshot_of_a_name_that_is_none_is_refused_at_both_ends(snapshots, name):
    client, folder = snapshots
    with pytest.raises(SpecMismatchError, match="snapshot"):
        client.snapshot(name)
    with pytest.raises(SpecMismatchError, match="snapshot"):
        client.connection.call("Snapshot", pb.SnapshotRequest(name=name))
    assert not folder.exists() or not any(folder.iterdir())


def test_one_snapshot_is_made_at_a_time(tmp_path, connect, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()

    def held(path):
        inside.set()
        assert go_on.wait(60)

    with Replay(tmp_path / "kept", StoreConfig(snapshot_dir=str(tmp_path / "snapshots"))) as replay:
        monkeypatch.setattr(replay, "snapshot", held)
        server = Server(replay, "127.0.0.1:0")
        server.start()
        client = connect(server.address, reconnect_timeout_s=0.0)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(client.snapshot, "first")
            assert inside.wait(60)
            with pytest.raises(UnavailableError, match="another snapshot is being made"):
                client.snapshot("second")
            go_on.set()
            first.result(60)
        client.snapshot("second")
        server.stop(5.0)


def test_server_without_a_folder_makes_no_snapshots(serve, connect):
    with pytest.raises(ConfigurationError, match="snapshot_dir"):
        connect(serve().address).snapshot("monday")


def test_method_that_does_not_exist_is_an_error_of_this_project(serve):
    with grpc.insecure_channel(serve().address) as channel:
        unknown = channel.unary_unary("/replaysvc.v1.ReplayFrames/Nosuch")
        with pytest.raises(grpc.RpcError) as info:
            unknown(b"")
    assert "Nosuch" in str(error_of(info.value, "server")) or "not found" in str(error_of(info.value, "server"))
