"""Plots of a comparison, one picture a question: ours in blue, others in grey, each bar with its number beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

from tests.bench.workloads import WORKLOADS

if TYPE_CHECKING:
    from tests.bench.report import Found

matplotlib.use("Agg")

BLUE, LIGHT, GREY, RED = "#1f5fa8", "#7fb0e0", "#b4b4b4", "#b3392f"
COLOURS = {"service": BLUE, "embedded": LIGHT}
SPEED = ("insert", "insert-images", "uniform", "prioritized", "sequences", "her", "stack-256", "stack-32")
SIZES = ("disk", "disk-images", "memory")
PLACES = ("uniform", "uniform-call", "uniform-mixed", "uniform-half", "uniform-cold")
CROWDS = {"learners": (1, 2, 4), "actors": (1, 4, 16)}


def number(value: float) -> str:
    """Returns a number as a reader says it: 1.3 M, 48 k, 57."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def plain(axes: Any) -> None:
    """Takes away what is no data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0)


def save(figure: Any, path: Path) -> Path:
    """Writes a figure, without what would differ from run to run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None}, facecolor="white")
    matplotlib.pyplot.close(figure)
    return path


def draw(found: "Found", folder: Path) -> list[Path]:
    """Returns the files written."""
    import matplotlib.pyplot  # noqa: F401, after the backend is chosen

    speed = [name for name in SPEED if found.subjects(name)]
    sizes = [name for name in SIZES if found.subjects(name)]
    drawn = [
        _panels(found, speed, folder / "versus.png", "median of the rounds, with the least and the most"),
        _panels(found, sizes, folder / "bytes.png", "bytes a step: less is better"),
        _places(found, folder / "cache.png"),
        _crowds(found, folder / "crowds.png"),
    ]
    return [path for path in drawn if path]


def _panels(found: "Found", names: list[str], path: Path, title: str) -> Path | None:
    """A panel for each workload: a bar for each subject."""
    if not names:
        return None
    from matplotlib import pyplot

    columns = 2 if len(names) > 3 else 1
    rows = -(-len(names) // columns)
    counts = [len(found.subjects(name)) for name in names]
    height = 0.55 * rows + 0.24 * sum(max(counts[i : i + columns]) for i in range(0, len(names), columns))
    ratios = [max(counts[i : i + columns]) + 1 for i in range(0, len(names), columns)]
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(5.2 * columns, height + 0.5), layout="constrained", squeeze=False,
        gridspec_kw={"height_ratios": ratios},
    )  # fmt: skip
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(grid.flat, names, strict=False):
        _bars(axes, found, name)
    figure.suptitle(title, fontsize=10)
    return save(figure, path)


def _bars(axes: Any, found: "Found", name: str) -> None:
    subjects = found.subjects(name)[::-1]
    values = [found.median(name, subject) for subject in subjects]
    axes.barh(subjects, values, color=[COLOURS.get(subject, GREY) for subject in subjects], height=0.7)
    for y, (subject, value) in enumerate(zip(subjects, values, strict=True)):
        each = found.values(name, subject)
        axes.plot([min(each), max(each)], [y, y], color="black", linewidth=1, solid_capstyle="butt")
        axes.annotate(number(value), (max(value, max(each)), y), (4, 0), textcoords="offset points", va="center", fontsize=8)
    raw = found.values(name, "service", "raw")
    if raw:
        axes.axvline(raw[0], color=RED, linewidth=1)
        style = {"color": RED, "fontsize": 8, "ha": "right", "textcoords": "offset points"}
        axes.annotate("raw s, a, r, s'", (raw[0], -0.5), (-3, -6), **style)
    axes.set_title(f"{WORKLOADS[name].words}, {WORKLOADS[name].unit}", fontsize=9, loc="left")
    axes.set_xticks([])
    axes.margins(x=0.16)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(labelsize=8)
    plain(axes)


def _places(found: "Found", path: Path) -> Path | None:
    """Uniform sampling of ours by where the data is, beside Reverb, which holds it all in memory."""
    names = [name for name in PLACES if found.subjects(name)]
    if len(names) < 2:
        return None
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.62 * len(names) + 0.8), layout="constrained")
    for y, name in enumerate(names[::-1]):
        for shift, subject in ((0.2, "service"), (-0.2, "embedded")):
            if found.values(name, subject):
                value = found.median(name, subject)
                axes.barh(y + shift, value, 0.38, color=COLOURS[subject])
                text = f"{number(value)}  {subject}"
                axes.annotate(text, (value, y + shift), (4, 0), textcoords="offset points", va="center", fontsize=8)
    if found.values("uniform", "reverb"):
        value = found.median("uniform", "reverb")
        axes.axvline(value, color=RED, linewidth=1)
        axes.annotate(f"Reverb, all in memory: {number(value)}", (value, len(names) - 0.45), (3, 0), textcoords="offset points",
                      color=RED, fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(names)), [WORKLOADS[name].words for name in names[::-1]], fontsize=8)
    axes.set_xticks([])
    axes.margins(x=0.2)
    axes.set_title("HalfCheetah, transitions/s", fontsize=9, loc="left")
    axes.spines["bottom"].set_visible(False)
    plain(axes)
    return save(figure, path)


def _crowds(found: "Found", path: Path) -> Path | None:
    """What several processes do together, against one service."""
    roles = [role for role, counts in CROWDS.items() if all(found.subjects(f"{role}-{count}") for count in counts)]
    if not roles:
        return None
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, len(roles), figsize=(4 * len(roles), 3), layout="constrained", squeeze=False)
    for axes, role in zip(grid.flat, roles, strict=True):
        counts = CROWDS[role]
        values = [found.median(f"{role}-{count}", "service") for count in counts]
        axes.plot(counts, values, color=BLUE, marker="o")
        for count, value in zip(counts, values, strict=True):
            axes.annotate(number(value), (count, value), (0, 6), textcoords="offset points", fontsize=8, ha="center")
        axes.set(xlabel=role, ylim=(0, 1.25 * max(values)), xticks=counts)
        axes.set_title(f"all {role} together, {WORKLOADS[f'{role}-1'].unit}", fontsize=9, loc="left")
        axes.set_yticks([])
        plain(axes)
    return save(figure, path)
