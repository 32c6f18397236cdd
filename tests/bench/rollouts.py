"""Real HalfCheetah-v5 rollouts as one .npz, the data that every peer is measured on.

python tests/bench/rollouts.py FILE [EPISODES]
"""

import sys
from pathlib import Path

import numpy as np

from tests.real_data import cheetah_rollout


def make(file: Path, episodes: int = 20) -> None:
    """Writes observations [sum(T+1), 17], actions [sum(T), 6], rewards [sum(T)] float32 and lengths [episodes]."""
    rollouts = [cheetah_rollout(seed, 1000) for seed in range(episodes)]
    columns = {
        name + "s": np.concatenate([rollout[name] for rollout in rollouts]) for name in ("observation", "action", "reward")
    }
    np.savez(file, lengths=np.array([len(rollout["reward"]) for rollout in rollouts]), **columns)


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
