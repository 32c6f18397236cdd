"""Steps of an environment under random actions, for when something must be known of its data before there is a policy."""

from typing import Any

import gymnasium

from replay_client.gym.single import RecordToReplay
from replaysvc.errors import InvalidRequestError
from replaysvc.interface import Replay, Table
from replaysvc.spec import Signature


def signature_of(env_id: str) -> Signature:
    """Returns the signature of an environment's steps. Raises InvalidRequestError: there is none, or it cannot be made."""
    env = _made(env_id)
    try:
        return Signature.from_env(env)
    finally:
        env.close()


def record_random_steps(env_id: str, replay: Replay, table: str, steps: int, *, seed: int = 0) -> Table:
    """Returns a new table of `replay` with `steps` steps of random actions in it, durably.

    Raises:
      InvalidRequestError: there is no such environment, or it cannot be made.
    """
    env = _made(env_id)
    try:
        recorded = RecordToReplay(env, made := replay.create_table(table, Signature.from_env(env)))
        recorded.action_space.seed(seed)
        recorded.reset(seed=seed)
        for _ in range(steps):
            *_, terminated, truncated, _ = recorded.step(recorded.action_space.sample())
            if terminated or truncated:
                recorded.reset()
        recorded.flush()
        recorded.close()
    finally:
        env.close()
    return made


def _made(env_id: str) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(env_id)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise InvalidRequestError(f"env: {env_id} cannot be made: {error}") from error
