"""What administrators can change: only as confirmed, all of it in the log, and long work as a job."""

import json
import logging
import threading

import pytest

from replaysvc import Limiter, StoreConfig
from replaysvc.replay import Replay
from tests.admin.browser import Browser
from tests.builders import make_table, write_episodes


@pytest.fixture
def table(replay):
    """A table of three episodes of 3, 4 and 5 steps."""
    return make_table(replay, [3, 4, 5])


def state(replay):
    """Returns what the actions could have changed."""
    table = replay.table("t")
    return (
        replay.tables(), table.stats().steps, [record.episode_id for record in table.episodes()], table.config,
        [job.kind for job in replay.jobs.views()],
    )  # fmt: skip


LIMITER = {"min_steps": 2, "samples_per_insert": None, "error_buffer": None}
CAPACITY = {"capacity_steps": 5, "capacity_bytes": None, "capacity_episodes": None}
POSTS = [
    ("tables/t/delete", {}, "t"),
    ("tables/t/delete-episodes", {"episode_ids": [0, 1], "open_episodes": False}, "t"),
    ("tables/t/limiter", {"limiter": LIMITER}, "t"),
    ("tables/t/capacity", CAPACITY, "t"),
    ("tables/t/compact", {}, "t"),
    ("snapshots", {"name": "s1"}, "s1"),
    ("scrub", {}, "scrub"),
]


@pytest.mark.parametrize(("path", "body", "name"), POSTS, ids=[path for path, _, _ in POSTS])
def test_without_the_right_name_nothing_changes(browser, replay, table, path, body, name):
    before = state(replay)
    wrong = [{}, {"confirm": ""}, {"confirm": name.upper()}, {"confirm": name + " "}, {"confirm": True}, {"confirm": None},
             {"confirm": [name]}, {"confirm": {"name": name}}, {"confirm": "yes"}]  # fmt: skip
    for confirm in wrong:
        answer = browser.post(f"/api/v1/{path}", body | confirm)
        assert (answer.status, answer.json["error"]) == (400, "InvalidRequestError"), confirm
        assert answer.json["message"].startswith(f"confirm: expected '{name}', the name of what is changed, found ")
    assert state(replay) == before


def test_wrong_values_are_refused_and_nothing_changes(browser, replay, table):
    before = state(replay)
    for path, body in [
        ("tables/t/delete-episodes", {}),
        ("tables/t/delete-episodes", {"episode_ids": []}),
        ("tables/t/delete-episodes", {"episode_ids": "0"}),
        ("tables/t/delete-episodes", {"episode_ids": [-1]}),
        ("tables/t/delete-episodes", {"episode_ids": [0.5]}),
        ("tables/t/delete-episodes", {"episode_ids": [True]}),
        ("tables/t/delete-episodes", {"episode_ids": [None]}),
        ("tables/t/delete-episodes", {"episode_ids": list(range(10_001))}),
        ("tables/t/delete-episodes", {"episode_ids": [0], "open_episodes": 1}),
        ("tables/t/limiter", {}),
        ("tables/t/limiter", {"limiter": {"min_steps": 0}}),
        ("tables/t/limiter", {"limiter": {"min_steps": 1, "colour": "red"}}),
        ("tables/t/capacity", {}),
        ("tables/t/capacity", {"capacity_steps": 5}),
        ("tables/t/capacity", CAPACITY | {"capacity_steps": 0}),
        ("tables/t/capacity", CAPACITY | {"capacity_steps": "5"}),
        ("tables/t/capacity", CAPACITY | {"capacity_steps": 5.5}),
        ("tables/t/capacity", CAPACITY | {"capacity_steps": True}),
        ("tables/t/capacity", CAPACITY | {"capacity_bytes": 5}),
        ("tables/t/limiter", {"limiter": {"min_steps": 1, "samples_per_insert": 2.0, "error_buffer": 0.001}}),
    ]:
        answer = browser.post(f"/api/v1/{path}", body | {"confirm": "t"})
        assert answer.status == 400, (path, body, answer.body)
    assert browser.post("/api/v1/snapshots", {"name": "../up", "confirm": "../up"}).status == 400
    assert state(replay) == before  # nor is there a job


def test_bounds_that_the_limiter_or_the_table_cannot_have_are_refused_without_a_job(browser, replay, table):
    table.set_limiter(Limiter(min_steps=3))
    table.set_capacity(capacity_steps=100)
    before = state(replay)
    answer = browser.post("/api/v1/tables/t/capacity", CAPACITY | {"capacity_steps": 2, "confirm": "t"})
    assert (answer.status, answer.json["message"]) == (
        400, "limiter.min_steps: expected at most capacity_steps=2, found 3"
    )  # fmt: skip
    answer = browser.post("/api/v1/tables/t/limiter", {"limiter": LIMITER | {"min_steps": 101}, "confirm": "t"})
    assert (answer.status, answer.json["message"]) == (
        400, "limiter.min_steps: expected at most capacity_steps=100, found 101"
    )  # fmt: skip
    assert state(replay) == before


