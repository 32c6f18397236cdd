"""Actor, learner and evaluator together on an embedded store, their pacing, and the run directory they write."""

import json
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
import pytest
import torch

from dqn.actor import Policy, act
from dqn.bitflip import bitflip_config
from dqn.config import Config
from dqn.episodes import EpisodeRecorder, autoreset_mode
from dqn.evaluator import Outcome, evaluate, evaluation_seeds, greedy_episodes
from dqn.learner import Trainer, is_solved, learn
from dqn.rundir import Evaluation, LearnerMetrics, Metrics, RunDirectory, TrainEpisode
from dqn.task import make_envs, make_network, make_table
from dqn.watch import Watch
from replaysvc import Transitions
from replaysvc.errors import NotFoundError
from tests.learner.toys import small_config


def fill(replay, config, steps, *, rng):
    """Returns the run's table with `steps` steps of random actions in it."""
    table = make_table(replay, config)
    envs = make_envs(config, 1)
    with table.writer() as writer:
        recorder = EpisodeRecorder([writer], autoreset_mode(envs))
        over = np.array([True])
        for _ in range(steps):
            if over.any():
                recorder.begin(envs.reset(seed=[int(rng.integers(1 << 31))], options={"reset_mask": over})[0], over)
            actions = rng.integers(0, 2, 1)
            step = envs.step(actions)
            recorder.record(actions, step)
            over = step[2] | step[3]
    return table


def test_learner_improves_on_the_chain(replay, config):
    """The best policy always goes right and wins every episode; a new network does not, nor does acting at random."""
    table = fill(replay, config, 400, rng=np.random.default_rng(0))
    trainer = Trainer.create(config)
    seeds = evaluation_seeds(config, 0)
    before = [outcome.return_ for outcome in greedy_episodes(trainer.network, config, seeds)]
    for i in range(150):
        trainer.update(table.sample(config.batch_size, Transitions(n_step=config.n_step, gamma=config.gamma), seed=i))
    assert sum(before) < len(seeds)
    assert greedy_episodes(trainer.network, config, seeds) == [Outcome(1.0, None)] * len(seeds)


def test_values_of_the_chain_are_powers_of_gamma(replay, config):
    """The state before the end is worth 1, each one to the left gamma times its neighbour.

    One step at a time: longer returns hold what acting at random earns, which is less.
    """
    table = fill(replay, config, 400, rng=np.random.default_rng(0))
    trainer = Trainer.create(config)
    for i in range(600):
        trainer.update(table.sample(config.batch_size, Transitions(n_step=1, gamma=0.9), seed=i))
    values = trainer.network(torch.eye(5)).max(1).values.tolist()
    assert values[:4] == pytest.approx([0.729, 0.81, 0.9, 1.0], abs=0.05)


def test_actor_learner_and_evaluator_solve_the_chain_together(replay, make_run):
    run = make_run()
    stop = threading.Event()

    def acting():
        with Metrics(run) as metrics:
            return act(replay, run.config, 0, metrics, stop)

    def learning():
        with Metrics(run) as metrics:
            return learn(replay, run, metrics, stop)

    def evaluating():
        with Metrics(run) as metrics:
            return evaluate(replay, run.config, run, metrics, stop)

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(work) for work in (learning, acting, evaluating)]
        _, unfinished = wait(futures, timeout=60, return_when=FIRST_EXCEPTION)
        stop.set()
        steps, solved = futures[1].result(), (futures[0].result(), futures[2].result())
    assert not unfinished
    assert solved == (True, True)

    table = replay.table(run.config.table)
    assert table.stats().next_position == steps
    records = table.episodes(limit=10_000)
    assert {record.actor for record in records} == {"actor-0"}
    assert all(record.policy_version >= 1 and record.metadata.keys() == {"seed", "env", "episode"} for record in records)
    evaluated = {seed for version in range(1, 100) for seed in evaluation_seeds(run.config, version)}
    assert not evaluated & {record.metadata["seed"] for record in records}

    verdict = json.loads(replay.get_params("evaluation").data)
    assert verdict["mean_return"] == 1.0
    assert run.best.read_bytes() == replay.get_params("best").data
    with Metrics(run) as metrics:
        (evaluation,) = metrics.last(Evaluation, 1)
        episodes = metrics.last(TrainEpisode, 10_000)
        watch = Watch(replay, metrics, run.config)
        watch.look()
        figures = watch.figures()
    assert evaluation["policy_version"] == verdict["policy_version"]
    assert (evaluation["mean_return"], evaluation["solved"]) == (1.0, 1)
    assert sorted(e["return_"] for e in episodes) == sorted(r.return_ for r in records if r.closed)
    assert watch.solved
    assert figures["steps"] == f"{steps:,}"
    assert list(run.checkpoints.iterdir())


