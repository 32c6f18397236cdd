"""An embedded writer that is faster than the disk: its steps wait in memory, within bounds, and none is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from replaysvc import FieldSpec, Signature, StoreConfig, TableConfig
from replaysvc.errors import CapacityError
from replaysvc.replay import Replay

BLOBS = Signature(FieldSpec("observation", (1 << 16,), np.uint8), FieldSpec("action", (), np.int64))


@pytest.fixture
def small(tmp_path):
    with Replay(tmp_path / "small", StoreConfig(queue_bytes=1 << 20)) as replay:
        yield replay


def blobs_of(count):
    return np.random.default_rng(5).integers(0, 256, (count, 1 << 16), np.uint8)


def test_append_waits_while_the_queue_is_full(small, monkeypatch):
    table = small.create_table("t", BLOBS, TableConfig(chunk_steps=1))
    held, go_on, taken = threading.Event(), threading.Event(), []
    store = small.engine("t")._store
    append = store.append

    def gated(*args):
        held.set()
        assert go_on.wait(60)
        append(*args)

    monkeypatch.setattr(store, "append", gated)
    blobs = blobs_of(31)

    def write():
        with table.writer() as writer:
            writer.begin(blobs[0])
            for t in range(30):
                writer.append(t, 0.0, blobs[t + 1], truncated=t == 29)
                taken.append(t)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        assert held.wait(60)
        assert not writing.done()
        assert len(taken) < 30
        go_on.set()
        writing.result()
    assert (table.read_episode(0)["observation"] == blobs).all()


def test_flush_with_a_full_queue_takes_the_part_filled_chunk_and_waits(small, monkeypatch):
    table = small.create_table("t", BLOBS, TableConfig(chunk_steps=2, flush_interval_s=3600))
    reserve, refusals = small._committer.reserve, [CapacityError("full")] * 2

    def refusing(size, wait_s):
        if refusals:
            raise refusals.pop()
        reserve(size, wait_s)

    blobs = blobs_of(4)
    writer = table.writer()
    writer.begin(blobs[0])
    writer.append(0, 0.0, blobs[1])
    monkeypatch.setattr(small._committer, "reserve", refusing)
    with pytest.raises(CapacityError):  # of the second refusal, when it tries again
        writer.flush()
    writer.append(1, 0.0, blobs[2])
    writer.append(2, 0.0, blobs[3], terminated=True)
    writer.close()
    assert (table.read_episode(0)["observation"] == blobs).all()


def test_memory_is_set_aside_before_chunks_are_decoded_and_given_back(small, monkeypatch):
    table = small.create_table("t", BLOBS, TableConfig(chunk_steps=4))
    engine, committer = small.engine("t"), small._committer
    held = []
    decode = engine._core.decoder.decode
    monkeypatch.setattr(engine._core.decoder, "decode", lambda *args: (held.append(committer._held_bytes), decode(*args))[1])
    with table.writer() as writer:
        writer.begin(np.zeros(1 << 16, np.uint8))
        for t in range(4):
            writer.append(t, 0.0, np.zeros(1 << 16, np.uint8), truncated=t == 3)
    assert held[0] >= 5 << 16
    small.close()
    assert committer._held_bytes == committer._queued_bytes == 0
