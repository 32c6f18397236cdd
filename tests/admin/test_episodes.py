"""Episodes, their steps and images, as the page gets them."""

import numpy as np
import pytest

from replaysvc import FieldSpec, Signature
from replaysvc.admin import episodes
from tests.admin.browser import Browser
from tests.admin.test_numbers import pixels_of
from tests.builders import make_table, write_episode

AT = "/api/v1/tables/t"
RICH = Signature(
    {
        "image": FieldSpec("image", (8, 9), np.uint8), "stack": FieldSpec("stack", (4, 8, 8), np.uint8),
        "x": FieldSpec("x", (3,), np.float32), "desired_goal": FieldSpec("g", (2,), np.float32),
        "achieved_goal": FieldSpec("g", (2,), np.float32),
    },
    (FieldSpec("a", (), np.int64), FieldSpec("b", (2, 40), np.int16)),
    tokens=FieldSpec("tokens", (4,), np.int32, ragged=True), id=FieldSpec("id", (), np.uint64),
    log_prob=FieldSpec("log_prob", (), np.float32),
)  # fmt: skip


def observation(t):
    return {
        "image": np.full((8, 9), 10 * t, np.uint8),
        "stack": np.arange(4, dtype=np.uint8)[:, None, None] + np.full((4, 8, 8), 10 * t, np.uint8),
        "x": np.array([t, np.nan, -np.inf], np.float32), "desired_goal": np.ones(2, np.float32),
        "achieved_goal": np.zeros(2, np.float32),
    }  # fmt: skip


@pytest.fixture
def rich(replay):
    """One episode of 5 steps of every kind of column."""
    table = replay.create_table("t", RICH)
    with table.writer() as writer:
        writer.begin(observation(0))
        for t in range(5):
            extras = {
                "tokens": np.arange(t % 3),
                "id": np.uint64((1 << 63) + t),
                "log_prob": np.float32("inf" if t else "-0.5"),
            }
            writer.append((t, np.full((2, 40), t)), float(t), observation(t + 1), truncated=t == 4, extras=extras)
    return table


@pytest.fixture
def table(replay):
    """Four episodes: 3 steps terminated, 4 truncated, 5 terminated, 2 so far; the last two of another actor."""
    table = make_table(replay)
    with table.writer("first") as writer:
        write_episode(writer, 3, episode=0, policy_version=1, metadata={"seed": 7})
        write_episode(writer, 4, episode=1, end="truncated", policy_version=2)
    writer = table.writer("second")
    write_episode(writer, 5, episode=2, policy_version=3)
    write_episode(writer, 2, episode=3, end="open", policy_version=4)
    writer.flush()
    yield table
    writer.close()


def ids(answer):
    return [episode["episode_id"] for episode in answer.json["episodes"]]


def test_list_has_the_newest_first(browser, table):
    answer = browser.get(f"{AT}/episodes")
    assert ids(answer) == [3, 2, 1, 0]
    oldest = answer.json["episodes"][-1]
    assert oldest == {
        "episode_id": 0, "actor": "first", "length": 3, "first_step": 0, "return": 30.0, "terminated": True, "truncated": False,
        "closed": True, "end": "terminated", "policy_version": 1, "started_at_s": oldest["started_at_s"],
        "metadata": {"seed": 7},
    }  # fmt: skip
    assert [episode["end"] for episode in answer.json["episodes"]] == ["open", "terminated", "truncated", "terminated"]
    assert answer.json["next_before_id"] is None


def test_pages_of_the_list_follow_each_other(browser, table):
    first = browser.get(f"{AT}/episodes?limit=3")
    assert (ids(first), first.json["next_before_id"]) == ([3, 2, 1], 1)
    second = browser.get(f"{AT}/episodes?limit=3&before_id=1")
    assert (ids(second), second.json["next_before_id"]) == ([0], None)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("actor=second", [3, 2]), ("actor=nobody", []), ("end=terminated", [2, 0]), ("end=truncated", [1]), ("end=open", [3]),
        ("end=lost_actor", []), ("min_length=4", [2, 1]), ("max_length=3", [3, 0]), ("min_length=3&max_length=4", [1, 0]),
        ("min_return=64", [2, 1]), ("max_return=30", [3, 0]), ("min_policy_version=2&max_policy_version=3", [2, 1]),
        ("actor=second&end=terminated", [2]),
    ],
)  # fmt: skip
def test_filters(browser, table, query, found):
    assert ids(browser.get(f"{AT}/episodes?{query}")) == found


