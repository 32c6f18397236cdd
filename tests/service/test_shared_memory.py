"""Batches that a server on the same host puts into memory of its client: what they hold, and how long."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import replay_client
from replay_client import ClientConfig
from replay_client.shared import Slot
from replaysvc import FieldSpec, Sequences, Signature, TableConfig, Transitions
from replaysvc.errors import NotReadyError
from replaysvc.options import Fifo
from replaysvc.rpc import servicer
from replaysvc.rpc.servicer import ReplayServicer
from replaysvc.rpc.shared import SharedMemory
from tests.builders import assert_same
from tests.processes import run_script
from tests.service.frame_table import BATCH, FRAMES, STACKED, is_right, is_shared, shared_ranges, write_frames
from tests.waiting import wait_until


@pytest.fixture
def table(remote):
    """A table of frames of a server process, of which a client knows already how large batches are."""
    table = remote.create_table("t", FRAMES)
    write_frames(table)
    table.sample(BATCH, STACKED)
    return table


def shared_batch(table, **options):
    """Returns a batch that lies in shared memory."""
    batch = table.sample(BATCH, STACKED, **options)
    assert is_shared(batch.observation)
    return batch


def is_shared_again(table):
    return is_shared(table.sample(BATCH, STACKED).observation)


WIDE = Signature(FieldSpec("o", (2048,), np.float32), FieldSpec("a", (), np.int64))
WINDOWS = {
    "stack": Transitions(stack=4),
    "stack of three steps": Transitions(stack=4, n_step=3),
    "single frames": Transitions(),
    "sequences": Sequences(length=8),
    "stacked sequences": Sequences(length=4, stack=3, n_step=2),
}


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("name", WINDOWS)
def test_batches_are_the_same_through_memory_and_through_the_socket(server_process, table, name, sampler):
    with replay_client.connect(server_process.address, config=ClientConfig(shared_bytes=0)) as plain:
        for seed in range(4):
            batch = table.sample(BATCH, WINDOWS[name], sampler=sampler, seed=seed)
            other = plain.table("t").sample(BATCH, WINDOWS[name], sampler=sampler, seed=seed)
            assert_same(batch, other)
            assert not is_shared(other.observation)
    assert is_shared(batch.observation)


def test_arrays_are_the_callers_to_write_to(table):
    batch = table.sample(BATCH, Transitions())
    batch = table.sample(BATCH, Transitions())
    assert is_shared(batch.observation)
    batch.observation[:] = 7
    assert (batch.observation == 7).all()


def test_batches_that_grow_find_more_room(replay, serve, connect, monkeypatch):
    """Values around an offset travel as float16, or wide if there are many: what a batch takes changes while a table fills."""
    rooms, encode_frame = [], servicer.encode_frame
    monkeypatch.setattr(
        servicer, "encode_frame",
        lambda columns, slot, **options: rooms.append(slot and slot.room) or encode_frame(columns, slot, **options),
    )
    table = connect(serve().address).create_table("t", WIDE)
    with table.writer() as writer:
        for base in (0.0, 1e5, 2e5, 3e5):
            writer.begin(np.full(2048, base, np.float32))
            for t in range(40):
                writer.append(t, 0.0, np.full(2048, base + t + 1, np.float32), terminated=t == 39)
            writer.flush()
            for _ in range(4):
                batch = table.sample(BATCH)
                assert (batch.observation == batch.observation[:, :1]).all()
                assert (abs(batch.next_observation - batch.observation - 1) < 1).all()
    assert any(rooms)  # some batch had too little
    assert rooms[-1] == 0


def test_small_batches_and_small_columns_are_not_shared(table):
    for _ in range(3):
        assert not is_shared(table.sample(2, STACKED).observation)
    assert not is_shared(shared_batch(table).reward)


def keep(how, batch):
    """Returns what a learner may keep of a batch, and a copy of its values."""
    kept = how(batch)
    return kept, np.asarray(kept).copy()


def as_torch(batch):
    return pytest.importorskip("torch").from_numpy(np.asarray(batch.next_observation.base))


KEPT = {
    "the batch": lambda batch: batch.observation,
    "a view of a view": lambda batch: batch.observation[3:, 1:].reshape(-1)[::7],
    "a row": lambda batch: batch.observation[-1],
    "a buffer": lambda batch: memoryview(np.ascontiguousarray(batch.observation[:1])),
    "a memoryview": lambda batch: memoryview(batch.observation),
    "another dtype": lambda batch: batch.next_observation[:, -1].view(np.int8),
    "an iterator": lambda batch: next(iter(batch.observation)),
    "a tensor": as_torch,
    "a pickle": lambda batch: pickle.loads(pickle.dumps(batch)).observation,
}


def overwritten(table, how, rounds=40):
    """Returns whether anything kept of a batch changed while many others were drawn."""
    stream = table.stream(BATCH, STACKED, prefetch=2)
    kept, copies = zip(*(keep(how, next(stream)) for _ in range(3)), strict=True)
    for _ in range(rounds):
        assert is_right(next(stream))
    stream.close()
    return any((np.asarray(now) != then).any() for now, then in zip(kept, copies, strict=True))


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_of_a_batch_stays_as_it_was(table, name):
    assert not overwritten(table, KEPT[name])


def test_without_the_rule_it_would_not(table, monkeypatch):
    """A slot that were free as soon as its batch is made is written to again."""
    buffer = Slot.buffer

    def hasty(slot):
        made = buffer(slot)
        slot.come_back()
        return made

    monkeypatch.setattr(Slot, "buffer", hasty)
    with pytest.raises((AssertionError, IndexError)):
        assert not overwritten(table, KEPT["the batch"])


def test_memory_of_batches_that_are_gone_is_used_again(table):
    stream = table.stream(BATCH, STACKED, prefetch=2)
    for _ in range(50):
        assert is_right(next(stream))
    assert 1 <= len(shared_ranges()) <= 6  # under way, in hand, and the loop's last one


def test_learner_may_keep_more_batches_than_there_is_memory_for(server_process, table):
    """Of 100 batches of 1.25 MiB, 12 find room in 16 MiB."""
    config = ClientConfig(shared_bytes=16 << 20)
    before = len(shared_ranges())
    with replay_client.connect(server_process.address, config=config) as client:
        stream = client.table("t").stream(BATCH, STACKED, prefetch=4)
        kept = [next(stream) for _ in range(100)]
        assert all(map(is_right, kept))
        assert 8 <= sum(is_shared(batch.observation) for batch in kept) <= 13
        assert sum(stop - start for start, stop in shared_ranges()[before:]) <= 16 << 20
        del kept
        for _ in range(10):
            last = next(stream)
        assert is_shared(last.observation)


def test_threads_that_share_a_client_never_share_a_slot(table):
    stop, wrong = threading.Event(), []

    def learn(number):
        rng, kept = np.random.default_rng(number), []
        while not stop.is_set():
            kept.append(table.sample(BATCH, STACKED))
            if len(kept) > rng.integers(1, 6):
                wrong.extend(batch for batch in kept if not is_right(batch))
                kept.clear()

    threads = [threading.Thread(target=learn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        assert is_right(table.sample(BATCH, STACKED))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert is_shared_again(table)


THREADED_FORK = """
import os, sys, threading
import replay_client
from tests.service.frame_table import BATCH, STACKED, is_right
client = replay_client.connect(sys.argv[1])
table = client.table("t")
stop = threading.Event()

