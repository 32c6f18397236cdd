"""The socket where clients give their memory, and all that may be said there by who is no client."""

import contextlib
import fcntl
import itertools
import logging
import mmap
import os
import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest

from replaysvc.access import ANYONE, Identity, Role
from replaysvc.errors import CapacityError
from replaysvc.rpc import regions, shared
from replaysvc.rpc.admission import Peer
from replaysvc.rpc.regions import LEAST_BYTES, MOST_BYTES
from replaysvc.rpc.shared import SharedMemory
from replaysvc.v1 import replay_pb2 as pb
from tests.service.frame_table import BATCH, FRAMES, write_frames
from tests.waiting import wait_until

MiB = 1 << 20
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
PEER = Peer("ipv4:127.0.0.1:1", None)


@pytest.fixture
def memory():
    """What takes 8 MiB of memory, in 16 regions at most."""
    memory = SharedMemory(8 * MiB, 16)
    yield memory
    memory.close()


@pytest.fixture
def link(memory):
    """Makes connections to its socket; all are closed at the end."""
    with contextlib.ExitStack() as links:

        def make(offer=None):
            made = links.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            made.settimeout(30)
            made.connect(b"\0" + (offer or memory.offer(PEER, ANYONE)).socket)
            return made

        yield make


@pytest.fixture
def client(memory, link):
    """A connection that the server knows."""
    return known(memory, link)


def known(memory, link, peer=PEER, owner=ANYONE):
    offer = memory.offer(peer, owner)
    made = link(offer)
    made.send(offer.nonce)
    assert made.recv(64) == offer.proof
    return made


