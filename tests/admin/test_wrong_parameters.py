"""What is not there, and values that cannot be: the right status, and a sentence with what was expected."""

import pytest

from tests.admin.browser import Browser
from tests.builders import make_table

T = "/api/v1/tables/t"
OF_TABLES = (
    "", "/ages", "/columns", "/samplers/uniform", "/episodes", "/episode-points", "/episodes/0",
    "/episodes/0/steps?column=reward", "/episodes/0/priorities", "/episodes/0/image?column=observation&t=0",
    "/episodes/0/strip?column=observation",
)  # fmt: skip
OF_EPISODES = ("", "/steps?column=reward", "/priorities", "/image?column=observation&t=0", "/strip?column=observation")
NOT_A_NUMBER, NOT_WHOLE = "expected a number", "expected a whole number"
WRONG = [
    ("/api/v1/history?window=0", "window: expected at least 60.0, found '0'"),
    ("/api/v1/history?window=-1", "window: expected at least 60.0, found '-1'"),
    ("/api/v1/history?window=1e400", "window: expected at most 86400.0, found '1e400'"),
    ("/api/v1/history?window=nan", "window: expected at most 86400.0, found 'nan'"),
    ("/api/v1/history?window=day", f"window: {NOT_A_NUMBER}, found 'day'"),
    (f"/api/v1/history?table={'t' * 65}", f"table: expected at most 64 characters, found '{'t' * 65}'"),
    (f"{T}/episodes?limit=0", "limit: expected at least 1, found '0'"),
    (f"{T}/episodes?limit=201", "limit: expected at most 200, found '201'"),
    (f"{T}/episodes?limit=1.5", f"limit: {NOT_WHOLE}, found '1.5'"),
    (f"{T}/episodes?before_id={10**20}", f"before_id: expected at most {2**63 - 1}, found '{10**20}'"),
    (f"{T}/episodes?end=won", "end: expected one of ['terminated', 'truncated', 'lost_actor', 'open'], found 'won'"),
    (f"{T}/episodes?min_return=nan", "min_return: expected a number from -1e+38 to 1e+38, found nan"),
    (f"{T}/episodes?min_length=5&max_length=1", "max_length: expected at least min_length=5, found 1"),
    (f"{T}/episode-points?limit=5001", "limit: expected at most 5000, found '5001'"),
    (f"{T}/episodes/nan", f"episode_id: {NOT_WHOLE}, found 'nan'"),
    (f"{T}/episodes/-1", "episode_id: expected at least 0, found '-1'"),
    (f"{T}/episodes/0/steps", "column: expected a value, found none"),
    (f"{T}/episodes/0/steps?column=reward&start=2&stop=1",
     "start, stop: expected a range within the stored steps [0, 3), found [2, 1)"),
    (f"{T}/episodes/0/image?column=reward&t=0", "column reward: expected one that holds images, found scalar"),
    (f"{T}/episodes/0/strip?column=reward&count=0", "count: expected at least 1, found '0'"),
]  # fmt: skip


@pytest.fixture
def with_table(replay, browser) -> Browser:
    make_table(replay, [3, 4])
    return browser


def test_tables_that_are_not_there_are_not_found(with_table):
    told = {"error": "NotFoundError", "message": "table 'nope' does not exist; there are ['t']"}
    for path in ("/api/v1/history?table=nope", *(f"/api/v1/tables/nope{rest}" for rest in OF_TABLES)):
        answer = with_table.get(path)
        assert (answer.status, answer.json) == (404, told), path


def test_history_of_a_table_ends_with_it(with_table, replay):
    assert with_table.get("/api/v1/history?table=t").status == 200
    replay.delete_table("t")
    assert with_table.get("/api/v1/history?table=t").status == 404


def test_episodes_columns_and_samplers_that_are_not_there_are_not_found(with_table):
    paths = [f"{T}/episodes/{number}{rest}" for number in (77, (1 << 63) - 1) for rest in OF_EPISODES]
    paths += [f"{T}/episodes/0/{page}?column=nope&t=0" for page in ("steps", "image", "strip")]
    for path in (*paths, f"{T}/samplers/nope"):
        answer = with_table.get(path)
        assert (answer.status, answer.json["error"]) == (404, "NotFoundError"), path


@pytest.mark.parametrize(("path", "sentence"), WRONG, ids=[path.rpartition("/")[2][:40] for path, _ in WRONG])
def test_wrong_value_is_told_with_what_was_expected(with_table, path, sentence):
    answer = with_table.get(path)
    assert (answer.status, answer.json["message"]) == (400, sentence)
