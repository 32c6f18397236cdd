"""What the pages tell of a store whose every value is known."""

import numpy as np
import pytest

from replaysvc import FieldSpec, Fifo, Limiter, Prioritized, Signature, TableConfig, Transitions, Uniform
from replaysvc.activity import Activity
from replaysvc.admin.calls import calls_of
from replaysvc.errors import NotFoundError
from replaysvc.storage import System
from replaysvc.views import CallCounts, HistogramView
from tests.admin.browser import Browser
from tests.admin.conftest import METRICS
from tests.builders import make_table, write_episode
from tests.waiting import wait_until

NASTY = "<img src=x onerror=alert(1)>\"'&\u202e"


@pytest.fixture
def table(replay):
    """Three episodes of 3, 4 and 5 steps of `actor`; the sum of rewards is 30 + 3 e, 60 + 4 e, 100 + 5 e."""
    table = make_table(replay, samplers={"uniform": Uniform(), "prioritized": Prioritized(alpha=1.0), "queue": Fifo()})
    with table.writer("actor") as writer:
        for episode, length in enumerate((3, 4, 5)):
            write_episode(
                writer, length, episode=episode, end=("terminated", "truncated", "terminated")[episode], policy_version=episode
            )
    return table


def test_rows_of_tables(browser, replay, table):
    table.sample(6)
    (row,) = browser.get("/api/v1/tables").json["tables"]
    stats = table.stats()
    assert row == {
        "name": "t", "steps": 12, "episodes": 3, "open_episodes": 0, "disk_bytes": stats.disk_bytes,
        "stored_bytes": stats.stored_bytes, "raw_bytes": stats.raw_bytes, "ratio": stats.raw_bytes / stats.stored_bytes,
        "steps_in_per_s": 0.0, "items_out_per_s": 0.0, "samples_per_insert": 0.5, "samples_per_insert_target": None,
        "cache_hit_share": 1.0, "ready": True, "sampling_waits_for": "", "inserting_waits_for": "",
        "waiting": {"insert": 0, "sample": 0}, "fault": "", "quarantined_chunks": 0, "quarantined_segments": 0,
        "lost_segments": 0,
    }  # fmt: skip


def test_all_that_a_table_tells(browser, table):
    table.set_limiter(Limiter(min_steps=2))
    table.set_capacity(capacity_steps=24, capacity_episodes=4)
    told = browser.get("/api/v1/tables/t").json
    assert (told["uuid"], told["config"], told["signature"]) == (
        table.uuid, table.config.to_json(), table.signature.to_json()
    )  # fmt: skip
    assert told["capacity"] == {"steps": 24, "bytes": None, "episodes": 4, "full_share": 0.75}
    assert told["limiter"] == {
        "min_steps": 2, "samples_per_insert": None, "error_buffer": None, "inserted": 12, "sampled": 0,
    }  # fmt: skip
    assert (told["waited_s"], told["her"]) == ({"insert": 0.0, "sample": 0.0}, {"items": 0, "relabeled": 0})
    assert told["stats"]["next_position"] == 12
    assert told["ended_episodes"] == {"terminated": 2, "truncated": 1, "lost_actor": 0}
    assert told["removed_steps"] == {"capacity": 0, "deleted": 0, "damaged": 0}
    assert [(sampler["name"], sampler["kind"], sampler["options"]) for sampler in told["samplers"]] == [
        ("prioritized", "Prioritized", {"alpha": 1.0, "beta": 0.4, "norm": "batch", "initial_priority": None}),
        ("queue", "Fifo", {"max_times_sampled": 1}),
        ("uniform", "Uniform", {}),
    ]


def test_table_without_bounds_is_full_to_no_share(browser, table):
    assert browser.get("/api/v1/tables/t").json["capacity"] == {
        "steps": None, "bytes": None, "episodes": None, "full_share": None,
    }  # fmt: skip


def test_ages(browser, table):
    table.sample(4)
    told = browser.get("/api/v1/tables/t/ages").json
    stored = told["stored"]
    assert told["steps"] == 12
    assert len(stored["edges_s"]) == len(stored["share"]) + 1 == 41
    assert sum(stored["share"]) == pytest.approx(1)
    quantiles = [told["quantiles"][name] for name in ("p0", "p50", "p90", "p100")]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] >= 0
    assert len(told["sampled"]["edges_steps"]) == len(told["sampled"]["counts"]) + 1


