"""The recording wrapper of a Stable-Baselines3 VecEnv, which needs neither that library nor Gymnasium.

It stands in for the VecEnv: every attribute that is not its own is the VecEnv's, and `isinstance` sees the VecEnv's class,
so that algorithms which ask for one take it.
"""

from collections.abc import Mapping
from typing import Any

from replay_client.gym.recording import Choice, Extras, Recorder, need_final, rows
from replaysvc.errors import InvalidRequestError
from replaysvc.interface import Table
from replaysvc.types import Array

_OWN = {
    "extras", "policy_version", "episode_metadata", "_venv", "_choices", "_observations", "_open", "_writers", "_signature",
    "_extras_of", "_table", "_actors",
}  # fmt: skip


class RecordToReplayVecEnv(Recorder):
    """Records every episode of every environment of a VecEnv, each through a writer of its own.

    A VecEnv resets its environments in the step that ends an episode; the final observation is in
    `infos[i]["terminal_observation"]`, and `infos[i]["TimeLimit.truncated"]` tells a truncated end from a terminated one.
    Arguments and attributes are those of `RecordToReplayVector`. Since the algorithm makes the steps, extras come from the
    function, which is given the batches of observations and actions.
    """

    def __init__(
        self, venv: Any, table: Table, *, actor: str = "env", policy_version: int = -1,
        metadata: Mapping[str, Any] | None = None, extras: Extras | None = None,
    ) -> None:  # fmt: skip
        self._venv = venv
        self._observations: Any = None
        self._choices: list[Choice | None] = []
        actors = [f"{actor}-{i}" for i in range(venv.num_envs)]
        self._start(table, actors, policy_version=policy_version, metadata=metadata, extras=extras)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._venv)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # asked for before it is set
            raise AttributeError(name)
        return getattr(self._venv, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._venv, name, value)

    def reset(self) -> Any:
        """Resets all environments and begins their episodes; open ones are abandoned."""
        observations = self._venv.reset()
        self._observations = observations
        self._begin_all(observations)
        return observations

    def step_async(self, actions: Any) -> None:
        """Sends the actions.

        Raises:
          SpecMismatchError: actions or extras do not fit the table's signature; no environment moved.
          InvalidRequestError: no episodes are open; call `reset`.
        """
        if not all(self._open):
            raise InvalidRequestError("step: expected an open episode in every environment, found none in some; reset first")
        self._choices = self._choose_rows(self._observations, actions)
        self._venv.step_async(actions)

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """Waits for the step and records what each environment did.

        Raises:
          InvalidRequestError: a final observation is missing; nothing of this step is stored, call `reset`.
        """
        step: tuple[Any, Array, Array, list[dict[str, Any]]] = self._venv.step_wait()
        observations, rewards, dones, infos = step
        choices, self._choices = self._choices, []
        self._open = [False] * len(self._open)  # until each is stored
        tree = self._signature.observation
        next_observations = rows(tree, observations, "observation", len(self._open))
        finals = {i: need_final(tree, infos, i) for i, done in enumerate(dones) if done}
        for i, choice in enumerate(choices):
            assert choice is not None
            truncated = i in finals and bool(infos[i].get("TimeLimit.truncated", False))
            final = finals.get(i, next_observations[i])
            self._append(i, choice, rewards[i], final, i in finals and not truncated, truncated)
            if i in finals:
                self._begin(i, next_observations[i])
        self._observations = observations
        return step

    def step(self, actions: Any) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """Sends the actions and waits for the step."""
        self.step_async(actions)
        return self.step_wait()

    def close(self) -> None:
        """Flushes and closes the writers, then closes the VecEnv; open episodes stay without an end."""
        try:
            self._close_writers()
        finally:
            self._venv.close()
