"""Real rollouts through a served store and back: HalfCheetah-v5 and Atari Breakout (84x84 grey), compared value by value.

    python tests/real_data.py [--episodes N] [--kills K] [--seed S]

Writes episodes with the client, reads each back and compares every column with what the environment gave (bit for bit where
it is kept lossless, within the bound where it is kept as float16), compares sampled transitions with the episodes, then
kills the service while it is being written to, starts it again on the same store, and compares all that was acknowledged
once more, K times. Prints the bytes per step. Exit status 1 on any difference.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import ale_py
import gymnasium as gym
import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

import replay_client
from replay_client import Signature, TableConfig, Transitions
from tests.processes import ServiceProcess

RELATIVE_BOUND = 2.0**-10  # of the range of a dimension within a chunk; that of the episode is no smaller


def cheetah_rollout(seed: int, steps: int) -> dict[str, np.ndarray]:
    """Returns one episode of HalfCheetah-v5 under smooth, noisy actions; it ends truncated."""
    env = gym.make("HalfCheetah-v5", max_episode_steps=steps)
    rng = np.random.default_rng(seed)
    phase, speed = rng.uniform(0, 6.28, 6), rng.uniform(0.05, 0.4, 6)

    def action(t: int) -> np.ndarray:
        return np.clip(0.8 * np.sin(speed * t + phase) + 0.2 * rng.standard_normal(6), -1, 1).astype(np.float32)

    return rollout(env, action, lambda observation: observation.astype(np.float32), seed, steps)


def breakout_rollout(seed: int, steps: int) -> dict[str, np.ndarray]:
    """Returns up to `steps` steps of Breakout under random play."""
    gym.register_envs(ale_py)
    env = gym.make("ALE/Breakout-v5", obs_type="grayscale", frameskip=4, repeat_action_probability=0.0)
    rng = np.random.default_rng(seed)

    def shrink(frame: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(frame).resize((84, 84), Image.Resampling.BILINEAR))

    return rollout(env, lambda t: int(rng.integers(4)), shrink, seed, steps)


def rollout(env, choose, convert, seed, steps):
    observation, _ = env.reset(seed=seed)
    columns = {"observation": [convert(observation)], "action": [], "reward": [], "terminated": [], "truncated": []}
    for t in range(steps):
        action = choose(t)
        observation, reward, terminated, truncated, _ = env.step(action)
        truncated = truncated or (t == steps - 1 and not terminated)
        values = (convert(observation), action, reward, terminated, truncated)
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
        if terminated or truncated:
            break
    env.close()
    columns = {name: np.asarray(values) for name, values in columns.items()}
    return columns | {"reward": columns["reward"].astype(np.float32)}


def write(writer, episode, seed):
    writer.begin(episode["observation"][0], metadata={"seed": seed})
    for t in range(len(episode["reward"])):
        writer.append(
            episode["action"][t],
            episode["reward"][t],
            episode["observation"][t + 1],
            terminated=bool(episode["terminated"][t]),
            truncated=bool(episode["truncated"][t]),
        )


def bound_of(observations: np.ndarray) -> float:
    return RELATIVE_BOUND * float(np.ptp(observations.astype(np.float64), axis=0).max())


class Differences:
    """Counts comparisons and collects what differs."""

    def __init__(self) -> None:
        self.compared = 0
        self.found: list[str] = []

    def check(self, what: str, same: bool) -> None:
        self.compared += 1
        if not same:
            self.found.append(what)


def compare(table, episodes, differences, only=None):
    """Compares stored episodes with those written, by their seed."""
    by_seed = {record.metadata["seed"]: record for record in table.episodes(limit=100_000)}
    for seed, episode in episodes.items():
        if only is not None and seed not in only:
            continue
        if seed not in by_seed:
            differences.check(f"{table.name} episode {seed} is missing", False)
            continue
        record = by_seed[seed]
        stored = table.read_episode(record.episode_id)
        length = len(episode["reward"])
        differences.check(f"{table.name} {seed} record", record.length == length and record.closed)
        differences.check(f"{table.name} {seed} return", abs(record.return_ - episode["reward"].sum(dtype=np.float64)) < 1e-3)
        for name, values in episode.items():
            found = stored[name]
            same = found.shape == values.shape and found.dtype == (values.dtype if name != "action" else found.dtype)
            if name == "observation" and values.dtype == np.float32:
                same = same and np.abs(found.astype(np.float64) - values).max() <= bound_of(values)
            else:
                same = same and np.array_equal(found, values)
            differences.check(f"{table.name} episode {seed} column {name}", bool(same))


def compare_samples(table, episodes, differences, n_step=3, gamma=0.9):
    """Compares sampled n-step transitions with the episodes they name."""
    by_id = {record.episode_id: record.metadata["seed"] for record in table.episodes(limit=100_000)}
    batch = table.sample(256, Transitions(n_step=n_step, gamma=gamma))
    for i in range(len(batch)):
        seed = by_id[int(batch.episode_id[i])]
        if seed not in episodes:
            continue
        episode, t = episodes[seed], int(batch.t[i])
        k = min(n_step, len(episode["reward"]) - t)
        rewards = sum(gamma**j * float(episode["reward"][t + j]) for j in range(k))
        ended = bool(episode["terminated"][t + k - 1])
        bound = 0.0 if episode["observation"].dtype == np.uint8 else bound_of(episode["observation"])
        where = f"{table.name} sample of {seed} at {t}"
        differences.check(f"{where}: reward", abs(float(batch.reward[i]) - rewards) < 1e-4 * max(1, abs(rewards)))
        differences.check(f"{where}: discount", abs(float(batch.discount[i]) - (0.0 if ended else gamma**k)) < 1e-6)
        for name, at in (("observation", t), ("next_observation", t + k)):
            found, wanted = getattr(batch, name)[i].astype(np.float64), episode["observation"][at].astype(np.float64)
            differences.check(f"{where}: {name}", bool(np.abs(found - wanted).max() <= bound))


def run(
    directory: Path, *, episodes: int, kills: int, seed: int, steps: int = 1000, console: Console | None = None
) -> Differences:
    """Runs the whole comparison in `directory`; returns what differed."""
    console = console or Console(width=140)
    differences = Differences()
    makers = {"cheetah": cheetah_rollout, "breakout": breakout_rollout}
    data = {"cheetah": {}, "breakout": {}}
    acknowledged = {"cheetah": set(), "breakout": set()}
    with (
        ServiceProcess(directory / "store") as service,
        replay_client.connect(service.address) as client,
        Progress(console=console, transient=True) as progress,
    ):
        signatures = {
            "cheetah": Signature.from_env(gym.make("HalfCheetah-v5")),
            "breakout": Signature(
                replay_client.FieldSpec("observation", (84, 84), np.dtype(np.uint8)),
                replay_client.FieldSpec("action", (), np.dtype(np.int64)),
            ),
        }
        tables = {name: client.create_table(name, signature, TableConfig()) for name, signature in signatures.items()}
        writers = {name: table.writer(actor="real-data") for name, table in tables.items()}
        bar = progress.add_task("rollouts", total=2 * episodes + 2 * kills)

        def add(name: str, number: int) -> None:
            data[name][number] = makers[name](number, steps)
            write(writers[name], data[name][number], number)
            progress.advance(bar)

        for number in range(seed, seed + episodes):
            for name in makers:
                add(name, number)
        for kill in range(kills + 1):
            for name in makers:
                writers[name].flush()
                acknowledged[name] = set(data[name])
                compare(tables[name], data[name], differences)
                compare_samples(tables[name], data[name], differences)
            if kill < kills:  # the kill falls into the writing of the next episodes, which the writers then deliver
                half = kill % 2
                for name in makers:
                    if half:
                        service.kill()
                        service.start()
                    add(name, seed + episodes + kill)
                if not half:
                    service.kill()
                    service.start()
                for name in makers:
                    compare(tables[name], data[name], differences, only=acknowledged[name])
        grid = RichTable(
            "table", "steps", "raw B/step", "chunks B/step", "disk B/step", "raw / chunks", "raw / disk", "lossless fallbacks"
        )
        for table in tables.values():
            stats = table.stats()
            raw, stored, disk = (x / stats.steps for x in (stats.raw_bytes, stats.stored_bytes, stats.disk_bytes))
            grid.add_row(
                table.name,
                f"{stats.steps:,}",
                f"{raw:,.1f}",
                f"{stored:,.1f}",
                f"{disk:,.1f}",
                f"{raw / stored:.1f}x",
                f"{raw / disk:.1f}x",
                str(stats.lossless_fallbacks_total),
            )
        for writer in writers.values():
            writer.close()
    console.print(grid)
    console.print(f"{differences.compared:,} comparisons, {kills} kills, {len(differences.found)} differences")
    for line in differences.found[:20]:
        console.print(f"DIFFERS: {line}")
    return differences


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(bool(run(Path(scratch), episodes=options.episodes, kills=options.kills, seed=options.seed).found))