def learn():
    while not stop.is_set():
        assert is_right(table.sample(BATCH, STACKED))

def fork():
    for _ in range(5):
        batch = table.sample(BATCH, STACKED)
        child = os.fork()
        if not child:
            os._exit(0 if is_right(batch) else 1)
        del batch
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

learner, forks = threading.Thread(target=learn), [threading.Thread(target=fork) for _ in range(2)]
for thread in (learner, *forks):
    thread.start()
for thread in forks:
    thread.join()
stop.set()
learner.join()
"""


def test_threads_may_fork_while_others_sample(server_process, table):
    run_script("import warnings; warnings.simplefilter('ignore')\n" + THREADED_FORK, server_process.address)


def test_batches_outlive_their_client_and_their_server(server_process, table):
    kept = shared_batch(table)
    table._client.close()
    server_process.kill()
    assert is_right(kept)


def test_closed_client_shares_nothing_any_more(server_process, table):
    kept = shared_batch(table)
    assert shared_ranges(server_process.pid)
    table._client.close()
    wait_until(lambda: not shared_ranges(server_process.pid))
    assert is_right(kept)
    del kept
    assert not shared_ranges()
    table.sample(BATCH, STACKED)
    assert is_right(shared_batch(table))  # and connects again


def test_server_that_is_killed_and_started_again_gets_memory_anew(server_process, table):
    stream = table.stream(BATCH, STACKED, prefetch=3, timeout_s=60.0)
    kept = [next(stream) for _ in range(5)]
    for _ in range(2):
        server_process.restart()
        kept += [next(stream) for _ in range(5)]
        wait_until(lambda: is_shared(next(stream).observation))
    assert all(map(is_right, kept))


def test_slots_that_a_new_server_does_not_know_are_replaced(server_process, table):
    """Though none is in use, and so no new one is needed."""
    shared_batch(table)
    server_process.restart()
    wait_until(lambda: is_shared_again(table))


CLIENT = """
import sys
import replay_client
from tests.service.frame_table import BATCH, STACKED, is_shared
client = replay_client.connect(sys.argv[1])
stream = client.table("t").stream(BATCH, STACKED, prefetch=2)
kept = [next(stream) for _ in range(8)]
assert is_shared(kept[-1].observation)
print("ready", flush=True)
sys.stdin.read()
"""


def test_client_that_is_killed_leaves_nothing_behind(server_process, table):
    table._client.close()
    before = os.listdir("/dev/shm")
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, server_process.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    assert len(shared_ranges(server_process.pid)) >= 5
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not shared_ranges(server_process.pid))
    descriptors = [os.readlink(path) for path in Path(f"/proc/{server_process.pid}/fd").iterdir() if path.is_symlink()]
    assert not [name for name in descriptors if "memfd" in name]
    assert os.listdir("/dev/shm") == before


FORK = """
import os, sys
import replay_client
from tests.service.frame_table import BATCH, STACKED, is_right, is_shared
client = replay_client.connect(sys.argv[1])
table = client.table("t")
table.sample(BATCH, STACKED)
batch = table.sample(BATCH, STACKED)
assert is_shared(batch.observation)
done, go = os.pipe()
child = os.fork()
if not child:
    os.close(go)
    os.read(done, 1)  # the parent has drawn many others by now
    good = is_right(batch)
    table.sample(BATCH, STACKED)
    own = [table.sample(BATCH, STACKED) for _ in range(3)]
    good = good and all(map(is_right, own)) and is_shared(own[-1].observation)
    client.close()
    os._exit(0 if good else 1)
