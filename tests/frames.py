"""What a frame holds, where no shared memory is beside it."""

from replay_client.frames import read_frame


def decode_frame(frame, specs):
    """Returns the columns of a frame by name. Raises as `read_frame`."""
    return read_frame(frame, specs).columns
