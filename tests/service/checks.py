"""Whether a table holds just what was written to it."""

import numpy as np

from tests.builders import write_episode


def write_numbered(writer, number, length, *, end="terminated"):
    """Writes episode `number`, which says its number."""
    write_episode(writer, length, episode=number, end=end, metadata={"number": number})


def stored_lengths(table):
    """Returns {number: length} of the stored episodes after comparing every value; fails if one is stored twice."""
    found = {}
    for record in table.episodes(limit=10_000):
        number = record.metadata["number"]
        assert number not in found, f"episode {number} is stored twice"
        found[number] = record.length
        episode = table.read_episode(record.episode_id)
        assert (episode["observation"] == 100 * number + np.arange(record.length + 1)).all()
        assert (episode["action"] == np.arange(record.length)).all()
        assert (episode["reward"] == 10 * np.arange(record.length) + number).all()
    assert table.stats().steps == sum(found.values())
    return found