os.close(done)
del batch
for _ in range(10):
    assert is_right(table.sample(BATCH, STACKED))
os.write(go, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert is_right(table.sample(BATCH, STACKED))
"""


def test_forked_child_keeps_its_parents_batch_and_gets_memory_of_its_own(server_process, table):
    run_script("import warnings; warnings.simplefilter('ignore')\n" + FORK, server_process.address)


ORPHAN = """
import os, sys
import replay_client
from tests.service.frame_table import BATCH, STACKED, is_shared
client = replay_client.connect(sys.argv[1])
table = client.table("t")
kept = [table.sample(BATCH, STACKED) for _ in range(3)]
assert is_shared(kept[-1].observation)
child = os.fork()
if not child:
    sys.stdin.read()
    os._exit(0)
print("ready", flush=True)
os._exit(0)
"""


def test_child_that_outlives_its_parent_does_not_keep_the_servers_memory(server_process, table):
    table._client.close()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", ORPHAN, server_process.address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    assert process.wait(30) == 0
    wait_until(lambda: not shared_ranges(server_process.pid))
    process.stdin.close()
    process.stdout.close()


# -- where memory cannot be shared -----------------------------------------------------------------------------------------


@pytest.fixture
def local(replay, serve, connect):
    """A client of a server in this process, and its table."""
    client = connect(serve().address)
    write_frames(replay.create_table("t", FRAMES))
    return client.table("t")


def is_never_shared(table, count=6):
    batches = [table.sample(BATCH, STACKED) for _ in range(count)]
    assert all(map(is_right, batches))
    return not any(is_shared(batch.observation) for batch in batches)


def test_server_that_cannot_be_reached_so_is_asked_once(local, monkeypatch):
    """As from another host: what the server says of its socket means nothing there."""
    offer, asked = SharedMemory.offer, []

    def elsewhere(*arguments):
        asked.append(1)
        return replace(offer(*arguments), socket=b"replaysvc-nobody")

    monkeypatch.setattr(SharedMemory, "offer", elsewhere)
    assert is_never_shared(local)
    assert len(asked) == 1


def test_another_process_under_the_servers_name_gets_no_memory(local, monkeypatch):
    offer = SharedMemory.offer
    monkeypatch.setattr(SharedMemory, "offer", lambda *arguments: replace(offer(*arguments), proof=bytes(16)))
    assert is_never_shared(local)


def test_older_server_that_knows_nothing_of_it(replay, serve, connect, monkeypatch):
    write_frames(replay.create_table("t", FRAMES))
    monkeypatch.setattr(ReplayServicer, "OpenShared", ReplayServicer.__mro__[1].OpenShared)
    assert is_never_shared(connect(serve().address).table("t"))


def test_server_that_takes_none(replay, serve, connect):
    write_frames(replay.create_table("t", FRAMES))
    assert is_never_shared(connect(serve(shared_bytes=0).address).table("t"))


def test_client_that_shares_none(replay, serve, connect, monkeypatch):
    write_frames(replay.create_table("t", FRAMES))
    monkeypatch.setattr(SharedMemory, "offer", None)  # is not asked for
    assert is_never_shared(connect(serve().address, shared_bytes=0).table("t"))


def test_server_with_no_room_for_more_answers_through_the_socket(replay, serve, connect):
    write_frames(replay.create_table("t", FRAMES))
    table = connect(serve(shared_bytes=8 << 20).address).table("t")
    kept = [table.sample(BATCH, STACKED) for _ in range(12)]
    assert all(map(is_right, kept))
    assert 1 <= sum(is_shared(batch.observation) for batch in kept) <= 4  # a connection gets half of it


# -- a slot whose request did not end --------------------------------------------------------------------------------------


def late_writer(replay, monkeypatch):
    """Makes the next draw into shared memory hang, and then write garbage there. Returns when it hangs, what lets it go on,
    and when it is done."""
    hangs, go, done = threading.Event(), threading.Event(), threading.Event()
    engine = replay.engine("t")
    draw = engine.draw

    def once(*arguments, allocate, **options):
        if allocate is np.empty:
            return draw(*arguments, allocate=allocate, **options)
        monkeypatch.setattr(engine, "draw", draw)
        place = allocate((BATCH, 5, 64, 64), np.uint8)
        hangs.set()
        go.wait(60)
        place[:] = 255
        done.set()
        return draw(*arguments, allocate=np.empty, **options)

    monkeypatch.setattr(engine, "draw", once)
    return hangs, go, done


def batches_after_a_lost_answer(replay, table, monkeypatch):
    """Returns batches that were drawn after a request was given up, once the server has written for it after all."""
    table.sample(BATCH, STACKED)
    assert is_shared_again(table)
    _, go, done = late_writer(replay, monkeypatch)
    kept = [table.sample(BATCH, STACKED) for _ in range(3)]  # the first attempt of the first one takes too long
    go.set()
    assert done.wait(60)
    return kept


def test_slot_of_a_lost_answer_is_not_used_again(replay, serve, connect, monkeypatch):
    write_frames(replay.create_table("t", FRAMES))
    table = connect(serve().address, call_timeout_s=1.0).table("t")
    assert all(map(is_right, batches_after_a_lost_answer(replay, table, monkeypatch)))


def test_if_it_were_a_batch_would_be_overwritten(replay, serve, connect, monkeypatch):
    write_frames(replay.create_table("t", FRAMES))
    table = connect(serve().address, call_timeout_s=1.0).table("t")
    monkeypatch.setattr(Slot, "spoil", Slot.come_back)
    assert not all(map(is_right, batches_after_a_lost_answer(replay, table, monkeypatch)))


def test_slots_of_a_stream_that_is_closed_are_not_used_again(replay, serve, connect, monkeypatch):
    write_frames(replay.create_table("t", FRAMES))
    table = connect(serve().address, call_timeout_s=2.0).table("t")
    table.sample(BATCH, STACKED)
    stream = table.stream(BATCH, STACKED, prefetch=2)
    next(stream)
    wait_until(lambda: is_shared(next(stream).observation))
    hangs, go, done = late_writer(replay, monkeypatch)
    next(stream)
    assert hangs.wait(30)
    stream.close()
    kept = [table.sample(BATCH, STACKED) for _ in range(3)]
    go.set()
    assert done.wait(60)
    assert all(map(is_right, kept))


def test_refusal_by_the_server_leaves_the_slot_free(server_process, remote):
    """While a learner waits for steps it asks again and again, which must not use memory up."""
    table = remote.create_table("t", FRAMES, TableConfig(samplers={"queue": Fifo(1), "uniform": replay_client.Uniform()}))
    write_frames(table, BATCH * 3)
    for _ in range(3):
        table.sample(BATCH, STACKED, sampler="queue")
    before = files_of_memory()
    for _ in range(20):
        with pytest.raises(NotReadyError):
            table.sample(BATCH, STACKED, sampler="queue")
    assert files_of_memory() == before


def files_of_memory():
    """Returns the inodes of what this process shares."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:replay-client" in line}