def test_what_does_not_exist_is_not_found(browser, table):
    for action in ("delete", "compact"):
        answer = browser.post(f"/api/v1/tables/nope/{action}", {"confirm": "nope"})
        assert (answer.status, answer.json["error"]) == (404, "NotFoundError")


def test_table_is_deleted(browser, replay, table):
    answer = browser.post("/api/v1/tables/t/delete", {"confirm": "t"})
    assert (answer.status, answer.json) == (200, {"job": 1, "message": "table t was deleted"})
    assert replay.tables() == []
    (job,) = browser.get("/api/v1/jobs").json["jobs"]
    assert (job["number"], job["kind"], job["table"], job["who"], job["state"]) == (1, "delete_table", "t", "anyone", "done")


def test_episodes_are_deleted(browser, replay, table):
    body = {"episode_ids": [2, "0"], "open_episodes": False, "confirm": "t"}
    answer = browser.post("/api/v1/tables/t/delete-episodes", body)
    assert (answer.status, answer.json) == (200, {"job": 1, "deleted": 2, "absent": [], "message": "2 episodes were deleted"})
    assert [record.episode_id for record in table.episodes()] == [1]


def test_episodes_that_were_not_there_are_told(browser, table):
    table.delete_episodes([1])
    body = {"episode_ids": [2, 77, 1], "confirm": "t"}  # 77 was never there
    answer = browser.post("/api/v1/tables/t/delete-episodes", body)
    assert answer.status == 200
    assert answer.json == {
        "job": 2, "deleted": 1, "absent": [1, 77], "message": "1 episodes were deleted; 2 were not there: 1, 77"
    }  # fmt: skip


def test_episodes_none_of_which_is_there_are_not_found(browser, replay, table):
    table.delete_episodes([1])
    before = state(replay)
    for ids, said in ([1], "1"), ([(1 << 63) - 1], "9223372036854775807"), (range(90, 97), "90, 91, 92, 93, 94, ..."):
        answer = browser.post("/api/v1/tables/t/delete-episodes", {"episode_ids": list(ids), "confirm": "t"})
        assert (answer.status, answer.json["error"]) == (404, "NotFoundError")
        assert answer.json["message"] == f"episode_ids: expected episodes of table t, found none of {said}"
    assert state(replay) == before  # nor is there a job


def test_ten_thousand_ids_are_taken(browser, table):
    answer = browser.post("/api/v1/tables/t/delete-episodes", {"episode_ids": list(range(10_000)), "confirm": "t"})
    assert (answer.status, answer.json["deleted"]) == (200, 3)


def test_open_episodes_are_deleted_only_if_that_is_asked_for(browser, replay):
    table = make_table(replay)
    writer = table.writer()
    writer.begin(0)
    writer.append(0, 0.0, 1)
    writer.flush()
    (record,) = table.episodes()
    body = {"episode_ids": [record.episode_id], "confirm": "t"}
    refused = browser.post("/api/v1/tables/t/delete-episodes", body)
    assert (refused.status, refused.json["error"]) == (400, "InvalidRequestError")
    expected = f"episode_ids: expected closed ones unless open_episodes is true, found {record.episode_id}, still open"
    assert refused.json["message"] == expected
    assert replay.jobs.views() == []
    assert browser.post("/api/v1/tables/t/delete-episodes", body | {"open_episodes": True}).json["deleted"] == 1
    writer.abandon()


def test_limiter_is_changed(browser, replay, table):
    answer = browser.post("/api/v1/tables/t/limiter", {"limiter": LIMITER, "confirm": "t"})
    assert (answer.status, answer.json) == (200, {"job": None, "message": "table t has another limiter"})
    assert table.config.limiter == Limiter(min_steps=2)


def test_capacity_is_changed_and_steps_go(browser, replay, table):
    answer = browser.post("/api/v1/tables/t/capacity", CAPACITY | {"confirm": "t"})
    assert (answer.status, answer.json["message"]) == (200, "table t has other bounds")
    assert (table.config.capacity_steps, table.stats().steps) == (5, 5)


def test_table_is_compacted(browser, table):
    answer = browser.post("/api/v1/tables/t/compact", {"confirm": "t"})
    assert (answer.status, answer.json) == (
        200, {"job": 1, "message": "0 bytes were given back", "freed_bytes": 0}
    )  # fmt: skip


