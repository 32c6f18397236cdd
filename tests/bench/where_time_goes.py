"""Where the time of a batch goes, and of an insert, part by part, beside what moving its bytes must take.

    python tests/bench/where_time_goes.py [--seconds 2] [--episodes 20] [--frames 5000] [--out tests/bench/plots]

A service and this client, one call at a time, with clocks around the functions that do the parts. A part's time is what passes
within it and not within a part it calls; the wire is what is left of the call: gRPC on both sides, the sockets between them and
the change of threads and processes. An insert waits until its commit begins, and for the answer. The limit is the batch's bytes
at the speed of a large copy in memory. Of many calls, each part is told as its lower quartile: other work disturbs only upward.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import replay_client
from replay_client import ClientConfig
from replaysvc import Sequences, StoreConfig, Transitions
from replaysvc.replay import Replay
from tests.bench import plots, rollouts
from tests.bench.clocks import Clocks, clocked_service
from tests.bench.crowd import write_episodes
from tests.bench.peers.asked import BATCH, FRAMES, LENGTH, PERIOD, SEQUENCES, load
from tests.bench.stores import IMAGES, STATES, Listed, MiB

# Where each part is done. A function is clocked wherever a module has it by name.
SERVER_PARTS = {
    "draw": ("replaysvc.sampling.drawing:Samplers.draw",),
    "resolve": ("replaysvc.sampling.planning:make_plan",),
    "gather": ("replaysvc.sampling.gather:gather_transitions", "replaysvc.sampling.gather_sequences:gather_sequences"),
    "read": ("replaysvc.storage:TableStore.read",),
    "decode": ("replaysvc.codec:ChunkDecoder.decode", "replaysvc.codec:GroupDecoder.decode"),
    "update": ("replaysvc.sampling.drawing:Samplers.update",),
    "serialise": ("replaysvc.rpc.frames:encode_frame",),
    "commit": ("replaysvc.storage:TableStore.append",),
    "rest": ("replaysvc.table.sampling:Sampling.draw", "replaysvc.rpc.servicer:ReplayServicer.sample_frame"),
}
CLIENT_PARTS = {
    "client": ("replay_client.frames:read_frame", "replaysvc.batch:assemble", "replaysvc.batch:split"),
    "encode": ("replaysvc.codec:ChunkEncoder.encode",),
}
COLOURS = {
    "append": "#2f6f4f", "encode": "#79b294", "commit": "#e0b020",
    "draw": "#08306b", "resolve": "#1f5fa8", "gather": "#4a8fd0", "read": "#d9822b", "decode": "#b3392f", "update": "#7fb0e0",
    "serialise": "#9ecae1", "rest": "#c6dbef", "client": "#8c8c8c", "wire": "#dcdcdc", "wait": "#efe6cf",
}  # fmt: skip
DARK = ("append", "draw", "resolve", "gather", "decode", "read", "client")
COLD = StoreConfig(recent_cache_bytes=MiB, faulted_cache_bytes=MiB)  # the least there is
INSERTED = 500  # steps of an episode that is written to see where the time of an insert goes
COLD_REPEAT = 20  # times that the rollouts are stored in it, so that it holds a small part of them
Take = Callable[[], dict[str, float]]


def profile(takes: list[Take], call: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Returns the microseconds of each part of a call, the wire among them where there is one."""
    found: list[dict[str, float]] = []
    for _ in range(5):
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 20:
        for take in takes:
            take()
        began = time.perf_counter()
        call()
        passed = time.perf_counter() - began
        spent = {part: seconds for take in takes for part, seconds in take().items()}
        found.append(spent | {"wire": passed - sum(spent.values())})
    parts = {part: 1e6 * float(np.quantile([each.get(part, 0.0) for each in found], 0.25)) for part in COLOURS}
    return {part: value for part, value in parts.items() if value > 0.5}


def profile_insert(takes: list[Take], writer: Any, episode: Any, seconds: float) -> dict[str, float]:
    """Returns the microseconds of each part of an episode, appended one step at a time and flushed at its end."""
    found: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 20:
        for take in takes:
            take()
        began = time.perf_counter()
        writer.begin(episode.observations[0])
        for t in range(INSERTED):
            writer.append(episode.actions[t], episode.rewards[t], episode.observations[t + 1], truncated=t == INSERTED - 1)
        appended = time.perf_counter()
        writer.flush()
        waited = time.perf_counter() - appended
        spent = {part: seconds for take in takes for part, seconds in take().items()}
        commit = min(spent["commit"], waited)  # what it did before the flush took nobody's time
        parts = {"append": appended - began - spent["encode"], "encode": spent["encode"], "commit": commit}
        found.append(parts | {"wait": waited - commit})
    return {part: 1e6 * float(np.quantile([each[part] for each in found], 0.25)) for part in found[0]}


def bytes_of(batch: Any) -> int:
    """Returns the bytes of a batch's arrays; arrays that share memory count once."""

    def leaves(value: Any) -> list[np.ndarray]:
        return [leaf for child in value.values() for leaf in leaves(child)] if isinstance(value, Mapping) else [value]

    owners = {id(owner(array)): owner(array).nbytes for array in leaves(batch.asdict())}
    return sum(owners.values())


