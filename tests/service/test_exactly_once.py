"""Appends whose acknowledgement is lost, that come twice, or out of order."""

import grpc
import numpy as np
import pytest

from replaysvc import TableConfig
from replaysvc.errors import (
    AlreadyExistsError,
    ChunkCorruptError,
    InvalidRequestError,
    ReplayError,
    SequenceError,
    SpecMismatchError,
)
from replaysvc.rpc.servicer import ReplayServicer
from replaysvc.table import staging
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS
from tests.service.checks import stored_lengths, write_numbered
from tests.service.raw import SESSION, chunks_of


@pytest.fixture
def table(replay):
    return replay.create_table("t", SCALARS, TableConfig(chunk_steps=4))


@pytest.fixture
def lose_answers(monkeypatch):
    """Makes the server lose the answers of a method's first calls, after it did what was asked."""

    def lose(method, calls, code=grpc.StatusCode.UNAVAILABLE):
        done = getattr(ReplayServicer, method)
        left = [calls]

        def losing(self, request, context):
            answer = done(self, request, context)
            if left[0]:
                left[0] -= 1
                context.abort(code, "the answer was lost")
            return answer

        monkeypatch.setattr(ReplayServicer, method, losing)

    return lose


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED])
def test_lost_acknowledgement_stores_once(table, serve, connect, lose_answers, code):
    lose_answers("Append", 3, code)
    client = connect(serve().address)
    with client.table("t").writer() as writer:
        for number in range(6):
            write_numbered(writer, number, 10)
    assert stored_lengths(client.table("t")) == dict.fromkeys(range(6), 10)


def test_chunks_that_come_again_are_counted_as_duplicates(table, serve, connect, monkeypatch):
    """A client that does not ask what is stored, and sends everything again."""
    append = ReplayServicer.Append
    requests = []

    def losing(self, request, context):
        answer = append(self, request, context)
        requests.append(request)
        if len(requests) == 1:
            append(self, request, context)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        return answer

    monkeypatch.setattr(ReplayServicer, "Append", losing)
    client = connect(serve().address)
    with client.table("t").writer() as writer:
        write_numbered(writer, 0, 10)
    stats = client.table("t").stats()
    assert stats.duplicate_chunks_total == len(requests[0].chunks)
    assert stats.appended_steps_total == 10
    assert stored_lengths(client.table("t")) == {0: 10}


def test_duplicate_append_is_acknowledged_and_not_stored_again(raw, table):
    chunks = chunks_of(6)
    assert raw.append(chunks).last_sequence == 2
    assert raw.append(chunks).last_sequence == 2
    assert raw.append(chunks[1:2], 1).last_sequence == 2
    stats = table.stats()
    assert (stats.steps, stats.episodes, stats.chunks, stats.duplicate_chunks_total) == (6, 1, 3, 4)
    assert table.read_episode(0)["action"].tolist() == list(range(6))


def test_append_that_overlaps_what_is_stored_adds_only_the_rest(raw, table):
    chunks = chunks_of(10)
    assert raw.append(chunks[:3]).last_sequence == 2
    assert raw.append(chunks[1:], 1).last_sequence == 4
    assert table.read_episode(0)["action"].tolist() == list(range(10))
    assert table.stats().duplicate_chunks_total == 2


def test_same_numbers_of_another_session_are_other_chunks(raw, table):
    raw.append(chunks_of(4))
    raw.append(chunks_of(4), session=bytes(16))
    assert (table.stats().episodes, table.stats().steps, table.stats().duplicate_chunks_total) == (2, 8, 0)


@pytest.mark.parametrize("first", [1, 2, 1 << 62])
def test_gap_in_sequence_numbers_is_refused_and_nothing_stored(raw, table, first):
    with pytest.raises(SequenceError, match=f"expected 0, found {first}"):
        raw.append(chunks_of(6), first)
    assert table.stats().steps == 0
    raw.append(chunks_of(6)[:2])
    with pytest.raises(SequenceError, match="expected 2, found 3"):
        raw.append(chunks_of(8)[3:], 3)
    assert table.stats().steps == 4


