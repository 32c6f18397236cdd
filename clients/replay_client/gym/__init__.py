"""Recording of Gymnasium environments: one line in a training loop, and every episode is in a table.

    env = RecordToReplay(gymnasium.make("CartPole-v1"), table)              # reset, step and close as before
    envs = RecordToReplayVector(gymnasium.make_vec("CartPole-v1", 8), table)  # whatever its autoreset mode
    venv = RecordToReplayVecEnv(venv, table)                                # of Stable-Baselines3

What is recorded is what these wrappers see: put them outside the wrappers whose observations the policy reads and whose
actions it chooses, outside TimeLimit, and inside those that shape rewards, if the rewards of the environment are wanted.
Needs the `gym` extra; `replay_client` alone does not import it.
"""

from replay_client.gym.single import RecordToReplay
from replay_client.gym.vec_env import RecordToReplayVecEnv
from replay_client.gym.vector import RecordToReplayVector

__all__ = ["RecordToReplay", "RecordToReplayVecEnv", "RecordToReplayVector"]
