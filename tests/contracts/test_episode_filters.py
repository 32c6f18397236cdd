"""Asking for some of the stored episodes: by end, length, return and policy version, over both doors."""

import pytest

from replaysvc import EpisodeFilter, TableConfig
from replaysvc.errors import InvalidRequestError, SpecMismatchError
from replaysvc.rpc import convert
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS, write_episode

LENGTHS = (3, 1, 2, 5, 2)
ENDS = ("terminated", "truncated", "terminated", "truncated", "open")
RETURNS = (30.0, 1.0, 14.0, 115.0, 18.0)  # rewards of step t of episode e are 10 * t + e
VERSIONS = (7, -1, 9, 8, 0)


@pytest.fixture
def table(door):
    table = door.create_table("t", SCALARS)
    writer = table.writer(actor="a")
    for episode, (length, end, version) in enumerate(zip(LENGTHS, ENDS, VERSIONS, strict=True)):
        write_episode(writer, length, episode=episode, end=end, policy_version=version)
    writer.flush()
    yield table
    writer.close()


def found(table, **options):
    """Returns the ids that a filter of `options` finds."""
    return [record.episode_id for record in table.episodes(where=EpisodeFilter(**options))]


def test_records_are_what_the_filters_go_by(table):
    records = table.episodes()
    assert [record.episode_id for record in records] == [4, 3, 2, 1, 0]
    assert tuple(record.return_ for record in reversed(records)) == RETURNS
    assert tuple(record.end for record in reversed(records)) == ENDS
    assert table.episodes(where=EpisodeFilter()) == records
    assert table.episodes(where=None) == records


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"end": "terminated"}, [2, 0]),
        ({"end": "truncated"}, [3, 1]),
        ({"end": "open"}, [4]),
        ({"end": "lost_actor"}, []),
        ({"min_length": 3}, [3, 0]),
        ({"max_length": 2}, [4, 2, 1]),
        ({"min_length": 2, "max_length": 2}, [4, 2]),
        ({"min_return": 30.0}, [3, 0]),
        ({"max_return": 14}, [2, 1]),
        ({"min_return": 14.0, "max_return": 18.0}, [4, 2]),
        ({"min_return": 14.000001, "max_return": 17.999999}, []),
        ({"min_policy_version": 8}, [3, 2]),
        ({"max_policy_version": 0}, [4, 1]),
        ({"min_policy_version": 0, "max_policy_version": 7}, [4, 0]),
        ({"end": "terminated", "min_return": 15.0}, [0]),
        ({"end": "truncated", "max_length": 4, "min_policy_version": -1}, [1]),
    ],
)
def test_only_episodes_that_meet_all_that_is_asked_are_listed(table, options, ids):
    assert found(table, **options) == ids


def test_a_filter_goes_with_all_other_arguments(table):
    where = EpisodeFilter(max_length=3)
    assert [record.episode_id for record in table.episodes(where=where, limit=2)] == [4, 2]
    assert [record.episode_id for record in table.episodes(where=where, before_id=2)] == [1, 0]
    assert [record.episode_id for record in table.episodes(where=where, closed_only=True)] == [2, 1, 0]
    assert table.episodes(where=where, actor="b") == []


def test_lost_episodes_are_no_truncated_ones(door):
    """A newer life of the actor ends what the older one left open."""
    table = door.create_table("t", SCALARS)
    older = table.writer(actor="a", epoch=1)
    write_episode(older, 2, end="open")
    older.flush()
    with table.writer(actor="a", epoch=2) as newer:
        write_episode(newer, 2, episode=1, end="truncated")
    assert (found(table, end="lost_actor"), found(table, end="truncated"), found(table, end="open")) == ([0], [1], [])
    older.abandon()


def test_it_is_the_service_that_filters(served):
    """What does not meet a filter does not travel."""
    table = served.create_table("t", SCALARS)
    with table.writer() as writer:
        for episode in range(5):
            write_episode(writer, 1 + episode, episode=episode)
    request = pb.ListEpisodesRequest(table="t", min_length=2, max_length=4, min_return=11.0, end="terminated")
    assert [each.length for each in served.connection.call("ListEpisodes", request).episodes] == [4, 3, 2]
    with pytest.raises(InvalidRequestError, match="end: expected one of"):
        served.connection.call("ListEpisodes", pb.ListEpisodesRequest(table="t", end="won"))
    with pytest.raises(InvalidRequestError, match="max_length: expected at least min_length=3, found 2"):
        served.connection.call("ListEpisodes", pb.ListEpisodesRequest(table="t", min_length=3, max_length=2))
    with pytest.raises(InvalidRequestError, match="min_return: expected a number"):
        served.connection.call("ListEpisodes", pb.ListEpisodesRequest(table="t", min_return=float("nan")))


def test_many_episodes_are_looked_through(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=4))
    with table.writer() as writer:
        for episode in range(700):
            write_episode(writer, 2 if episode % 100 == 0 else 1, episode=episode)
    assert found(table, min_length=2) == [600, 500, 400, 300, 200, 100, 0]
    assert len(table.episodes(where=EpisodeFilter(max_length=1), limit=600)) == 600
    assert len(table.episodes(where=EpisodeFilter(max_length=1), limit=1000)) == 693


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_service_that_knows_no_filters_makes_no_difference(served, monkeypatch, limit):
    """An older one passes the fields over and sends all records."""
    asked = []
    monkeypatch.setattr(convert, "filter_of", lambda request: asked.append(request.limit))
    table = served.create_table("t", SCALARS)
    with table.writer() as writer:
        for episode in range(40):
            write_episode(writer, 1 + episode % 10, episode=episode, end="terminated" if episode % 2 else "truncated")
    where = EpisodeFilter(min_length=10, end="terminated")
    assert [record.episode_id for record in table.episodes(where=where, limit=limit)] == [39, 29, 19, 9][:limit]
    assert [record.episode_id for record in table.episodes(where=where, limit=limit, before_id=20)] == [19, 9][:limit]
    assert len(asked) <= 4  # not one for each episode that does not meet it


@pytest.mark.parametrize("where", ["terminated", {"end": "open"}, 7, True])
def test_what_is_no_filter_is_refused(table, where):
    with pytest.raises(SpecMismatchError, match="where: expected an EpisodeFilter or None"):
        table.episodes(where=where)
