"""Hyper-parameters of a run: one frozen dataclass, written to the run directory and read back by every process.

The defaults solve CartPole-v1 (mean return of 475 over 20 greedy episodes) within 30,000 to 60,000 steps.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every number that a run depends on. The table holds the steps of all actors."""

    env_id: str = "CartPole-v1"  # a Gymnasium environment: observations in a flat Box or with goals, Discrete actions
    env_options: Mapping[str, Any] = field(default_factory=dict)  # what `gymnasium.make` gets besides, plain data
    table: str = "cartpole"  # the service's table that the actors write and the learner samples
    seed: int = 1  # everything random derives from it: network, actions, environments, evaluation episodes
    actors: int = 2  # actor processes
    envs_per_actor: int = 4  # environments stepped together by one actor, with one forward pass

    hidden: tuple[int, ...] = (128, 128)  # widths of the network's hidden layers
    gamma: float = 0.99  # discount of one step
    n_step: int = 3  # rewards summed before the bootstrap value
    batch_size: int = 128  # transitions in one update
    learning_rate: float = 1e-3  # of Adam
    max_grad_norm: float = 10.0  # gradients are scaled down to this norm
    target_update_rate: float = 0.01  # share of the network that moves into the target network with each update

    sampler: str = "uniform"  # the table's sampler that batches are drawn by, "uniform" or "prioritized"
    priority_alpha: float = 0.6  # prioritized: how much priorities count
    priority_beta: float = 0.4  # prioritized: how much importance weights undo it, at the first step
    beta_steps: int = 100_000  # stored steps over which beta rises to 1, linearly
    priority_epsilon: float = 0.01  # added to the absolute TD error, so that no step is lost for good

    her_ratio: float = 0.0  # share of transitions that get a goal in hindsight; needs an environment with goals
    her_goal: str = "future"  # which goal, one of `Goal`: "future", "final" or "episode"
    her_threshold: float = 0.05  # distance within which such a goal counts as reached: reward 0, else -1

    warmup_steps: int = 1_000  # steps stored before the first update
    steps_per_update: float = 4.0  # stored steps that pay for one update: the learner waits until they are there
    max_ahead_steps: int = 1_000  # steps that actors may store beyond those the learner has paid for: then they wait
    epsilon_start: float = 1.0  # share of random actions at the first step
    epsilon_end: float = 0.05  # share of random actions from step `epsilon_steps` on
    epsilon_steps: int = 10_000  # stored steps over which epsilon falls, linearly
    refresh_vector_steps: int = 16  # an actor asks for newer parameters and for its pace this often

    publish_interval_updates: int = 50  # updates between two published versions
    checkpoint_interval_updates: int = 2_000  # updates between two checkpoints
    max_steps: int = 400_000  # the learner gives up here, counted in stored steps

    evaluation_episodes: int = 20  # greedy episodes that judge one version, with seeds of their own
    evaluation_interval_versions: int = 10  # versions published between two evaluations
    solved_return: float = 475.0  # mean return of an evaluation that ends the run
    solved_success: float | None = None  # instead: share of its episodes that end in success, as `is_success` says

    capacity_steps: int = 200_000  # steps that the table keeps
    flush_interval_s: float = 0.2  # seconds after which a step reaches the service at the latest

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, int | float) and value < 0 and part.name != "solved_return":
                raise ValueError(f"{part.name}: expected a number >= 0, found {value}")
        if self.sampler not in ("uniform", "prioritized"):
            raise ValueError(f"sampler: expected uniform or prioritized, found {self.sampler!r}")
        published = self.publish_interval_updates * self.steps_per_update
        if self.max_ahead_steps < 2 * published:  # or learner and actors would wait for each other
            raise ValueError(
                f"max_ahead_steps: expected at least twice the {published:g} steps between two published versions, "
                f"found {self.max_ahead_steps}"
            )

    def epsilon(self, steps: int) -> float:
        """Returns the share of random actions when `steps` steps are stored."""
        share = min(steps / self.epsilon_steps, 1.0) if self.epsilon_steps else 1.0
        return self.epsilon_start + share * (self.epsilon_end - self.epsilon_start)

    def beta(self, first: float, steps: int) -> float:
        """Returns the exponent of importance weights when `steps` steps are learned, in a run that began with `first`."""
        share = min(steps / self.beta_steps, 1.0) if self.beta_steps else 1.0
        return first + share * (1.0 - first)

    def updates_due(self, steps: int) -> int:
        """Returns how many updates `steps` stored steps pay for."""
        return max(int((steps - self.warmup_steps) / self.steps_per_update), 0)

    def steps_learned(self, updates: int) -> int:
        """Returns the stored steps that `updates` updates are paid by: the learner's published step count."""
        return self.warmup_steps + int(updates * self.steps_per_update)

    def to_json(self) -> str:
        """Returns the form that `from_json` reads."""
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "Config":
        """Returns the configuration that `to_json` described. Raises ValueError for an unknown name."""
        data: dict[str, Any] = json.loads(text)
        known = {part.name for part in fields(Config)}
        if unknown := sorted(set(data) - known):
            raise ValueError(f"config: unknown hyper-parameter {unknown[0]!r}")
        if "hidden" in data:
            data["hidden"] = tuple(data["hidden"])
        return Config(**data)
