"""Writers behind a client: backpressure, the timer, errors that last, and many of them at once."""

import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import grpc
import numpy as np
import pytest

import replay_client
from replay_client.connection import error_of
from replay_client.sender import Sender
from replaysvc import ClientConfig, FieldSpec, Signature, TableConfig
from replaysvc.errors import (
    CapacityError,
    NotFoundError,
    StorageError,
    UnavailableError,
    WaitTimeoutError,
)
from replaysvc.rpc.server import Server
from tests.builders import SCALARS, write_episode, write_episodes
from tests.service.checks import stored_lengths, write_numbered

BLOBS = Signature(FieldSpec("observation", (1 << 16,), np.uint8), FieldSpec("action", (), np.int64))
BLOB_STEPS = 20  # random bytes do not compress: 16 such chunks of one step fill the smallest client buffer


class Gate:
    """Holds every commit of a table until it is opened."""

    def __init__(self, monkeypatch, replay, table):
        self.held, self._open = threading.Event(), threading.Event()
        store = replay.engine(table)._store
        append = store.append

        def gated(*args):
            self.held.set()
            assert self._open.wait(60)
            append(*args)

        monkeypatch.setattr(store, "append", gated)

    def open(self):
        self._open.set()


def write_blobs(writer, steps, seen=None):
    """Writes an episode of random bytes; `seen` is told how many steps were taken."""
    rng = np.random.default_rng(5)
    blobs = rng.integers(0, 256, (steps + 1, 1 << 16), np.uint8)
    writer.begin(blobs[0])
    for t in range(steps):
        writer.append(t, 0.0, blobs[t + 1], terminated=t == steps - 1)
        if seen is not None:
            seen.append(t)
    return blobs


def test_full_client_buffer_blocks_append_until_an_acknowledgement(serve, connect, replay, monkeypatch):
    client = connect(serve().address, buffer_bytes=1 << 20)
    table = client.create_table("t", BLOBS, TableConfig(chunk_steps=1))
    gate = Gate(monkeypatch, replay, "t")
    blocked = threading.Event()
    put_wait = threading.Condition.wait

    def wait(condition, timeout=None):
        if threading.current_thread().name.startswith("appending") and timeout is None:
            blocked.set()
        return put_wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", wait)
    seen = []
    with ThreadPoolExecutor(1, thread_name_prefix="appending") as pool, table.writer() as writer:
        writing = pool.submit(write_blobs, writer, BLOB_STEPS, seen)
        assert blocked.wait(60)
        assert gate.held.wait(60)
        assert not writing.done()
        assert 8 <= len(seen) < BLOB_STEPS  # a chunk of one step carries two observations: 8 fill 1 MiB
        gate.open()
        blobs = writing.result()
        writer.flush()
    assert (table.read_episode(0)["observation"] == blobs).all()


def test_flush_with_a_full_buffer_keeps_to_its_timeout(serve, connect, replay, monkeypatch):
    client = connect(serve().address, buffer_bytes=1 << 20)
    table = client.create_table("t", BLOBS, TableConfig(chunk_steps=8))
    gate = Gate(monkeypatch, replay, "t")
    writer = table.writer()
    blobs = write_blobs(writer, 16)
    writer.begin(blobs[0])
    writer.append(0, 0.0, blobs[1])
    with pytest.raises(WaitTimeoutError, match="not durable after 0.05 s"):
        writer.flush(timeout_s=0.05)
    gate.open()
    writer.flush()
    assert table.stats().steps == 17
    writer.close()


def test_full_queue_of_the_server_is_tried_again_and_nothing_is_lost(small_replay, connect, monkeypatch):
    """Three clients, one append of each under way: one is being committed, one waits, and for the third there is no room."""
    server = Server(small_replay, "127.0.0.1:0")
    server.start()
    clients = [connect(server.address) for _ in range(3)]
    clients[0].create_table("t", BLOBS, TableConfig(chunk_steps=4))  # 0.6 MiB of a queue of 1 MiB, as sent and decoded
    refused = threading.Event()
    reserve = small_replay._committer.reserve

    def counting(*args):
        try:
            return reserve(*args)
        except CapacityError:
            refused.set()
            raise

    monkeypatch.setattr(small_replay._committer, "reserve", counting)
    gate = Gate(monkeypatch, small_replay, "t")
    writers = [client.table("t").writer() for client in clients]
    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write_blobs, writer, BLOB_STEPS) for writer in writers]
        assert refused.wait(60)
        gate.open()
        blobs = [future.result() for future in writing]
        for writer in writers:
            writer.close(timeout_s=60)
    table = clients[0].table("t")
    assert table.stats().steps == 3 * BLOB_STEPS
    for number in range(3):
        assert (table.read_episode(number)["observation"] == blobs[number]).all()
    server.stop(5)


