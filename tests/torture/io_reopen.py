"""Opens a store again and again, with one call more failing each time: `python -m tests.torture.io_reopen STORE`.

In the environment of `shim.environment()`. Prints, as JSON, how many calls an opening makes that change files, and what was
raised. Whatever fails, nothing that is whole may be taken for damaged and moved away.
"""

import json
import sys
from pathlib import Path

import numpy as np

from replaysvc import FieldSpec, Signature, TableConfig
from replaysvc.errors import ReplayError
from replaysvc.replay import Replay
from tests.torture.powerloss_life import CONFIG, small_segments
from tests.torture.shim import Fault, Shim

SIGNATURE = Signature(FieldSpec("observation", (64,), "int32"), FieldSpec("action", (), "int32"))
EPISODES, STEPS = 6, 40


def fill(store: Path) -> None:
    """Writes episodes into several segments."""
    small_segments()
    with Replay(store, CONFIG) as replay:
        table = replay.create_table("t", SIGNATURE, TableConfig())
        rng = np.random.default_rng(0)
        with table.writer() as writer:
            for _ in range(EPISODES):
                seen = rng.integers(1 << 31, size=(STEPS + 1, 64), dtype=np.int32)  # which nothing makes smaller
                writer.begin(seen[0])
                for t in range(STEPS):
                    writer.append(t, 1.0, seen[t + 1], truncated=t == STEPS - 1)
                writer.flush()


def main(store: Path) -> None:
    """Fills the store, and opens it."""
    fill(store)
    shim, raised, nth = Shim(), [], 0
    shim.watch(store)
    while True:
        nth += 1
        shim.arm(Fault.ANY_EIO, nth)
        try:
            Replay(store, CONFIG).close()
        except ReplayError as error:
            raised.append(error.name)
        if not shim.fired:
            break
    shim.stop()
    moved = sorted(path.name for path in (store / "quarantine").iterdir())
    with Replay(store, CONFIG) as replay:
        stats = replay.table("t").stats()
    print(json.dumps({"calls": nth - 1, "raised": raised, "moved": moved, "steps": stats.steps, "segments": stats.segments}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
