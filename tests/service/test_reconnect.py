"""A server that is killed under its writers and readers, and comes back on the same store and port."""

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

import replay_client
from replaysvc import ClientConfig, TableConfig
from replaysvc.errors import UnavailableError, WaitTimeoutError, WriterFencedError
from replaysvc.rpc.server import Server
from tests.builders import SCALARS, write_episodes
from tests.service.checks import stored_lengths, write_numbered
from tests.waiting import wait_until

SMALL_CHUNKS = TableConfig(chunk_steps=4)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_writer_rides_out_kills_and_every_step_is_stored_once(server_process, remote, pool):
    """Five kills at seeded moments while episodes are appended; each restart runs beside the writer."""
    rng = np.random.default_rng(7)
    table = remote.create_table("t", SCALARS, SMALL_CHUNKS)
    lengths = dict(enumerate(rng.integers(1, 40, 300).tolist()))
    kills = set(rng.choice(np.arange(10, 290), 5, replace=False).tolist())
    restart = None
    with table.writer() as writer:
        for number, length in lengths.items():
            write_numbered(writer, number, length)
            if number in kills:
                if restart is not None:
                    restart.result()
                server_process.kill()
                restart = pool.submit(server_process.start)
            elif number % 50 == 0 and restart is not None:
                writer.flush(timeout_s=60)  # so that chunks are on their way and acknowledged at some of the kills
        restart.result()
        writer.flush(timeout_s=60)
    assert stored_lengths(table) == lengths


def test_writer_with_an_epoch_that_is_made_during_an_outage_takes_over_when_the_server_is_back(server_process, remote):
    table = remote.create_table("t", SCALARS, SMALL_CHUNKS)
    with table.writer(actor="a", epoch=1) as old:
        write_numbered(old, 0, 3, end="open")
        old.flush()
        server_process.kill()
        new = table.writer(actor="a", epoch=2)  # does not wait
        server_process.start()
        wait_until(lambda: table.stats().lost_actor_episodes_total == 1)
        new.close()


def test_writer_with_an_epoch_that_writes_nothing_is_known_again_after_a_restart(server_process, remote):
    """The server keeps epochs with what is written."""
    table = remote.create_table("t", SCALARS, TableConfig(lease_s=1))

    def is_refused():
        try:
            with replay_client.connect(server_process.address) as other:
                other.table("t").writer(actor="a", epoch=1).close()
        except WriterFencedError:
            return True
        return False

    with table.writer(actor="a", epoch=2):
        wait_until(is_refused)
        server_process.restart()
        wait_until(is_refused)


def test_writer_with_an_epoch_that_is_closed_during_an_outage_says_that_nobody_heard_of_it(server_process):
    config = ClientConfig(reconnect_timeout_s=0.2)
    with replay_client.connect(server_process.address, config=config) as client:
        table = client.create_table("t", SCALARS, SMALL_CHUNKS)
        server_process.kill()
        writer = table.writer(actor="a", epoch=2)
        with pytest.raises(UnavailableError):
            writer.close()
        server_process.start()


def test_flush_during_an_outage_waits_and_then_succeeds(server_process, remote, pool):
    table = remote.create_table("t", SCALARS, SMALL_CHUNKS)
    writer = table.writer()
    write_numbered(writer, 0, 10)
    writer.flush()
    server_process.kill()
    write_numbered(writer, 1, 10)
    flush = pool.submit(writer.flush, 60)
    assert not flush.done()
    server_process.start()
    flush.result()
    assert stored_lengths(table) == {0: 10, 1: 10}
    writer.close()


def test_open_episode_goes_on_after_a_kill(server_process, remote):
    table = remote.create_table("t", SCALARS, SMALL_CHUNKS)
    with table.writer() as writer:
        writer.begin(0, metadata={"number": 0})
        for t in range(30):
            writer.append(t, 10.0 * t, t + 1, terminated=t == 29)
            if t in (5, 13, 20):
                writer.flush()
                server_process.restart()
    assert stored_lengths(table) == {0: 30}


def test_two_clients_and_their_writers_ride_out_one_kill(server_process, remote, pool):
    table = remote.create_table("t", SCALARS, SMALL_CHUNKS)
    numbers = [range(0, 30), range(100, 130), range(200, 230)]
    first = [pool.submit(write_half, server_process.address, mine) for mine in numbers]
    halves = [half.result() for half in first]
    server_process.kill()
    rest = [pool.submit(write_rest, *half) for half in halves]
    server_process.start()
    for future in rest:
        future.result()
    assert stored_lengths(table) == {number: 9 for mine in numbers for number in mine}