def test_failed_commits_are_tried_again(serve, connect, replay, monkeypatch):
    """A disk that is full, then fails, then has recovered."""
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(chunk_steps=3))
    store = replay.engine("t")._store
    append = store.append
    errors = [CapacityError("no space left"), StorageError("input/output error"), CapacityError("no space left")]

    def failing(*args):
        if errors:
            raise errors.pop()
        append(*args)

    monkeypatch.setattr(store, "append", failing)
    with table.writer() as writer:
        write_numbered(writer, 0, 10)
        writer.flush(timeout_s=60)
    assert not errors
    assert stored_lengths(table) == {0: 10}


def test_flush_that_times_out_says_what_fails(serve, connect, replay, monkeypatch):
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(chunk_steps=3))
    store = replay.engine("t")._store
    append, failed = store.append, threading.Event()

    def failing(*args):
        failed.set()
        raise CapacityError("no space left")

    monkeypatch.setattr(store, "append", failing)
    writer = table.writer()
    write_numbered(writer, 0, 10)
    assert failed.wait(60)
    with pytest.raises(WaitTimeoutError, match="they stay queued"):
        writer.flush(timeout_s=0.01)
    with pytest.raises(WaitTimeoutError, match="no space left"):
        writer.flush(timeout_s=1.0)
    monkeypatch.setattr(store, "append", append)
    writer.flush()
    assert stored_lengths(table) == {0: 10}
    writer.close()


def test_timer_sends_a_part_filled_chunk_of_each_writer(serve, connect):
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(flush_interval_s=0.01))
    writers = [table.writer(actor="a"), table.writer(actor="a"), table.writer(actor="b")]
    for number, writer in enumerate(writers):
        write_numbered(writer, number, 3, end="open")
    while table.stats().episodes < 3:
        table.sample(1, timeout_s=60)
    assert stored_lengths(table) == {0: 3, 1: 3, 2: 3}


def test_lasting_error_is_raised_by_flush_and_nothing_hangs(serve, connect):
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(chunk_steps=4))
    writer = table.writer()
    write_numbered(writer, 0, 4)
    writer.flush()
    client.delete_table("t")
    write_numbered(writer, 1, 4)
    with pytest.raises(NotFoundError, match="'t'"):
        writer.flush()
    writer.begin(0)
    with pytest.raises(NotFoundError):
        writer.append(0, 0.0, 0, terminated=True)
    client.close()  # has been told, so it does not say it again
    with pytest.raises(UnavailableError, match="client was closed"):
        writer.flush()
    writer.close()


def test_lasting_error_that_nobody_was_told_is_raised_by_close(serve, connect):
    client = connect(serve().address)
    writer = client.create_table("t", SCALARS, TableConfig(chunk_steps=4)).writer()
    writer.flush()
    client.delete_table("t")
    write_numbered(writer, 0, 4)
    with pytest.raises(NotFoundError, match="'t'"):
        client.close()


def test_table_made_again_takes_new_writers_of_the_same_actor(serve, connect):
    client = connect(serve().address)
    table = client.create_table("t", SCALARS)
    old = table.writer()
    client.delete_table("t")
    write_numbered(old, 0, 4)
    with pytest.raises(NotFoundError):
        old.flush()
    table = client.create_table("t", SCALARS)
    with table.writer() as writer:
        write_numbered(writer, 1, 5)
    assert stored_lengths(table) == {1: 5}


def test_closing_the_client_stores_what_its_writers_were_given_and_ends_them(serve, connect, replay):
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(flush_interval_s=3600))
    writer = table.writer()
    write_numbered(writer, 0, 4, end="open")
    client.close()
    assert stored_lengths(replay.table("t")) == {0: 4}
    for call in (lambda: writer.append(4, 0.0, 5), writer.flush, writer.abandon):
        with pytest.raises(UnavailableError, match="client was closed"):
            call()
    writer.close()
    with table.writer() as again:  # the client connects again
        write_numbered(again, 1, 2)
    assert stored_lengths(replay.table("t")) == {0: 4, 1: 2}


def test_closing_the_client_ends_its_threads(serve):
    server = serve()
    before = set(threading.enumerate())
    with replay_client.connect(server.address) as client:
        table = client.create_table("t", SCALARS)
        write_episodes(table, [3], actor="a")
        table.writer(actor="b")
        started = {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("replaysvc-sender")}
        assert len(started) == 2
    assert not any(thread.is_alive() for thread in started)


def test_closing_the_client_while_the_server_is_away_ends_soon(server_process):
    config = ClientConfig(call_timeout_s=0.3)
    client = replay_client.connect(server_process.address, config=config)
    writer = client.create_table("t", SCALARS).writer()
    writer.flush()
    server_process.kill()
    write_numbered(writer, 0, 4)
    with pytest.raises(WaitTimeoutError, match="they stay queued"):
        client.close()
    client.close()


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError("a bug")])
def test_bug_in_the_sender_is_told_to_its_writers(serve, connect, monkeypatch, error):
    client = connect(serve().address)
    table = client.create_table("t", SCALARS)
    writer, sender = table.writer(), client.sender("t", table._uuid, "", None, 120.0)

    def failing():
        raise error

    monkeypatch.setattr(sender, "_send", failing)
    write_numbered(writer, 0, 4)
    with pytest.raises(StorageError, match="a bug"):
        writer.flush()


def test_compressible_chunks_are_sent_in_messages_that_the_server_can_hold_decoded(serve, connect, replay, monkeypatch):
    """200 MiB of zeros, as Atari's frames nearly are, queued while the server is busy."""
    zeros = Signature(FieldSpec("observation", (1 << 20,), np.uint8), FieldSpec("action", (), np.int64))
    client = connect(serve().address)
    table = client.create_table("t", zeros, TableConfig(chunk_steps=10))
    engine = replay.engine("t")
    sizes, submit = [], engine.submit

    def measured(session, actor, chunks, **options):
        request = submit(session, actor, chunks, **options)
        sizes.append(sum(chunk.header.raw_bytes for chunk in request.decoded))
        return request

    monkeypatch.setattr(engine, "submit", measured)
    gate = Gate(monkeypatch, replay, "t")
    blob = np.zeros(1 << 20, np.uint8)
    with table.writer() as writer:
        writer.begin(blob)
        for t in range(200):
            writer.append(t, 0.0, blob, truncated=t == 199)
            if t == 20:
                assert gate.held.wait(60)
        gate.open()
        writer.flush()
    assert table.stats().steps == 200
    assert max(sizes) <= 33 << 20


def test_sixteen_writers_at_once_store_every_episode_once(serve, connect):
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(chunk_steps=3))

    def write(worker):
        rng = np.random.default_rng(worker)
        lengths = {100 * worker + i: length for i, length in enumerate(rng.integers(1, 8, 25).tolist())}
        with table.writer(actor=f"actor-{worker % 5}") as writer:
            for number, length in lengths.items():
                write_numbered(writer, number, length)
        return lengths

    with ThreadPoolExecutor(16) as pool:
        written = {number: length for lengths in pool.map(write, range(16)) for number, length in lengths.items()}
    assert stored_lengths(table) == written
    assert {record.actor for record in table.episodes(limit=1000)} == {f"actor-{i}" for i in range(5)}


def test_a_table_that_was_deleted_and_made_anew_takes_writers_of_the_same_actor(remote):
    for _ in range(3):
        table = remote.create_table("again", SCALARS)
        write_episodes(table, [2], actor="a")
        assert table.stats().steps == 2
        remote.delete_table("again")
    assert sum(thread.name == "replaysvc-sender-again" for thread in threading.enumerate() if thread.is_alive()) <= 1


def test_a_writer_whose_table_another_client_made_anew_is_told_so(remote, server_process):
    table = remote.create_table("t", SCALARS)
    writer = table.writer()
    write_episode(writer, 2)
    writer.flush()
    with replay_client.connect(server_process.address) as other:
        other.delete_table("t")
        other.create_table("t", SCALARS)
    write_episode(writer, 2, episode=1)
    with pytest.raises(NotFoundError, match=r"table t was deleted and made anew; get it again with table\('t'\)"):
        writer.flush()
    write_episodes(remote.table("t"), [3])
    assert remote.table("t").stats().steps == 3


class Timer:
    """Holds a sender's own thread with a part-filled chunk in its hands, between writer and queue, until it is let go."""

    def __init__(self, monkeypatch):
        self.held, self._go = threading.Event(), threading.Event()
        put = Sender.put

        def held(sender, chunk, **options):
            if threading.current_thread().name.startswith("replaysvc-sender"):
                self.held.set()
                assert self._go.wait(60)
            put(sender, chunk, **options)

        monkeypatch.setattr(Sender, "put", held)

    def let_go(self):
        self._go.set()


