"""The store that is damaged, and the look that tells whether what it then says is still true."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from replaysvc import FieldSpec, Fifo, Prioritized, Sequences, Signature, StoreConfig, TableConfig, Uniform
from replaysvc.errors import NotReadyError, ReplayError
from replaysvc.replay import EmbeddedTable, Replay
from replaysvc.storage import System
from tests.builders import flat

CONFIG = StoreConfig(
    recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20, commit_interval_s=0.0, state_interval_s=3600.0,
    disk_reserve_bytes=0, scrub_bytes_per_s=0,
)  # fmt: skip
LARGE = Signature(
    {"place": FieldSpec("", (3,), np.float32), "count": FieldSpec("", (), np.int64)}, FieldSpec("", (), np.int64),
    noise=FieldSpec("", (8000,), np.uint8), priority=FieldSpec("", (), np.float32),
)  # fmt: skip
SMALL = Signature(FieldSpec("", (), np.int64), FieldSpec("", (), np.int32))
TABLES = {"large": (LARGE, 16, 4), "small": (SMALL, 6, 2)}
"""Name -> (signature, steps of an episode, steps of a chunk): chunks in pages of their own, and many in one leaf."""

_EPISODES = {"large": (18, 10, 6), "small": (30, 20, 8)}  # written in each of three stages
STAGES = len(_EPISODES["large"])


def write(table: EmbeddedTable, signature: Signature, seed: int, length: int, actor: str = "before") -> None:
    """Writes an episode whose values follow from `seed`, and waits until it is durable."""
    rng = np.random.default_rng(seed)

    def value(spec: FieldSpec) -> Any:
        if spec.dtype.kind == "f":
            return rng.normal(size=spec.shape).astype(spec.dtype)
        return rng.integers(0, 256, spec.shape).astype(spec.dtype)

    def tree(node: Any) -> Any:
        return {name: tree(child) for name, child in node.items()} if isinstance(node, dict) else value(node)

    with table.writer(actor) as writer:
        writer.begin(tree(signature.observation), metadata={"seed": seed})
        for t in range(length):
            extras = {name: abs(value(spec)) for name, spec in signature.extras.items()}
            writer.append(
                value(signature.action), float(rng.normal()), tree(signature.observation), terminated=t == length - 1,
                extras=extras,
            )  # fmt: skip


class _Clock(System):
    """A clock that stands."""

    def time(self) -> float:
        return 1_700_000_000.0


def build(root: Path) -> None:
    """Makes `root/0`, `root/1` and so on: the same store at three ages, each closed, without files of a running process.

    The last has deleted episodes, a compacted segment, priorities, a queue that was drawn from, and parameters. All of it is
    the same each time, names that are drawn by chance included.
    """
    with mock.patch("os.urandom", random.Random(0).randbytes):
        _build(root, root / "store")


def _build(root: Path, path: Path) -> None:
    for stage in range(STAGES):
        # nothing is committed but by `flush`, so that commits do not depend on the time
        with Replay(path, replace(CONFIG, commit_interval_s=10.0), system=_Clock(), rng=np.random.default_rng(stage)) as replay:
            for name, (signature, length, steps) in TABLES.items():
                samplers = {"uniform": Uniform(), "prioritized": Prioritized(), "queue": Fifo()}
                config = TableConfig(
                    chunk_steps=steps, segment_bytes=1 << 20, flush_interval_s=3600, samplers=samplers, capacity_steps=900
                )
                table = replay.create_table(name, signature, config, exist_ok=True)
                first = sum(_EPISODES[name][:stage])
                for seed in range(first, first + _EPISODES[name][stage]):
                    # the very first chunk is committed at once, whatever the interval, so it comes alone
                    alone = seed == first and name == "large"
                    write(table, signature, seed, steps if alone else length)
                positions = np.arange(0, 30, 2)
                table.update_priorities(positions, positions + 1.0 + stage)
                table.sample(4, sampler="queue")
                if stage:
                    doomed = range(1, 7) if stage == 1 else (9, 12)
                    assert table.delete_episodes(doomed) == len(doomed)
            replay.put_params("policy", bytes([stage]) * 5000, version=stage)
        shutil.copytree(path, root / str(stage), ignore=shutil.ignore_patterns("lock.mdb", "LOCK"))
    shutil.rmtree(path)


@dataclass
class Expected:
    """What the undamaged store says: records, columns by episode, deleted ids by table, and the parameters."""

    records: dict[str, dict[int, Any]] = field(default_factory=dict)
    columns: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    deleted: dict[str, set[int]] = field(default_factory=dict)
    described: dict[str, Any] = field(default_factory=dict)  # signature and options
    params: bytes = b""

    @staticmethod
    def read(path: Path) -> "Expected":
        """Reads an undamaged store, which must be a copy: opening it leaves traces."""
        expected = Expected()
        with Replay(path, CONFIG) as replay:
            for name in TABLES:
                table = replay.table(name)
                expected.records[name] = {record.episode_id: record for record in table.episodes(limit=1000)}
                known = expected.records[name]
                expected.columns[name] = {number: flat(table.read_episode(number)) for number in known}
                expected.described[name] = table.signature, table.config
                expected.deleted[name] = set(range(sum(_EPISODES[name]))) - set(known)
            params = replay.get_params("policy")
            assert params is not None
            expected.params = params.data
        return expected


@dataclass
class Look:
    """What a look at a store found: what is wrong, how much is not there, and what was said of it."""

    wrong: list[str] = field(default_factory=list)
    missing: int = 0
    said: list[str] = field(default_factory=list)

    def at(self, replay: Replay, expected: Expected) -> None:
        """Reads all that the store has, and draws of every kind."""
        for name, known in expected.records.items():
            if name not in replay.tables():
                self.missing += len(known)
                continue
            table = replay.table(name)
            if (table.signature, table.config) != expected.described[name]:
                self.wrong.append(f"{name}: other options than it was made with")
            found = {record.episode_id: record for record in table.episodes(limit=1000)}
            self.wrong += [f"{name}: deleted episode {number} is back" for number in expected.deleted[name] & found.keys()]
            for number, record in known.items():
                self._episode(table, number, record, found.get(number), expected.columns[name][number])
            for number in sorted(expected.deleted[name])[:2]:
                try:
                    table.read_episode(number)
                    self.wrong.append(f"{name}: deleted episode {number} can be read")
                except ReplayError:
                    pass
            self._draws(table, expected.columns[name], expected.deleted[name])
            stats = table.stats()
            for counter in ("corrupt_chunks_total", "quarantined_chunks", "quarantined_segments", "fault"):
                if getattr(stats, counter):
                    self.said.append(counter)
        try:
            params = replay.get_params("policy")
            if params is None or params.data not in (bytes([stage]) * len(expected.params) for stage in range(STAGES)):
                self.wrong.append("params: other bytes than were ever put")
            elif params.data != expected.params:
                self.missing += 1
        except ReplayError as error:
            self.missing += 1
            self.said.append(error.name)

    def _episode(self, table: EmbeddedTable, number: int, wanted: Any, found: Any, columns: dict[str, Any]) -> None:
        if found is None:
            self.missing += 1
            return
        fields = ["actor", "metadata", "started_at_s"]
        if (found.length, found.first_step) == (wanted.length, wanted.first_step):
            fields += ["return_", "terminated", "truncated", "closed", "policy_version"]
        else:
            self.missing += 1
        self.wrong += [
            f"{table.name}: {name} of episode {number} is {getattr(found, name)!r}"
            for name in fields
            if getattr(found, name) != getattr(wanted, name)
        ]
        try:
            read = flat(table.read_episode(number, found.first_step))
        except ReplayError as error:
            self.missing += 1
            self.said.append(error.name)
            return
        start, stop = found.first_step, found.first_step + len(read["reward"])
        for name, values in read.items():
            rows = columns[name][start : stop + name.startswith("observation")]
            if values.dtype != rows.dtype or values.tobytes() != rows.tobytes():
                self.wrong.append(f"{table.name}: {name} of episode {number}, steps {start} to {stop}")

    def _draws(self, table: EmbeddedTable, columns: dict[int, dict[str, Any]], deleted: set[int]) -> None:
        for what, options in ((None, {}), (None, {"sampler": "prioritized"}), (Sequences(length=5), {})):
            try:
                batch = table.sample(16, *((what,) if what else ()), seed=1, **options)
            except NotReadyError as error:  # nothing is left
                self.missing += 1
                self.said.append(error.name)
                continue
            except ReplayError as error:
                self.missing += 1
                self.said.append(f"sample: {error.name}")
                continue
            drawn = flat(batch)
            for i, (number, t) in enumerate(zip(batch.episode_id.tolist(), batch.t.tolist(), strict=True)):
                if number in deleted:
                    self.wrong.append(f"{table.name}: deleted episode {number} was drawn")
                elif number in columns:  # else it is one that was appended after the damage
                    steps = int(batch.mask[i].sum()) if batch.mask is not None else 0
                    self.wrong += [
                        f"{table.name}: {name} of a draw from episode {number}, step {t}"
                        for name in _differing(drawn, columns[number], i, t, steps)
                    ]


def _differing(drawn: dict[str, Any], columns: dict[str, Any], i: int, t: int, steps: int) -> Iterator[str]:
    """Yields the columns in which item `i` of a batch is not what steps from `t` on hold; `steps` 0: a transition."""
    for name, rows in columns.items():
        if name.startswith("observation") or name in ("action", "noise", "priority", "reward"):
            pairs = [(name, 0)] + ([(f"next_{name}", 1)] if name.startswith("observation") else [])
            for column, ahead in pairs:
                if column == "reward" and steps == 0:
                    same = drawn["reward"][i] == np.float32(rows[t])
                    yield from () if same else (column,)
                    continue
                values = drawn[column][i][:steps] if steps else drawn[column][i]
                wanted = rows[t + ahead : t + ahead + steps] if steps else rows[t + ahead]
                if values.tobytes() != wanted.astype(values.dtype).tobytes():
                    yield column
