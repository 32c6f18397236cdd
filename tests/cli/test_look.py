"""`replaysvc episodes` and `show`: what they tell of what is stored, of a service and of a store."""

import json

import numpy as np
import pytest

import replaysvc as package
from replaysvc import FieldSpec, Signature

IMAGES = Signature({"pixels": FieldSpec("pixels", (8, 8), np.uint8), "speed": FieldSpec("speed", (), np.float32)},
                   FieldSpec("action", (2,), np.float32))  # fmt: skip


def seen(t):
    return {"pixels": np.full((8, 8), t, np.uint8), "speed": np.float32(np.nan if t == 1 else t)}


@pytest.fixture
def store(tmp_path):
    with package.open(tmp_path / "store") as replay:
        table = replay.create_table("t", IMAGES)
        for actor, length in (("left [red]", 3), ("right", 30)):
            with table.writer(actor=actor) as writer:
                writer.begin(seen(0), policy_version=7)
                for t in range(length):
                    ends = {"terminated": t + 1 == length == 3, "truncated": t == 29}
                    writer.append(np.array([t, -t], np.float32), 2.0, seen(t + 1), **ends)
    return tmp_path / "store"


def test_episodes_are_listed_the_newest_first(store, replaysvc):
    told = json.loads(replaysvc("episodes", store, "t", "--json").stdout)
    assert [(each["episode_id"], each["actor"], each["length"], each["return_"]) for each in told] == [
        (1, "right", 30, 60.0), (0, "left [red]", 3, 6.0),
    ]  # fmt: skip
    printed = replaysvc("episodes", store, "t", "--actor", "left [red]").stdout
    assert "left [red]" in printed
    assert "terminated" in printed
    assert "right" not in printed
    assert replaysvc("episodes", store, "t", "--actor", "nobody").stdout == "no episodes\n"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--end", "truncated"], [1]), (["--end", "terminated"], [0]), (["--end", "open"], []),
        (["--min-return", 7], [1]), (["--max-return", 6.5], [0]), (["--min-length", 4], [1]), (["--max-length", 3], [0]),
        (["--min-policy-version", 7, "--max-policy-version", 7], [1, 0]), (["--min-policy-version", 8], []),
        (["--max-policy-version", 6], []), (["--end", "truncated", "--max-length", 3], []),
    ],
)  # fmt: skip
def test_episodes_are_listed_by_what_they_are(store, replaysvc, options, ids):
    told = json.loads(replaysvc("episodes", store, "t", *options, "--json").stdout)
    assert [each["episode_id"] for each in told] == ids


def test_what_no_episode_can_be_is_one_sentence(store, refused):
    status, sentence = refused("episodes", store, "t", "--end", "won")
    assert (status, sentence) == (2, "end: expected one of ['terminated', 'truncated', 'lost_actor', 'open'], found 'won'")
    assert refused("episodes", store, "t", "--min-length", 5, "--max-length", 4)[0] == 2


def test_steps_of_an_episode_are_shown(store, replaysvc):
    printed = replaysvc("show", store, "t", 0).stdout
    assert "actor left [red]" in printed
    for words in ("uint8 8x8,", "2 to 2", "nan"):
        assert words in printed
    told = json.loads(replaysvc("show", store, "t", 0, "--start", 1, "--stop", 3, "--json").stdout)
    assert (told["start"], told["stop"], told["episode"]["policy_version"]) == (1, 3, 7)
    assert told["columns"]["action"] == [[1.0, -1.0], [2.0, -2.0]]
    assert told["columns"]["observation/speed"] == ["nan", 2.0, 3.0]
    assert told["columns"]["terminated"] == [False, True]


def test_episode_that_is_not_there_is_one_sentence(store, refused):
    status, sentence = refused("show", store, "t", 9)
    assert status
    assert sentence == "table t: no episode 9"
