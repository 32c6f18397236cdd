"""Damage that nobody has drawn yet, and disks that fail: found, told, and no obstacle to anybody else."""


import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from replaysvc import FieldSpec, Signature, StoreConfig, TableConfig
from replaysvc.errors import StorageError
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server
from replaysvc.storage import System
from tests.builders import SCALARS, write_episode, write_episodes
from tests.waiting import wait_until

NOISE = Signature(FieldSpec("observation", (60_000,), np.uint8), FieldSpec("action", (), np.int64))
FAST = StoreConfig(scrub_bytes_per_s=1 << 30, recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)
NEVER = StoreConfig(scrub_bytes_per_s=0, recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)


def write_noise(table, steps):
    rng = np.random.default_rng(3)
    with table.writer() as writer:
        writer.begin(rng.integers(0, 256, 60_000, dtype=np.uint8))
        for t in range(steps):
            writer.append(t, 0.0, rng.integers(0, 256, 60_000, dtype=np.uint8), terminated=t == steps - 1)
            writer.flush()


def damage_chunk(path, number):
    """Flips a bit in the middle of a chunk of the oldest segment, wherever it lies in the file."""
    file = min((path / "tables" / "t").glob("seg-*")) / "data.mdb"
    data = bytearray(file.read_bytes())
    at = -1
    for _ in range(number + 1):
        at = data.index(b"RPC1", at + 1)
    data[at + 30_000] ^= 1
    file.write_bytes(data)


def test_scrub_finds_damage_before_it_is_drawn_and_it_stays_known(tmp_path):
    with Replay(tmp_path / "s", NEVER) as replay:
        write_noise(replay.create_table("t", NOISE, TableConfig(chunk_steps=1, segment_bytes=1 << 20)), 40)
    damage_chunk(tmp_path / "s", 2)
    with Replay(tmp_path / "s", FAST) as replay:
        table = replay.table("t")
        wait_until(lambda: list((tmp_path / "s" / "quarantine").glob("t-chunk-*")))
        stats = table.stats()
        assert (stats.steps, stats.corrupt_chunks_total, stats.cache_misses_total) == (39, 1, 0)
        assert len(list((tmp_path / "s" / "quarantine").glob("t-chunk-*"))) == 1
        assert len(set(table.sample(2000, seed=1).t.tolist())) == 39
    with Replay(tmp_path / "s", NEVER) as replay:
        stats = replay.table("t").stats()
        assert (stats.steps, stats.quarantined_chunks) == (39, 1)


def test_failed_disk_is_told_by_stats_and_health_until_the_service_is_started_again(tmp_path):
    class Failing(System):
        failing = False

        def crashpoint(self, name):
            if self.failing and name == "append.before_commit":
                raise OSError(5, "Input/output error")

    system = Failing()
    with Replay(tmp_path / "s", system=system) as replay:
        table, other = replay.create_table("t", SCALARS), replay.create_table("other", SCALARS)
        write_episodes(table, [4])
        server = Server(replay, "127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)

            def status():
                return health.Check(health_pb2.HealthCheckRequest(), timeout=30).status

            assert status() == health_pb2.HealthCheckResponse.SERVING
            system.failing = True
            writer = table.writer()
            write_episode(writer, 3, episode=1)
            with pytest.raises(StorageError):
                writer.flush()
            system.failing = False
            assert "takes no more data" in table.stats().fault
            assert status() == health_pb2.HealthCheckResponse.NOT_SERVING
            assert len(table.sample(8)) == 8
            write_episodes(other, [2])
        server.stop(1)
        with pytest.raises(StorageError, match="takes no more data"):
            writer.close()
    with Replay(tmp_path / "s") as replay:
        assert replay.fault == ""
        write_episodes(replay.table("t"), [3])
