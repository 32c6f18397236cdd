"""Exactly once, in order, whole or not at all: what a commit takes of what is sent to it."""

import numpy as np
import pytest

from replaysvc.codec import ChunkDecoder, ChunkEncoder, ChunkInfo
from replaysvc.errors import InvalidRequestError, SequenceError, WriterFencedError
from replaysvc.table.staging import AppendRequest, OpenEpisode, Staged, epoch_mark, stage, stage_all
from tests.builders import SCALARS

SESSION = b"s" * 16


def request(*pieces, session=SESSION):
    """Makes a request of (sequence, episode_key, first_step, n_steps, ended) pieces."""
    encoder, chunks = ChunkEncoder(SCALARS), []
    for _, key, first, steps, ended in pieces:
        info = ChunkInfo(
            signature_hash=SCALARS.hash, episode_key=key, first_step=first, n_steps=steps, terminated=ended, truncated=False,
            policy_version=-1, reward_sum=1.5, metadata=b"",
        )  # fmt: skip
        chunks.append(encoder.encode(info, [np.arange(steps + 1), np.arange(steps), np.zeros(steps, np.float32)]))
    sequences = [sequence for sequence, *_ in pieces]
    return AppendRequest(session, "actor", sequences, chunks, ChunkDecoder(SCALARS).decode(chunks), False)


def empty():
    return Staged(next_chunk_id=10, next_position=100, next_episode_id=5, committed_at_s=1.0)


def test_new_chunks_get_ids_positions_and_episodes():
    staged = empty()
    stage(staged, request((0, 0, 0, 3, False), (1, 1, 0, 2, True), (2, 0, 3, 4, True)), {}, {}, {})
    index = staged.index()
    assert index["chunk_id"].tolist() == [10, 11, 12]
    assert index["position"].tolist() == [100, 103, 105]
    assert index["episode_id"].tolist() == [5, 6, 5]
    assert index["first_step"].tolist() == [0, 0, 3]
    assert index["flags"].tolist() == [0, 1, 1]
    assert index["return_after"].tolist() == [1.5, 1.5, 3.0]
    assert staged.sessions == {SESSION: 2}
    assert staged.open == {(SESSION, 0): None, (SESSION, 1): None}
    assert [entry.episode_id for entry in staged.entries] == [5, 6]


def test_chunks_that_are_stored_already_are_skipped_and_counted():
    staged = empty()
    known = {(SESSION, 0): OpenEpisode(2, 3, 1.5)}
    stage(staged, request((4, 0, 0, 3, False), (5, 0, 3, 2, False)), {SESSION: 4}, known, {})
    assert staged.duplicates == 1
    assert staged.index()["first_step"].tolist() == [3]
    assert staged.index()["episode_id"].tolist() == [2]


def test_same_request_twice_in_one_commit_is_stored_once():
    staged = empty()
    stage_all(staged, [request((0, 0, 0, 3, False)), request((0, 0, 0, 3, False))], {}, {}, {})
    assert (len(staged.chunks), staged.duplicates, len(staged.requests)) == (1, 1, 2)


def test_gap_in_the_sequence_refuses_the_whole_request():
    staged = empty()
    with pytest.raises(SequenceError, match="expected 1, found 2"):
        stage(staged, request((0, 0, 0, 3, False), (2, 0, 3, 1, False)), {}, {}, {})
    assert staged == empty()


@pytest.mark.parametrize(
    "piece",
    [
        (0, 0, 7, 2, False),  # of an episode that nobody knows
        (0, 9, 4, 2, False),  # not at the step that comes next
        (0, 9, 2, 2, False),  # steps that are there already
    ],
)
def test_chunk_that_does_not_continue_its_episode_is_refused(piece):
    staged = empty()
    with pytest.raises(InvalidRequestError, match="chunk: expected"):
        stage(staged, request(piece), {}, {(SESSION, 9): OpenEpisode(1, 3, 0.0)}, {})
    assert staged == empty()


def test_nothing_follows_the_end_of_an_episode():
    staged = empty()
    with pytest.raises(InvalidRequestError, match="closed"):
        stage(staged, request((0, 0, 0, 3, True), (1, 0, 3, 2, False)), {}, {}, {})
    assert staged == empty()


def test_refused_request_does_not_hinder_others():
    staged = empty()
    bad, good = request((5, 0, 0, 1, False)), request((0, 0, 0, 2, False), session=b"t" * 16)
    stage_all(staged, [bad, good], {}, {}, {})
    assert isinstance(bad.done.exception(), SequenceError)
    assert staged.requests == [good]
    assert staged.index()["n_steps"].tolist() == [2]


def test_sessions_do_not_see_each_others_episodes():
    staged = empty()
    stage_all(staged, [request((0, 0, 0, 3, False)), request((0, 0, 0, 2, False), session=b"t" * 16)], {}, {}, {})
    assert staged.index()["episode_id"].tolist() == [5, 6]


def test_epoch_of_an_earlier_request_of_the_same_commit_counts():
    staged = empty()
    newer, older = request((0, 0, 0, 3, False)), request((0, 0, 0, 2, False), session=b"t" * 16)
    newer.epoch, older.epoch = 2, 1
    stage_all(staged, [newer, older], {}, {}, {})
    assert staged.sessions == {SESSION: 0, epoch_mark("actor"): 2}
    with pytest.raises(WriterFencedError, match="expected epoch 2 or a larger one, found 1"):
        older.done.result(0)
