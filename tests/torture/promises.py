"""The README's table of promises, of what the last long runs found: `python -m tests.torture.promises` writes it anew."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.torture.report import RESULTS

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- promises -->\n", "<!-- end of promises -->\n"
_HEAD = ("promise", "how it is tested", "largest run so far, and its command")

Counts = Mapping[str, int]
Sentence = Callable[[Counts, Mapping[str, Any]], str]


def _kills(c: Counts, r: Mapping[str, Any]) -> str:
    names = "kills", "steps written", "sampled items checked", "duplicates that the server skipped"
    kills, written, items, twice = (f"{c[name]:,}" for name in names)
    return f"{kills} kills, {written} steps written, {items} sampled items checked, {twice} chunks skipped as doubled"


def _points(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['ends at a crash point']:,} ends at crash points, every point of FORMAT.md among them"


def _powerloss(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['images']:,} crash images, {c['snapshots_opened']:,} snapshots in them"


def _io_faults(c: Counts, r: Mapping[str, Any]) -> str:
    sessions = sum(count for name, count in c.items() if name.endswith(": sessions"))
    return f"{sessions:,} sessions, in each of which another call failed"


def _corruption(c: Counts, r: Mapping[str, Any]) -> str:
    total = sum(c.get(name, 0) for name in ("detected", "harmless", "unnoticed"))
    return f"{total:,} damaged stores: {c['detected']:,} noticed, {c['harmless']:,} as before, {c.get('unnoticed', 0)} older"


def _fuzz(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['inputs']:,} hostile chunks, records, frames, texts and requests"


def _full_disk(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['disk filled']:,} times full, {c['episodes acknowledged']:,} episodes acknowledged"


def _many_clients(c: Counts, r: Mapping[str, Any]) -> str:
    server, rate = r["server"], r["clients"]
    return (
        f"{c['clients']} writers, {c['learners']} learners, {r['seconds'] / 60:.0f} min: {c['acknowledged_steps']:,} steps, "
        f"{rate['steps_per_s_min']:.1f} to {rate['steps_per_s_max']:.1f} steps/s each; {server['anonymous_mib_max']:.0f} of at "
        f"most {server['bound_mib']:,.0f} MiB"
    )


def _hostile(c: Counts, r: Mapping[str, Any]) -> str:
    memory = r["MiB of anonymous memory"]
    most, bound = memory["most"], memory["bound"]
    return f"{r['seconds']:.0f} s of floods, garbage, slow and silent peers: {most} of at most {bound:,} MiB"


def _hostile_admin(c: Counts, r: Mapping[str, Any]) -> str:
    page, gap = r["page_ms beside hostile clients"], r["longest_without_a_batch_s beside hostile clients"]
    return (
        f"{r['seconds']:.0f} s of the same at the dashboard's door: its pages within {page['most'] / 1000:.1f} s, a learner's "
        f"batches at most {gap:.1f} s apart"
    )


def _network(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['scenarios']:,} scenarios, {c['steps compared']:,} steps compared"


def _chaos(c: Counts, r: Mapping[str, Any]) -> str:
    return f"CartPole solved {c['solved']} times of {c['demos']}, {c['kills']} kills, {c['steps_made_again']:,} steps replayed"


ROWS: tuple[tuple[str, str, dict[str, Sentence]], ...] = (
    (
        "An acknowledged step survives `kill -9` of the server at any point", "an oracle outside the process",
        {"kills": _kills, "kills-points": _points, "chaos_demo": _chaos},
    ),
    ("... and a loss of power", "a log of all writes and syncs, replayed into crash images", {"powerloss": _powerloss}),
    (
        "Each step is stored once, whatever is sent again",
        "lost answers, cut, silent and half-open connections, pauses, clocks",
        {"network": _network},
    ),
    (
        "No sample holds damaged bytes, or steps of two episodes", "bits, pages and files damaged in every place",
        {"corruption": _corruption},
    ),
    (
        "A full or failing disk: no crash, no corruption, no false acknowledgement",
        "full disks; every call of a session failing",
        {"full_disk": _full_disk, "io_faults": _io_faults},
    ),
    (
        "Memory stays within its bound, and nobody starves", "memory by the second, each client's rate",
        {"many_clients": _many_clients},
    ),
    (
        "Slow, dead or hostile clients neither block others nor grow memory", "peers that do all of it; fuzzing",
        {"hostile": _hostile, "hostile_admin": _hostile_admin, "fuzz": _fuzz},
    ),
)  # fmt: skip


def results() -> list[dict[str, Any]]:
    """Returns the results that the table is made of, as far as there are any."""
    files = [RESULTS / f"{name}.json" for _, _, sentences in ROWS for name in sentences]
    return [json.loads(file.read_bytes()) for file in files if file.exists()]


def table() -> str:
    """Returns the table's lines."""
    lines = [f"| {' | '.join(_HEAD)} |", "|---|---|---|"]
    for promise, how, sentences in ROWS:
        said = []
        for name, sentence in sentences.items():
            if not (RESULTS / f"{name}.json").exists():
                said.append(f"no long run yet (`tests.torture.{name}`)")
                continue
            result = json.loads((RESULTS / f"{name}.json").read_bytes())
            command = result["command"].removeprefix("python -m ")
            said.append(f"{sentence(result['counts'], result)}: {len(result['violations'])} violations (`{command}`)")
        lines.append(f"| {promise} | {how} | {'; '.join(said)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the table into the README."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}{table()}{END}{after}")


if __name__ == "__main__":
    main()
