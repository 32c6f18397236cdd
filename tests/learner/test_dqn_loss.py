"""Targets and losses on numbers worked by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from dqn.learner import td_loss
from replaysvc import FieldSpec, Signature, Transitions


class Lookup(nn.Module):
    """Gives state s the action values `rows[s]`; the observation is the number of the state."""

    def __init__(self, *rows: tuple[float, float]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.rows[observation.reshape(-1).long()]


def one(reward: float, discount: float, *, observation: int = 0, next_observation: int = 1, action: int = 0) -> dict:
    return {
        "observation": torch.tensor([[float(observation)]]), "action": torch.tensor([action]), "reward": torch.tensor([reward]),
        "next_observation": torch.tensor([[float(next_observation)]]), "discount": torch.tensor([discount]),
        "importance_weight": torch.tensor([1.0]),
    }  # fmt: skip


def test_online_network_chooses_and_target_network_values():
    network = Lookup((1.0, 0.0), (2.0, 3.0))  # chooses action 1 in state 1
    target = Lookup((0.0, 0.0), (100.0, 5.0))  # whose value is 5, not the maximum 100
    _, td_error = td_loss(network, target, one(1.0, 0.5))
    assert td_error.tolist() == [2.5]  # 1 + 0.5 * 5 - 1


def test_terminated_step_does_not_bootstrap():
    network = Lookup((0.25, 0.0), (10.0, 10.0))
    _, td_error = td_loss(network, network, one(1.0, 0.0))
    assert td_error.tolist() == [0.75]


def test_truncated_step_bootstraps_so_that_its_target_is_10_9():
    """A time limit treated as a termination gives 1 instead."""
    network = Lookup((0.0, 0.0), (10.0, 10.0))
    _, td_error = td_loss(network, network, one(1.0, 0.99))
    assert td_error.tolist() == pytest.approx([10.9], rel=1e-6)


def test_loss_is_quadratic_within_one_and_linear_beyond():
    network = Lookup((0.0, 0.0), (0.0, 0.0))
    small, _ = td_loss(network, network, one(0.5, 0.0))
    large, _ = td_loss(network, network, one(-3.0, 0.0))
    assert (small.item(), large.item()) == (0.125, 2.5)


def test_importance_weights_multiply_each_items_loss_and_no_td_error():
    """Losses 0.125 and 2.5 as above, with weights 1 and 0.25: (0.125 + 0.625) / 2."""
    network = Lookup((0.0, 0.0), (0.0, 0.0))
    small, large = one(0.5, 0.0), one(-3.0, 0.0)
    batch = {name: torch.cat([small[name], large[name]]) for name in small}
    loss, td_errors = td_loss(network, network, batch | {"importance_weight": torch.tensor([1.0, 0.25])})
    assert loss.item() == 0.375
    assert td_errors.tolist() == [0.5, -3.0]


def test_loss_moves_the_value_of_the_action_taken_and_nothing_else():
    network, target = Lookup((0.0, 0.0), (1.0, 2.0)), Lookup((0.0, 0.0), (1.0, 2.0))
    loss, _ = td_loss(network, target, one(0.0, 0.25, action=1))  # goal 0.5, value 0
    loss.backward()
    assert network.rows.grad.tolist() == [[0.0, -0.5], [0.0, 0.0]]
    assert target.rows.grad is None


def test_three_steps_cut_short_by_a_truncation_bootstrap_with_gamma_squared(replay):
    """Two rewards of 1, then truncated: reward 1.9, discount 0.81 at the true final observation, target 10."""
    signature = Signature(FieldSpec("observation", (1,), np.float32), FieldSpec("action", (), np.int64))
    table = replay.create_table("steps", signature)
    with table.writer() as writer:
        writer.begin(np.array([0.0]))
        writer.append(0, 1.0, np.array([1.0]))
        writer.append(0, 1.0, np.array([2.0]), truncated=True)
    batch = table.sample(64, Transitions(n_step=3, gamma=0.9), seed=0)
    network = Lookup((0.0, 0.0), (0.0, 0.0), (10.0, 10.0))
    _, td_error = td_loss(network, network, batch.torch())
    first = batch.t == 0
    assert set(batch.t.tolist()) == {0, 1}
    assert td_error[first].tolist() == pytest.approx([10.0] * int(first.sum()), rel=1e-6)  # 1 + 0.9 + 0.81 * 10
    assert td_error[~first].tolist() == pytest.approx([10.0] * int((~first).sum()), rel=1e-6)  # 1 + 0.9 * 10
    assert not batch.terminated.any()
    assert batch.truncated.all()