def test_snapshot_is_made_where_the_settings_say(tmp_path, open_door):
    with Replay(tmp_path / "other", StoreConfig(snapshot_dir=str(tmp_path / "snapshots"))) as replay:
        make_table(replay, [3])
        server = open_door(replay=replay)
        browser = Browser(server.port)
        answer = browser.post("/api/v1/snapshots", {"name": "s1", "confirm": "s1"})
        assert (answer.status, answer.json) == (200, {"job": 1, "message": "snapshot s1 is complete"})
        assert (tmp_path / "snapshots/s1/MANIFEST.json").is_file()
        again = browser.post("/api/v1/snapshots", {"name": "s1", "confirm": "s1"})
        assert (again.status, again.json["error"]) == (409, "AlreadyExistsError")
        server.stop()


def test_snapshot_without_a_place_for_it_is_refused(browser):
    answer = browser.post("/api/v1/snapshots", {"name": "s1", "confirm": "s1"})
    assert (answer.status, "snapshot_dir" in answer.json["message"]) == (400, True)


def test_scrub_begins(browser, replay):
    answer = browser.post("/api/v1/scrub", {"confirm": "scrub"})
    assert (answer.status, answer.json["message"]) == (200, "a round has begun")


def test_every_action_is_told_in_the_log_with_who_asked(secured, secrets, replay, table, caplog):
    browser = Browser(secured.port, token=secrets["admin"])
    with caplog.at_level(logging.INFO, logger="replaysvc.admin.actions"):
        browser.post("/api/v1/tables/t/limiter", {"limiter": LIMITER, "confirm": "t"})
        browser.post("/api/v1/tables/t/capacity", CAPACITY | {"capacity_steps": 1, "confirm": "t"})
        browser.post("/api/v1/tables/t/delete-episodes", {"episode_ids": [2, 1], "confirm": "t"})
        browser.post("/api/v1/tables/t/delete", {"confirm": "t"})
    lines = [record.getMessage() for record in caplog.records if record.name == "replaysvc.admin.actions"]
    assert lines == [
        "admin some-admin (admin) set the limiter of table t to Limiter(min_steps=2, samples_per_insert=None, "
        "error_buffer=None): done",
        "admin some-admin (admin) set the capacity of table t to {'capacity_steps': 1, 'capacity_bytes': None, "
        "'capacity_episodes': None}: refused: limiter.min_steps: expected at most capacity_steps=1, found 2",
        "admin some-admin (admin) delete 2 episodes of table t, ids 1, 2: done",
        "admin some-admin (admin) delete table t: done",
    ]
    assert {job.who for job in replay.jobs.views()} == {"some-admin"}


def test_line_in_the_log_is_short_whatever_was_asked_for(browser, table, caplog):
    body = CAPACITY | {"capacity_steps": "5" * 100_000, "confirm": "t"}
    assert browser.post("/api/v1/tables/t/capacity", body).status == 400
    (line,) = [record.getMessage() for record in caplog.records if record.name == "replaysvc.admin.actions"]
    assert len(line) < 1000


def test_work_that_takes_long_goes_on_and_is_a_job(browser, replay, table, monkeypatch):
    go_on, compact = threading.Event(), type(table).compact

    def slowly(self):
        with replay.jobs.running("compact", "t"):
            go_on.wait(60)
        return compact(self)

    monkeypatch.setattr("replaysvc.admin.actions._PATIENCE_S", 0.1)
    monkeypatch.setattr(type(table), "compact", slowly)
    answer = browser.post("/api/v1/tables/t/compact", {"confirm": "t"})
    assert (answer.status, answer.json) == (202, {"job": 1, "message": "it is under way; see the list of jobs"})
    (job,) = browser.get("/api/v1/jobs").json["jobs"]
    assert (job["number"], job["state"], job["who"]) == (1, "running", "anyone")
    go_on.set()


def test_only_so_many_actions_are_under_way(browser, replay, table, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr("replaysvc.admin.actions._PATIENCE_S", 0.01)
    monkeypatch.setattr(type(table), "compact", lambda _: go_on.wait(60))
    found = [browser.post("/api/v1/tables/t/compact", {"confirm": "t"}) for _ in range(9)]
    assert [answer.status for answer in found] == [202] * 8 + [503]
    assert found[-1].headers["retry-after"] == "1"
    go_on.set()


def test_names_in_bodies_do_not_forge_lines_of_the_log(browser, table, caplog):
    with caplog.at_level(logging.INFO):
        answer = browser.post("/api/v1/snapshots", {"name": "s\n2026-01-01 INFO fine", "confirm": "s\n2026-01-01 INFO fine"})
    assert answer.status == 400
    assert "fine" not in json.dumps([record.getMessage() for record in caplog.records])


def test_write_after_a_change_still_works(browser, table):
    browser.post("/api/v1/tables/t/capacity", CAPACITY | {"confirm": "t"})
    write_episodes(table, [3])
    assert table.stats().steps == 5