def write_half(address, numbers):
    client = replay_client.connect(address)
    writer = client.table("t").writer(actor=f"actor-{numbers[0]}")
    for number in numbers[: len(numbers) // 2]:
        write_numbered(writer, number, 9)
    return client, writer, numbers[len(numbers) // 2 :]


def write_rest(client, writer, numbers):
    for number in numbers:
        write_numbered(writer, number, 9)
    writer.close(timeout_s=60)
    client.close()


def test_outage_beyond_the_reconnect_timeout_is_told_and_the_data_come_through_later(server_process):
    config = ClientConfig(reconnect_timeout_s=0.3)
    with replay_client.connect(server_process.address, config=config) as client:
        table = client.create_table("t", SCALARS, SMALL_CHUNKS)
        writer = table.writer()
        write_numbered(writer, 0, 10)
        writer.flush()
        server_process.kill()
        write_numbered(writer, 1, 10)
        with pytest.raises(UnavailableError, match=server_process.address):
            writer.flush(timeout_s=60)
        with pytest.raises(UnavailableError, match=server_process.address):
            table.sample(4)
        writer.begin(200, metadata={"number": 2})
        for t in range(3):
            writer.append(t, 10.0 * t + 2, 201 + t)
        with pytest.raises(UnavailableError):  # the fourth step would fill a chunk, which is refused at once
            writer.append(3, 32.0, 204, terminated=True)
        with pytest.raises(UnavailableError):
            writer.flush()
        server_process.start()
        ready(client)
        while True:  # the sender tries again by itself; until it got through, calls say that it did not
            try:
                writer.append(3, 32.0, 204, terminated=True)
                break
            except UnavailableError:
                ready(client)
        writer.close(timeout_s=60)
        assert stored_lengths(table) == {0: 10, 1: 10, 2: 4}


def ready(client):
    """Waits until the server answers."""
    with grpc.insecure_channel(client.connection.address) as channel:
        grpc.channel_ready_future(channel).result(60)


def test_writer_closed_during_a_long_outage_leaves_its_steps_with_the_client(server_process):
    config = ClientConfig(reconnect_timeout_s=0.2)
    with replay_client.connect(server_process.address, config=config) as client:
        table = client.create_table("t", SCALARS, SMALL_CHUNKS)
        writer = table.writer()
        writer.flush()
        server_process.kill()
        write_numbered(writer, 0, 10, end="open")  # the last two steps are in no full chunk
        with pytest.raises(UnavailableError):
            writer.close(timeout_s=60)
        server_process.start()
        with replay_client.connect(server_process.address) as reader:
            wait_stored(reader.table("t"), 10)
            assert stored_lengths(reader.table("t")) == {0: 10}


def wait_stored(table, steps):
    """Waits until a table holds so many steps, as a learner would."""
    while table.stats().steps < steps:
        table.sample(1, timeout_s=60)


def test_flush_timeout_keeps_the_data_for_the_next_flush(server_process, remote):
    table = remote.create_table("t", SCALARS, SMALL_CHUNKS)
    writer = table.writer()
    writer.flush()
    server_process.kill()
    write_numbered(writer, 0, 10)
    with pytest.raises(WaitTimeoutError, match="3 chunks are not durable after 0.05 s"):
        writer.flush(timeout_s=0.05)
    server_process.start()
    writer.flush(timeout_s=60)
    assert stored_lengths(table) == {0: 10}
    writer.close()


def test_calls_and_streams_ride_out_a_restart(server_process, remote, pool):
    table = remote.create_table("t", SCALARS, SMALL_CHUNKS)
    write_episodes(table, [40])
    stream = table.stream(16, prefetch=4)
    next(stream)
    server_process.kill()
    restart = pool.submit(server_process.start)
    for batch in (next(stream) for _ in range(12)):
        assert (batch.next_observation == batch.observation + 1).all()
    restart.result()
    stream.close()
    server_process.kill()
    restart = pool.submit(server_process.start)
    assert len(table.sample(4)) == 4
    restart.result()
    server_process.kill()
    restart = pool.submit(server_process.start)
    assert remote.tables() == ["t"]
    assert table.read_episode(0)["action"].tolist() == list(range(40))
    restart.result()


def test_first_call_waits_for_a_server_that_is_not_there_yet(replay, connect, pool):
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    client = connect(f"127.0.0.1:{port}", reconnect_timeout_s=60)
    made = pool.submit(client.create_table, "t", SCALARS)
    server = Server(replay, f"127.0.0.1:{port}")
    server.start()
    write_episodes(made.result(), [3])
    assert replay.table("t").stats().steps == 3
    server.stop(5)


def test_flush_after_a_long_outage_speaks_of_now_and_not_of_what_failed_before(server_process, connect):
    """Each failed flush lengthens the sender's pause; the one after the restart must not repeat the old error."""
    client = connect(server_process.address, reconnect_timeout_s=0.1, call_timeout_s=5.0)
    table = client.create_table("t", SCALARS)
    writer = table.writer()
    server_process.kill()
    write_numbered(writer, 0, 5)
    for _ in range(3):
        with pytest.raises(UnavailableError):
            writer.flush(30.0)
    server_process.start()
    writer.flush(30.0)
    write_numbered(writer, 1, 3)
    writer.close(30.0)
    assert stored_lengths(table) == {0: 5, 1: 3}
