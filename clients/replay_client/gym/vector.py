"""The recording wrapper of a vector environment.

What a vector environment returns when one of its environments ends depends on `metadata["autoreset_mode"]`:

    NEXT_STEP   the row is true, final observation included. The next row of that environment is no step: its action was
                ignored and its observation starts the next episode. It is not stored.
    SAME_STEP   the row's observation starts the next episode already; the final one is in the infos.
    DISABLED    the row is true. Nothing goes on until the caller resets with options={"reset_mask": ...}.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from replay_client.gym.recording import Extras, Recorder, find_final, is_mask, need_final, rows
from replaysvc.errors import InvalidRequestError
from replaysvc.interface import Table
from replaysvc.types import Array


class RecordToReplayVector(Recorder, VectorWrapper):
    """Records every episode of every environment of a vector environment, each through a writer of its own.

    The writers' actors are `{actor}-0`, `{actor}-1` and so on. A `reset` of all abandons the open episodes: their steps are
    kept, without an end. `extras`, `policy_version` and `episode_metadata` are those of `RecordToReplay`, with each extra
    a batch: one row for each environment, nested as the signature says.

    An environment that does not tell its mode is taken for NEXT_STEP, with a warning, until the infos at an episode's end
    hold a final observation: then it is SAME_STEP, under the names of Gymnasium 0.29 too.
    """

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], table: Table, *, actor: str = "env", policy_version: int = -1,
        metadata: Mapping[str, Any] | None = None, extras: Extras | None = None,
    ) -> None:  # fmt: skip
        VectorWrapper.__init__(self, envs)
        self._mode = _declared_mode(envs)
        self._observations: Any = None
        self._reset_is_next = [False] * envs.num_envs
        actors = [f"{actor}-{i}" for i in range(envs.num_envs)]
        self._start(table, actors, policy_version=policy_version, metadata=metadata, extras=extras)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments and begins their episodes; with `options={"reset_mask": mask}`, those where it is True.

        Raises:
          InvalidRequestError: a mask that is no numpy array of bools, one for each environment and one of them True; is
            under another name; or is given though the environments reset themselves. Nothing was reset.
        """
        mask = self._reset_mask(options or {})
        observations, infos = self.env.reset(seed=seed, options=options)
        self._observations = observations
        if mask is None:
            self._reset_is_next = [False] * self.num_envs
            self._begin_all(observations)
        else:
            observation_rows = rows(self._signature.observation, observations, "observation", self.num_envs)
            for i in np.flatnonzero(mask):
                self._begin(int(i), observation_rows[i])
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Steps all environments and records what each did.

        Raises:
          SpecMismatchError: actions or extras do not fit the table's signature; no environment moved.
          InvalidRequestError: an environment's episode is over and nobody reset it (no environment moved), or its final
            observation is missing (nothing of this step is stored; call `reset`).
        """
        over = [i for i, is_open in enumerate(self._open) if not (is_open or self._reset_is_next[i])]
        if over:
            raise InvalidRequestError(f"step: expected an open episode in every environment, found none in {over}; reset first")
        choices = self._choose_rows(self._observations, actions)
        step = self.env.step(actions)
        observations, rewards, terminated, truncated, infos = step
        self._open = [False] * self.num_envs  # until each is stored
        self._reset_is_next = [False] * self.num_envs
        tree = self._signature.observation
        next_observations = rows(tree, observations, "observation", self.num_envs)
        ended = [i for i in range(self.num_envs) if terminated[i] or truncated[i]]
        mode = self._mode_at_end(infos, ended[0]) if ended else self._mode
        finals = {i: need_final(tree, infos, i) for i in ended} if mode is AutoresetMode.SAME_STEP else {}
        for i, choice in enumerate(choices):
            if choice is None:
                self._begin(i, next_observations[i])
                continue
            final = finals.get(i, next_observations[i])
            self._append(i, choice, rewards[i], final, bool(terminated[i]), bool(truncated[i]))
            if i in finals:
                self._begin(i, next_observations[i])
            self._reset_is_next[i] = i in ended and mode is AutoresetMode.NEXT_STEP
        self._observations = observations
        return step

    def close(self, **kwargs: Any) -> None:
        """Flushes and closes the writers, then closes the environments; open episodes stay without an end."""
        try:
            self._close_writers()
        finally:
            self.env.close(**kwargs)

    def _mode_at_end(self, infos: Any, i: int) -> AutoresetMode:
        """Returns the mode, which environments that tell none show at the first end of an episode, that of environment `i`."""
        if self._mode is None:
            has_final = find_final(self._signature.observation, infos, i) is not None
            self._mode = AutoresetMode.SAME_STEP if has_final else AutoresetMode.NEXT_STEP
        return self._mode

    def _reset_mask(self, options: Mapping[str, Any]) -> Array | None:
        count, disabled = self.num_envs, self._mode is AutoresetMode.DISABLED
        for name, value in options.items():
            if disabled and name != "reset_mask" and is_mask(value, count):
                raise InvalidRequestError(
                    f"options: expected the mask of the environments to reset under 'reset_mask', found one under {name!r}"
                )
        if "reset_mask" not in options:
            return None
        mask = options["reset_mask"]
        if not disabled:
            mode = "none" if self._mode is None else self._mode.name
            raise InvalidRequestError(
                f"options['reset_mask']: expected autoreset_mode DISABLED, found {mode}: these environments reset themselves"
            )
        if not (isinstance(mask, np.ndarray) and is_mask(mask, count) and mask.any()):
            raise InvalidRequestError(
                f"options['reset_mask']: expected a numpy array of {count} bools, at least one of them True, found {mask!r}"
            )
        return mask.copy()


def _declared_mode(envs: VectorEnv[Any, Any, Any]) -> AutoresetMode | None:
    declared = envs.metadata.get("autoreset_mode")
    if declared is None:
        gymnasium.logger.warn(
            f"{envs} is missing `autoreset_mode` in its metadata; assuming AutoresetMode.NEXT_STEP, unless its infos hold "
            "final observations. See https://farama.org/Vector-Autoreset-Mode"
        )
        return None
    try:
        return AutoresetMode(declared)
    except ValueError as error:
        modes = [mode.name for mode in AutoresetMode]
        raise InvalidRequestError(f"metadata['autoreset_mode']: expected one of {modes}, found {declared!r}") from error
