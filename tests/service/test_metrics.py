"""What /metrics tells of a busy store: every name, values counted by hand, and counters that never fall."""

import inspect
import threading

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import replaysvc
from replay_client import UnauthenticatedError, connect
from replaysvc import (
    FieldSpec,
    Goal,
    Limiter,
    Precision,
    Prioritized,
    Signature,
    StoreConfig,
    TableConfig,
    Transitions,
    Uniform,
    access,
    metrics,
)
from replaysvc.access import Access, Role
from replaysvc.activity import Activity
from replaysvc.errors import NotFoundError, StorageError, UnavailableError
from replaysvc.metrics import CONTENT_TYPE, FAMILIES, Metrics
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server
from replaysvc.views import HistogramView
from tests.builders import SCALARS, always, make_goal_table, make_table, write_episode, write_episodes

DEMANDED = (
    "rpc_seconds", "rpc_inflight", "rpc_bytes_total", "append_steps_total", "append_episodes_total", "sample_items_total",
    "sample_seconds", "samples_per_insert", "rate_limited_seconds_total", "items", "episodes", "steps", "priority_sum",
    "priority_max", "stale_priority_updates_total", "sample_age_steps", "cache_hits_total", "cache_misses_total",
    "cache_evictions_total", "cache_bytes", "compress_ratio", "lmdb_map_bytes", "lmdb_used_bytes", "lmdb_readers",
    "lmdb_reader_lag_txns", "lmdb_commit_seconds", "lmdb_sync_seconds", "disk_free_bytes", "evicted_steps",
    "corrupt_chunks_total", "her_relabel_ratio", "build_info",
)  # fmt: skip
"""Names that people know from services of this kind."""

ELSEWHERE = {"items", "evicted_steps", "her_relabel_ratio", "lmdb_reader_lag_txns"}
LABELS = {"method", "code", "kind", "direction", "table", "end", "sampler", "stage", "side", "reason", "column"}
BUILD = {"version", "python", "format"}


class Scraped:
    """One answer, parsed."""

    def __init__(self, of):
        body, content_type = of.render()
        assert content_type == CONTENT_TYPE
        self.text = body.decode()
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}
        self.samples = {
            (sample.name.removeprefix("replaysvc_"), frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name, **labels):
        """Returns one value, None if there is none."""
        return self.samples.get((name, frozenset(labels.items())))

    def tables(self):
        return {dict(labels).get("table", "") for _, labels in self.samples} - {""}

    def rising(self):
        """Returns all values that may not fall."""
        counted = [family for family in self.families.values() if family.type in ("counter", "histogram")]
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value for family in counted for sample in family.samples
        }


@pytest.fixture
def activity():
    return Activity()


@pytest.fixture
def server(replay, activity):
    server = Server(replay, "127.0.0.1:0", activity=activity)
    server.start()
    yield server
    server.stop(5.0)


@pytest.fixture
def scrape(replay, activity, server):
    told = Metrics(replay, activity, server.load, lambda: server.status)
    return lambda: Scraped(told)


@pytest.fixture
def embedded(replay, activity):
    """The metrics of a store without a server."""
    told = Metrics(replay, activity, lambda: ({}, 0), lambda: "serving")
    return lambda: Scraped(told)


def test_every_metric_is_there_with_its_type_and_says_what_it_is(scrape, replay):
    make_table(replay, [3])
    found = scrape().families
    expected = {f"replaysvc_{name.removesuffix('_total')}": (kind, text) for name, (kind, _, text) in FAMILIES.items()}
    own = {name: (family.type, family.documentation) for name, family in found.items() if name.startswith("replaysvc_")}
    assert own == expected
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= found.keys()
    assert all(name.endswith("_total") == (kind == "counter") for name, (kind, _, _) in FAMILIES.items())


@pytest.mark.parametrize("unit", ["seconds", "bytes", "steps", "chunks", "items", "segments", "tables", "requests"])
def test_help_texts_name_the_unit(unit):
    named = [name for name in FAMILIES if unit in name.split("_")[-1] or unit in name.removesuffix("_total").split("_")[-1]]
    assert named
    assert [name for name in named if unit not in FAMILIES[name].help.lower()] == []


def test_each_name_that_people_know_is_there_or_it_is_said_what_is_instead():
    for name in DEMANDED:
        assert (name in FAMILIES) != (name in ELSEWHERE), name
    assert all(f"\n  {name} " in inspect.getdoc(metrics).replace("\n  ", "\n  ") for name in ELSEWHERE)


