"""Lists of episodes that meet a filter: each field, several together, page after page."""

import itertools

import pytest

from replaysvc import TableConfig
from replaysvc.errors import SpecMismatchError
from replaysvc.index import episode_list
from replaysvc.replay import Replay
from replaysvc.requests import EpisodeFilter
from tests.builders import SCALARS, write_episode, write_episodes

EPISODES = [
    # length, end, policy version; the return of one of n steps is 10 * (0 + ... + n - 1)
    (1, "terminated", -1), (2, "truncated", 3), (3, "terminated", 3), (4, "truncated", 5), (5, "terminated", 6),
]  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """Episodes 0 to 4 as above by actor a; 5 (two steps, both ends) and 6 (three, open) by b; 7 (six) by c, who is lost."""
    with Replay(tmp_path / "store") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=2))
        with table.writer("a") as writer:
            for length, end, version in EPISODES:
                write_episode(writer, length, end=end, policy_version=version)
        with table.writer("b") as writer:
            writer.begin(0, policy_version=8)
            writer.append(0, 0.0, 1)
            writer.append(1, 10.0, 2, terminated=True, truncated=True)
            write_episode(writer, 3, end="open", policy_version=9)
            writer.flush()
            lost = table.writer("c", epoch=1)
            write_episode(lost, 6, end="open", policy_version=9)
            lost.flush()
            table.writer("c", epoch=2)
            yield table


def ids(table, limit=100, **asked):
    beside = {name: asked.pop(name) for name in ("actor", "closed_only", "before_id") if name in asked}
    return [record.episode_id for record in table.episodes(limit=limit, where=EpisodeFilter(**asked), **beside)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [7, 6, 5, 4, 3, 2, 1, 0]),
        ({"end": "terminated"}, [5, 4, 2, 0]),
        ({"end": "truncated"}, [3, 1]),
        ({"end": "lost_actor"}, [7]),
        ({"end": "open"}, [6]),
        ({"min_length": 4}, [7, 4, 3]),
        ({"max_length": 2}, [5, 1, 0]),
        ({"min_length": 3, "max_length": 3}, [6, 2]),
        ({"min_return": 30.0}, [7, 6, 4, 3, 2]),
        ({"min_return": 30.1}, [7, 4, 3]),
        ({"max_return": 0.0}, [0]),
        ({"min_return": 10, "max_return": 30}, [6, 5, 2, 1]),
        ({"min_policy_version": 6}, [7, 6, 5, 4]),
        ({"max_policy_version": 3}, [2, 1, 0]),
        ({"max_policy_version": -1}, [0]),
        ({"min_policy_version": 3, "max_policy_version": 5}, [3, 2, 1]),
        ({"end": "terminated", "min_length": 2, "max_return": 50.0, "max_policy_version": 7}, [2]),
        ({"actor": "a", "end": "truncated"}, [3, 1]),
        ({"actor": "b", "end": "truncated"}, []),
        ({"actor": "nobody"}, []),
        ({"closed_only": True, "min_length": 3}, [7, 4, 3, 2]),
        ({"closed_only": True, "end": "open"}, []),
        ({"before_id": 5, "end": "terminated"}, [4, 2, 0]),
        ({"before_id": 0}, []),
        ({"before_id": 1 << 62, "end": "lost_actor"}, [7]),
    ],
)
def test_a_filter_lets_through_those_that_meet_all_of_it(table, asked, expected):
    assert ids(table, **asked) == expected


def test_each_episode_has_one_end(table):
    ends = [ids(table, end=end) for end in ("terminated", "truncated", "lost_actor", "open")]
    assert sorted(itertools.chain(*ends)) == list(range(8))


def pages(table, limit, **asked):
    before, found = None, []
    while page := ids(table, limit, before_id=before, **asked):
        assert len(page) <= limit
        found += page
        before = page[-1]
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
def test_pages_hold_together_what_one_list_does(table, limit):
    assert pages(table, limit) == [7, 6, 5, 4, 3, 2, 1, 0]
    assert pages(table, limit, end="terminated") == [5, 4, 2, 0]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_list_is_the_same_however_few_are_looked_at_in_one_go(table, monkeypatch, at_once):
    monkeypatch.setattr(episode_list, "_LOOKED_AT", at_once)
    assert (ids(table, end="terminated"), ids(table, 2, end="terminated")) == ([5, 4, 2, 0], [5, 4])
    monkeypatch.setattr(episode_list, "_TOLD", at_once)
    assert (ids(table), ids(table, 3), ids(table, end="truncated")) == ([7, 6, 5, 4, 3, 2, 1, 0], [7, 6, 5], [3, 1])


def test_removed_episodes_meet_no_filter(table):
    table.delete_episodes([2, 5])
    assert ids(table, end="terminated") == [4, 0]


def test_more_episodes_than_are_told_in_one_go_are_all_listed(replay):
    table = replay.create_table("t", SCALARS)
    count = episode_list._TOLD + 40
    write_episodes(table, [1] * count)
    assert ids(table, 1000) == list(range(count))[::-1]
    assert [record.length for record in table.episodes(limit=count)] == [1] * count


def test_a_filter_is_an_episode_filter(table):
    with pytest.raises(SpecMismatchError, match="where"):
        table.episodes(where={"end": "open"})
