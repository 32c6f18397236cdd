"""What every torture script ends with: its counts on the screen, the same as JSON in `results/`, and an exit status."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

RESULTS = Path(__file__).parent / "results"
_SHOWN = 20  # violations that are printed; all are counted


@dataclass
class Report:
    """What a script found. `violations` are sentences, each with what one needs to see it again."""

    name: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)  # whatever else is worth keeping: rates, peaks
    part: bool = False  # whether only some of the cases were asked for: the file stays that of the last whole run
    began_s: float = field(default_factory=time.monotonic)

    def as_json(self) -> dict[str, Any]:
        """Returns the plain form."""
        return {
            "name": self.name, "command": " ".join(["python -m", f"tests.torture.{self.name}", *sys.argv[1:]]),
            "seed": self.seed, "seconds": round(time.monotonic() - self.began_s, 1),
            "counts": dict(sorted(self.counts.items())), "violations": self.violations, **self.figures,
        }  # fmt: skip

    def finish(self, path: Path | None = None) -> int:
        """Prints a summary, writes `results/NAME.json` of a whole run (or `path` of any), and returns the exit status: 1 if
        there is a violation."""
        content = self.as_json()
        if path is None and not self.part:
            path = RESULTS / f"{self.name}.json"
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"{self.name}: seed {self.seed}, {content['seconds']} s, {len(self.violations)} violations")
        for name, count in content["counts"].items():
            print(f"  {name:<40} {count:>10,}")
        for violation in self.violations[:_SHOWN]:
            print(f"  VIOLATION {violation}")
        return 1 if self.violations else 0


@contextmanager
def progress_bar(total: int, description: str) -> Iterator[Any]:
    """Yields `advance(n, note)`, which moves a bar on stderr. Starts no thread, so that processes may be forked meanwhile."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(file=sys.stderr), auto_refresh=False)
    task = bar.add_task(description, total=total)
    shown = [0.0]

    def advance(count: int = 1, note: str = "") -> None:
        bar.update(task, advance=count, description=f"{description} {note}".strip())
        if time.monotonic() - shown[0] > 0.5:
            shown[0] = time.monotonic()
            bar.refresh()

    bar.start()
    try:
        yield advance
    finally:
        bar.refresh()
        bar.stop()