def test_closing_the_client_waits_for_the_chunk_that_its_timer_is_about_to_queue(serve, connect, replay, monkeypatch):
    timer = Timer(monkeypatch)
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(flush_interval_s=0.01))
    write_numbered(table.writer(), 0, 3, end="open")
    assert timer.held.wait(60)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(client.close)
        wait([closing], 0.3)  # it is not over before; one that did not wait for the timer would be
        timer.let_go()
        closing.result(60)
    assert stored_lengths(replay.table("t")) == {0: 3}


def test_closing_the_client_tells_of_steps_that_it_could_not_take_over(serve, connect, monkeypatch):
    timer = Timer(monkeypatch)
    client = connect(serve().address, call_timeout_s=0.3)
    table = client.create_table("t", SCALARS, TableConfig(flush_interval_s=0.01))
    writer = table.writer()
    write_numbered(writer, 0, 3, end="open")
    assert timer.held.wait(60)
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(writer.append, 3, 0.0, 4)  # waits for the timer, too, and must not be taken afterwards
        with pytest.raises(WaitTimeoutError, match="last 3 steps are not stored"):
            client.close()
        timer.let_go()
        with pytest.raises(UnavailableError, match="client was closed"):
            appending.result(60)


def test_a_step_that_comes_while_the_client_is_closed_is_stored_or_refused(serve, connect, replay):
    """Never taken and then forgotten: not even by a writer that closes while another thread is in it."""
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, TableConfig(flush_interval_s=3600))
    writers = [table.writer(actor=f"a{i}") for i in range(4)]
    begun = threading.Barrier(len(writers) + 1)

    def write(writer):
        writer.begin(0)
        begun.wait(60)
        for t in itertools.count():
            try:
                writer.append(t, 0.0, t + 1)
            except UnavailableError:
                return t

    with ThreadPoolExecutor(len(writers)) as pool:
        writing = [pool.submit(write, writer) for writer in writers]
        begun.wait(60)
        client.close()
        taken = [future.result(60) for future in writing]
    stored = {record.actor: record.length for record in replay.table("t").episodes()}
    assert stored == {f"a{i}": steps for i, steps in enumerate(taken) if steps}


@pytest.mark.parametrize("reconnect_timeout_s", [0.2, 60.0])
def test_closing_the_client_while_the_server_is_away_waits_once_for_all_its_writers(server_process, reconnect_timeout_s):
    config = ClientConfig(call_timeout_s=2.0, reconnect_timeout_s=reconnect_timeout_s)
    client = replay_client.connect(server_process.address, config=config)
    table = client.create_table("t", SCALARS)
    writers = [table.writer(actor=f"a{i}") for i in range(8)]
    for number, writer in enumerate(writers):
        write_numbered(writer, number, 3, end="open")
        writer.flush()
    server_process.kill()
    for writer in writers:
        writer.append(3, 0.0, 0)
    began = time.monotonic()
    with pytest.raises((UnavailableError, WaitTimeoutError)):
        client.close()
    assert time.monotonic() - began < 9  # each by itself waits for 2 s


def test_more_senders_than_a_new_connection_may_have_calls_are_no_outage(serve, connect, caplog):
    """Until it knows the server's limit, the connection sends them all, and the server refuses those beyond it unread."""
    address = serve().address
    table = connect(address).create_table("t", SCALARS)
    client = connect(address)
    late = client.table("t")
    writers = [late.writer(actor=f"a{i}") for i in range(80)]
    client.connection.close()  # so that their first calls are the first of a connection
    with caplog.at_level(logging.WARNING, logger="replay_client"):
        for number, writer in enumerate(writers):
            write_numbered(writer, number, 2)
        for writer in writers:
            writer.flush(60)
    assert table.stats().steps == 160
    assert [record.getMessage() for record in caplog.records] == []


def test_a_call_that_the_server_did_not_look_at_is_made_again_soon():
    class Refused:
        """As gRPC tells of HTTP/2's REFUSED_STREAM."""

        def code(self):
            return grpc.StatusCode.UNAVAILABLE

        def details(self):
            return "Received RST_STREAM with error code 7"

        def trailing_metadata(self):
            return ()

    error = error_of(Refused(), "localhost:7777")
    assert isinstance(error, UnavailableError)
    assert 0 < error.retry_after_s < 1
    assert "no server answers" not in str(error)
