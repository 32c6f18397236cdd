"""Writers behind a client whose steps the limiter holds back: they stop, they are told why, and they lose nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from replay_client import sender as sender_module
from replay_client.sender import Sender
from replaysvc import ClientConfig, Limiter, TableConfig
from replaysvc.errors import LimitedError, UnavailableError, WaitTimeoutError
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS
from tests.service.checks import stored_lengths, write_numbered
from tests.service.raw import chunks_of

QUEUE = TableConfig(chunk_steps=1, flush_interval_s=0.01, limiter=Limiter.queue(10))
CHUNK = chunks_of(1)[0]
HELD = "limiter: no room"


class Door:
    """Stands in for a connection to a server that lets in messages of `room` chunks in all, and answers at once."""

    def __init__(self, **config):
        self.config = ClientConfig(**config)
        self.sizes = []  # of all appends, refused or not
        self._room, self._last = 0, -1
        self._changed = threading.Condition()

    def call(self, method, request, *, timeout_s=None):
        with self._changed:
            if method == "Append":
                self.sizes.append(len(request.chunks))
                self._changed.notify_all()
                if len(request.chunks) > self._room:
                    raise LimitedError(HELD)
                self._room -= len(request.chunks)
                assert request.chunks[0].sequence == self._last + 1
                self._last = request.chunks[-1].sequence
            return pb.AppendResponse(last_sequence=self._last)

    def let_in(self, chunks):
        """Makes room for so many chunks more; returns how many appends came before."""
        with self._changed:
            self._room += chunks
            return len(self.sizes)

    def wait_for_appends(self, count):
        """Waits until so many have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.sizes) >= count, 60)
            return len(self.sizes)


class Asked:
    """Stands in for a writer with a part-filled chunk: counts how often it is asked for it."""

    open_episode = None

    def __init__(self):
        self.times = 0
        self.asked = threading.Event()

    def flush_due(self, *, at_once=False):
        self.times += 1
        self.asked.set()

    def finish(self, reason, timeout_s):
        self.times += 1

    def end(self, reason):
        pass


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def make_sender():
    """Makes senders to a Door with chunks queued, and starts them; all are ended in the end."""
    senders = []

    def make(door, chunks, writer=None):
        sender = Sender(door, "t", "actor", None, 120.0, "")
        senders.append((door, sender))
        for _ in range(chunks):
            sender.put(CHUNK, wait=False)
        sender.attach(writer or Asked())
        return sender

    yield make
    for door, sender in senders:
        door.let_in(1 << 20)
        sender.close(60)
        sender.join()


def flush_in_vain(writer, words):
    """Flushes until the writer knows that the limiter is why it cannot: the server waits for a second before it says so."""
    for _ in range(100):
        with pytest.raises(WaitTimeoutError) as caught:
            writer.flush(0.2)
        if words in str(caught.value):
            return
    pytest.fail("the limiter is not named")


def held_writer(table, **options):
    """Returns a writer of ten stored steps, and an eleventh that its client holds for want of room in the queue."""
    writer = table.writer(**options)
    write_numbered(writer, 0, 10, end="open")
    writer.flush()
    writer.append(10, 100, 11)
    flush_in_vain(writer, "1 more item must be sampled before 1 step can be inserted")
    return writer


def held_sender(make_sender, door, chunks=1):
    """Returns a sender that was told to wait."""
    sender = make_sender(door, chunks)
    door.wait_for_appends(2)
    return sender


def test_what_is_refused_comes_again_one_chunk_at_a_time_and_then_more(make_sender):
    door = Door()
    sender = held_sender(make_sender, door, chunks=8)
    before = door.let_in(8)
    sender.flush(60)
    assert door.sizes[0] == 8
    assert set(door.sizes[1:before]) == {1}
    assert door.sizes[before:] == [1, 2, 4, 1]


def test_put_waits_for_the_limiter_and_goes_on_when_it_lets_in(make_sender, pool):
    door = Door()
    sender = held_sender(make_sender, door)
    putting = pool.submit(sender.put, CHUNK, wait=True)
    door.wait_for_appends(len(door.sizes) + 2)
    assert not putting.done()
    door.let_in(2)
    putting.result(60)
    sender.flush(60)


def test_put_that_waits_in_vain_says_why_and_has_taken_nothing(make_sender):
    door = Door()
    sender = held_sender(make_sender, door)
    for _ in range(3):
        with pytest.raises(WaitTimeoutError, match=r"append: nothing was let in for 0.02 s \(limiter: no room\)"):
            sender.put(CHUNK, wait=True, limit_timeout_s=0.02)
    door.let_in(1)
    sender.flush(60)
    assert set(door.sizes) == {1}


def test_flush_keeps_to_its_own_timeout_and_says_why(make_sender):
    sender = held_sender(make_sender, Door())
    with pytest.raises(WaitTimeoutError, match=r"flush: 1 chunks are not durable after 0.02 s.*\(limiter: no room\)"):
        sender.flush(0.02)