def test_empty_table_has_gaps(browser, replay):
    make_table(replay)
    ages = browser.get("/api/v1/tables/t/ages").json
    assert (ages["stored"], ages["quantiles"]["p50"]) == ({"edges_s": [], "share": []}, None)
    (row,) = browser.get("/api/v1/tables").json["tables"]
    assert (row["ratio"], row["samples_per_insert"], row["cache_hit_share"]) == (None, None, None)
    assert (row["ready"], row["sampling_waits_for"]) == (False, "0 of 1 steps")
    assert browser.get("/api/v1/tables/t/samplers/uniform").json["draws"] is None
    assert browser.get("/api/v1/tables/t/episode-points").json["episode_id"] == []
    assert browser.get("/api/v1/tables/t/episodes").json == {"episodes": [], "next_before_id": None}


def test_bytes_of_columns(browser, table):
    columns = browser.get("/api/v1/tables/t/columns").json["columns"]
    assert [column["name"] for column in columns] == ["observation", "action", "reward"]
    assert columns[0]["raw_bytes"] == (4 + 5 + 6) * 8
    for column in columns:
        assert column["ratio"] == column["raw_bytes"] / column["stored_bytes"]
        assert (column["table"], column["lossless_chunks"], column["lossless_share"]) == ("t", 0, 0.0)


def test_sampler_with_priorities(browser, table):
    table.update_priorities(np.arange(12), np.array([0.0] * 6 + [1.0] * 5 + [5.0]))
    told = browser.get("/api/v1/tables/t/samplers/prioritized").json
    assert (told["name"], told["kind"], told["built"], told["available"]) == ("prioritized", "Prioritized", True, None)
    priorities = told["priorities"]
    assert (priorities["zero_share"], priorities["total"], priorities["largest"], priorities["alpha"]) == (0.5, 10.0, 5.0, 1.0)
    assert (priorities["edges"][0], priorities["edges"][-1], priorities["share"][0]) == (0.0, 5.0, 0.5)
    assert told["top"][0] == {"position": 11, "episode_id": 2, "t": 4, "priority": 5.0, "probability": 0.5}
    draws = told["draws"]
    assert sum(draws["drawn_share"]) == pytest.approx(1)
    assert sum(draws["stored_share"]) == pytest.approx(1)
    assert draws["probability"] == {"min": 0.1, "p50": pytest.approx(0.3, abs=0.21), "max": 0.5, "uniform": 1 / 12}


def test_looking_at_samplers_uses_nothing_up(browser, table):
    what = Transitions()
    table.sample(2, what, sampler="queue")
    before = table.stats()
    told = browser.get("/api/v1/tables/t/samplers/queue").json
    assert (told["available"], told["draws"], told["priorities"], told["top"]) == (10, None, None, [])
    assert browser.get("/api/v1/tables/t/samplers/prioritized").json["built"] is False
    after = table.stats()
    assert (after.queues, after.sampled_items_total, after.limiter) == (
        before.queues,
        before.sampled_items_total,
        before.limiter,
    )


