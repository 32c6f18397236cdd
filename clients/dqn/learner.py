"""The learner: double DQN (van Hasselt et al. 2016) with n-step returns, trained on batches from the service.

The service does the n-step arithmetic: a batch's `reward` is the discounted sum over the steps really summed and its
`discount` the whole factor on the bootstrap value, 0 after a termination and gamma^k after a truncation. So the target is
`reward + discount * value`, and nothing here looks at an episode's end.

Pacing. Stored steps pay for updates: the learner waits until `steps_per_update` steps are there for its next one. With each
version of its network it publishes the steps it has used so far, and an actor waits while the table holds
`max_ahead_steps` more than that (and what is on its way there: a fraction of a second's worth). Neither side can starve
or flood the other, however fast the machine runs either.

`python -m dqn.learner --address HOST:PORT --run-dir DIR` starts a run, `--resume DIR` goes on with one that ended or was
killed; `--begin-or-resume DIR` does what is due. Its replay data are in the service, which keeps them by itself.
"""

import argparse
import json
import logging
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dqn.batches import Batches
from dqn.checkpoint import Progress, load_checkpoint, newest_checkpoint, save_checkpoint
from dqn.config import Config
from dqn.connecting import add_options, connect
from dqn.network import QNetwork, params_to_bytes
from dqn.rundir import LearnerMetrics, Metrics, RunDirectory
from dqn.task import CONFIG, EVALUATION, POLICY, fetch, make_network, make_table, stop_on_signals
from replay_client import Batch, Replay, ReplayError

log = logging.getLogger("dqn.learner")

_POLL_S = 0.005  # pause before asking again whether new steps have paid for an update


def td_loss(network: torch.nn.Module, target: torch.nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Returns the Huber loss of a batch, a scalar, and the signed TD errors [B].

    Double DQN: `network` chooses the action at the next observation, `target` says what it is worth. Importance weights
    multiply each item's loss.
    """
    values = network(batch["observation"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        greedy = network(batch["next_observation"]).argmax(1, keepdim=True)
        bootstrap_value = target(batch["next_observation"]).gather(1, greedy).squeeze(1)
        goal = batch["reward"] + batch["discount"] * bootstrap_value
    losses = batch["importance_weight"] * functional.smooth_l1_loss(values, goal, reduction="none")
    return losses.mean(), goal - values.detach()


@dataclass(slots=True)
class Trainer:
    """Network, target network and optimiser: what a checkpoint holds and an update changes."""

    config: Config
    network: QNetwork
    target: QNetwork
    optimiser: torch.optim.Optimizer
    progress: Progress

    @staticmethod
    def create(config: Config) -> "Trainer":
        """Returns a trainer at update 0; its weights depend on `config.seed` alone. Seeds torch's global generator."""
        torch.manual_seed(config.seed)
        network, target = make_network(config), make_network(config)
        target.load_state_dict(network.state_dict())
        return Trainer(config, network, target, torch.optim.Adam(network.parameters(), lr=config.learning_rate), Progress())

    def update(self, batch: Batch) -> tuple[float, np.ndarray]:
        """Takes one gradient step on `batch` and moves the target network along; returns loss and TD errors before it."""
        loss, td_errors = td_loss(self.network, self.target, batch.torch())
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_grad_norm)
        self.optimiser.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, self.config.target_update_rate)
        self.progress = replace(self.progress, updates=self.progress.updates + 1)
        return float(loss.detach()), td_errors.numpy()

    def save(self, directory: Path) -> None:
        """Writes a checkpoint under `directory`."""
        save_checkpoint(directory, self.progress, self.network, self.target, self.optimiser)

    def resume(self, directory: Path) -> bool:
        """Goes back to the newest checkpoint under `directory`; returns whether there was one."""
        newest = newest_checkpoint(directory)
        if newest is not None:
            self.progress = load_checkpoint(newest, self.network, self.target, self.optimiser)
        return newest is not None

    def publish(self, replay: Replay, *, finished: bool = False) -> None:
        """Makes the network the newest version for actors and evaluator, with the progress that paces the actors."""
        version = self.progress.policy_version + 1
        about = {
            "version": version, "updates": self.progress.updates, "finished": int(finished),
            "steps_learned": self.config.steps_learned(self.progress.updates),
        }  # fmt: skip
        replay.put_params(POLICY, params_to_bytes(self.network, about), version=version)
        self.progress = replace(self.progress, policy_version=version)