class StopAtFirstWait(threading.Event):
    """The stop event of a process that is asked to stop as soon as it waits for another one."""

    def wait(self, timeout=None):
        self.set()
        return True


def test_stored_episode_can_be_replayed_from_its_seed_and_actions(replay, config):
    table = make_table(replay, config)
    Trainer.create(config).publish(replay)
    act(replay, config, 0, None, StopAtFirstWait())
    record = next(record for record in table.episodes() if record.closed)
    columns = table.read_episode(record.episode_id)
    envs = make_envs(config, 1)
    observations = [envs.reset(seed=[record.metadata["seed"]], options={"reset_mask": np.array([True])})[0][0]]
    observations += [envs.step(np.array([action]))[0][0] for action in columns["action"]]
    assert np.array_equal(columns["observation"], np.stack(observations))


def test_actor_waits_while_it_is_too_far_ahead_of_the_learner(replay):
    config = small_config(warmup_steps=0, steps_per_update=1.0, publish_interval_updates=1, max_ahead_steps=4)
    trainer = Trainer.create(config)
    table = make_table(replay, config)
    policy = Policy(replay, table, config)
    policy.refresh()
    assert policy.must_wait  # nothing published yet

    trainer.publish(replay)
    fill(replay, config, 5, rng=np.random.default_rng(0))
    policy.refresh()
    assert policy.must_wait  # 5 steps stored, none used: 5 > 4

    trainer.update(table.sample(4, seed=0))
    trainer.publish(replay)
    policy.refresh()
    assert not policy.must_wait  # 5 - 1 = 4
    assert policy.version == 2


def test_actor_without_a_learner_waits_at_the_bound(replay, config):
    Trainer.create(config).publish(replay)  # 50 steps for warming up count as used
    steps = act(replay, config, 0, None, StopAtFirstWait())
    assert replay.table(config.table).stats().next_position == steps
    assert 50 + config.max_ahead_steps < steps < 5_000  # the steps on their way to the service are not known to the actor


def test_evaluation_never_touches_the_training_table(replay, make_run):
    run = make_run(solved_return=0.0)
    table = fill(replay, run.config, 30, rng=np.random.default_rng(0))
    Trainer.create(run.config).publish(replay)
    before, episodes = table.stats(), table.episodes()
    assert evaluate(replay, run.config, run, None, threading.Event())
    after = table.stats()
    assert (after.appended_steps_total, after.open_episodes) == (before.appended_steps_total, before.open_episodes)
    assert after.sampled_items_total == before.sampled_items_total
    assert table.episodes() == episodes
    assert is_solved(replay)


def test_evaluator_judges_each_version_on_seeds_of_its_own(config):
    assert len({seed for version in range(50) for seed in evaluation_seeds(config, version)}) == 50 * config.evaluation_episodes
    assert evaluation_seeds(config, 3) == evaluation_seeds(config, 3)


def test_evaluation_keeps_the_best_network_and_not_the_last(replay, make_run):
    run = make_run(solved_return=2.0)  # out of reach
    good, bad = make_network(run.config), make_network(run.config)
    for network, right in ((good, 1.0), (bad, -1.0)):
        for parameter in network.parameters():
            parameter.data.zero_()
        network.layers[-1].bias.data[1] = right
    trainer = Trainer.create(run.config)
    for network, finished in ((good, True), (bad, True)):
        trainer.network = network
        trainer.publish(replay, finished=finished)
        assert not evaluate(replay, run.config, run, None, threading.Event())
    best = replay.get_params("best")
    assert best.version == 1
    assert run.best.read_bytes() == best.data
    verdict = json.loads(replay.get_params("evaluation").data)
    assert (verdict["policy_version"], verdict["mean_return"], verdict["best_return"]) == (2, 0.0, 1.0)