def memfd(size=MiB, seals=SEALS, flags=os.MFD_ALLOW_SEALING):
    descriptor = os.memfd_create("test", flags)
    os.ftruncate(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def give(link, descriptor, size=MiB):
    """Gives memory; returns what the server answers, b"" if it hangs up."""
    try:
        socket.send_fds(link, [b"A" + size.to_bytes(8, "little")], [descriptor])
    finally:
        os.close(descriptor)
    return link.recv(64)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_memory_that_is_given_is_written_to(memory, client):
    descriptor = memfd()
    mine = mmap.mmap(descriptor, MiB)
    region = give(client, descriptor)
    assert len(region) == 16
    slot = memory.slot(region, ANYONE)
    first, second = slot.allocate((2, LEAST_BYTES), np.dtype(np.uint8)), slot.allocate((LEAST_BYTES,), np.dtype(np.uint8))
    first[:], second[:] = 7, 9
    assert (slot.offset(first), slot.offset(second)) == (0, 2 * LEAST_BYTES)
    assert mine[: 2 * LEAST_BYTES] == b"\7" * 2 * LEAST_BYTES
    assert mine[2 * LEAST_BYTES : 3 * LEAST_BYTES] == b"\11" * LEAST_BYTES


def test_what_is_small_or_does_not_fit_is_elsewhere(memory, client):
    slot = memory.slot(give(client, memfd()), ANYONE)
    for shape in ((LEAST_BYTES - 1,), (MiB + 1,), (0,), ()):
        values = slot.allocate(shape, np.dtype(np.uint8))
        assert values.shape == shape
        assert slot.offset(values) is None
    whole = slot.allocate((MiB // 8,), np.dtype(np.float64))
    assert slot.offset(whole) == 0
    assert slot.offset(whole.astype(np.int64)) is None
    assert slot.offset(whole[: LEAST_BYTES // 8]) is None
    assert slot.offset(whole[::2]) is None
    assert slot.offset(slot.allocate((LEAST_BYTES,), np.dtype(np.uint8))) is None


def test_slot_tells_how_much_room_would_have_been_enough(memory, client):
    slot = memory.slot(give(client, memfd()), ANYONE)
    slot.allocate((MiB // 2,), np.dtype(np.uint8))
    slot.allocate((100,), np.dtype(np.uint8))
    assert slot.room == 0
    slot.allocate((MiB // 2 + 1,), np.dtype(np.uint8))
    assert slot.room == MiB + 64


def test_region_is_its_owners(memory, link):
    owner = Identity("a", Role.LEARNER)
    region = give(known(memory, link, owner=owner), memfd())
    assert memory.slot(region, owner) is not None
    assert memory.slot(region, Identity("b", Role.LEARNER)) is None
    assert memory.slot(region, ANYONE) is None
    assert memory.slot(bytes(16), owner) is None
    assert memory.slot(b"", owner) is None


def plain_file(tmp_path):
    (tmp_path / "file").write_bytes(bytes(MiB))
    return os.open(tmp_path / "file", os.O_RDWR)


def in_dev_shm(tmp_path):
    descriptor = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.ftruncate(descriptor, MiB)
    return descriptor


UNSOUND = {
    "unsealed": lambda _: memfd(seals=0),
    "may shrink": lambda _: memfd(seals=fcntl.F_SEAL_GROW),
    "may grow": lambda _: memfd(seals=fcntl.F_SEAL_SHRINK),
    "sealed against writing": lambda _: memfd(seals=SEALS | fcntl.F_SEAL_WRITE),
    "smaller than said": lambda _: memfd(MiB - 1),
    "larger than said": lambda _: memfd(MiB + 1),
    "a plain file": plain_file,
    "a file in /dev/shm": in_dev_shm,
    "a pipe": lambda _: os.pipe()[0],
    "a directory": lambda path: os.open(path, os.O_RDONLY),
    "/dev/zero": lambda _: os.open("/dev/zero", os.O_RDWR),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_memory_is_refused_and_costs_nothing(memory, client, tmp_path, name):
    assert give(client, UNSOUND[name](tmp_path)) == b"\0"
    assert len(give(client, memfd())) == 16


def test_memory_of_another_device_is_refused_before_it_is_mapped(memory, client, monkeypatch):
    """As huge pages are, of which there may be none left when one is written to: that would kill the server."""
    mapped = []
    monkeypatch.setattr(regions, "mmap", SimpleNamespace(mmap=lambda *arguments: mapped.append(1) or mmap.mmap(*arguments)))
    known = memory._listener.regions
    monkeypatch.setattr(known, "_device", known._device + 1)
    assert give(client, memfd()) == b"\0"
    assert not mapped


@pytest.mark.parametrize("size", [LEAST_BYTES - 1, MOST_BYTES + 1, 1 << 40, 0, (1 << 64) - 1])
def test_region_of_a_wrong_size_is_refused(client, size):
    assert give(client, memfd(min(size, 1 << 41)), size) == b"\0"


def test_memory_is_bounded_and_comes_back(memory, client):
    given = [give(client, memfd()) for _ in range(6)]
    taken = [region for region in given if region != b"\0"]
    assert len(taken) == 4  # a connection leaves others as much as it takes
    client.send(b"D" + taken[0])
    assert len(give(client, memfd())) == 16
    assert give(client, memfd()) == b"\0"


def test_regions_are_bounded(link):
    few = SharedMemory(64 * MiB, 4)
    try:
        offer = few.offer(PEER, ANYONE)
        client = link(offer)
        client.send(offer.nonce)
        client.recv(64)
        assert [len(give(client, memfd())) for _ in range(4)] == [16, 16, 1, 1]
    finally:
        few.close()


def test_region_that_is_written_to_stays_until_that_is_done(memory, client):
    """And counts so long: who forgets regions at once gets no more than others."""
    regions_given = [give(client, memfd()) for _ in range(4)]
    slots = [memory.slot(region, ANYONE) for region in regions_given]
    arrays = [slot.allocate((MiB,), np.dtype(np.uint8)) for slot in slots]
    for region in regions_given:
        client.send(b"D" + region)
    assert give(client, memfd()) == b"\0"
    for array in arrays:
        array[:] = 1
    assert memory.slot(regions_given[0], ANYONE) is None
    del slots, arrays, array
    assert len(give(client, memfd())) == 16


def test_end_of_the_connection_is_the_end_of_its_regions(memory, link):
    client = known(memory, link)
    region = give(client, memfd())
    other = give(known(memory, link), memfd())
    client.close()
    wait_until(lambda: memory.slot(region, ANYONE) is None)
    assert memory.slot(other, ANYONE) is not None


def test_nonce_is_good_once(memory, link):
    offer = memory.offer(PEER, ANYONE)
    first, second = link(offer), link(offer)
    first.send(offer.nonce)
    assert first.recv(64) == offer.proof
    second.send(offer.nonce)
    assert second.recv(64) == b""
    assert len(give(first, memfd())) == 16


def test_nonce_expires(memory, link, monkeypatch):
    monkeypatch.setattr(shared, "_NONCE_S", -1.0)
    offer = memory.offer(PEER, ANYONE)
    made = link(offer)
    made.send(offer.nonce)
    assert made.recv(64) == b""


def test_nonces_that_nobody_shows_are_bounded_and_given_back(memory, monkeypatch):
    offers = iter(lambda: memory.offer(PEER, ANYONE), None)
    with pytest.raises(CapacityError):
        list(itertools.islice(offers, 1000))
    monkeypatch.setattr(shared.time, "monotonic", lambda now=time.monotonic: now() + 60)
    assert memory.offer(PEER, ANYONE) is not None


GARBAGE = [b"x", bytes(16), bytes(17), bytes(64), b"A" + bytes(8), b"D" + bytes(16), b"A" * 100_000]


@pytest.mark.parametrize("data", GARBAGE, ids=len)
def test_stranger_that_says_anything_else_is_cut_off(memory, link, data):
    offer = memory.offer(PEER, ANYONE)
    stranger = link(offer)
    stranger.send(data)
    assert stranger.recv(64) == b""
    assert len(give(known(memory, link), memfd())) == 16


@pytest.mark.parametrize("data", [b"x", b"D" + bytes(16), b"D", b"A", b"A" + bytes(8), bytes(33), b"A" * 100_000], ids=len)
def test_client_that_says_anything_else_is_cut_off(memory, client, data):
    region = give(client, memfd())
    client.send(data)
    assert client.recv(64) == b""
    assert memory.slot(region, ANYONE) is None


def test_descriptors_that_nobody_asked_for_are_closed(memory, link):
    known(memory, link)
    before = descriptors()
    for data, count in ((b"x", 1), (b"x", 200), (b"A" + MiB.to_bytes(8, "little"), 2)):
        for make in (lambda: link(memory.offer(PEER, ANYONE)), lambda: known(memory, link)):
            made, descriptor = make(), memfd()
            socket.send_fds(made, [data], [descriptor] * count)
            os.close(descriptor)
            assert made.recv(64) == b""
            made.close()
    wait_until(lambda: descriptors() <= before)


def test_connections_that_say_nothing_make_room_for_others(memory, link, monkeypatch):
    monkeypatch.setattr(shared, "_STRANGER_S", 3600.0)
    offer = memory.offer(PEER, ANYONE)
    silent = [link(offer) for _ in range(60)]
    assert len(give(known(memory, link), memfd())) == 16
    assert silent[0].recv(64) == b""


def test_connection_that_says_nothing_is_closed_after_a_while(memory, link, monkeypatch):
    monkeypatch.setattr(shared, "_STRANGER_S", 0.1)
    assert link(memory.offer(PEER, ANYONE)).recv(64) == b""


def test_client_that_reads_no_answers_holds_nobody_up(memory, link):
    deaf = known(memory, link)
    deaf.setblocking(False)
    with contextlib.suppress(OSError):
        for _ in range(100_000):
            deaf.send(b"A" + bytes(8))
    assert len(give(known(memory, link), memfd())) == 16


def test_no_more_is_taken_once_it_is_closed(memory, client):
    region = give(client, memfd())
    memory.close()
    memory.close()
    assert client.recv(64) == b""
    assert memory.slot(region, ANYONE) is None
    assert memory.offer(PEER, ANYONE) is None


def test_system_without_such_sockets_takes_none(monkeypatch, caplog):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    memory = SharedMemory(8 * MiB, 16)
    monkeypatch.setattr(regions.os, "memfd_create", refuse)
    with caplog.at_level(logging.WARNING):
        assert memory.offer(PEER, ANYONE) is None
        assert memory.offer(PEER, ANYONE) is None
    assert len(caplog.records) == 1
    memory.close()


def test_region_of_another_caller_is_passed_over(replay, raw):
    """The answer is in the frame then, as if none had been named."""
    write_frames(replay.create_table("t", FRAMES))
    for region in (b"", bytes(16), bytes(15), b"x" * 1000):
        call = raw._channel.unary_unary("/replaysvc.v1.ReplayFrames/Sample")
        frame = call(pb.SampleRequest(table="t", batch_size=BATCH, region=region).SerializeToString(), timeout=30)
        assert len(frame) > BATCH * 64 * 64
