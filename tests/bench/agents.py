"""Two small learners on an embedded table, for `precision.py`: double DQN for CartPole, TD3 for HalfCheetah."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from dqn.config import Config
from dqn.learner import Trainer
from replaysvc import Transitions

Curve = list[tuple[int, float]]
"""(environment steps, mean return of greedy episodes), in order."""

_BATCH = 256


def returns(make: Callable[[], gymnasium.Env], act: Callable[[np.ndarray], Any], episodes: int, seed: int) -> float:
    """Returns the mean undiscounted return of some episodes."""
    env, total = make(), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def learn_cartpole(table: Any, seed: int, steps: int, every: int, report: Callable[[int], None]) -> Curve:
    """Double DQN with 3-step returns, one update every four steps, as the demo's learner; one environment."""
    config, rng, curve = Config(seed=seed), np.random.default_rng(seed), []
    trainer, env = Trainer.create(config), gymnasium.make(config.env_id)
    what = Transitions(n_step=config.n_step, gamma=config.gamma)
    with table.writer() as writer:
        ended = True
        for step in range(1, steps + 1):
            if ended:
                observation, _ = env.reset(seed=seed if step == 1 else None)
                writer.begin(observation)
            explores = rng.random() < config.epsilon(step)
            action = int(rng.integers(2)) if explores else int(trainer.network.greedy(observation[None])[0])
            observation, reward, terminated, truncated, _ = env.step(action)
            writer.append(action, reward, observation, terminated=terminated, truncated=truncated)
            ended = terminated or truncated
            if step > config.warmup_steps and step % int(config.steps_per_update) == 0:
                trainer.update(table.sample(config.batch_size, what))
            if step % every == 0:
                act = lambda seen: int(trainer.network.greedy(seen[None])[0])  # noqa: E731
                curve.append((step, returns(lambda: gymnasium.make(config.env_id), act, 10, 10_000 * seed)))
                report(step)
    env.close()
    return curve


def _mlp(inputs: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs), *last)


class Td3:
    """Twin delayed DDPG (Fujimoto et al. 2018), with its constants, for actions in [-1, 1]."""

    def __init__(self, observation_size: int, action_size: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.actor = _mlp(observation_size, action_size, nn.Tanh())
        self.critics = nn.ModuleList(_mlp(observation_size + action_size, 1) for _ in range(2))
        self._slow_actor, self._slow_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self._actor_optimiser = torch.optim.Adam(self.actor.parameters(), 3e-4)
        self._critic_optimiser = torch.optim.Adam(self.critics.parameters(), 3e-4)
        self._updates = 0

    @torch.no_grad()
    def act(self, observation: np.ndarray) -> np.ndarray:
        """Returns the action of the policy, without noise."""
        action: np.ndarray = self.actor(torch.as_tensor(observation, dtype=torch.float32)).numpy()
        return action

    def update(self, batch: dict[str, Any]) -> None:
        """Takes a step of the critics, and every second time one of the actor."""
        seen, action, after = batch["observation"], batch["action"], batch["next_observation"]
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
            next_input = torch.cat([after, (self._slow_actor(after) + noise).clamp(-1, 1)], 1)
            worth = torch.min(*(critic(next_input) for critic in self._slow_critics)).squeeze(1)
            goal = batch["reward"] + batch["discount"] * worth
        loss = sum(nn.functional.mse_loss(critic(torch.cat([seen, action], 1)).squeeze(1), goal) for critic in self.critics)
        self._critic_optimiser.zero_grad()
        loss.backward()
        self._critic_optimiser.step()
        self._updates += 1
        if self._updates % 2 == 0:
            self._actor_optimiser.zero_grad()
            (-self.critics[0](torch.cat([seen, self.actor(seen)], 1)).mean()).backward()
            self._actor_optimiser.step()
            with torch.no_grad():
                pairs = zip((self._slow_actor, self._slow_critics), (self.actor, self.critics), strict=True)
                for slow, fast in ((s, f) for a, b in pairs for s, f in zip(a.parameters(), b.parameters(), strict=True)):
                    slow.lerp_(fast, 0.005)


def learn_cheetah(table: Any, seed: int, steps: int, every: int, report: Callable[[int], None]) -> Curve:
    """TD3 on HalfCheetah-v5: 1,000 random steps, then an update a step."""
    rng, curve = np.random.default_rng(seed), []
    agent, env = Td3(17, 6, seed), gymnasium.make("HalfCheetah-v5")
    with table.writer() as writer:
        ended = True
        for step in range(1, steps + 1):
            if ended:
                observation, _ = env.reset(seed=seed if step == 1 else None)
                writer.begin(observation)
            wish = rng.uniform(-1, 1, 6) if step <= 1000 else agent.act(observation) + 0.1 * rng.standard_normal(6)
            action = np.clip(wish, -1, 1).astype(np.float32)
            observation, reward, terminated, truncated, _ = env.step(action)
            writer.append(action, reward, observation, terminated=terminated, truncated=truncated)
            ended = terminated or truncated
            if step > 1000:
                agent.update(table.sample(_BATCH, Transitions(gamma=0.99)).torch())
            if step % every == 0:
                curve.append((step, returns(lambda: gymnasium.make("HalfCheetah-v5"), agent.act, 2, 10_000 * seed)))
                report(step)
    env.close()
    return curve
