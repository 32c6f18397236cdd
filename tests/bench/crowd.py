"""Several learners or actors at once, each a process of its own, against one service. Ours alone."""

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import replay_client
from tests.bench.peers.asked import BATCH, Answer, Rollouts, load, write_rate

PREFETCH = 16
_START_S = 120.0  # longest that all of them may take to start


def write_episodes(table: Any, rollouts: Rollouts, seconds: float, actor: str = "") -> Answer:
    """Appends one step at a time; the time ends when all is durable."""
    with table.writer(actor=actor) as writer:

        def write(episode: Any) -> None:
            last, seen = len(episode.rewards) - 1, episode.observations
            writer.begin(seen[0])
            for t, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
                ends = {"terminated" if episode.terminated else "truncated": True} if t == last else {}
                writer.append(action, reward, seen[t + 1], **ends)

        return write_rate(rollouts.endless(), write, writer.flush, seconds)


def _act(address: str, name: str, folder: str, seconds: float, number: int, start: Any) -> float:
    states, _ = load(folder)
    with replay_client.connect(address) as client:
        table = client.table(name)
        start.wait(_START_S)
        return float(write_episodes(table, states, seconds, actor=f"actor-{number}")["value"])


def _learn(address: str, name: str, folder: str, seconds: float, number: int, start: Any) -> float:
    with replay_client.connect(address) as client:
        batches = client.table(name).stream(BATCH, prefetch=PREFETCH)
        next(batches)
        start.wait(_START_S)
        drawn, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            next(batches)
            drawn += BATCH
        return drawn / (time.perf_counter() - began)


def _report(role: Callable[..., float], pipe: Any, *arguments: Any) -> None:
    pipe.send(role(*arguments))


def together(role: str, count: int, address: str, table: str, folder: str, seconds: float) -> Answer:
    """Returns what `count` processes did a second in all, and the slowest and fastest of them."""
    run, context = {"actors": _act, "learners": _learn}[role], multiprocessing.get_context("spawn")
    start = context.Barrier(count)
    pipes, processes = [], []
    for number in range(count):
        here, there = context.Pipe(duplex=False)
        arguments = (run, there, address, table, folder, seconds, number, start)
        processes.append(context.Process(target=_report, args=arguments))
        processes[-1].start()
        there.close()  # so that a process that dies is told here by the end of its pipe
        pipes.append(here)
    rates = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return {"value": sum(rates), "slowest": min(rates), "fastest": max(rates)}