def learn(replay: Replay, run: RunDirectory, metrics: Metrics, stop: threading.Event) -> bool:
    """Trains until an evaluation solves the task, the steps are used up or `stop` is set; returns whether it is solved."""
    config = run.config
    table = make_table(replay, config)
    replay.put_params(CONFIG, config.to_json().encode(), version=0)
    trainer = Trainer.create(config)
    if trainer.resume(run.checkpoints):
        log.info("resumed at update %d", trainer.progress.updates)
    if published := fetch(replay, POLICY):  # a killed learner may have published more than its last checkpoint knows
        newest = max(trainer.progress.policy_version, published.version)
        trainer.progress = replace(trainer.progress, policy_version=newest)
    trainer.publish(replay)
    solved = is_solved(replay)
    most = config.updates_due(config.max_steps)
    due = stored = 0
    report = _Report()

    with Batches(table, config) as batches:
        while not solved and not stop.is_set() and trainer.progress.updates < most:
            if trainer.progress.updates >= due:
                stored = table.stats().next_position  # positions count every step ever stored
                due = config.updates_due(stored)
                if trainer.progress.updates >= due:
                    stop.wait(_POLL_S)
                    report.waited_s += _POLL_S
                    continue
            batch = batches.draw(trainer.progress.updates)
            loss, td_errors = trainer.update(batch)
            batches.learned(batch, td_errors)
            report.add(loss, trainer.progress.policy_version, batch)
            if trainer.progress.updates % config.publish_interval_updates == 0:
                trainer.publish(replay)
                solved = is_solved(replay)
                metrics.write(report.row(trainer.progress, stored, config.batch_size))
                report = _Report()
            if trainer.progress.updates % config.checkpoint_interval_updates == 0:
                trainer.save(run.checkpoints)

    solved = is_solved(replay)
    trainer.publish(replay, finished=solved or not stop.is_set())
    trainer.save(run.checkpoints)
    return solved


def is_solved(replay: Replay) -> bool:
    """Returns whether the evaluator's newest verdict says so."""
    verdict = fetch(replay, EVALUATION)
    return verdict is not None and bool(json.loads(verdict.data)["solved"])


class _Report:
    """Sums over the updates since the last row of metrics."""

    def __init__(self) -> None:
        self.since, self.updates = time.monotonic(), 0
        self.loss = self.staleness = self.waited_s = 0.0

    def add(self, loss: float, version: int, batch: Batch) -> None:
        self.updates += 1
        self.loss += loss
        self.staleness += float(version - batch.policy_version.mean())

    def row(self, progress: Progress, stored: int, batch_size: int) -> LearnerMetrics:
        n, seconds = self.updates, time.monotonic() - self.since
        return LearnerMetrics(
            updates=progress.updates, steps=stored, policy_version=progress.policy_version, loss=self.loss / n,
            staleness=self.staleness / n, samples_per_s=n * batch_size / seconds, waited_s=self.waited_s,
        )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Runs the learner; returns 0 if the task is solved, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m dqn.learner", description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--run-dir", type=Path, help="directory of a new run")
    where.add_argument("--resume", type=Path, help="directory of the run to go on with")
    where.add_argument("--begin-or-resume", type=Path, help="the same: a new run if there is none yet")
    parser.add_argument("--env", default=Config().env_id, help="Gymnasium environment of a new run")
    parser.add_argument("--seed", type=int, default=Config().seed, help="seed of a new run")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)  # the network is small: more threads would only take the actors' cores
    stop = stop_on_signals()
    path = options.run_dir or options.resume or options.begin_or_resume
    if options.resume or (options.begin_or_resume and (path / "config.json").exists()):
        run = RunDirectory(path)
    else:
        run = RunDirectory.create(path, Config(env_id=options.env, seed=options.seed))
    try:
        with Metrics(run) as metrics, connect(options) as replay:
            solved = learn(replay, run, metrics, stop)
    except ReplayError as error:
        log.error("%s: %s", error.name, error)
        return 1
    log.info("solved" if solved else "ended without a solution")
    return 0 if solved else 1


if __name__ == "__main__":
    sys.exit(main())
