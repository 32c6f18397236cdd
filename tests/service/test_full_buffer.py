"""A client whose buffer is full, since the server is away: it waits, or says so at once, as it was told."""

import numpy as np
import pytest

from replaysvc import FieldSpec, Signature, TableConfig, WhenFull
from replaysvc.errors import CapacityError, SpecMismatchError
from replaysvc.replay import Replay

NOISE = Signature(FieldSpec("observation", (32_768,), np.uint8), FieldSpec("action", (), np.int64))


def noise(t):
    return np.random.default_rng(t).integers(0, 256, 32_768, dtype=np.uint8)


def test_full_buffer_is_told_at_once_and_takes_nothing_of_the_step(serve, connect, tmp_path):
    """A buffer of 1 MiB holds some thirty incompressible steps."""
    server = serve()
    client = connect(server.address, buffer_bytes=1 << 20, when_full="raise", reconnect_timeout_s=60)
    table = client.create_table("t", NOISE, TableConfig(chunk_steps=1))
    with table.writer() as writer:
        writer.begin(noise(0))
        writer.append(0, 0.0, noise(1))
        writer.flush()
        server.stop(0)
        taken = 1

        def write_on():
            nonlocal taken
            while True:
                writer.append(taken, float(taken), noise(taken + 1))
                taken += 1

        with pytest.raises(CapacityError, match=r"bytes are not acknowledged yet \(buffer_bytes=1048576, when_full=raise\)"):
            write_on()
        assert 15 < taken < 40
        serve(server.port)
        writer.flush(timeout_s=60)
        writer.append(taken, float(taken), noise(taken + 1), terminated=True)  # the one that was refused
    columns = table.read_episode(0)
    assert columns["action"].tolist() == list(range(taken + 1))
    np.testing.assert_array_equal(columns["observation"][-1], noise(taken + 1))


def test_choice_is_one_of_two(replay: Replay, connect, serve):
    client = connect(serve().address)
    assert client.connection.config.when_full is WhenFull.BLOCK
    with pytest.raises(SpecMismatchError, match=r"when_full: expected one of \['block', 'raise'\], found 'drop'"):
        connect("localhost:1", when_full="drop")