@pytest.mark.parametrize(
    "path",
    ["tables/nope", "tables/nope/ages", "tables/nope/columns", "tables/nope/samplers/uniform", "tables/t/samplers/nope",
     "tables/nope/episodes", "tables/nope/episode-points", "tables/nope/episodes/0", "tables/t/episodes/99",
     "tables/t/episodes/9223372036854775807", "tables/t/episodes/99/steps?column=reward", "tables/t/episodes/99/priorities",
     "tables/nope/episodes/0/image?column=observation&t=0", "tables/t/episodes/99/strip?column=observation",
     "tables/..%2f..%2fetc/ages", "tables/t/episodes/0/steps?column=nope"],
)  # fmt: skip
def test_what_does_not_exist_is_not_found(browser, table, path):
    answer = browser.get(f"/api/v1/{path}")
    assert (answer.status, answer.json["error"]) == (404, "NotFoundError"), answer.body


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("history?window=59", "window"), ("history?window=86401", "window"), ("history?window=nan", "window"),
        ("tables/t/episodes?limit=0", "limit"), ("tables/t/episodes?limit=201", "limit"),
        ("tables/t/episodes?limit=x", "limit"),
        ("tables/t/episodes?before_id=-1", "before_id"), ("tables/t/episodes?end=soon", "end"),
        ("tables/t/episodes?min_length=5&max_length=4", "max_length"), ("tables/t/episodes?min_return=nan", "min_return"),
        ("tables/t/episodes?max_return=inf", "max_return"), ("tables/t/episode-points?limit=5001", "limit"),
        ("tables/t/episodes/-1", "episode_id"), ("tables/t/episodes/x", "episode_id"),
        ("tables/t/episodes/9223372036854775808", "episode_id"), ("tables/t/episodes/0/steps", "column"),
        ("tables/t/episodes/0/steps?column=reward&start=3&stop=2", "start"),
        ("tables/t/episodes/0/steps?column=reward&start=3", "start"), ("tables/t/episodes/0/image?column=observation", "t"),
        ("tables/t/episodes/0/image?column=observation&t=0", "column observation"),
        ("tables/t/episodes/0/strip?column=observation&count=33", "count"),
        ("tables/t/episodes/0/strip?column=observation&width=257", "width"),
        (f"tables/{'t' * 65}/ages", "table"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused_by_name(browser, table, path, name):
    answer = browser.get(f"/api/v1/{path}")
    assert answer.status == 400, answer.body
    assert answer.json["error"] in ("InvalidRequestError", "SpecMismatchError")
    assert answer.json["message"].startswith(name), answer.json["message"]


def test_overview(browser, replay, table):
    table.sample(6)
    told = browser.get("/api/v1/overview").json
    assert told["verdict"] == {"status": "ok", "reasons": []}
    assert (told["version"], told["address"], told["data"]) == ("1.2.3", "127.0.0.1:7777", "store")
    totals = told["totals"]
    assert (totals["tables"], totals["steps"], totals["episodes"], totals["open_episodes"]) == (1, 12, 3, 0)
    assert (totals["appended_steps_total"], totals["sampled_items_total"], totals["cache_hit_share"]) == (12, 6, 1.0)
    assert totals["cache_budget_bytes"] == replay.config.recent_cache_bytes + replay.config.faulted_cache_bytes
    assert totals["disk_bytes"] == told["disk"]["used_bytes"] >= table.stats().disk_bytes
    assert told["rates"] == dict.fromkeys(("steps_in_per_s", "items_out_per_s", "bytes_in_per_s", "bytes_out_per_s"), 0.0)
    assert (told["disk"]["growth_bytes_per_day"], told["disk"]["days_left"], told["disk"]["refuses"]) == (None, None, False)
    assert told["backlog"] == {"requests": 0, "held_bytes": 0, "limit_bytes": replay.config.queue_bytes, "oldest_s": 0.0}
    assert told["memory"]["anonymous_bytes"] > 1 << 20
    assert [row["name"] for row in told["tables"]] == ["t"]
    assert [(column["table"], column["name"]) for column in told["columns"]] == [
        ("t", "observation"), ("t", "action"), ("t", "reward"),
    ]  # fmt: skip
    assert told["at_s"] >= told["started_at_s"] > 0
    assert told["calls"] == []


def test_fault_of_a_table_is_told_by_probes_and_verdict(open_door, replay, table, monkeypatch):
    browser = Browser(open_door().port)
    assert [browser.get(path).status for path in ("/livez", "/readyz")] == [200, 200]
    monkeypatch.setattr(type(replay), "fault", property(lambda _: "a sync failed"))
    assert [browser.get(path).status for path in ("/livez", "/readyz")] == [503, 503]
    assert browser.get("/livez").json == {"status": "unavailable"}  # and why is not for everyone


@pytest.mark.parametrize(("status", "ready"), [("starting", 503), ("serving", 200), ("draining", 503)])
def test_readiness_is_that_of_the_other_door(open_door, status, ready):
    browser = Browser(open_door(status=lambda: status).port)
    assert [browser.get(path).status for path in ("/livez", "/readyz")] == [200, ready]
    assert (browser.get("/api/v1/overview").json["verdict"]["status"] == "draining") == (status == "draining")


def test_metrics_are_what_renders_them(browser):
    answer = browser.get("/metrics")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (
        200, METRICS, "text/plain; version=0.0.4; charset=utf-8"
    )  # fmt: skip


def test_history_has_columns_of_one_length(browser, table):
    told = browser.get("/api/v1/history?table=t&window=3600").json
    assert {len(values) for values in told.values()} == {0}
    assert set(told) == {
        "at_s", "steps_in_per_s", "items_out_per_s", "bytes_in_per_s", "bytes_out_per_s", "samples_per_insert",
        "cache_hit_share", "disk_bytes",
    }  # fmt: skip


def test_calls_are_summed_over_their_codes():
    bounds = (0.001, 0.01)
    counts = CallCounts(
        seconds={
            ("Sample", "OK"): HistogramView(bounds=bounds, counts=(8, 0, 0), total=0.004),
            ("Sample", "FAILED_PRECONDITION"): HistogramView(bounds=bounds, counts=(0, 7, 0), total=0.035),
            ("Append", "OK"): HistogramView(bounds=bounds, counts=(0, 1, 0), total=0.01),
            ("Snapshot", "INTERNAL"): HistogramView(bounds=bounds, counts=(0, 0, 1), total=5.0),
        },
        waits={"Sample": 5},
    )
    rows = calls_of(counts)
    assert [(row["method"], row["count"], row["waits"], row["errors"]) for row in rows] == [
        ("Sample", 15, 5, 2),
        ("Append", 1, 0, 0),
        ("Snapshot", 1, 0, 1),
    ]
    assert rows[0]["p50_s"] == pytest.approx(0.001 * 7.5 / 8)
    assert 0.001 < rows[0]["p99_s"] <= 0.01


def test_actors_and_learners(open_door, replay, table):
    activity = Activity()
    activity.sampled("some-learner", "t", "uniform", 256, 0.002, 0.0)
    browser = Browser(open_door(activity=activity).port)
    replay.put_params("policy", b"x", version=9)
    told = browser.get("/api/v1/actors").json
    assert told["newest_policy_version"] == 9
    (actor,) = [actor for actor in told["actors"] if actor["name"] == "actor"]
    keys = ("table", "name", "steps", "episodes", "open_episodes", "policy_version", "staleness")
    assert {key: actor[key] for key in keys} == {
        "table": "t", "name": "actor", "steps": 12, "episodes": 3, "open_episodes": 0, "policy_version": 2, "staleness": 7,
    }  # fmt: skip
    (learner,) = browser.get("/api/v1/learners").json["learners"]
    assert (learner["name"], learner["items"], learner["batches_per_s"] > 0, learner["state"]) == (
        "some-learner",
        256,
        True,
        "sampling",
    )


def test_storage(browser, replay, table):
    told = browser.get("/api/v1/storage").json
    (found,) = told["tables"]
    (segment,) = found["segments"]
    assert (found["name"], segment["sealed"], segment["chunks"], segment["live_chunks"]) == ("t", False, 3, 3)
    for times in (found["commit"], found["sync"]):
        assert times["count"] == sum(times["counts"]) >= 1
        assert len(times["edges"]) == len(times["counts"]) + 1
        assert 0 < times["p50_s"] <= times["p99_s"]
    assert (told["snapshots"], told["snapshot_dir"], told["quarantined_tables"]) == ([], None, [])
    assert told["scrub"]["damaged"] == 0


def test_configuration_hides_paths_of_secrets(open_door):
    settings = {"port": 7777, "tls_key": "/etc/key.pem", "tokens_file": "/etc/tokens.toml", "something_new": "x", "data": "d"}
    told = Browser(open_door(settings=settings, limits={"answer_bytes": 1}).port).get("/api/v1/configuration").json
    assert told["settings"] == [
        {"name": "port", "value": 7777, "secret": False}, {"name": "tls_key", "value": "given", "secret": True},
        {"name": "tokens_file", "value": "given", "secret": True}, {"name": "something_new", "value": "given", "secret": True},
        {"name": "data", "value": "d", "secret": False},
    ]  # fmt: skip
    assert told["limits"] == {"answer_bytes": 1}
    assert told["store"]["commit_interval_s"] == 0.05
    assert {"numpy", "lmdb", "fastapi"} <= set(told["packages"])


def test_log(open_door):
    browser = Browser(open_door(log_lines=lambda: ["one", "two <b>"]).port)
    assert browser.get("/api/v1/log").json == {"lines": ["one", "two <b>"]}


def test_names_of_others_come_as_data_alone(browser, replay):
    """Whatever a browser is told, it is told as JSON, which no browser takes for a page."""
    signature = Signature(FieldSpec("o", (), np.int64), FieldSpec("a", (), np.int64), **{NASTY: FieldSpec("x", (), np.float32)})
    table = replay.create_table("t", signature)
    with table.writer(NASTY.replace("\u202e", "")) as writer:
        writer.begin(0, metadata={NASTY: NASTY})
        writer.append(0, 1.0, 1, terminated=True, extras={NASTY: np.float32(1)})
    for path in (
        "overview", "tables", "tables/t", "tables/t/columns", "tables/t/episodes", "tables/t/episodes/0", "actors",
        "tables/t/episodes?actor=%3Cimg%3E", "tables/%3Cscript%3E", "tables/t/samplers/%3Cscript%3E",
        "history?table=%3Cscript%3E",
        "tables/t/episodes/0/steps?column=%3Cscript%3E", "tables/t/episodes?end=%3Cscript%3E", "%3Cscript%3E",
    ):  # fmt: skip
        answer = browser.get(f"/api/v1/{path}")
        assert answer.headers.get_all("content-type") == ["application/json"], path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json is not None
    assert browser.get("/api/v1/tables/t/episodes").json["episodes"][0]["metadata"] == {NASTY: NASTY}
    assert NASTY in [column["name"] for column in browser.get("/api/v1/tables/t/episodes/0").json["columns"]]


def test_openapi_describes_every_route(browser, open_door):
    told = browser.get("/api/v1/openapi.json").json
    described = {(path, method) for path, methods in told["paths"].items() for method in methods}
    server = open_door()
    assert described == {
        (route.path.replace(":path", ""), method.lower()) for route in server.app.routes for method in route.methods
    }
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], path
            assert operation["tags"], path
            parameters = {parameter["name"] for parameter in operation.get("parameters", [])}
            assert {part.strip("{}") for part in path.split("/") if part.startswith("{")} <= parameters
            assert all(parameter["description"] for parameter in operation.get("parameters", [])), path
            if method == "post":
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                assert "confirm" in schema["required"]
    assert {parameter["name"] for parameter in told["paths"]["/api/v1/tables/{table}/episodes"]["get"]["parameters"]} == {
        "table", "limit", "before_id", "actor", "end", "min_length", "max_length", "min_return", "max_return",
        "min_policy_version", "max_policy_version",
    }  # fmt: skip


