"""Batches that are made into tensors in the background: the same values in the same order, errors told, and an end."""

import threading

import numpy as np
import pytest
import torch

import replaysvc
from replay_client import FieldSpec, RaggedArray, Signature, SpecMismatchError, tensor_batches
from replaysvc.errors import NotReadyError
from tests.builders import SCALARS, write_episodes
from tests.waiting import wait_until


@pytest.fixture
def table(tmp_path):
    with replaysvc.open(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS)
        write_episodes(table, [9, 6])
        yield table


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "replay-tensors"]


def test_tensors_hold_what_the_batches_hold_in_their_order(table):
    batches = [table.sample(8, seed=seed) for seed in range(5)]
    with tensor_batches(iter(batches)) as stream:
        made = list(stream)
    assert len(made) == 5
    for batch, tensors in zip(batches, made, strict=True):
        for name, value in batch.asdict().items():
            assert torch.equal(tensors[name], torch.from_numpy(np.ascontiguousarray(value))), name


def test_columns_that_are_nested_or_ragged_become_tensors_too(tmp_path):
    words = FieldSpec("w", (3,), np.int32, ragged=True)
    signature = Signature({"a": FieldSpec("a", (2,), np.float32)}, FieldSpec("x", (), np.int64), w=words)
    with replaysvc.open(tmp_path / "s") as replay:
        table = replay.create_table("t", signature)
        with table.writer() as writer:
            writer.begin({"a": [0, 0]})
            writer.append(1, 1.0, {"a": [1, 1]}, extras={"w": [7, 8]}, truncated=True)
        batch = table.sample(2)
        assert isinstance(batch.extras["w"], RaggedArray)
        tensors = next(tensor_batches(iter([batch])))
    assert tensors["next_observation"]["a"].tolist() == [[1, 1], [1, 1]]
    assert tensors["w"]["values"].tolist() == [7, 8, 7, 8]
    assert tensors["w"]["offsets"].tolist() == [0, 2, 4]


def test_no_more_batches_are_taken_than_are_ready_and_one_in_the_making(table):
    taken = []

    def batches():
        while True:
            taken.append(len(taken))
            yield table.sample(4)

    with tensor_batches(batches(), ahead=3) as stream:
        wait_until(lambda: len(taken) == 4)
        next(stream)
        wait_until(lambda: len(taken) == 5)
        next(stream)
    assert len(taken) <= 7


def test_what_a_batch_raises_is_raised_by_the_next_call_after_those_that_were_made(table):
    def batches():
        yield table.sample(4)
        raise NotReadyError("no more")

    stream = tensor_batches(batches())
    assert len(next(stream)["reward"]) == 4
    for _ in range(2):
        with pytest.raises(NotReadyError, match="no more"):
            next(stream)
    wait_until(lambda: not threads())


def test_closing_ends_the_thread_and_the_stream_it_takes_from(table):
    ended = []

    def batches():
        try:
            while True:
                yield table.sample(4)
        finally:
            ended.append(True)

    stream = tensor_batches(batches())
    next(stream)
    stream.close()
    stream.close()
    assert (ended, threads()) == ([True], [])
    with pytest.raises(StopIteration):
        next(stream)


def test_a_stream_that_is_forgotten_ends_with_what_it_takes_from(table):
    ended = []

    def batches():
        try:
            while True:
                yield table.sample(4)
        finally:
            ended.append(True)

    stream = tensor_batches(batches())
    next(stream)
    del stream
    wait_until(lambda: ended and not threads())


def test_read_only_arrays_are_copied_so_that_nothing_is_changed_through_a_tensor(table):
    batch = table.sample(4)
    batch.reward.setflags(write=False)
    before = batch.reward.copy()
    tensors = next(tensor_batches(iter([batch])))
    tensors["reward"].add_(1)
    assert batch.reward.tolist() == before.tolist()


@pytest.mark.parametrize("ahead", [0, 65, 1.5, "2"])
def test_a_wrong_ahead_is_refused(table, ahead):
    with pytest.raises(SpecMismatchError, match="ahead: expected a whole number from 1 to 64"):
        tensor_batches(iter([]), ahead=ahead)
    assert not threads()
