"""Images of the disk after a loss of power: made from a log, opened, compared with what was acknowledged, and written to.

`python -m tests.torture.powerloss_images`, in the environment of `shim.environment()`, takes orders (a JSON object a line) on
standard input and answers on standard output; so a supervisor learns at which image it died.
"""

import json
import logging
import os
import pickle
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replaysvc.replay import Replay
from tests.torture.powerloss_disk import MARK, Disk, Event, read_log
from tests.torture.powerloss_facts import Facts, pick, write_steps
from tests.torture.powerloss_life import CONFIG, small_segments
from tests.torture.shim import Shim

AGAIN_EVERY = 40  # images: of what is done to one of so many, images are made again
AGAIN = 10  # so many


@dataclass
class Found:
    """What images showed."""

    violations: list[str]
    counts: Counter[str]


class _Complaints(logging.Handler):
    """Collects what the store logs as errors: nothing is damaged here, so it has nothing to complain of."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def _complaints() -> Iterator[list[str]]:
    handler, logger = _Complaints(), logging.getLogger("replaysvc")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.said
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


def check_image(image: Path, facts: Facts, chance: random.Random, note: Callable[[dict[str, Any]], None], found: Found) -> None:
    """Opens the store of an image, compares it, goes on writing, and sometimes looks again; then looks at a snapshot."""
    what = ""
    with _complaints() as said:
        try:
            what = "the store cannot be opened"
            with Replay(image / "store", CONFIG) as replay:
                what = "it cannot be read"
                found.violations += facts.compare(replay)
                what = "it cannot be written to"
                for name in pick(chance, replay.tables(), 1):
                    _go_on(replay, name, facts, note, found)
            if chance.random() < 0.1:
                what = "it cannot be opened again"
                with Replay(image / "store", CONFIG) as replay:
                    found.violations += facts.compare(replay)
                found.counts["opened_again"] += 1
            what = "a snapshot cannot be opened"
            _check_snapshot(image, facts, chance, found)
        except Exception as error:  # whatever it is, it is what this is to find
            found.violations.append(f"{what}: {error!r}")
    found.violations += [f"the log complains: {sentence}" for sentence in said]
    if left := os.listdir(image / "store" / "quarantine") if (image / "store" / "quarantine").exists() else []:
        found.violations.append(f"quarantine holds {left}")


def _go_on(replay: Replay, name: str, facts: Facts, note: Callable[[dict[str, Any]], None], found: Found) -> None:
    number, known, table = facts.next_number, facts.tables[name], replay.table(name)
    newest = table.episodes(limit=1)
    highest = max([known.newest_id, *(record.episode_id for record in newest)])
    note({"what": "steps", "done": False, "table": name, "episode": number, "stop": 5, "end": True})
    with table.writer(actor="after") as writer:
        write_steps(writer, number, 0, 5, end=True)
    (record,) = table.episodes(limit=1)
    position = table.stats().next_position
    mark = {"episodes": [(number, 5, True)], "next_position": position, "newest_id": record.episode_id}
    if record.metadata["number"] != number or record.length != 5 or record.episode_id <= highest:
        found.violations.append(f"table {name}: expected episode {number} above id {highest}, found {record}")
    if position < known.next_position + 5:
        found.violations.append(f"table {name}: positions up to {known.next_position} were given out twice")
    note({"what": "durable", "done": True, "table": name, **mark})
    found.counts["written_to"] += 1


def _check_snapshot(image: Path, facts: Facts, chance: random.Random, found: Found) -> None:
    there = [name for name in facts.snapshots if (image / name).exists()]
    found.violations += [f"{name} is not there" for name in facts.whole_snapshots if name not in there]
    if there and chance.random() < 0.3:
        name = chance.choice(there)
        with Replay(image / name, CONFIG) as replay:
            found.violations += [f"{name}: {wrong}" for wrong in facts.snapshots[name].compare(replay)]
        found.counts["snapshots_opened"] += 1


class Images:
    """Images of one log."""

    def __init__(self, log: Path, place: Path, shim: Shim, *, one_sync_renames: bool) -> None:
        self._events, self._place, self._shim = read_log(log), place, shim
        self._one_sync_renames = one_sync_renames

    def look(self, indices: list[int], seed: str, begin: Callable[[int], None]) -> Iterator[tuple[int, Found]]:
        """Makes and checks the images of these numbers; `begin` is told of each before. They come in another order."""
        plan = []
        for i in indices:
            chance = random.Random(f"{seed} {i}")
            plan.append((chance.randrange(len(self._events)), chance.random() < 0.5, i, chance))
        disk = Disk(self._events[0].inode, one_sync_renames=self._one_sync_renames)
        now, facts = 0, Facts()  # `now` counts halves: each event is begun, then finished
        for at, finished, i, chance in sorted(plan, key=lambda image: image[:3]):
            while now < 2 * at + 1 + finished:
                event = self._events[now // 2]
                if now % 2:
                    disk.finish(event)
                else:
                    disk.begin(event)
                    if event.kind == MARK:
                        facts.take(event.mark())
                now += 1

            image = self._place / "image"
            begin(i)
            found = Found([], Counter(images=1))
            disk.write_after_loss(image, chance)
            known = pickle.loads(pickle.dumps(facts))
            if chance.randrange(AGAIN_EVERY) == 0:
                self._check_twice(image, known, chance, found)
            else:
                check_image(image, known, chance, known.take, found)
                shutil.rmtree(image)
            yield i, found

    def _check_twice(self, image: Path, facts: Facts, chance: random.Random, found: Found) -> None:
        """Checks an image and loses power meanwhile."""
        disk, before = Disk.of(image, one_sync_renames=self._one_sync_renames), pickle.dumps(facts)
        log = self._place / "again.log"
        log.unlink(missing_ok=True)  # of a process that was ended

        def note(mark: dict[str, Any]) -> None:
            self._shim.mark(**mark)
            facts.take(mark)

        self._shim.watch(image, log)
        check_image(image, facts, chance, note, found)
        self._shim.stop()
        shutil.rmtree(image)
        facts, events = pickle.loads(before), read_log(log)
        log.unlink()
        points = [chance.randint(1, len(events)) for _ in range(AGAIN)] if events else []
        for now, event in enumerate(events):
            for _ in range(points.count(now)):
                self._again(disk, facts, image, chance, found)
            _apply(event, disk, facts)

    def _again(self, disk: Disk, facts: Facts, image: Path, chance: random.Random, found: Found) -> None:
        disk.write_after_loss(image, chance)
        known = pickle.loads(pickle.dumps(facts))
        mine = Found([], Counter(images=1, images_of_recoveries=1))
        check_image(image, known, chance, known.take, mine)
        shutil.rmtree(image)
        found.violations += [f"power lost again: {violation}" for violation in mine.violations]
        found.counts += mine.counts


def _apply(event: Event, disk: Disk, facts: Facts) -> None:
    if event.kind == MARK:
        facts.take(event.mark())
    else:
        disk.apply(event)


def main() -> None:
    """Takes orders: {log, place, seed, indices, one_sync_renames}."""
    small_segments()
    shim = Shim()

    def answer(**fact: Any) -> None:
        print(json.dumps(fact), flush=True)

    for line in sys.stdin:
        order = json.loads(line)
        images = Images(Path(order["log"]), Path(order["place"]), shim, one_sync_renames=order["one_sync_renames"])
        for i, found in images.look(order["indices"], order["seed"], lambda i: answer(begun=i)):
            answer(index=i, violations=found.violations, counts=found.counts)
        answer(done=True)


if __name__ == "__main__":
    main()