def test_table_that_is_deleted_meanwhile_is_left_out(browser, replay, table, monkeypatch):
    make = replay.create_table("gone", table.signature, TableConfig())
    engine = type(replay).engine

    def deleted(self, name, uuid=""):
        if name == "gone":
            raise NotFoundError("table gone does not exist")
        return engine(self, name, uuid)

    monkeypatch.setattr(type(replay), "engine", deleted)
    for path, key in (("tables", "tables"), ("actors", "actors"), ("storage", "tables"), ("overview", "tables")):
        answer = browser.get(f"/api/v1/{path}")
        assert answer.status == 200, (path, answer.body)
        assert "gone" not in [row.get("name") for row in answer.json[key]]
    assert make.name == "gone"


def test_history_grows_while_the_door_is_open(open_door, monkeypatch):
    monkeypatch.setattr("replaysvc.health.watch.FINE_S", 0.05)
    monkeypatch.setattr("replaysvc.health.history.FINE_S", 0.01)
    browser = Browser(open_door().port)
    wait_until(lambda: len(browser.get("/api/v1/history").json["at_s"]) > 2)


def test_file_system_that_cannot_be_asked_fails_no_page(browser, replay, monkeypatch):
    def fail(self, path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(System, "free_bytes", fail)
    told = browser.get("/api/v1/overview").json
    assert (told["disk"], told["totals"]["disk_bytes"], told["verdict"]["status"]) == (None, None, "warning")
    assert browser.get("/api/v1/storage").json["disk"] is None


def test_actors_are_told_with_the_rule_of_staleness(browser):
    assert "versions behind the newest" in browser.get("/api/v1/actors").json["stale_rule"]