def test_points_to_plot(browser, table):
    told = browser.get(f"{AT}/episode-points").json
    assert {name: told[name] for name in ("episode_id", "length", "end", "policy_version")} == {
        "episode_id": [0, 1, 2, 3], "length": [3, 4, 5, 2], "end": ["terminated", "truncated", "terminated", "open"],
        "policy_version": [1, 2, 3, 4],
    }  # fmt: skip
    assert told["return"] == [30.0, 64.0, 110.0, 16.0]
    assert browser.get(f"{AT}/episode-points?limit=2").json["episode_id"] == [2, 3]


def test_one_episode_with_its_columns(browser, rich):
    told = browser.get(f"{AT}/episodes/0").json
    keys = ("name", "dtype", "shape", "kind", "length_offset")
    assert [tuple(column[key] for key in keys) for column in told["columns"]] == [
        ("observation/achieved_goal", "float32", [2], "vector", 1),
        ("observation/desired_goal", "float32", [2], "vector", 1),
        ("observation/image", "uint8", [8, 9], "image", 1),
        ("observation/stack", "uint8", [4, 8, 8], "image", 1),
        ("observation/x", "float32", [3], "vector", 1),
        ("action/0", "int64", [], "scalar", 0),
        ("action/1", "int16", [2, 40], "array", 0),
        ("reward", "float32", [], "scalar", 0),
        ("id", "uint64", [], "scalar", 0),
        ("log_prob", "float32", [], "scalar", 0),
        ("tokens", "int32", [4], "ragged", 0),
    ]  # fmt: skip
    assert told["goals"] == {"desired": "observation/desired_goal", "achieved": "observation/achieved_goal"}
    assert told["samplers"] == ["prioritized"]
    assert (told["length"], told["end"], told["page_steps"]) == (5, "truncated", 1000)


def test_episode_without_goals(browser, table):
    assert browser.get(f"{AT}/episodes/1").json["goals"] == {"desired": None, "achieved": None}


def test_steps_as_they_are_stored(browser, rich):
    names = ("reward", "observation/x", "action/0", "id", "log_prob", "tokens")
    query = "&".join(f"column={name}" for name in names)
    told = browser.get(f"{AT}/episodes/0/steps?{query}&start=1&stop=4").json
    assert (told["start"], told["stop"], told["note"]) == (1, 4, "")
    columns = told["columns"]
    assert {name: columns[name]["values"] for name in names} == {
        "reward": [1.0, 2.0, 3.0],
        "observation/x": [[float(t), "nan", "-inf"] for t in (1, 2, 3, 4)],  # and the one after the last step
        "action/0": [1, 2, 3],
        "id": [str((1 << 63) + t) for t in (1, 2, 3)],
        "log_prob": ["inf"] * 3,
        "tokens": [[0], [0, 1], []],
    }
    assert columns["observation/x"] == {"dtype": "float32", "shape": [3], "values": columns["observation/x"]["values"]}


def test_large_rows_are_cut(browser, rich):
    column = browser.get(f"{AT}/episodes/0/steps?column=action/1&start=2&stop=3").json["columns"]["action/1"]
    assert (column["values"], column["cut"], column["shape"]) == ([[2] * 64], True, [2, 40])


def test_pages_of_steps_are_bounded_whatever_is_asked_for(browser, table, monkeypatch):
    monkeypatch.setattr(episodes, "MOST_STEPS", 2)
    told = browser.get(f"{AT}/episodes/2/steps?column=reward&start=1&stop=5").json
    assert (told["start"], told["stop"], told["note"]) == (1, 3, "2 steps at most are told at once")
    assert told["columns"]["reward"]["values"] == [12.0, 22.0]
    assert browser.get(f"{AT}/episodes/2").json["page_steps"] == 2
    past = browser.get(f"{AT}/episodes/2/steps?column=reward&start=4&stop=99").json
    assert (past["start"], past["stop"], past["note"]) == (4, 5, "")


