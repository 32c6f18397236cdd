"""Real rollouts, the data that every subject is measured on: HalfCheetah-v5 under noisy actions, MsPacman under random ones.

    python tests/bench/rollouts.py FOLDER [--episodes 20] [--frames 10000]

Writes `cheetah.npz` and `pacman.npz`, alike: observations [sum(T+1), ...] (float32 [17]; uint8 [84, 84]), actions, rewards
[sum(T), ...], and for each episode its length and whether it terminated.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
from PIL import Image

from tests.real_data import cheetah_rollout, rollout

EPISODE_STEPS = 1000  # of HalfCheetah, which ends by its time limit


def pacman_rollouts(frames: int) -> Iterator[dict[str, Any]]:
    """Yields games of MsPacman until they have `frames` steps in all; the last one is cut there."""
    gymnasium.register_envs(ale_py)
    rng = np.random.default_rng(0)

    def shrink(frame: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(frame).resize((84, 84), Image.Resampling.BILINEAR))

    seed = 0
    while frames > 0:
        env = gymnasium.make("ALE/MsPacman-v5", obs_type="grayscale", frameskip=4, repeat_action_probability=0.0)
        game = rollout(env, lambda _: int(rng.integers(9)), shrink, seed, frames)
        yield game
        frames, seed = frames - len(game["reward"]), seed + 1


def save(file: Path, episodes: list[dict[str, Any]]) -> None:
    """Writes episodes end to end."""
    columns = {f"{name}s": np.concatenate([each[name] for each in episodes]) for name in ("observation", "action", "reward")}
    lengths = np.array([len(each["reward"]) for each in episodes])
    np.savez(file, lengths=lengths, terminated=np.array([bool(each["terminated"][-1]) for each in episodes]), **columns)


def make(folder: Path, episodes: int = 20, frames: int = 10_000) -> None:
    """Writes both files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "cheetah.npz", [cheetah_rollout(seed, EPISODE_STEPS) for seed in range(episodes)])
    save(folder / "pacman.npz", list(pacman_rollouts(frames)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--frames", type=int, default=10_000)
    options = parser.parse_args()
    make(options.folder, options.episodes, options.frames)
