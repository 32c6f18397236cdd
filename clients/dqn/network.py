"""The Q network, and its parameters as bytes.

Parameters travel as safetensors: a table of names, shapes and dtypes followed by plain numbers. Nothing in it can run
code when it is read, which a pickle from another machine could.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

GOAL_PARTS = ("observation", "desired_goal")  # of an observation with goals: what the network sees, in this order


class QNetwork(nn.Module):
    """A multi-layer perceptron from observations to action values [B, actions].

    An observation is an array [B, n], or a dict of `GOAL_PARTS` [B, ...], flattened and joined to one of n numbers.
    """

    def __init__(self, observation_size: int, actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.actions = actions
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((observation_size, *hidden)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], actions))

    def forward(self, observation: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Returns the value of every action, float32 [B, actions]."""
        if isinstance(observation, Mapping):
            observation = torch.cat([observation[part].flatten(1) for part in GOAL_PARTS], 1)
        values: Tensor = self.layers(observation.float())
        return values

    @torch.no_grad()
    def greedy(self, observations: Any) -> np.ndarray:
        """Returns the best action of each row of `observations`, arrays, int64 [B]: one forward pass for all."""
        if isinstance(observations, Mapping):
            values = self({part: torch.as_tensor(observations[part]) for part in GOAL_PARTS})
        else:
            values = self(torch.as_tensor(observations))
        actions: np.ndarray = values.argmax(1).numpy()
        return actions


def params_to_bytes(network: nn.Module, about: Mapping[str, int]) -> bytes:
    """Returns the parameters of `network` as safetensors, with the numbers in `about` in the header."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    return save(tensors, metadata={name: str(number) for name, number in about.items()})


def read_about(data: bytes) -> dict[str, int]:
    """Returns the numbers that were put beside the parameters in `data`, without reading those."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name: int(number) for name, number in header.get("__metadata__", {}).items()}


def load_params(network: nn.Module, data: bytes) -> dict[str, int]:
    """Copies the parameters in `data` into `network`; returns the numbers that were put beside them.

    Raises:
      safetensors.SafetensorError, RuntimeError: not safetensors, or of a network of another shape.
    """
    network.load_state_dict(load(data))
    return read_about(data)
