"""Tables and plots of what versus.py measured.

    python tests/bench/report.py [FILE]

Medians of the rounds, with the least and the most. Ratios are taken within a round, where both subjects met the same machine,
and then their median.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import plots
from tests.bench.workloads import RAW_RATIOS, TARGETS, WORKLOADS, Target

OURS = ("service", "embedded")
LESS_IS_BETTER = ("memory", *RAW_RATIOS)


class Found:
    """All numbers of a run: by workload and subject, one a round."""

    def __init__(self, file: Path) -> None:
        self.about, *lines = map(json.loads, file.read_text().splitlines())
        self._lines: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for line in lines:
            self._lines.setdefault((line["workload"], line["subject"]), {})[line["round"]] = line

    def subjects(self, workload: str) -> list[str]:
        """Returns who has the workload: ours, then the others, the best first."""
        names = {subject for name, subject in self._lines if name == workload}
        sign = 1 if workload in LESS_IS_BETTER else -1
        return sorted(names, key=lambda name: (name not in OURS, sign * self.median(workload, name)))

    def values(self, workload: str, subject: str, what: str = "value") -> list[float]:
        return [line[what] for line in self._lines.get((workload, subject), {}).values() if what in line]

    def median(self, workload: str, subject: str, what: str = "value") -> float:
        return statistics.median(self.values(workload, subject, what))

    def ratios(self, workload: str, subject: str, beside: str, other: str = "") -> list[float]:
        """Returns the ratio of each round that has both."""
        ours, theirs = self._lines.get((workload, subject), {}), self._lines.get((other or workload, beside), {})
        return [ours[number]["value"] / theirs[number]["value"] for number in ours if number in theirs]


def _spread(values: list[float], form: str = ",.0f") -> tuple[str, str]:
    return format(statistics.median(values), form), f"{min(values):{form}} to {max(values):{form}}"


def measured(found: Found) -> Table:
    """Returns all medians; the last columns say how much better ours is than the row's subject."""
    grid = Table("workload", "subject", "median", "least to most", "p50 ms", "p99 ms", "MiB", "service", "embedded")
    for name, workload in WORKLOADS.items():
        for i, subject in enumerate(found.subjects(name)):
            numbers = _spread(found.values(name, subject))
            latencies = [
                f"{found.median(name, subject, what):.2f}" if found.values(name, subject, what) else ""
                for what in ("p50_ms", "p99_ms")
            ]
            resident = found.values(name, subject, "resident")
            latencies.append(f"{statistics.median(resident) / 2**20:,.0f}" if resident else "")
            row = [f"{workload.words}, {workload.unit}" if not i else "", subject, *numbers, *latencies]
            grid.add_row(*row, *(_times(found, name, ours, subject) for ours in OURS))
        grid.add_section()
    return grid


def _times(found: Found, workload: str, ours: str, subject: str) -> str:
    ratios = found.ratios(workload, ours, subject) if subject not in OURS else []
    if not ratios:
        return ""
    ratio = statistics.median(ratios)
    if workload in LESS_IS_BETTER:
        ratio = 1 / ratio
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def promises(found: Found) -> Iterator[tuple[str, list[float], float]]:
    """Yields what the design promises: its words, the ratios that were found, and what they should be at least."""
    for target in TARGETS:
        ratios = found.ratios(target.workload, target.subject, target.beside, target.other)
        if ratios:
            yield words_of(target), ratios, target.at_least
    for name, at_least in RAW_RATIOS.items():
        for value, raw in zip(found.values(name, "service"), found.values(name, "service", "raw"), strict=True):
            yield f"raw (s, a, r, s') / {WORKLOADS[name].words}", [raw / value], at_least
    for resident, allowed in zip(
        *(found.values("memory", "service", what) for what in ("resident", "allowed")), strict=True
    ):  # fmt: skip
        yield "memory that the server's settings allow / what it takes", [allowed / resident], 1


def promised(found: Found) -> tuple[Table, list[str]]:
    """Returns what the design promises beside what was found, and what falls short."""
    grid, short = Table("promise", "found", "least to most", "wanted", "met"), []
    for words, values, at_least in promises(found):
        met = statistics.median(values) >= at_least
        grid.add_row(words, *(f"{text}x" for text in _spread(values, ",.2f")), f"{at_least:g}x", "yes" if met else "NO")
        if not met:
            short.append(words)
    return grid, short


def words_of(target: Target) -> str:
    """Returns a promise in words."""
    other = "" if target.other == target.workload else f" ({WORKLOADS[target.other].words})"
    return f"{target.subject} / {target.beside}{other}: {WORKLOADS[target.workload].words}"


def main(file: Path) -> None:
    """Prints the tables, and draws the plots beside the file."""
    found = Found(file)
    console = Console(width=170 if not sys.stdout.isatty() else None)
    console.print(measured(found))
    grid, short = promised(found)
    console.print(grid)
    console.print(f"not reached: {'; '.join(short) or 'none'}" if grid.row_count else "no promise was measured", markup=False)
    for path in plots.draw(found, file.parent):
        console.print(f"written: {path}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "plots" / "versus.jsonl")