def test_the_limiter_is_no_outage_however_long_it_holds_back(make_sender):
    """With a patience of 0 the first failure is told at once; a limiter's refusal is none."""
    door = Door(reconnect_timeout_s=0)
    sender = held_sender(make_sender, door)
    door.wait_for_appends(4)
    with pytest.raises(WaitTimeoutError, match=HELD):
        sender.flush(0.02)
    with pytest.raises(WaitTimeoutError, match=HELD):
        sender.put(CHUNK, wait=True, limit_timeout_s=0)
    door.let_in(1)
    sender.flush(60)


def test_an_outage_while_held_back_is_told_as_an_outage(make_sender, monkeypatch):
    door = Door(reconnect_timeout_s=0)
    sender = held_sender(make_sender, door)
    call, gone = door.call, threading.Event()

    def unavailable(method, request, *, timeout_s=None):
        gone.set()
        raise UnavailableError("no server answers")

    monkeypatch.setattr(door, "call", unavailable)
    with pytest.raises(UnavailableError, match="no server answers"):
        sender.put(CHUNK, wait=True, limit_timeout_s=60)
    assert gone.is_set()
    monkeypatch.setattr(door, "call", call)
    with pytest.raises(WaitTimeoutError, match=HELD):  # it answers again, and the outage is forgotten
        sender.flush(0.02)
    door.let_in(1)
    sender.flush(60)


def test_writers_keep_part_filled_chunks_while_one_is_held_back(make_sender):
    door, writer = Door(), Asked()
    make_sender(door, 1, writer)
    door.wait_for_appends(1)
    times = writer.times
    door.wait_for_appends(5)
    assert writer.times == times
    writer.asked.clear()
    door.let_in(1)
    assert writer.asked.wait(60)


def test_close_releases_a_held_writer_at_once_and_goes_on_storing(make_sender, pool):
    door = Door()
    sender = held_sender(make_sender, door)
    putting = pool.submit(sender.put, CHUNK, wait=True)
    closing = pool.submit(sender.close, 60)
    with pytest.raises(UnavailableError, match="client was closed"):
        putting.result(30)
    assert not closing.done()
    door.let_in(1)
    closing.result(60)


def test_close_that_cannot_store_says_that_the_limiter_is_why(make_sender):
    sender = held_sender(make_sender, Door())
    with pytest.raises(WaitTimeoutError, match=HELD):
        sender.close(0.02)


def test_chunks_that_are_let_in_slowly_are_not_queued_ahead(make_sender, monkeypatch):
    """The server waits for the limiter itself: no refusal comes, and yet the writer must not run ahead."""
    monkeypatch.setattr(sender_module, "_QUICK_S", 0.0)
    door = Door()
    sender = held_sender(make_sender, door)
    door.let_in(1)
    sender.flush(60)
    sender.put(CHUNK, wait=True)
    with pytest.raises(WaitTimeoutError):
        sender.put(CHUNK, wait=True, limit_timeout_s=0)
    monkeypatch.setattr(sender_module, "_QUICK_S", 60.0)
    door.let_in(1)
    sender.flush(60)
    sender.put(CHUNK, wait=False)
    sender.put(CHUNK, wait=True, limit_timeout_s=0)  # one that was let in quickly lifts the limit
    door.let_in(2)
    sender.flush(60)


def test_writer_stops_at_the_limit_and_its_step_can_be_appended_again(serve, connect):
    client = connect(serve().address)
    table = client.create_table("t", SCALARS, QUEUE)
    writer = held_writer(table, limit_timeout_s=0.02)
    with pytest.raises(WaitTimeoutError, match="1 more item must be sampled"):
        writer.append(11, 110, 12, terminated=True)
    assert table.stats().steps == 10
    table.sample(2)
    writer.flush(60)
    writer.append(11, 110, 12, terminated=True)
    writer.close(60)
    assert stored_lengths(table) == {0: 12}


def test_held_chunks_outlive_the_server_and_are_stored_once(serve, connect):
    server = serve()
    client = connect(server.address)
    table = client.create_table("t", SCALARS, QUEUE)
    writer = held_writer(table)
    server.stop(0.0)
    serve(server.port)
    table.sample(1, timeout_s=60)
    writer.flush(60)
    assert stored_lengths(table) == {0: 11}
    writer.close()


def test_closing_the_client_releases_its_held_writers(serve, connect, pool):
    client = connect(serve().address, call_timeout_s=1.5)
    table = client.create_table("t", SCALARS, QUEUE)
    writers = [held_writer(table, actor="a"), table.writer(actor="b")]
    writers[1].begin(0)
    writers[1].append(0, 0.0, 1)
    flush_in_vain(writers[1], "limiter")
    held = [pool.submit(writer.append, 11, 0.0, 12) for writer in writers]
    with pytest.raises(WaitTimeoutError, match="limiter"):
        client.close()
    for future in held:
        with pytest.raises(UnavailableError, match="client was closed"):
            future.result(60)
    assert table.stats().steps == 10
