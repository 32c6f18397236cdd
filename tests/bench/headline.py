"""The README's table of speed, of what the last `make bench` found: `python -m tests.bench.headline` writes it anew."""

import json
import statistics
from pathlib import Path
from typing import Any

from tests.bench.plots import number
from tests.bench.report import Found
from tests.bench.workloads import RAW_RATIOS, TARGETS, WORKLOADS

PLOTS = Path(__file__).parent / "plots"
README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- speed -->\n", "<!-- end of speed -->\n"
_NAMES = {"reverb": "Reverb", "torchrl-memmap": "TorchRL memmap"}
_HEAD = ("warm unless said", "replaysvc", "beside", "ratio, least to most of the rounds", "aim")


def _ratio(values: list[float]) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    text = f"{middle:.3g}x"
    return text if least == most else f"{text} ({least:.3g} to {most:.3g})"


def rows(found: Found, growth: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Returns the rows of the table."""
    made = []
    for target in TARGETS:
        ours, theirs = (found.median(name, who) for name, who in _sides(target))
        beside = f"{_NAMES[target.beside]} {number(theirs)}"
        if target.other != target.workload:
            beside += f" ({WORKLOADS[target.other].words})"
        ratios = found.ratios(target.workload, target.subject, target.beside, target.other)
        words = f"{WORKLOADS[target.workload].words}; {target.subject}"
        mine = f"{number(ours)} {WORKLOADS[target.workload].unit}"
        made.append((words, mine, beside, _ratio(ratios), _aim(f"{target.at_least:g}x", ratios, target.at_least)))
    for name, at_least in RAW_RATIOS.items():
        ((size,), (raw,)) = (found.values(name, "service", what) for what in ("value", "raw"))
        ratio = [raw / size]
        words = f"{WORKLOADS[name].words}, beside raw (s, a, r, s')"
        made.append((words, f"{size:.0f} B/step", f"{raw:,.0f} B/step", _ratio(ratio), _aim(f"{at_least:g}x", ratio, at_least)))
    by_steps = [row for row in growth if row["episode_steps"] == growth[0]["episode_steps"]]
    first, last = by_steps[0], max(by_steps, key=lambda row: row["steps"])
    grown = last["sample_ms"] / first["sample_ms"]
    at = f"{last['steps']:,}"
    made.append((f"a batch of a table of {at} steps", f"{last['sample_ms']:.3g} ms", f"of {first['steps']:,}: "
                 f"{first['sample_ms']:.3g} ms", f"{grown:.2f}x as long", _aim("at most 2x", [2 / grown], 1)))  # fmt: skip
    made.append((f"start with {at} steps", f"{last['start_s']:.1f} s", "", "", _aim("at most 10 s", [10 / last["start_s"]], 1)))
    return made


def _sides(target: Any) -> tuple[tuple[str, str], tuple[str, str]]:
    return (target.workload, target.subject), (target.other, target.beside)


def _aim(words: str, values: list[float], at_least: float) -> str:
    return words if statistics.median(values) >= at_least else f"{words}: **missed**"


def table() -> str:
    """Returns the table in Markdown."""
    found = Found(PLOTS / "versus.jsonl")
    grid = [_HEAD, ("---",) * len(_HEAD), *rows(found, json.loads((PLOTS / "growth.json").read_text()))]
    return "".join(f"| {' | '.join(row)} |\n" for row in grid)


def main() -> None:
    """Puts the table into the README, in the place of the old one."""
    head, _, rest = README.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    README.write_text(head + BEGIN + table() + END + tail)


if __name__ == "__main__":
    main()
