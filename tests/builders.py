"""Episodes whose every value can be read by eye: observation t of episode e is 100 * e + t, reward t is 10 * t + e."""

from contextlib import contextmanager

import numpy as np

from replaysvc import FieldSpec, Her, RaggedArray, Signature, SparseReward, TableConfig

SCALARS = Signature(FieldSpec("observation", (), np.int64), FieldSpec("action", (), np.int64))


def write_episode(writer, length, *, episode=0, end="terminated", policy_version=-1, metadata=None):
    """Writes steps 0 .. length-1; `end` is terminated, truncated or open."""
    writer.begin(100 * episode, policy_version=policy_version, metadata=metadata)
    for t in range(length):
        last = t == length - 1
        writer.append(
            t,
            10 * t + episode,
            100 * episode + t + 1,
            terminated=last and end == "terminated",
            truncated=last and end == "truncated",
        )


def write_episodes(table, lengths, *, end="terminated", actor=""):
    """Writes one episode for each length and waits until all are durable."""
    with table.writer(actor=actor) as writer:
        for episode, length in enumerate(lengths):
            write_episode(writer, length, episode=episode, end=end)


def make_table(door, lengths=(), *, signature=SCALARS, end="terminated", **config):
    """Returns a table `t`, configured by `config`, that holds one episode for each length."""
    table = door.create_table("t", signature, TableConfig(**config))
    write_episodes(table, lengths, end=end)
    return table


GOALS = Signature(
    {name: FieldSpec(name, (2,), np.float32) for name in ("achieved_goal", "desired_goal")}
    | {"state": FieldSpec("state", (1,), np.int64)},
    FieldSpec("action", (), np.int64),
)


def goal_observation(episode, t):
    """Returns the observation of an agent that walks along a line of its own and never reaches 500."""
    line = 1000 * episode
    return {
        "state": np.array([line + t]),
        "achieved_goal": np.array([line + t, 0], np.float32),
        "desired_goal": np.array([line + 500, 0], np.float32),
    }


def write_goal_episode(writer, length, *, episode=0, end="terminated"):
    """Writes steps 0 .. length-1 of reward -1 each; observation t of episode e is at 1000 * e + t."""
    writer.begin(goal_observation(episode, 0))
    for t in range(length):
        last = t == length - 1
        writer.append(
            t,
            -1.0,
            goal_observation(episode, t + 1),
            terminated=last and end == "terminated",
            truncated=last and end == "truncated",
        )


def make_goal_table(door, lengths, *, end="truncated", **config):
    """Returns a table `t` of goal episodes, one for each length."""
    table = door.create_table("t", GOALS, TableConfig(**config))
    with table.writer() as writer:
        for episode, length in enumerate(lengths):
            write_goal_episode(writer, length, episode=episode, end=end)
    return table


NEAR = SparseReward(threshold=0.5, success=10.0)  # -1 elsewhere


def always(goal, **options):
    """Returns a Her that relabels every window."""
    return Her(goal=goal, ratio=1.0, **{"reward": NEAR} | options)


def chosen(batch):
    """Returns the step whose outcome each window's goal is; asserts that the goal belongs to the window's own episode."""
    goal = batch.observation["desired_goal"]
    np.testing.assert_array_equal(goal, batch.next_observation["desired_goal"])
    goal = goal.reshape(len(batch), -1, 2)
    assert (goal == goal[:, :1]).all()
    state = batch.observation["state"].reshape(len(batch), -1)[:, 0]
    assert (goal[:, 0, 0] // 1000 == state // 1000).all()
    assert (goal[:, 0, 1] == 0).all()
    return (goal[:, 0, 0] % 1000).astype(int) - 1


@contextmanager
def open_door(kind, path):
    """Opens the store at `path` as `kind` says: embedded, or a client of a server on a free port."""
    import replay_client
    from replaysvc.replay import Replay
    from replaysvc.rpc.server import Server

    with Replay(path) as replay:
        if kind == "embedded":
            yield replay
            return
        server = Server(replay, "127.0.0.1:0")
        server.start()
        try:
            with replay_client.connect(f"127.0.0.1:{server.port}") as client:
                yield client
        finally:
            server.stop(5.0)


def flat(value, path=""):
    """Returns {path: array} of a batch, or of anything nested in one."""
    if hasattr(value, "asdict"):
        value = value.asdict()
    if isinstance(value, RaggedArray):
        value = {"values": value.values, "offsets": value.offsets}
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, tuple):
        parts = enumerate(value)
    else:
        return {path: np.asarray(value)}
    return {name: array for key, part in parts for name, array in flat(part, f"{path}/{key}" if path else str(key)).items()}


def assert_same(first, second, *, but=("age_s",)):
    """Asserts that two batches are equal in every column but those named."""
    first, second = flat(first), flat(second)
    assert set(first) == set(second)
    for name, values in first.items():
        if name not in but:
            assert values.dtype == second[name].dtype, name
            np.testing.assert_array_equal(values, second[name], err_msg=name)
