"""Clients across forks, pickles and the ends of interpreters."""

import pickle
import time

import numpy as np
import pytest

import replay_client
from replaysvc import ClientConfig, TableConfig
from replaysvc.errors import UnavailableError
from tests.builders import SCALARS, write_episodes
from tests.processes import run_script
from tests.service.checks import stored_lengths

HEAD = """
import os, sys
import replay_client
from replay_client import FieldSpec, Signature, TableConfig, UnavailableError

SCALARS = Signature(FieldSpec("observation", (), "int64"), FieldSpec("action", (), "int64"))

def write(writer, number, length, end=True):
    writer.begin(100 * number, metadata={"number": number})
    for t in range(length):
        writer.append(t, 10 * t + number, 100 * number + t + 1, terminated=end and t == length - 1)

def forked(child):
    "Runs child() in a forked process; fails if it fails."
    pid = os.fork()
    if not pid:
        status = 1
        try:
            child()
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"

client = replay_client.connect(sys.argv[1])
"""

FORK = """
table = client.create_table("t", SCALARS, TableConfig(chunk_steps=4))
writer = table.writer()
write(writer, 0, 10)
writer.flush()
write(writer, 1, 6, end=False)  # the last two steps are in no full chunk yet
stream = table.stream(8, prefetch=4)
next(stream)

def child():
    assert len(table.sample(4)) == 4
    assert len(next(table.stream(8))) == 8
    for call in (lambda: writer.append(6, 0.0, 7), writer.flush, writer.abandon):
        try:
            call()
        except UnavailableError as error:
            assert f"process {os.getppid()}" in str(error), error
        else:
            raise AssertionError("a child used its parent's writer")
    writer.close()
    with table.writer() as mine:
        write(mine, 2, 7)
    forked(grandchild)
    client.close()

def grandchild():
    assert len(table.sample(4)) == 4
    with table.writer() as mine:
        write(mine, 3, 5)

forked(child)
assert len(next(stream)) == 8
for t in range(6, 9):
    writer.append(t, 10 * t + 1, 101 + t, terminated=t == 8)
writer.close()
client.close()
"""

UNUSED_BEFORE_FORK = """
forked(lambda: client.create_table("t", SCALARS))
table = client.table("t")
with table.writer() as writer:
    write(writer, 0, 3)
"""

BUSY_FORK = """
# threads of the parent append and sample all the while, so that some hold locks or are within a call at some of the forks
import threading

table = client.create_table("t", SCALARS, TableConfig(chunk_steps=1, flush_interval_s=0.001))
stop = threading.Event()

def work(writer, number):
    while not stop.is_set():
        write(writer, number, 5)
        writer.flush()
        table.sample(4, timeout_s=60)
        number += 100

writers = [table.writer(actor=str(i)) for i in range(3)]
threads = [threading.Thread(target=work, args=(writer, i)) for i, writer in enumerate(writers)]
for thread in threads:
    thread.start()
table.sample(1, timeout_s=60)

def child():
    assert len(table.sample(4)) == 4
    for writer in writers:
        try:
            writer.begin(0)
        except UnavailableError:
            continue
        raise AssertionError("a child used its parent's writer")

for _ in range(20):
    forked(child)
stop.set()
for thread in threads:
    thread.join()
for writer in writers:
    writer.close()
client.close()
"""

EXIT = """
table = client.create_table("t", SCALARS, TableConfig(chunk_steps=4, flush_interval_s=3600))
writer, other = table.writer(actor="a"), table.writer(actor="b")
write(writer, 0, 10)
write(other, 1, 6, end=False)
"""


def test_forked_child_has_a_channel_of_its_own_and_not_its_parents_writer(server_process, remote):
    run_script(HEAD + FORK, server_process.address)
    assert stored_lengths(remote.table("t")) == {0: 10, 1: 9, 2: 7, 3: 5}


def test_client_not_used_before_the_fork_works_on_both_sides(server_process, remote):
    run_script(HEAD + UNUSED_BEFORE_FORK, server_process.address)
    assert stored_lengths(remote.table("t")) == {0: 3}


def test_fork_while_other_threads_write_and_sample(server_process, remote):
    run_script(HEAD + BUSY_FORK, server_process.address)
    assert set(stored_lengths(remote.table("t")).values()) == {5}


def test_interpreter_that_exits_without_close_has_stored_what_was_appended(server_process, remote):
    run_script(HEAD + EXIT, server_process.address)
    assert stored_lengths(remote.table("t")) == {0: 10, 1: 6}


def test_exception_that_ends_the_interpreter_loses_nothing(server_process, remote):
    with pytest.raises(AssertionError, match="the agent broke"):
        run_script(HEAD + EXIT + "raise RuntimeError('the agent broke')", server_process.address)
    assert stored_lengths(remote.table("t")) == {0: 10, 1: 6}


EXIT_WITHOUT_SERVER = """
import signal, time
table = client.create_table("t", SCALARS)
for number in range(8):
    write(table.writer(actor=f"a{number}"), number, 6, end=False)
os.kill(int(sys.argv[2]), signal.SIGKILL)
print(time.monotonic())
"""


def test_interpreter_that_exits_without_a_server_waits_once_for_all_its_writers(server_process):
    began = float(run_script(HEAD + EXIT_WITHOUT_SERVER, server_process.address, str(server_process.pid)))
    assert time.monotonic() - began < 15  # each by itself waits for 5 s
    server_process.kill()


def test_client_and_table_survive_a_pickle(server_process, remote):
    config = ClientConfig(reconnect_timeout_s=3.0)
    with replay_client.connect(server_process.address, config=config) as client:
        table = client.create_table("t", SCALARS, TableConfig(chunk_steps=5))
        write_episodes(table, [6])
        again = pickle.loads(pickle.dumps(client))
        assert again.tables() == ["t"]
        assert again.connection.config == config
        copy = pickle.loads(pickle.dumps(table))
        assert (copy.name, copy.signature, copy.config) == (table.name, table.signature, table.config)
        assert (copy.sample(16, seed=1).positions == table.sample(16, seed=1).positions).all()
        write_episodes(copy, [4])
        assert table.stats().steps == 10
        again.close()
        copy._client.close()


def test_pickle_works_in_another_interpreter(server_process, remote, tmp_path):
    table = remote.create_table("t", SCALARS)
    write_episodes(table, [6])
    (tmp_path / "table").write_bytes(pickle.dumps(table))
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).sample(8, seed=2).positions.tolist())"
    printed = run_script(f"import warnings; warnings.simplefilter('ignore'); {script}", str(tmp_path / "table"))
    assert np.array_equal(eval(printed), table.sample(8, seed=2).positions)


def test_closed_writer_says_so(remote):
    writer = remote.create_table("t", SCALARS).writer()
    writer.close()
    with pytest.raises(UnavailableError, match="this writer was closed"):
        writer.begin(0)