def test_samples_are_counted_over_restarts_of_the_service(replay, make_run):
    """Each process of a service counts from 0."""
    run = make_run()
    fill(replay, run.config, 30, rng=np.random.default_rng(0))

    class Service:
        sampled = 0

        def table(self, name):
            return self

        def stats(self):
            return replace(replay.table(run.config.table).stats(), sampled_items_total=self.sampled)

        def get_params(self, name):
            raise NotFoundError("none yet")

    service = Service()
    with Metrics(run) as metrics:
        watch = Watch(service, metrics, run.config)
        for sampled, restarts in ((100, False), (250, True), (0, False), (70, True), (5, True), (3, False)):
            service.sampled = sampled
            watch.look()
            if restarts:
                watch.service_restarted()
        assert "328 samples" in next(line for line in watch.summary() if "samples" in line)  # 250 + 70 + 5 + 3


def test_learner_stops_when_its_steps_are_used_up(replay, make_run):
    run = make_run(max_steps=80)
    table = fill(replay, run.config, 80, rng=np.random.default_rng(0))
    with Metrics(run) as metrics:
        assert not learn(replay, run, metrics, threading.Event())
        (row,) = metrics.last(LearnerMetrics, 1)
    assert row["updates"] == 30  # 50 of the 80 steps are for warming up, each further one pays for an update
    assert table.stats().sampled_items_total == 33 * run.config.batch_size  # one, and 8 times 4 that are drawn together
    assert [path.name for path in run.checkpoints.iterdir()] == ["0000000030"]


def test_prioritized_learner_leaves_each_step_the_error_it_last_had(replay, make_run):
    """Every step is written with priority 1; 30 batches of 16 leave hardly one of 80 steps with it."""
    run = make_run(max_steps=80, sampler="prioritized", priority_alpha=1.0)
    table = fill(replay, run.config, 80, rng=np.random.default_rng(0))
    before = table.sample(64, sampler="prioritized", seed=0)
    with Metrics(run) as metrics:
        assert not learn(replay, run, metrics, threading.Event())
    after = table.sample(64, sampler="prioritized", seed=0)
    assert set(before.probability) == {1 / 80}
    assert len(set(after.probability)) > 10
    assert after.importance_weight.min() < after.importance_weight.max() == 1.0


def test_learner_does_not_outrun_the_steps_that_are_stored(replay, make_run):
    run = make_run(warmup_steps=0, steps_per_update=4.0, publish_interval_updates=5)
    fill(replay, run.config, 43, rng=np.random.default_rng(0))
    with Metrics(run) as metrics:
        assert not learn(replay, run, metrics, StopAtFirstWait())
    assert [path.name for path in run.checkpoints.iterdir()] == ["0000000010"]  # 43 steps pay for 10 updates


def test_run_directory_is_not_made_twice(make_run):
    run = make_run(seed=3)
    with pytest.raises(FileExistsError):
        make_run(seed=4)
    assert RunDirectory(run.path).config.seed == 3
    assert json.loads((run.path / "versions.json").read_text()).keys() >= {"python", "torch", "gymnasium", "replaysvc"}


def test_metrics_come_back_newest_first(make_run):
    with Metrics(make_run()) as metrics:
        for version in range(3):
            metrics.write(
                TrainEpisode(
                    episode=f"7e57-{version}", actor="actor-0", env=0, policy_version=version, return_=1.0, length=1,
                    terminated=True, truncated=False, seed=1, epsilon=0.5,
                )
            )  # fmt: skip
        assert [row["policy_version"] for row in metrics.last(TrainEpisode, 2)] == [2, 1]


def test_epsilon_falls_in_a_straight_line_and_then_stays():
    config = small_config(epsilon_start=1.0, epsilon_end=0.5, epsilon_steps=100)
    assert [config.epsilon(steps) for steps in (0, 50, 100, 1000)] == [1.0, 0.75, 0.5, 0.5]


def test_configuration_survives_json_and_refuses_unknown_names():
    for config in (Config(seed=5, hidden=(8, 8)), bitflip_config(4)):
        assert Config.from_json(config.to_json()) == config
    with pytest.raises(ValueError, match="learning_rat"):
        Config.from_json('{"learning_rat": 1}')


def test_sampler_that_the_table_does_not_have_is_refused():
    with pytest.raises(ValueError, match="sampler.*'recency'"):
        Config(sampler="recency")


def test_pace_in_which_everybody_waits_for_everybody_is_refused():
    with pytest.raises(ValueError, match="max_ahead_steps"):
        Config(publish_interval_updates=100, steps_per_update=4.0, max_ahead_steps=799)
