"""What a store tells of its disk, its backlog, its scrub and what lies beside its tables."""

import shutil
import threading

import pytest

from replaysvc import StoreConfig, TableConfig
from replaysvc.errors import UnavailableError
from replaysvc.replay import Replay
from replaysvc.storage import System
from replaysvc.views import BacklogView
from tests.builders import SCALARS, make_table, write_episodes
from tests.engine.test_scrub_and_fault import FAST, NEVER, NOISE, damage_chunk, write_noise
from tests.waiting import wait_until


def scrub_job(replay):
    (view,) = replay.jobs.views()
    return view


@pytest.fixture
def noisy(tmp_path):
    """The directory of a store with 40 chunks of 60 kB, all but the last few in sealed segments."""
    with Replay(tmp_path / "s", NEVER) as replay:
        write_noise(replay.create_table("t", NOISE, TableConfig(chunk_steps=1, segment_bytes=1 << 20)), 40)
    return tmp_path / "s"


def test_scrub_that_somebody_asks_for_finds_damage_though_none_runs_by_itself(noisy):
    damage_chunk(noisy, 2)
    with Replay(noisy, NEVER) as replay:
        table = replay.table("t")
        assert (replay.scrub().running, replay.scrub().rounds) == (False, 0)
        assert replay.start_scrub() == 1
        wait_until(lambda: scrub_job(replay).state != "running")
        job, scrub = scrub_job(replay), replay.scrub()
        assert (job.kind, job.state, job.message) == ("scrub", "done", f"read {scrub.whole_bytes} bytes; damaged: 1")
        assert 0 < job.done <= job.whole == scrub.whole_bytes == scrub.done_bytes
        assert (scrub.running, scrub.rounds, scrub.damaged) == (False, 1, 1)
        assert (table.stats().steps, table.stats().corrupt_chunks_total) == (39, 1)


def test_scrub_that_is_asked_for_does_not_wait_for_the_next_round(noisy):
    """Rounds begin an hour apart; damage that is planted after the first is found by the one that is asked for."""
    with Replay(noisy, FAST) as replay:
        wait_until(lambda: replay.scrub().rounds == 1)
        assert replay.scrub().damaged == 0
        damage_chunk(noisy, 2)
        replay.start_scrub()
        wait_until(lambda: replay.scrub().rounds == 2, timeout_s=8)  # by itself, the thread looks for work every 10 s
        wait_until(lambda: scrub_job(replay).state == "done")
        assert replay.scrub().damaged == 1


def test_scrub_that_the_stores_end_cuts_off_has_failed(noisy):
    class Still(System):
        """Its clock has stopped, so a round waits for ever after its first piece."""

        def monotonic(self):
            return 1000.0

    replay = Replay(noisy, StoreConfig(scrub_bytes_per_s=1000), system=Still())
    replay.start_scrub()
    wait_until(lambda: scrub_job(replay).done)
    replay.close()
    assert (scrub_job(replay).state, scrub_job(replay).message) == ("failed", "the store is closed")


def test_appends_that_wait_for_a_slow_disk_are_the_backlog(tmp_path):
    inside, go_on = threading.Event(), threading.Event()

    class Slow(System):
        def __init__(self):
            self.ahead_s = 0.0

        def monotonic(self):
            return super().monotonic() + self.ahead_s

        def crashpoint(self, name):
            if name == "append.before_commit":
                inside.set()
                assert go_on.wait(30)

    system = Slow()
    with Replay(tmp_path / "s", system=system) as replay:
        limit = replay.config.queue_bytes
        nothing = BacklogView(requests=0, held_bytes=0, limit_bytes=limit, oldest_s=0.0)
        table = replay.create_table("t", SCALARS)
        assert replay.backlog() == nothing
        thread = threading.Thread(target=write_episodes, args=(table, [3]))
        thread.start()
        assert inside.wait(30)
        system.ahead_s = 50.0
        found = replay.backlog()
        assert (found.requests, found.limit_bytes) == (1, limit)
        assert 0 < found.held_bytes < 10_000
        assert 50 <= found.oldest_s < 100
        go_on.set()
        thread.join(30)
        wait_until(lambda: replay.backlog() == nothing)


def test_disk_tells_what_is_free_now_and_what_the_files_take(tmp_path):
    with Replay(tmp_path / "s", StoreConfig(disk_reserve_bytes=1 << 20)) as replay:
        make_table(replay, [3])
        found = replay.disk()
        least = sum(file.stat().st_blocks * 512 for file in (tmp_path / "s" / "tables").rglob("*") if file.is_file())
        assert least <= found.used_bytes <= least + (1 << 20)
        assert found.used_bytes < found.free_bytes < found.total_bytes
        assert (found.reserve_bytes, found.refuses) == (1 << 20, False)


def test_versions_of_parameter_sets_leave_out_a_damaged_one(tmp_path):
    with Replay(tmp_path / "s") as replay:
        assert replay.params_versions() == {}
        replay.put_params("policy", b"weights", version=7)
        replay.put_params("target", b"weights", version=3)
        assert replay.params_versions() == {"policy": 7, "target": 3}
    (tmp_path / "s" / "params" / "target").write_bytes(b"?")
    with Replay(tmp_path / "s") as replay:
        assert replay.params_versions() == {"policy": 7}


def test_tables_in_quarantine_are_told_at_each_start_until_they_are_taken_away(tmp_path):
    with Replay(tmp_path / "s") as replay:
        make_table(replay, [3])
        write_episodes(replay.create_table("other", SCALARS), [2])
        assert replay.quarantined_tables == []
    for name in ("table.json", "table.json.bak"):
        (tmp_path / "s" / "tables" / "t" / name).write_bytes(b"?")
    for _ in range(2):
        with Replay(tmp_path / "s") as replay:
            assert (replay.tables(), replay.quarantined_tables) == (["other"], ["t"])
    shutil.rmtree(tmp_path / "s" / "quarantine" / "t-table")
    with Replay(tmp_path / "s") as replay:
        assert replay.quarantined_tables == []


def test_table_that_is_set_aside_is_in_quarantine_at_once(replay):
    make_table(replay, [3])
    replay._store.set_aside("t", "it cannot be loaded")
    assert replay.quarantined_tables == ["t"]


def test_snapshots_are_those_in_the_directory_for_them(tmp_path):
    with Replay(tmp_path / "s", StoreConfig(snapshot_dir=str(tmp_path / "snapshots"))) as replay:
        assert replay.snapshots() == []
        replay.snapshot(tmp_path / "snapshots" / "first")
        replay.snapshot(tmp_path / "elsewhere")
        (view,) = replay.snapshots()
        assert (view.name, view.bytes > 0) == ("first", True)
    with Replay(tmp_path / "s") as replay:
        assert replay.snapshots() == []


def test_closed_store_tells_nothing(replay):
    replay.close()
    for look in (replay.disk, replay.backlog, replay.scrub, replay.params_versions, replay.snapshots):
        with pytest.raises(UnavailableError):
            look()