@pytest.mark.parametrize("sequences", [[0, 2], [1, 0], [0, 0], [-1, 0]])
def test_numbers_that_do_not_follow_each_other_are_refused(raw, table, sequences):
    chunks = [pb.AppendChunk(sequence=s, chunk=c) for s, c in zip(sequences, chunks_of(4), strict=True)]
    with pytest.raises(SpecMismatchError, match="sequence: expected consecutive numbers"):
        raw.call("Append", pb.AppendRequest(table="t", session_id=SESSION, chunks=chunks))
    assert table.stats().steps == 0


def test_session_is_told_what_is_stored(raw, table):
    opening = pb.OpenSessionRequest(table="t", session_id=SESSION)
    assert raw.call("OpenSession", opening).last_sequence == -1
    raw.append(chunks_of(6))
    assert raw.call("OpenSession", opening).last_sequence == 2


def test_chunk_that_does_not_continue_its_episode_is_refused(raw, table):
    chunks = chunks_of(8)
    with pytest.raises(InvalidRequestError, match="step 2 of an unknown or closed one"):
        raw.append(chunks[1:2])
    raw.append(chunks[:1])
    with pytest.raises(InvalidRequestError, match="expected step 2 of its episode, found step 4"):
        raw.append(chunks[2:3], 1)
    raw.append(chunks[1:], 1)
    with pytest.raises(InvalidRequestError, match="unknown or closed"):
        raw.append(chunks[3:], 4)
    assert table.read_episode(0)["action"].tolist() == list(range(8))


def without_the_guard(staged, request, sessions, open_episodes, lost):
    """`stage`, made to take every chunk as new."""
    again = bytes(16 - len(b"again")) + b"again" if request.session_id in sessions else request.session_id
    renamed = staging.AppendRequest(
        again, request.actor, range(len(request.chunks)), request.chunks, request.decoded, request.urgent, done=request.done
    )
    stage(staged, renamed, sessions, open_episodes, lost)


stage = staging.stage


def test_without_the_guard_a_lost_acknowledgement_would_store_twice(raw, table, monkeypatch):
    """The tests above are worth something: they see the doubled store when the server does not skip."""
    monkeypatch.setattr(staging, "stage", without_the_guard)
    raw.append(chunks_of(6, metadata={"number": 0}))
    raw.append(chunks_of(6, metadata={"number": 0}))
    assert table.stats().steps == 12
    with pytest.raises(AssertionError, match="stored twice"):
        stored_lengths(table)


@pytest.mark.parametrize("calls", [1, 2])
def test_table_is_made_and_deleted_once_though_answers_are_lost(serve, connect, lose_answers, calls):
    lose_answers("CreateTable", calls)
    lose_answers("DeleteTable", calls)
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(chunk_steps=7))
    assert table.config.chunk_steps == 7
    client.delete_table("t")
    assert client.tables() == []


def test_table_that_somebody_else_made_meanwhile_is_not_taken_for_ours(serve, connect, replay, monkeypatch):
    create = ReplayServicer.CreateTable
    calls = []

    def late(self, request, context):
        calls.append(request)
        if len(calls) == 1:
            replay.create_table("t", SCALARS, TableConfig(chunk_steps=3))
            context.abort(grpc.StatusCode.UNAVAILABLE, "the request was lost")
        return create(self, request, context)

    monkeypatch.setattr(ReplayServicer, "CreateTable", late)
    with pytest.raises(AlreadyExistsError, match="exists already"):
        connect(serve().address).create_table("t", SCALARS, TableConfig(chunk_steps=7))


def test_damaged_chunk_is_refused_wherever_the_damage_is_and_nothing_is_stored(raw, table):
    """One flipped bit at seeded places of the chunk, alone and behind a good one."""
    rng = np.random.default_rng(3)
    good, chunk, _ = chunks_of(6)
    for place in rng.choice(len(chunk), 60, replace=False).tolist():
        damaged = bytearray(chunk)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(ReplayError) as info:
            raw.append([good, bytes(damaged)])
        assert isinstance(info.value, ChunkCorruptError) or "format version" in str(info.value)
    assert table.stats().steps == 0
    for cut in (b"", chunk[:10], chunk[:-1], chunk + b"\0"):
        with pytest.raises(ChunkCorruptError):
            raw.append([good, cut])
    assert table.stats().steps == 0
    raw.append([good, chunk])
    assert table.stats().steps == 4
