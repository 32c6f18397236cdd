"""DeepMind Reverb on HalfCheetah rows. Runs in an environment of its own (dm-reverb 0.14.0), driven by versus_reverb.py.

Reads commands from stdin, one a line, answers each with one JSON line: `insert` appends every rollout as 2-step items into
a new table and says steps a second; `sample` draws 256 transitions 200 times through TrajectoryDataset and says transitions
a second.
The server is a process of its own, as a service would be.
"""

import json
import subprocess
import sys
import time

import numpy as np

SERVER = """
import sys, reverb
make = lambda name: reverb.Table(name, reverb.selectors.Uniform(), reverb.selectors.Fifo(), max_size=2_000_000,
                                 rate_limiter=reverb.rate_limiters.MinSize(1))
reverb.Server([make(f"t{i}") for i in range(int(sys.argv[2]))], port=int(sys.argv[1])).wait()
"""
TABLES = 16
FLUSH_STEPS = 64  # the fastest setting found that does not grow without bound


def insert(client, data, table: str) -> float:
    steps = row = begin = 0
    started = time.perf_counter()
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for length in data["lengths"]:
            for t in range(length):
                writer.append(
                    {
                        "observation": data["observations"][row + t],
                        "action": data["actions"][begin + t],
                        "reward": data["rewards"][begin + t],
                        "discount": np.float32(1),
                    }
                )
                if t:
                    writer.create_item(table, 1.0, {name: column[-2:] for name, column in writer.history.items()})
                steps += 1
                if steps % FLUSH_STEPS == 0:
                    writer.flush(FLUSH_STEPS)
            writer.end_episode()
            row, begin = row + length + 1, begin + length
    return steps / (time.perf_counter() - started)


def sample(port: int, table: str, batches: int = 200) -> float:
    import reverb
    import tensorflow as tf

    shapes = {"observation": (2, 17), "action": (2, 6), "reward": (2,), "discount": (2,)}
    dataset = (
        reverb.TrajectoryDataset(
            f"localhost:{port}",
            table,
            dtypes=dict.fromkeys(shapes, tf.float32),
            shapes={k: tf.TensorShape(s) for k, s in shapes.items()},
            max_in_flight_samples_per_worker=512,
            num_workers_per_iterator=4,
        )
        .batch(256)
        .prefetch(4)
    )
    batch = iter(dataset)
    for _ in range(5):
        next(batch)
    started = time.perf_counter()
    for _ in range(batches):
        next(batch)
    return batches * 256 / (time.perf_counter() - started)


def main(port: int, file: str) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port), str(TABLES)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        import reverb

        data = dict(np.load(file))
        client = reverb.Client(f"localhost:{port}")
        client.server_info(timeout=120)
        print(json.dumps({"ready": True}), flush=True)
        tables = iter(range(TABLES))
        table = ""
        for command in map(str.strip, sys.stdin):
            if command == "insert":
                table = f"t{next(tables)}"
                print(json.dumps({"steps_s": insert(client, data, table)}), flush=True)
            elif command == "sample":
                print(json.dumps({"transitions_s": sample(port, table)}), flush=True)
    finally:
        server.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
