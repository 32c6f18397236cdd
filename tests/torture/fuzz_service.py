"""The service's methods as a target: any bytes to any method of a server in this process, over a real connection.

Every method is called as one that streams both ways, which is the same on the wire: so whatever a peer may send can be sent,
several messages to a method that takes one among it.
"""

import json
import logging
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from replaysvc import StoreConfig, TableConfig
from replaysvc.options import Fifo, Limiter, Prioritized, Uniform
from replaysvc.replay import Replay
from replaysvc.requests import EPISODE_ENDS
from replaysvc.rpc.server import Server
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import GOALS, SCALARS, write_episode, write_goal_episode
from tests.service.raw import chunks_of
from tests.torture.fuzz_targets import Target, Texts
from tests.torture.mutations import TEXTS, change_bytes, json_text, message, number

METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["ReplayService"].methods}
_FRAMES = {"frame": "/replaysvc.v1.ReplayFrames/Sample", "pieces": "/replaysvc.v1.ReplayFrames/SampleLarge"}
_REQUESTS = dict.fromkeys(_FRAMES, "Sample")
_RARE = ("DeleteTable", "CreateTable", "Snapshot", "Compact", "SetCapacity")  # slow, or they take away what others need
_KEPT = {"t": SCALARS, "goals": GOALS, "queue": SCALARS}
_SESSIONS = [bytes([i] * 16) for i in range(4)]
_MOST_ANSWERS = 64  # of a streamed method
_LONGEST_CALL_S = 20.0
_FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Statuses that no request may lead to; of an undamaged store at least, and unless an error of ours stands for them."""


def _mixed(rng: random.Random, right: Any, other: Any) -> Any:
    """Returns `right` with up to three of its fields as they are in `other`."""
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        field = rng.choice(right.DESCRIPTOR.fields or [None])
        if field is not None:
            right.ClearField(field.name)
            one = type(right)()
            if field.is_repeated:
                getattr(one, field.name).extend(getattr(other, field.name))
            elif field.message_type is not None:
                getattr(one, field.name).CopyFrom(getattr(other, field.name))
            else:
                setattr(one, field.name, getattr(other, field.name))
            right.MergeFrom(one)
    return right


class _Failures(logging.Handler):
    """Keeps the last exception that the server logged: a request that ended as an internal error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.last = record.exc_info[1]


