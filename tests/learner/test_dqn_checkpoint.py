"""A run goes on from a checkpoint as if it had never stopped, and nothing that is read can run code."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

import dqn
from dqn.learner import Trainer, learn
from dqn.network import load_params, params_to_bytes, read_about
from dqn.rundir import Metrics
from replaysvc import Batch
from replaysvc.errors import AlreadyExistsError


def batch(i: int) -> Batch:
    """Returns the i-th of a fixed series of batches of 8 steps of the chain."""
    rng = np.random.default_rng(i)
    states = rng.integers(0, 4, 8)
    zeros = np.zeros(8, np.int64)
    return Batch(
        observation=np.eye(5, dtype=np.float32)[states], action=rng.integers(0, 2, 8), reward=rng.random(8, dtype=np.float32),
        next_observation=np.eye(5, dtype=np.float32)[states + 1], discount=np.full(8, 0.5, np.float32),
        terminated=zeros > 0, truncated=zeros > 0, positions=zeros, episode_id=zeros, t=zeros, probability=np.full(8, 0.1),
        importance_weight=np.ones(8, np.float32), age_s=np.zeros(8, np.float32), policy_version=zeros, extras={},
    )  # fmt: skip


def state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Returns every tensor that an update depends on."""
    optimiser = {f"{i}/{k}": v for i, entries in trainer.optimiser.state_dict()["state"].items() for k, v in entries.items()}
    networks = {f"network.{k}": v for k, v in trainer.network.state_dict().items()}
    targets = {f"target.{k}": v for k, v in trainer.target.state_dict().items()}
    return {**optimiser, **networks, **targets, "rng": torch.get_rng_state()}


def test_resumed_training_equals_uninterrupted_training_bit_for_bit(config, tmp_path):
    straight = Trainer.create(config)
    for i in range(6):
        straight.update(batch(i))
    expected = {name: tensor.clone() for name, tensor in state(straight).items()}

    interrupted = Trainer.create(config)
    for i in range(3):
        interrupted.update(batch(i))
    interrupted.save(tmp_path)
    torch.manual_seed(99)  # another process would not have the generator where it was
    resumed = Trainer.create(replace(config, seed=1234))  # weights of its own, until it resumes
    assert resumed.resume(tmp_path)
    for i in range(3, 6):
        resumed.update(batch(i))

    found = state(resumed)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert resumed.progress == straight.progress


def test_checkpoint_brings_back_the_random_generator(config, tmp_path):
    trainer = Trainer.create(config)
    trainer.update(batch(0))
    torch.rand(5)
    trainer.save(tmp_path)
    expected = torch.rand(3)
    torch.manual_seed(99)
    trainer.resume(tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_only_the_newest_checkpoints_are_kept_and_unfinished_ones_ignored(config, tmp_path):
    trainer = Trainer.create(config)
    for i in range(4):
        trainer.update(batch(i))
        trainer.save(tmp_path)
    (tmp_path / "unfinished-1").mkdir()  # left by a learner that was killed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000003", "0000000004", "unfinished-1"]
    fresh = Trainer.create(config)
    assert fresh.resume(tmp_path)
    assert fresh.progress.updates == 4


def test_directory_without_a_checkpoint_resumes_nothing(config, tmp_path):
    assert not Trainer.create(config).resume(tmp_path)


def test_resumed_learner_publishes_above_the_services_version(replay, make_run, stopped):
    """A killed learner may have published more versions than its last checkpoint knows."""
    run = make_run()
    replay.put_params("policy", params_to_bytes(Trainer.create(run.config).network, {"finished": 0}), version=40)
    with Metrics(run) as metrics:
        learn(replay, run, metrics, stopped)
    assert replay.get_params("policy").version == 42  # 41 when it starts, 42 when it ends


def test_second_run_on_the_same_service_is_refused(replay, make_run, stopped):
    run = make_run()
    replay.put_params("config", b"{}", version=0)
    with Metrics(run) as metrics, pytest.raises(AlreadyExistsError):
        learn(replay, run, metrics, stopped)


def test_parameters_survive_the_way_through_bytes(config):
    network, other = Trainer.create(config).network, Trainer.create(replace(config, seed=5)).network
    data = params_to_bytes(network, {"version": 3, "finished": 1})
    assert read_about(data) == {"version": 3, "finished": 1}
    assert load_params(other, data) == {"version": 3, "finished": 1}
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))


def test_pickled_parameters_are_refused_and_not_run(config, tmp_path):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    with pytest.raises(SafetensorError):
        load_params(Trainer.create(config).network, pickle.dumps(Bomb()))
    assert not (tmp_path / "ran").exists()


def test_nothing_is_pickled(config, tmp_path):
    trainer = Trainer.create(config)
    trainer.update(batch(0))
    trainer.save(tmp_path)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".safetensors", ".json"}
    sources = "".join(path.read_text() for path in Path(dqn.__file__).parent.glob("*.py"))
    assert not [word for word in ("import pickle", "torch.save", "torch.load", "cloudpickle") if word in sources]
