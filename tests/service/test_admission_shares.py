"""Shares of workers and memory, and the watch over what takes too long, by themselves."""

import threading

import pytest

from replaysvc.errors import CapacityError, InvalidRequestError
from replaysvc.rpc.admission import Peer, Shares, Watch, peer_of


def peers(number, principal=None):
    return [Peer(f"connection {i}", principal) for i in range(number)]


def taken(shares, peer, amount=1):
    """Returns how often a client gets `amount`."""
    count = 0
    while True:
        try:
            shares.take(peer, amount)
        except CapacityError:
            return count
        count += 1


def test_one_connection_gets_half_and_each_further_one_finds_something():
    shares = Shares("workers", 24)
    assert [taken(shares, peer) for peer in peers(6)] == [12, 6, 3, 1, 1, 1]
    assert shares.held == 24
    with pytest.raises(CapacityError, match="the server is busy: 24 of 24 workers are in use, 0 of them by connection 9"):
        shares.take(Peer("connection 9", None), 1)


def test_many_connections_of_one_name_leave_something_to_other_names():
    shares = Shares("workers", 24)
    assert sum(taken(shares, peer) for peer in peers(50, "name hostile")) == 21
    assert taken(shares, Peer("other", "name other")) >= 1


def test_what_is_given_back_can_be_taken_again():
    shares = Shares("bytes", 1000, "request_bytes")
    first, second = peers(2)
    shares.take(first, 500)
    with pytest.raises(CapacityError):
        shares.take(second, 400)
    shares.give(first, 500)
    shares.take(second, 400)
    assert (shares.held, shares._connections) == (400, {"connection 1": 400})


def test_more_than_anyone_gets_is_refused_for_good_and_the_setting_named():
    with pytest.raises(InvalidRequestError, match=r"at most 500 bytes \(half of request_bytes\), found 501"):
        Shares("bytes", 1000, "request_bytes").take(Peer("x", None), 501)


def test_single_worker_is_somebodys():
    shares = Shares("workers", 1)
    first, second = peers(2)
    shares.take(first, 1)
    with pytest.raises(CapacityError):
        shares.take(second, 1)


# -- watch ----------------------------------------------------------------------------------------------------------------


def test_watch_ends_what_takes_too_long_and_nothing_else():
    watch, ended = Watch(), []
    second = threading.Event()
    slow = watch.begin(3600, lambda: ended.append("slow"))
    with watch.limit(3600, lambda: ended.append("in time")):
        pass
    watch.begin(0.05, lambda: ended.append("late"))
    watch.begin(0.1, second.set)
    assert second.wait(60)
    watch.done(slow)
    watch.close()
    assert ended == ["late"]
    assert watch._entries == {}


@pytest.mark.parametrize(
    ("address", "principal"),
    [
        ("ipv4:127.0.0.1:4711", None),
        ("ipv4:127.9.9.9:4711", None),
        ("ipv6:%5B::1%5D:4711", None),
        ("ipv6:[::1]:4711", None),
        ("unix:", None),
        ("ipv4:10.0.0.1:4711", "ipv4:10.0.0.1"),
        ("ipv4:12.7.0.1:4711", "ipv4:12.7.0.1"),
        ("ipv6:%5B2001:db8::1%5D:4711", "ipv6:%5B2001:db8::1%5D"),
    ],
)
def test_client_without_a_name_is_known_by_its_host_unless_that_is_this_machine(address, principal):
    class Context:
        def peer(self):
            return address

    assert peer_of(Context()) == Peer(address, principal)
