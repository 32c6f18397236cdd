"""The evaluator: judges published networks by greedy episodes of its own, and never writes to the training table.

Its episodes have seeds from a stream of their own, new ones for every version: one lucky set of seeds cannot carry a run. The
verdict goes to the service, as parameter set `evaluation`, so evaluator and learner may run on different machines; so does
the best network, as parameter set `best`.

`python -m dqn.evaluator --address HOST:PORT`; the configuration comes from the service.
"""

import argparse
import contextlib
import json
import logging
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dqn.config import Config
from dqn.connecting import add_options, connect
from dqn.episodes import stacked
from dqn.network import QNetwork, load_params, read_about
from dqn.rundir import Evaluation, Metrics, RunDirectory, replace_file
from dqn.task import (
    BEST,
    EVALUATING,
    EVALUATION,
    POLICY,
    await_config,
    fetch,
    make_env,
    make_network,
    random_stream,
    stop_on_signals,
)
from replay_client import Params, Replay, ReplayError

log = logging.getLogger("dqn.evaluator")

_POLL_S = 0.1  # pause before asking again for a version to evaluate


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode went. `success` is what its last step said; None if it said nothing."""

    return_: float
    success: bool | None


def greedy_episodes(network: QNetwork, config: Config, seeds: list[int]) -> list[Outcome]:
    """Returns the outcome of one greedy episode per seed: one forward pass for all. Returns are not discounted."""
    envs = [make_env(config) for _ in seeds]
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    returns = [0.0] * len(seeds)
    outcomes: dict[int, Outcome] = {}
    while running := [i for i in range(len(seeds)) if i not in outcomes]:
        actions = network.greedy(stacked([observations[i] for i in running]))
        for i, action in zip(running, actions, strict=True):
            observations[i], reward, terminated, truncated, info = envs[i].step(action)
            returns[i] += float(reward)
            if terminated or truncated:
                success = info.get("is_success")
                outcomes[i] = Outcome(returns[i], None if success is None else bool(success))
    for env in envs:
        env.close()
    return [outcomes[i] for i in range(len(seeds))]


def evaluation_seeds(config: Config, version: int) -> list[int]:
    """Returns the seeds of the episodes that judge `version`."""
    return [int(seed) for seed in random_stream(config, EVALUATING, version).integers(1 << 31, size=config.evaluation_episodes)]


def judge(network: QNetwork, params: Params, config: Config, best_return: float | None) -> dict[str, Any]:
    """Returns the verdict on a published version, plain data, after loading it into `network`."""
    about = load_params(network, params.data)
    seeds = evaluation_seeds(config, params.version)
    outcomes = greedy_episodes(network, config, seeds)
    returns = [outcome.return_ for outcome in outcomes]
    mean = sum(returns) / len(returns)
    told = [outcome.success for outcome in outcomes if outcome.success is not None]
    success_rate = sum(told) / len(outcomes) if told else None
    if config.solved_success is None:
        solved = mean >= config.solved_return
    else:
        solved = success_rate is not None and success_rate >= config.solved_success
    return {
        "policy_version": params.version, "updates": about["updates"], "steps_learned": about["steps_learned"],
        "mean_return": mean, "returns": returns, "success_rate": success_rate, "seeds": seeds, "solved": solved,
        "best_return": mean if best_return is None else max(mean, best_return),
    }  # fmt: skip


def evaluate(replay: Replay, config: Config, run: RunDirectory | None, metrics: Metrics | None, stop: threading.Event) -> bool:
    """Judges versions until one solves the task, the learner has finished or `stop` is set; returns whether it is solved."""
    network = make_network(config)
    before = fetch(replay, EVALUATION)
    verdict: dict[str, Any] | None = json.loads(before.data) if before else None
    seen, due, finished = -1, verdict["policy_version"] + config.evaluation_interval_versions if verdict else 0, False
    while not stop.is_set() and not finished and not (verdict and verdict["solved"]):
        params = fetch(replay, POLICY, newer_than=seen)
        if params is None:
            stop.wait(_POLL_S)
            continue
        seen, finished = params.version, bool(read_about(params.data)["finished"])
        if seen < due and not finished:
            continue
        due = seen + config.evaluation_interval_versions
        best_before = verdict["best_return"] if verdict else None
        verdict = judge(network, params, config, best_before)
        if best_before is None or verdict["mean_return"] > best_before:
            replay.put_params(BEST, params.data, version=params.version)
            if run is not None:
                replace_file(run.best, params.data)
        replay.put_params(EVALUATION, json.dumps(verdict).encode(), version=params.version)
        log.info("version %d: mean return %.1f", params.version, verdict["mean_return"])
        if metrics is not None:
            metrics.write(_metrics_row(verdict))
    return bool(verdict and verdict["solved"])


def _metrics_row(verdict: dict[str, Any]) -> Evaluation:
    returns = verdict["returns"]
    return Evaluation(
        policy_version=verdict["policy_version"], steps_learned=verdict["steps_learned"], episodes=len(returns),
        mean_return=verdict["mean_return"], min_return=min(returns), max_return=max(returns),
        success_rate=verdict["success_rate"], solved=verdict["solved"],
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Runs the evaluator; returns 0 if the task is solved, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m dqn.evaluator", description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser)
    parser.add_argument("--run-dir", type=Path, help="run directory on this machine that takes metrics and the best network")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    stop = stop_on_signals()
    try:
        with contextlib.ExitStack() as stack:
            replay = stack.enter_context(connect(options))
            run = RunDirectory(options.run_dir) if options.run_dir else None
            metrics = stack.enter_context(Metrics(run)) if run else None
            config = await_config(replay, stop)
            solved = evaluate(replay, config, run, metrics, stop) if config else False
    except ReplayError as error:
        log.error("%s: %s", error.name, error)
        return 1
    return 0 if solved else 1


if __name__ == "__main__":
    sys.exit(main())