def test_page_of_the_largest_signature_is_within_a_few_mebibytes():
    wide = Signature(
        FieldSpec("o", (1000,), np.float32),
        FieldSpec("a", (), np.int64),
        **{f"e{i}": FieldSpec("x", (200,), np.float64) for i in range(200)},
    )
    assert 1 <= episodes.page_steps(wide) <= 200_000 // (200 * 64)
    huge = Signature(FieldSpec("o", (20 << 20,), np.uint8), FieldSpec("a", (), np.int64))
    assert episodes.page_steps(huge) == 1


def test_images_are_no_steps(browser, rich):
    answer = browser.get(f"{AT}/episodes/0/steps?column=observation/image")
    assert (answer.status, "image and strip" in answer.json["message"]) == (400, True)


def test_priorities_of_steps(browser, table):
    assert browser.get(f"{AT}/episodes/1/priorities").json == {"start": 0, "stop": 4, "samplers": {}}  # none is in use
    table.update_priorities([3, 4, 5, 6], [1.0, 2.0, 0.0, 4.0])
    told = browser.get(f"{AT}/episodes/1/priorities?start=1&stop=4").json
    assert (told["start"], told["stop"]) == (1, 4)
    assert told["samplers"]["prioritized"] == pytest.approx([2.0, 0.0, 4.0], rel=1e-6)


def test_image_of_a_step(browser, rich):
    for t in range(6):  # the observation after the last step, too
        answer = browser.get(f"{AT}/episodes/0/image?column=observation/image&t={t}")
        assert (answer.status, answer.headers["content-type"], answer.headers["x-replaysvc-planes"]) == (200, "image/png", "1")
        assert pixels_of(answer.body).tolist() == [[10 * t] * 9] * 8
    assert browser.get(f"{AT}/episodes/0/image?column=observation/image&t=6").status == 400


def test_plane_of_a_stack(browser, rich):
    answer = browser.get(f"{AT}/episodes/0/image?column=observation/stack&t=1&plane=3")
    assert answer.headers["x-replaysvc-planes"] == "4"
    assert pixels_of(answer.body)[0, 0] == 13
    assert browser.get(f"{AT}/episodes/0/image?column=observation/stack&t=1&plane=4").status == 400


def test_strip_of_an_episode(browser, rich):
    answer = browser.get(f"{AT}/episodes/0/strip?column=observation/image&count=3&width=9")
    pixels = pixels_of(answer.body)
    assert pixels.shape == (8, 9 * 3 + 2)
    assert pixels[0, [0, 10, 20]].tolist() == [0, 20, 50]  # steps 0, 2 (of 2.5, to even) and 5
    every = browser.get(f"{AT}/episodes/0/strip?column=observation/image&start=3&count=32&width=18")
    assert pixels_of(every.body).shape == (16, 18 * 3 + 2)  # there are no more than three


def test_images_over_many_chunks(replay, browser):
    signature = Signature(FieldSpec("o", (8, 8), np.uint8), FieldSpec("a", (), np.int64))
    table = make_table(replay, signature=signature, chunk_steps=2)
    with table.writer() as writer:
        writer.begin(np.zeros((8, 8), np.uint8))
        for t in range(9):
            writer.append(0, 0.0, np.full((8, 8), t + 1, np.uint8), terminated=t == 8)
    pixels = pixels_of(browser.get(f"{AT}/episodes/0/strip?column=observation&count=10&width=8").body)
    assert pixels[0, ::9].tolist() == list(range(10))


def test_damage_is_told_with_the_steps_that_can_be_read(browser, replay, table, monkeypatch):
    engine = replay.engine("t")
    chunk = int(engine._core.index.chunks["chunk_id"][0])
    engine.note_damage(chunk, "for a test")
    answer = browser.get(f"{AT}/episodes/0/steps?column=reward")
    assert (answer.status, answer.json["error"]) == (500, "ChunkCorruptError")
    assert "steps 0 to 2 are damaged" in answer.json["message"]


def test_one_door_tells_another_episode_at_once(open_door, table):
    """What is shared for a second is shared by those who ask the same, and no others."""
    browser = Browser(open_door().port)
    assert [browser.get(f"{AT}/episodes/{number}").json["length"] for number in range(3)] == [3, 4, 5]