class Service(Target):
    """Calls as a peer may make them: `METHOD NUL BYTES NUL LENGTH MESSAGE ...`; BYTES is the metadata that states the size."""

    name, share = "service", 0.03
    declared = ()

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        (scratch / "snapshots").mkdir()
        config = StoreConfig(
            recent_cache_bytes=4 << 20, faulted_cache_bytes=1 << 20, commit_interval_s=0.0, disk_reserve_bytes=0,
            scrub_bytes_per_s=0, snapshot_dir=str(scratch / "snapshots"), queue_bytes=64 << 20,
        )  # fmt: skip
        self._replay = Replay(scratch / "store", config, rng=np.random.default_rng(0))
        self._server = Server(self._replay, "127.0.0.1:0")
        self._server.start()
        self._channel = grpc.insecure_channel(self._server.address, options=[("grpc.max_receive_message_length", 64 << 20)])
        paths = {name: f"/replaysvc.v1.ReplayService/{name}" for name in METHODS} | _FRAMES
        self._calls = {name: self._channel.stream_stream(path) for name, path in paths.items()}
        self._failures = _Failures()
        logging.disable(logging.NOTSET)
        logger = logging.getLogger("replaysvc")
        logger.handlers, logger.propagate = [self._failures], False
        self._chunks, self._goal_chunks = chunks_of(5), chunks_of(3, signature=GOALS, write=write_goal_episode)
        self._weighted = [name for name in (*METHODS, *_FRAMES) for _ in range(1 if name in _RARE else 8)]
        self._hints = {
            "table": self._table, "name": self._table,
            "sampler": lambda rng: rng.choice(("", "uniform", "prioritized", "fifo")),
            "end": lambda rng: rng.choice((*EPISODE_ENDS, "", *TEXTS)),
            "capacity_steps": lambda rng: rng.choice((30, 400, number(rng) % (1 << 63))),
            "signature_json": lambda rng: json_text(rng, Texts.seeds["signature"]),
            "config_json": lambda rng: "" if rng.random() < 0.3 else json_text(rng, Texts.seeds["config"]),
            "limiter_json": lambda rng: json_text(rng, Texts.seeds["limiter"]),
            "session_id": lambda rng: rng.choice(_SESSIONS), "sequence": lambda rng: rng.randrange(4),
            "chunk": self._chunk, "positions": self._positions, "priorities": self._priorities,
            "batch_size": lambda rng: rng.choice((1, 2, 8, 33, 500, number(rng) % (1 << 32))),
            "length": lambda rng: rng.choice((1, 2, 5, 100)), "n_step": lambda rng: rng.choice((1, 2, 5, 10_000)),
            "max_steps": lambda rng: rng.choice((1, 10, 1000)), "frames": lambda rng: rng.choice((1, 2, 4, 64)),
            "gamma": lambda rng: rng.choice((0.0, 0.99, 1.0)), "ratio": lambda rng: rng.choice((0.0, 0.5, 1.0)),
            "episode_id": lambda rng: rng.randrange(30), "episode_ids": lambda rng: rng.randrange(200),
            "start": lambda rng: rng.randrange(6), "stop": lambda rng: rng.randrange(8), "limit": lambda rng: rng.randrange(50),
            "timeout_s": lambda rng: rng.choice((0.0, 0.001)), "version": lambda rng: rng.randrange(5),
            "piece": lambda rng: rng.randbytes(rng.randrange(100)), "size": lambda rng: rng.randrange(200),
        }  # fmt: skip
        self._fill()

    def _fill(self) -> None:
        """Makes the tables that should be there, each with a few episodes."""
        samplers = {"uniform": Uniform(), "prioritized": Prioritized(), "fifo": Fifo()}
        for name, signature in _KEPT.items():
            if name in self._replay.tables() and self._replay.table(name).signature == signature:
                continue
            if name in self._replay.tables():
                self._replay.delete_table(name)
            limiter = Limiter() if name != "queue" else Limiter(samples_per_insert=4.0, error_buffer=(-400.0, 400.0))
            options = TableConfig(
                chunk_steps=2, segment_bytes=1 << 20, samplers=samplers, capacity_steps=400, limiter=limiter, lease_s=604_800
            )
            table = self._replay.create_table(name, signature, options)
            with table.writer("a") as writer:
                for episode in range(4):
                    (write_goal_episode if signature is GOALS else write_episode)(writer, 5, episode=episode)

    @staticmethod
    def _table(rng: random.Random) -> str:
        return rng.choice(TEXTS) if rng.random() < 0.1 else rng.choice(("t", "t", "t", "goals", "goals", "queue", "x", "y"))

    def _chunk(self, rng: random.Random) -> bytes:
        chunk = rng.choice(self._chunks + self._goal_chunks)
        return chunk if rng.random() < 0.7 else change_bytes(rng, chunk)

    @staticmethod
    def _positions(rng: random.Random) -> bytes:
        return struct.pack("<4q", *(rng.choice((0, 1, 5, 30, -1, number(rng) % (1 << 63))) for _ in range(4)))

    @staticmethod
    def _priorities(rng: random.Random) -> bytes:
        return struct.pack("<4d", *(rng.choice((0.0, 1.0, 2.5, 1e30, -1.0, float("nan"), float("inf"))) for _ in range(4)))

    def make(self, rng: random.Random) -> bytes:
        name = rng.choice(self._weighted)
        messages = []
        for _ in range(rng.choice((1, 1, 2, 3)) if name in METHODS and METHODS[name].client_streaming else 1):
            request = message(rng, self._request(name), self._hints)
            if rng.random() < 0.7:
                request = _mixed(rng, self._fitting(rng, name), request)
            data = request.SerializeToString()
            messages.append(change_bytes(rng, data) if rng.random() < 0.15 else data)
        if rng.random() < 0.1:  # the bytes of a request in several messages
            data = b"".join(messages)
            at = rng.randrange(len(data) + 1)
            messages = [data[:at], data[at:], *([b""] if rng.random() < 0.1 else [])]
        size = sum(map(len, messages))
        stated = str(size) if rng.random() < 0.8 else rng.choice(("", "0", "-1", "x", str(size + 1), str(1 << 70), "9" * 500))
        return b"\0".join(
            (name.encode(), stated.encode(), b"".join(struct.pack("<I", len(data)) + data for data in messages))
        )  # fmt: skip

    def _fitting(self, rng: random.Random, name: str) -> Any:
        """Returns a request that should succeed."""
        kind, table = self._request(name), rng.choice(("t", "goals"))
        match _REQUESTS.get(name, name):
            case "Append":
                chunks, size = (self._chunks, 3) if table == "t" else (self._goal_chunks, 2)
                numbered = [
                    pb.AppendChunk(sequence=i, chunk=chunk) for i, chunk in enumerate(chunks[: rng.randrange(1, size + 1)])
                ]
                return kind(table=table, session_id=rng.randbytes(16), actor="a", chunks=numbered, urgent=True)
            case "Sample":
                request = kind(table=table, batch_size=rng.choice((1, 8, 100)), seed=rng.choice((None, 5)))
                match rng.randrange(4):
                    case 0:
                        request.transitions.CopyFrom(pb.Transitions(n_step=3, gamma=0.9, stack=pb.Stack(frames=3)))
                    case 1:
                        request.sequences.CopyFrom(pb.Sequences(length=4, burn_in=1, period=2, n_step=2))
                    case 2:
                        request.episodes.CopyFrom(pb.Episodes(max_steps=50))
                    case _ if table == "goals":
                        her = pb.Her(goal=rng.randrange(4), sparse=pb.SparseReward(threshold=1.0))
                        request.transitions.CopyFrom(pb.Transitions(n_step=1, gamma=0.9, her=her))
                return request
            case "UpdatePriorities":
                return kind(table=table, positions=struct.pack("<2q", 1, 2), priorities=struct.pack("<2d", 0.5, 2.0))
            case "OpenSession":
                return kind(table=table, session_id=rng.choice(_SESSIONS), actor="a")
            case "PutParams":
                return kind(name="x", version=rng.randrange(1000), piece=bytes(10), size=10)
            case "GetParams":
                return kind(name="x", newer_than=-1)
            case "CreateTable":
                return kind(name=rng.choice("xy"), signature_json=json.dumps(SCALARS.to_json()), exist_ok=True)
            case "SetLimiter":
                return kind(table=table, limiter_json=json.dumps(Limiter().to_json()))
            case "SetCapacity":
                return kind(table=table, capacity_steps=rng.choice((40, 400)))
            case "ListEpisodes":
                return kind(table=table, end=rng.choice(EPISODE_ENDS), min_length=2, max_return=1e3, max_policy_version=7)
            case "DeleteEpisodes":
                return kind(table=table, episode_ids=[rng.randrange(300)], open_episodes=True)
            case "ReadEpisode":
                return kind(table=table, episode_id=self._replay.table(table).episodes(limit=1)[0].episode_id)
            case _:
                fields = kind.DESCRIPTOR.fields_by_name
                return kind(**{field: table for field in ("table", "name") if field in fields and name != "DeleteTable"})

    @staticmethod
    def _request(name: str) -> Any:
        return getattr(pb, f"{_REQUESTS.get(name, name)}Request")

    def take(self, data: bytes) -> str:
        name, stated, rest = data.split(b"\0", 2)
        messages = []
        while rest:
            (size,) = struct.unpack_from("<I", rest)
            messages.append(rest[4 : 4 + size])
            rest = rest[4 + size :]
        self._failures.last = None
        metadata = (("replaysvc-bytes", stated.decode()),) if stated else ()
        answers = self._calls[name.decode()](iter(messages), timeout=_LONGEST_CALL_S, metadata=metadata)
        try:
            for count, _ in enumerate(answers):
                if count > _MOST_ANSWERS:
                    answers.cancel()
                    break
        except grpc.RpcError as error:
            return self._judge(error)
        return name.decode()

    def _judge(self, error: Any) -> str:
        """Returns by what error a call was refused; raises the failure behind an internal error."""
        if self._failures.last is not None:
            raise self._failures.last
        named = dict(error.trailing_metadata() or ()).get("replaysvc-error", "")
        code, details = error.code(), error.details() or ""
        if code in _FAILURES and not (named and named != "StorageError") and "deserializing request" not in details:
            raise RuntimeError(f"{code.name} {named}: {details}")
        return f"refused: {named or code.name}"

    def keep(self, data: bytes) -> None:
        """Keeps nothing: messages are made anew each time."""

    def settle(self) -> None:
        for name in self._replay.tables():
            if name not in _KEPT:
                self._replay.delete_table(name)
        self._fill()
        for snapshot in (self.scratch / "snapshots").iterdir():
            shutil.rmtree(snapshot)
        for name, signature in _KEPT.items():
            table = self._replay.table(name)
            table.set_limiter(Limiter())
            with table.writer("settle") as writer:
                (write_goal_episode if signature is GOALS else write_episode)(writer, 3)
            assert len(table.sample(2).reward) == 2, "the table answers nobody any more"

    def close(self) -> None:
        self._channel.close()
        self._server.stop(1.0)
        self._replay.close()
