"""Tables of frames, batches of which are large enough for shared memory, and where arrays lie."""

from pathlib import Path

import numpy as np

from replaysvc import FieldSpec, Signature, Transitions

FRAMES = Signature(FieldSpec("observation", (64, 64), np.uint8), FieldSpec("action", (), np.int64))
STACKED = Transitions(stack=4)  # 20 KiB an item
BATCH = 64  # 1.25 MiB


def frame(t):
    """Returns the observation of step t, from which t can be told."""
    return np.full((64, 64), t % 251, np.uint8)


def write_frames(table, steps=100):
    """Writes one episode."""
    with table.writer() as writer:
        writer.begin(frame(0))
        for t in range(steps):
            writer.append(t, float(t), frame(t + 1), terminated=t == steps - 1)


def is_right(batch):
    """Returns whether each frame of a batch is that of its step."""
    steps = np.maximum(0, batch.t[:, None] + np.arange(-3, 1))
    after = np.maximum(0, batch.t[:, None] + np.arange(-2, 2))
    now = (batch.observation == (steps % 251)[:, :, None, None]).all()
    then = (batch.next_observation == (after % 251)[:, :, None, None]).all()
    return bool(now and then and (batch.action == batch.t).all())


def shared_ranges(process="self"):
    """Returns where a process has memory of clients mapped, as (start, stop)."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "memfd:replay-client" in line]
    return [(int(start, 16), int(stop, 16)) for start, stop in ranges]


def is_shared(array):
    """Returns whether an array lies in memory that this process shares."""
    address = array.__array_interface__["data"][0]
    return any(start <= address < stop for start, stop in shared_ranges())
