"""An actor: steps several environments at once and writes their episodes to the service.

It acts epsilon-greedily with the newest network that the learner has published, asks for a newer one every few vector steps,
and waits while it is too far ahead of the learner (see `learner.py` on pacing). Every episode is stored with the
version that acted in its first step and, in its metadata, the seed that its environment was reset with and a name of its own.
In the run directory it notes what it wrote, so that `audit.py` can compare that with what is stored.

`python -m dqn.actor --address HOST:PORT --index N`; the configuration comes from the service.
"""

import argparse
import contextlib
import itertools
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dqn.config import Config
from dqn.connecting import add_options, connect
from dqn.episodes import Ended, EpisodeRecorder, Unended, autoreset_mode
from dqn.network import load_params
from dqn.rundir import Acknowledged, Metrics, OpenEpisode, RunDirectory, TrainEpisode
from dqn.task import ACTING, POLICY, await_config, fetch, make_envs, make_network, make_table, random_stream, stop_on_signals
from replay_client import Replay, ReplayError, Table

log = logging.getLogger("dqn.actor")

_WAIT_S = 0.05  # pause before asking again for the first parameters, or whether the learner has caught up


class Policy:
    """The newest published network and the pace that came with it."""

    def __init__(self, replay: Replay, table: Table, config: Config) -> None:
        self._replay, self._table, self._config = replay, table, config
        self._network = make_network(config)
        self._steps_learned = 0
        self.version, self.steps, self.finished = -1, 0, False

    def refresh(self) -> None:
        """Takes over newer parameters, if there are any, and looks how many steps are stored."""
        newer = fetch(self._replay, POLICY, newer_than=self.version)
        if newer is not None:
            about = load_params(self._network, newer.data)
            self.version, self._steps_learned, self.finished = newer.version, about["steps_learned"], bool(about["finished"])
        self.steps = self._table.stats().next_position

    @property
    def must_wait(self) -> bool:
        """Returns whether there is no network yet, or the actors are too far ahead of the learner."""
        return self.version < 0 or self.steps - self._steps_learned > self._config.max_ahead_steps

    @property
    def epsilon(self) -> float:
        """Returns the share of random actions now."""
        return self._config.epsilon(self.steps)

    def act(self, observations: Any, rng: np.random.Generator) -> np.ndarray:
        """Returns an action for each row of `observations`, int64."""
        actions = self._network.greedy(observations)
        random = rng.random(len(actions)) < self.epsilon
        return np.where(random, rng.integers(self._network.actions, size=len(actions)), actions)


def act(replay: Replay, config: Config, index: int, metrics: Metrics | None, stop: threading.Event) -> int:
    """Acts until the learner has finished, the steps are used up or `stop` is set; returns the steps it took."""
    table = make_table(replay, config)
    policy = Policy(replay, table, config)
    envs = make_envs(config, config.envs_per_actor)
    name, life, numbers = f"actor-{index}", os.urandom(4).hex(), itertools.count()
    with contextlib.ExitStack() as stack:
        stack.callback(envs.close)
        writers = [stack.enter_context(table.writer(actor=name)) for _ in range(envs.num_envs)]
        recorder = EpisodeRecorder(writers, autoreset_mode(envs))
        policy.refresh()
        rng = random_stream(config, ACTING, index, policy.steps)  # a resumed run starts elsewhere, so it acts differently
        ended = np.ones(envs.num_envs, dtype=bool)
        observations: Any = None
        vector_steps = 0
        while not stop.is_set() and not policy.finished and policy.steps < config.max_steps:
            if vector_steps % config.refresh_vector_steps == 0 or policy.must_wait:
                policy.refresh()
                if policy.must_wait:
                    stop.wait(_WAIT_S)
                    continue
            if ended.any():
                seeds = [int(seed) for seed in rng.integers(1 << 31, size=envs.num_envs)]
                observations, _ = envs.reset(seed=[*seeds], options={"reset_mask": ended})
                recorder.policy_version = policy.version
                recorder.metadata = [
                    {"seed": seed, "env": i, "episode": f"{life}-{next(numbers)}"} for i, seed in enumerate(seeds)
                ]
                recorder.begin(observations, ended)
            actions = policy.act(observations, rng)
            step = envs.step(actions)
            for episode in recorder.record(actions, step):
                if metrics is not None:
                    metrics.write(_metrics_row(episode, name, policy.epsilon))
            observations, _, terminated, truncated, _ = step
            ended = terminated | truncated
            vector_steps += 1
    if metrics is not None:  # the writers are closed: all is acknowledged
        for unended in recorder.unended():
            metrics.write(_open_row(unended, name))
        metrics.write(Acknowledged(actor=name, life=life, steps=recorder.steps))
    return recorder.steps


def _open_row(episode: Unended, actor: str) -> OpenEpisode:
    return OpenEpisode(
        episode=str(episode.metadata["episode"]), actor=actor, env=episode.env, policy_version=episode.policy_version,
        return_=episode.return_, length=episode.length,
    )  # fmt: skip


def _metrics_row(episode: Ended, actor: str, epsilon: float) -> TrainEpisode:
    return TrainEpisode(
        episode=str(episode.metadata["episode"]), actor=actor, env=episode.env, policy_version=episode.policy_version,
        return_=episode.return_, length=episode.length, terminated=episode.terminated, truncated=episode.truncated,
        seed=int(episode.metadata["seed"]), epsilon=epsilon,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Runs an actor; returns 0, or 1 after an error of the service."""
    parser = argparse.ArgumentParser(prog="python -m dqn.actor", description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser)
    parser.add_argument("--index", type=int, default=0, help="number of this actor, from 0; each acts differently")
    parser.add_argument("--run-dir", type=Path, help="run directory on this machine that takes the metrics")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    stop = stop_on_signals()
    try:
        with contextlib.ExitStack() as stack:
            replay = stack.enter_context(connect(options))
            metrics = stack.enter_context(Metrics(RunDirectory(options.run_dir))) if options.run_dir else None
            config = await_config(replay, stop)
            steps = act(replay, config, options.index, metrics, stop) if config else 0
    except ReplayError as error:
        log.error("%s: %s", error.name, error)
        return 1
    log.info("took %d steps", steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
