"""What all processes of a run agree on: environments, table, network, random streams, and how they end.

The processes share nothing but the service. The learner publishes its configuration there, so an actor or an evaluator
needs an address and no more, and may run on another machine.
"""

import math
import signal
import threading
from functools import partial
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dqn.config import Config
from dqn.network import GOAL_PARTS, QNetwork
from replay_client import NotFoundError, Params, Prioritized, Replay, Signature, Table, TableConfig, Uniform

POLICY = "policy"  # parameter set: the learner's network as safetensors, with its progress in the header
EVALUATION = "evaluation"  # parameter set: the evaluator's newest verdict as JSON
BEST = "best"  # parameter set: the network with the best evaluation so far, as safetensors
CONFIG = "config"  # parameter set: the hyper-parameters as JSON

ACTING, EVALUATING = 1, 2  # streams of random numbers, which must never be the same

_LAST_S = 10  # from a signal to the end of a process, if it does not end by itself


def make_env(config: Config) -> gym.Env[Any, Any]:
    """Returns one environment of the run."""
    return gym.make(config.env_id, **config.env_options)


def make_envs(config: Config, count: int) -> SyncVectorEnv:
    """Returns `count` environments stepped together, each reset by the caller, so that every episode has a known seed."""
    return SyncVectorEnv([partial(make_env, config)] * count, autoreset_mode=AutoresetMode.DISABLED)


def make_table(replay: Replay, config: Config) -> Table:
    """Returns the table of the run, made if absent: whoever comes first makes it."""
    env = make_env(config)
    signature = Signature.from_env(env)
    env.close()
    prioritized = Prioritized(alpha=config.priority_alpha, beta=config.priority_beta)
    options = TableConfig(
        capacity_steps=config.capacity_steps, flush_interval_s=config.flush_interval_s,
        samplers={"uniform": Uniform(), "prioritized": prioritized},
    )  # fmt: skip
    return replay.create_table(config.table, signature, options, exist_ok=True)


def make_network(config: Config) -> QNetwork:
    """Returns a new network for the run's environment. Raises ValueError for spaces that a Q network cannot serve."""
    env = make_env(config)
    observation, action = env.observation_space, env.action_space
    env.close()
    size = _input_size(observation)
    if size is None or not isinstance(action, Discrete) or action.start != 0:
        raise ValueError(
            f"{config.env_id}: expected a flat Box, or a Dict with Boxes {' and '.join(GOAL_PARTS)}, "
            f"and Discrete actions from 0, found {observation} and {action}"
        )
    return QNetwork(size, int(action.n), config.hidden)


def _input_size(space: gym.Space[Any]) -> int | None:
    """Returns how many numbers the network sees of an observation; None if it cannot see any."""
    if isinstance(space, Dict):
        boxes = [part for name in GOAL_PARTS if isinstance(part := space.spaces.get(name), Box)]
        return sum(math.prod(box.shape) for box in boxes) if len(boxes) == len(GOAL_PARTS) else None
    return math.prod(space.shape) if isinstance(space, Box) and len(space.shape) == 1 else None


def random_stream(config: Config, role: int, *parts: int) -> np.random.Generator:
    """Returns a generator of its own for a role; `parts` tell apart what must differ within the role."""
    return np.random.default_rng([config.seed, role, *parts])


def fetch(replay: Replay, name: str, *, newer_than: int = -1) -> Params | None:
    """Returns a parameter set if there is one above version `newer_than`."""
    try:
        return replay.get_params(name, newer_than=newer_than)
    except NotFoundError:  # nobody has put it yet
        return None


def await_config(replay: Replay, stop: threading.Event) -> Config | None:
    """Returns the configuration of the run that the service serves, once the learner has published it; None if stopped."""
    while not stop.is_set():
        if found := fetch(replay, CONFIG):
            return Config.from_json(found.data.decode())
        stop.wait(0.1)
    return None


def stop_on_signals() -> threading.Event:
    """Returns an event that SIGTERM and SIGINT set, so that a process ends between two steps and flushes."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.alarm(_LAST_S)  # whose default action ends the process: a call may be riding out a service that ended too
        # not here: this thread may stand within `stop.wait`, or an earlier signal's `stop.set`, and hold the event's lock
        threading.Thread(target=stop.set, daemon=True).start()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop
