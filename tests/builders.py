"""Episodes whose every value can be read by eye: observation t of episode e is 100 * e + t, reward t is 10 * t + e."""

import numpy as np

from replaysvc import FieldSpec, Signature

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