def owner(array: np.ndarray) -> np.ndarray:
    """Returns the array whose memory this one shows a part of, if it is no larger than twice what is shown."""
    while isinstance(array.base, np.ndarray) and array.base.nbytes <= 2 * array.nbytes:
        array = array.base
    return array


def copy_bytes_s() -> float:
    """Returns the speed of a copy that no cache of the processor holds."""
    source, target = np.ones(64 * MiB, np.uint8), np.empty(64 * MiB, np.uint8)
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - began)
    return len(source) / best


def measure(folder: Path, episodes: int, frames: int, seconds: float) -> list[dict[str, Any]]:
    """Returns a row for each kind of batch: its parts, in microseconds, and the limit."""
    rollouts.make(folder / "rollouts", episodes, frames)
    states, images = load(str(folder / "rollouts"))
    speed, rows = copy_bytes_s(), []

    def add(words: str, takes: list[Take], table: Any, batch: int, what: Any, sampler: str = "uniform") -> None:
        def call() -> Any:
            drawn = table.sample(batch, what, sampler=sampler)
            if sampler == "prioritized":
                table.update_priorities(drawn.positions, np.abs(drawn.reward) + 1e-6)
            return drawn

        limit = 1e6 * bytes_of(call()) / speed
        rows.append({"batch": words, "limit_us": limit, "parts_us": profile(takes, call, seconds)})

    def fill(replay: Any, name: str, signature: Any, episodes: list[Any]) -> Any:
        table = replay.create_table(name, signature)
        write_episodes(table, Listed(episodes), float("inf"))
        return table

    client_clocks = Clocks(CLIENT_PARTS)
    for name, config in {"warm": StoreConfig(), "cold": COLD}.items():
        with (
            clocked_service(folder / name, config, SERVER_PARTS) as (address, take),
            replay_client.connect(address) as client,
            replay_client.connect(address, config=ClientConfig(shared_bytes=0)) as far,
        ):
            takes = [take, client_clocks.take]
            if name == "cold":
                table = fill(client, "states", STATES, states.episodes * COLD_REPEAT)
                add("uniform 256, cold", takes, table, BATCH, Transitions())
                continue
            with client.create_table("inserted", STATES).writer() as writer:
                parts = profile_insert(takes, writer, states.episodes[0], seconds)
            limit = 1e6 * INSERTED * states.rows().raw_step_bytes / speed
            rows.append({"batch": f"insert of {INSERTED} steps", "limit_us": limit, "parts_us": parts})
            table, frames_table = (
                fill(client, "states", STATES, states.episodes),
                fill(client, "images", IMAGES, images.episodes),
            )
            add("uniform 256", takes, table, BATCH, Transitions())
            add("prioritized 256 and update", takes, table, BATCH, Transitions(), "prioritized")
            add("sequences 32 x 80", takes, table, SEQUENCES, Sequences(length=LENGTH, period=PERIOD))
            add("MsPacman 32 x 4 frames", takes, frames_table, 32, Transitions(stack=FRAMES))
            add("MsPacman 256 x 4 frames", takes, frames_table, BATCH, Transitions(stack=FRAMES))
            add("the same, by the socket", takes, far.table("images"), BATCH, Transitions(stack=FRAMES))
    server_clocks = Clocks(SERVER_PARTS)
    with Replay(folder / "embedded") as replay:
        takes = [server_clocks.take, client_clocks.take]
        add("uniform 256, embedded", takes, fill(replay, "states", STATES, states.episodes), BATCH, Transitions())
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws a bar a batch, each as long as its call, in the colours of its parts; a red mark is the limit."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 0.55 * len(rows) + 1.4), layout="constrained")
    for y, row in enumerate(reversed(rows)):
        left, total = 0.0, sum(row["parts_us"].values())
        for part, value in row["parts_us"].items():
            share = value / total
            axes.barh(y, share, left=left, color=COLOURS[part], height=0.7)
            if share > 0.01 + 0.0075 * len(part):  # there is room for the word
                colour = "white" if part in DARK else "black"
                axes.text(left + share / 2, y, part, ha="center", va="center", fontsize=7, color=colour)
            left += share
        limit = min(1.0, row["limit_us"] / total)
        axes.plot([limit, limit], [y - 0.42, y + 0.42], color="#e00000", linewidth=2)
        axes.text(1.01, y, f"{total:,.0f} us; limit {row['limit_us']:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row["batch"] for row in reversed(rows)], fontsize=8)
    axes.set(xlim=(0, 1.25), xticks=[])
    axes.spines["bottom"].set_visible(False)
    axes.set_title("share of a call's time; red: the batch's bytes at the speed of a copy in memory", fontsize=9, loc="left")
    plots.plain(axes)
    plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--frames", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "plots")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(Path(scratch), options.episodes, options.frames, options.seconds)
    grid = Table("us of a call", *COLOURS, "all", "limit")
    for row in rows:
        parts = row["parts_us"]
        values = [parts.get(part, 0.0) for part in COLOURS]
        grid.add_row(row["batch"], *(f"{v:,.0f}" if v else "" for v in (*values, sum(values), row["limit_us"])))
        print(json.dumps(row), flush=True)
    Console(width=190).print(grid)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "where_time_goes.json").write_text(json.dumps(rows) + "\n")
    plot(rows, options.out / "where_time_goes.png")


if __name__ == "__main__":
    main()
