"""Long pieces of work that clients ask for are jobs, too, and say who asked."""

import pytest

import replay_client
from replay_client import InvalidRequestError
from replaysvc import StoreConfig
from replaysvc.access import Access, Role, append_token, new_token
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server
from tests.builders import make_table, write_episode


@pytest.fixture
def guarded(tmp_path):
    """A store, and a client of it by the token of `the-boss`."""
    secret, lines = new_token("the-boss", Role.ADMIN)
    append_token(tmp_path / "tokens.toml", lines)
    with Replay(tmp_path / "store", StoreConfig(snapshot_dir=str(tmp_path / "snapshots"))) as replay:
        server = Server(replay, "127.0.0.1:0", access=Access(tmp_path / "tokens.toml"))
        server.start()
        with replay_client.connect(f"127.0.0.1:{server.port}", token=secret) as client:
            yield replay, client
        server.stop(5.0)


def jobs(replay):
    return [(view.kind, view.table, view.who, view.state) for view in replay.jobs.views()]


def test_what_a_client_asks_for_is_a_job_of_its_token(guarded):
    replay, client = guarded
    table = make_table(client, [5, 4])
    assert table.delete_episodes([0]) == 1
    table.compact()
    client.snapshot("first")
    client.delete_table("t")
    assert jobs(replay) == [
        (kind, name, "the-boss", "done")
        for kind, name in (("delete_table", "t"), ("snapshot", ""), ("compact", "t"), ("delete_episodes", "t"))
    ]


def test_what_a_client_is_refused_is_a_job_that_failed(guarded):
    replay, client = guarded
    table = make_table(client, [2])
    with table.writer() as writer:
        write_episode(writer, 3, end="open")
        writer.flush()
        with pytest.raises(InvalidRequestError) as refused:
            table.delete_episodes([1])
        writer.append(3, 30, 4, terminated=True)
    assert jobs(replay) == [("delete_episodes", "t", "the-boss", "failed")]
    assert replay.jobs.views()[0].message in str(refused.value)


def test_without_tokens_it_was_anyone(served, replay):
    make_table(served, [3]).compact()
    assert jobs(replay) == [("compact", "t", "anyone", "done")]