def test_text_is_read_as_it_was_meant():
    view = HistogramView(bounds=(0.1, 2.0, 1e6), counts=(2, 0, 3, 1), total=7.5)
    found = [
        ("compress_ratio", ('quo"te', "back\\slash\nand line"), 2.5), ("compress_ratio", ("t", "é"), float("nan")),
        ("cache_bytes", ("t",), (1 << 53) + 1), ("rpc_held_bytes", (), 3), ("rpc_seconds", ("Sample", "OK"), view),
        ("lmdb_sync_seconds", ("t",), HistogramView(bounds=(0.5,), counts=(1, 0), total=0.25)),
    ]  # fmt: skip
    text = metrics._text(iter(found))
    read = [
        (sample.name.removeprefix("replaysvc_"), sample.labels, str(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    sample = {"method": "Sample", "code": "OK"}
    assert sorted(read, key=str) == sorted(
        [
            ("compress_ratio", {"table": 'quo"te', "column": "back\\slash\nand line"}, "2.5"),
            ("compress_ratio", {"table": "t", "column": "é"}, "nan"),
            ("cache_bytes", {"table": "t"}, "9007199254740993"),
            ("rpc_held_bytes", {}, "3"),
            *[("rpc_seconds_bucket", sample | {"le": le}, n) for le, n in (("0.1", "2"), ("2.0", "2"), ("1e+06", "5"))],
            ("rpc_seconds_bucket", sample | {"le": "+Inf"}, "6"),
            ("rpc_seconds_count", sample, "6"),
            ("rpc_seconds_sum", sample, "7.5"),
            ("lmdb_sync_seconds_bucket", {"table": "t", "le": "0.5"}, "1"),
            ("lmdb_sync_seconds_bucket", {"table": "t", "le": "+Inf"}, "1"),
            ("lmdb_sync_seconds_count", {"table": "t"}, "1"),
            ("lmdb_sync_seconds_sum", {"table": "t"}, "0.25"),
        ],
        key=str,
    )


def test_labels_are_of_a_fixed_set_and_name_no_caller(scrape, server, replay):
    assert {label for family in FAMILIES.values() for label in family.labels} == LABELS | BUILD
    make_table(replay)
    with connect(server.address) as client:
        with client.table("t").writer(actor="a-certain-actor") as writer:
            write_episode(writer, 5, metadata={"note": "a-certain-note"})
        client.table("t").sample(4)
    found = scrape()
    assert found("learners") == 1
    assert "certain" not in found.text
    assert "127.0.0.1" not in found.text


def test_calls_are_told_by_method_and_code(scrape, server, replay):
    make_table(replay, [30])
    with connect(server.address) as client:
        table = client.table("t")
        for _ in range(3):
            table.sample(8)
        with pytest.raises(NotFoundError):
            client.table("nosuch")
    found = scrape()
    assert found("rpc_seconds_count", method="Sample", code="OK") == 3
    assert found("rpc_seconds_bucket", method="Sample", code="OK", le="+Inf") == 3
    assert found("rpc_seconds_count", method="GetTable", code="NOT_FOUND") == 1
    below = [found("rpc_seconds_bucket", method="Sample", code="OK", le=le) for le in ("0.0001", "0.1", "1.0", "60.0")]
    assert below == sorted(below)
    assert found("rpc_inflight", kind="sample") == 0
    assert found("rpc_bytes_total", direction="received") > 0
    assert found("rpc_bytes_total", direction="sent") > 3 * 8 * 8
    assert found("sample_seconds_count", table="", stage="send") == 3


def test_writing_and_sampling_are_told_as_they_were(embedded, replay):
    table = make_table(replay, [30, 20], samplers={"uniform": Uniform(), "per": Prioritized(alpha=0.5)}, chunk_steps=10)
    write_episodes(table, [7], end="truncated")
    with table.writer() as writer:
        write_episode(writer, 3, end="open")
        writer.flush()
        before = embedded()
        batch = table.sample(16, sampler="per")
        table.sample(4)
        table.update_priorities([0, 1, 1, 10_000], [4.0, 16.0, 9.0, 1.0], sampler="per")
        found = embedded()
    assert found("append_steps_total", table="t") == 60
    ends = [found("append_episodes_total", table="t", end=end) for end in ("terminated", "truncated", "lost_actor")]
    assert ends == [2, 1, 0]
    assert (found("steps", table="t"), found("episodes", table="t"), found("open_episodes", table="t")) == (60, 4, 1)
    assert [before("sample_items_total", table="t", sampler=name) for name in ("uniform", "per")] == [0, 0]
    assert [found("sample_items_total", table="t", sampler=name) for name in ("uniform", "per")] == [4, 16]
    assert found("sample_calls_total", table="t") == 2
    assert found("samples_per_insert", table="t") == pytest.approx(20 / 60)
    assert found("samples_per_insert_target", table="t") is None
    assert found("cache_hits_total", table="t") == 20
    assert found("cache_misses_total", table="t") == 0
    assert found("sample_seconds_count", table="t", stage="index") == 2
    assert found("sample_age_steps_count", table="t") == 16  # of every fourth draw, and so of the first
    assert found("priority_updates_total", table="t") == 2
    assert found("stale_priority_updates_total", table="t") == 2
    assert before("priority_sum", table="t", sampler="per") is None
    assert found("priority_max", table="t", sampler="per") == 3.0  # of 9, to the power of 0.5
    assert found("priority_sum", table="t", sampler="per") == pytest.approx(58 + 2.0 + 3.0)
    assert found("priority_max", table="t", sampler="uniform") is None
    assert found("commits_total", table="t") == found("lmdb_commit_seconds_count", table="t") > 0
    assert found("segments", table="t") == 1
    assert 0 < found("lmdb_used_bytes", table="t") < found("lmdb_map_bytes", table="t")
    assert len(batch) == 16


def test_columns_are_told_by_name(embedded, replay):
    signature = Signature(
        FieldSpec("observation", (50,), "float32", precision=Precision.FLOAT16), FieldSpec("action", (), "int64")
    )
    table = replay.create_table("t", signature, TableConfig(chunk_steps=4))
    with table.writer() as writer:
        for scale in (1.0, 1e6):  # the second is beyond float16's range
            writer.begin(np.zeros(50, np.float32))
            for t in range(4):
                writer.append(t, 0.0, np.full(50, t * scale, np.float32), terminated=t == 3)
    found = embedded()
    assert found("lossless_chunks_total", table="t", column="observation") == 1
    assert found("lossless_chunks_total", table="t", column="action") == 0
    assert found("lossless_chunk_columns", table="t") == 1
    assert found("compress_ratio", table="t", column="observation") > 1


def test_hindsight_is_told_as_two_counts(embedded, replay):
    table = make_goal_table(replay, [10, 10])
    table.sample(8, Transitions(her=always(Goal.FUTURE)))
    table.sample(8)
    found = embedded()
    assert (found("her_items_total", table="t"), found("her_relabeled_total", table="t")) == (8, 8)


def test_limiter_is_told(embedded, replay):
    table = make_table(replay, [10], chunk_steps=1, limiter=Limiter(min_steps=5, samples_per_insert=2.0, error_buffer=20.0))
    table.sample(4)
    found = embedded()
    assert found("samples_per_insert_target", table="t") == 2.0
    assert found("waiting", table="t", side="sample") == 0
    assert found("rate_limited_seconds_total", table="t", side="sample") == 0.0


def test_store_is_told(tmp_path, activity):
    config = StoreConfig(snapshot_dir=str(tmp_path / "snapshots"), disk_reserve_bytes=123 << 10)
    with Replay(tmp_path / "store", config) as replay:
        told = Metrics(replay, activity, lambda: ({"append": 3}, 4096), lambda: "serving")
        found = Scraped(told)
        assert found("params_version") is None
        assert found("last_snapshot_timestamp_seconds") is None
        make_table(replay, [30])
        replay.put_params("policy", b"x", version=7)
        replay.put_params("other", b"x", version=5)
        replay.snapshot(tmp_path / "snapshots" / "one")
        found = Scraped(told)
        assert found("params_version") == 7
        assert found("last_snapshot_timestamp_seconds") == replay.snapshots()[0].made_at_s
        assert found("disk_reserve_bytes") == 123 << 10
        assert 0 < found("disk_free_bytes") < found("disk_total_bytes")
        assert found("disk_bytes", table="t") > 0
        assert found("commit_queue_bytes") == 0
        assert 0 <= found("scrub_fraction") <= 1
        assert found("tables") == 1
        assert (found("rpc_inflight", kind="append"), found("rpc_held_bytes")) == (3, 4096)
        assert found("fault", table="t") == 0


def test_process_is_told(embedded):
    found = embedded()
    (labels,) = [dict(labels) for name, labels in found.samples if name == "build_info"]
    assert labels["version"] == replaysvc.__version__
    assert found("build_info", **labels) == 1
    sizes = [found("memory_bytes", kind=kind) for kind in ("anon", "file", "shmem")]
    assert sum(sizes) == pytest.approx(found("process_resident_memory_bytes"), rel=0.2)


def test_memory_is_read_by_kind(tmp_path):
    (tmp_path / "status").write_text("Name:\tpython\nRssAnon:\t    10 kB\nRssFile:\t 2 kB\nRssShmem:\t 0 kB\nVoid:\n\n")
    assert metrics.memory(tmp_path / "status") == {"anon": 10240, "file": 2048, "shmem": 0}
    assert metrics.memory(tmp_path / "nosuch") == {}


@pytest.mark.parametrize(("status", "draining"), [("starting", 0), ("serving", 0), ("draining", 1)])
def test_draining_is_told(replay, activity, status, draining):
    assert Scraped(Metrics(replay, activity, lambda: ({}, 0), lambda: status))("draining") == draining


def test_refused_calls_are_told_from_zero_on(replay, activity, tmp_path):
    _, lines = access.new_token("somebody", Role.LEARNER)
    access.append_token(tmp_path / "tokens.toml", lines)
    server = Server(replay, "127.0.0.1:0", access=Access(tmp_path / "tokens.toml"), activity=activity)
    server.start()
    told = Metrics(replay, activity, server.load, lambda: server.status)
    assert [Scraped(told)("refused_calls_total", code=code) for code in ("UNAUTHENTICATED", "PERMISSION_DENIED")] == [0, 0]
    with connect(server.address) as client, pytest.raises(UnauthenticatedError):
        client.table("t")
    assert Scraped(told)("refused_calls_total", code="UNAUTHENTICATED") >= 1
    server.stop(5.0)


def test_no_counter_falls_when_steps_are_removed(embedded, replay):
    table = make_table(
        replay, [30, 20, 40], chunk_steps=5, samplers={"uniform": Uniform(), "per": Prioritized()}, capacity_steps=100
    )
    table.sample(8, sampler="per")
    table.update_priorities([0, 1], [2.0, 3.0], sampler="per")
    first = embedded()
    write_episodes(table, [60])  # 150 in all
    second = embedded()
    table.delete_episodes([record.episode_id for record in table.episodes(limit=1)])
    table.compact()
    third = embedded()
    for before, after in ((first.rising(), second.rising()), (second.rising(), third.rising())):
        assert before.keys() <= after.keys()
        assert [key for key in before if after[key] < before[key]] == []
    removed = [third("removed_steps_total", table="t", reason=reason) for reason in ("capacity", "deleted", "damaged")]
    assert removed == [50, 60, 0]
    assert third("append_steps_total", table="t") == 150
    assert third("steps", table="t") == 40


def test_table_that_goes_during_the_look_is_left_out_whole_and_that_is_no_news(embedded, replay, monkeypatch, caplog):
    for name in ("a", "b", "c"):
        write_episodes(replay.create_table(name, SCALARS), [3])
    engine = replay.engine

    def gone(name, uuid=""):
        if name == "b":
            raise NotFoundError("table b does not exist")
        return engine(name, uuid)

    monkeypatch.setattr(replay, "engine", gone)
    assert embedded().tables() == {"a", "c"}
    monkeypatch.setattr(replay, "engine", engine)

    def closing():
        raise UnavailableError("the store is closed")

    monkeypatch.setattr(engine("c"), "storage", closing)  # the last that is asked
    assert embedded().tables() == {"a", "b"}
    assert caplog.text == ""


def test_table_that_cannot_be_looked_at_is_left_out_and_the_log_says_so(embedded, replay, monkeypatch, caplog):
    for name in ("a", "b"):
        replay.create_table(name, SCALARS)

    def broken():
        raise StorageError("the disk is gone")

    monkeypatch.setattr(replay.engine("a"), "storage", broken)
    assert embedded().tables() == {"b"}
    assert "table a: it cannot be told of: the disk is gone" in caplog.text


def test_tables_that_come_and_go_disturb_no_look(embedded, replay):
    write_episodes(replay.create_table("stays", SCALARS), [3])
    enough = threading.Event()

    def come_and_go():
        number = 0
        while not enough.is_set():
            write_episodes(replay.create_table(f"goes-{number % 3}", SCALARS), [3])
            replay.delete_table(f"goes-{number % 3}")
            number += 1

    changing = threading.Thread(target=come_and_go)
    changing.start()
    try:
        for _ in range(40):
            assert embedded()("steps", table="stays") == 3
    finally:
        enough.set()
        changing.join()


def test_closed_store_leaves_what_the_door_and_the_process_tell(tmp_path, activity):
    with Replay(tmp_path / "store") as replay:
        make_table(replay, [3])
        told = Metrics(replay, activity, lambda: ({}, 0), lambda: "draining")
        assert Scraped(told).tables() == {"t"}
    found = Scraped(told)
    assert found.tables() == set()
    assert found("draining") == 1


def test_of_very_many_tables_the_first_are_told_of(embedded, replay, monkeypatch):
    assert metrics.MOST_TABLES == 256
    monkeypatch.setattr(metrics, "MOST_TABLES", 2)
    for name in ("c", "a", "b"):
        replay.create_table(name, SCALARS)
    found = embedded()
    assert (found.tables(), found("tables")) == ({"a", "b"}, 3)
