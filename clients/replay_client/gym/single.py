"""The recording wrapper of a single environment."""

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.wrappers import Autoreset

from replay_client.gym.recording import Extras, Recorder
from replaysvc.errors import InvalidRequestError
from replaysvc.interface import Table


class RecordToReplay(Recorder, gymnasium.Wrapper):
    """Records every episode of an environment.

    `reset` begins an episode, each `step` adds one step with its true next observation, `close` flushes. A `reset` before
    the end abandons the episode: its steps are kept, without an end. A step after the end is refused before the
    environment sees it, unless Gymnasium's Autoreset wrapper is inside: then it is the reset, and no step of any episode.

    What the table's extras are to hold is set before a step, `env.extras = {"log_prob": p}`, and holds for that step
    only; or `extras` is a function of the observation acted on and the action, called once a step. If other wrappers are
    outside this one, `env.set_wrapper_attr("extras", ...)` finds it. `env.policy_version` and `env.episode_metadata`
    can be set at any time and mark the episodes that begin afterwards.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], table: Table, *, actor: str = "", policy_version: int = -1,
        metadata: Mapping[str, Any] | None = None, extras: Extras | None = None,
    ) -> None:  # fmt: skip
        gymnasium.Wrapper.__init__(self, env)
        self._observation: Any = None
        self._resets_itself = _has_autoreset(env)
        self._reset_is_next = False
        self._start(table, [actor], policy_version=policy_version, metadata=metadata, extras=extras)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment and begins an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._observation, self._reset_is_next = observation, False
        self._begin(0, observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps the environment and records the step.

        Raises:
          SpecMismatchError: the action or the extras do not fit the table's signature; the environment did not move.
          InvalidRequestError: no episode is open; call `reset`.
        """
        if self._reset_is_next:
            step = self.env.step(action)
            self._observation, self._reset_is_next, self.extras = step[0], False, None
            self._begin(0, step[0])
            return step
        if not self._open[0]:
            raise InvalidRequestError("step: expected an open episode, found none; call reset first")
        choice = self._choose(self._observation, action)
        step = self.env.step(action)
        observation, reward, terminated, truncated, _ = step
        self._append(0, choice, reward, observation, bool(terminated), bool(truncated))
        self._observation, self._reset_is_next = observation, self._resets_itself and not self._open[0]
        return step

    def close(self) -> None:
        """Flushes and closes the writer, then closes the environment; an open episode stays without an end."""
        try:
            self._close_writers()
        finally:
            self.env.close()


def _has_autoreset(env: Any) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, Autoreset):
            return True
        env = env.env
    return False
