"""The table of promises in the README, made of what the last long runs found: `python -m tests.torture.promises` writes it anew."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.torture.report import RESULTS

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- promises -->\n", "<!-- end of promises -->\n"
_HEAD = ("promise", "how it is tested", "largest run so far, and its command")

Counts = Mapping[str, int]


def _kills(c: Counts, r: Mapping[str, Any]) -> str:
    return (
        f"{c['kills']:,} kills at random moments, {c['steps written']:,} steps written, {c['sampled items checked']:,} sampled "
        f"items checked, {c['duplicates that the server skipped']:,} chunks sent twice and stored once"
    )


def _points(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['ends at a crash point']:,} ends at the crash points of FORMAT.md, each of them hit"


def _powerloss(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['images']:,} images of disks that lost, tore or reordered what was not synced, {c['snapshots_opened']:,} snapshots in them"


def _io_faults(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['sessions']:,} sessions, in each of which another write, sync or rename failed"


def _corruption(c: Counts, r: Mapping[str, Any]) -> str:
    found, total = c["detected"], sum(c.get(name, 0) for name in ("detected", "harmless", "unnoticed"))
    return f"{total:,} damaged stores, {found:,} noticed, {total - found:,} without effect on what is given out"


def _fuzz(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['inputs']:,} hostile chunks, records, frames, messages and requests"


def _full_disk(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['times full']:,} times full, on tmpfs and ext4, {c['steps acknowledged']:,} steps acknowledged"


def _many_clients(c: Counts, r: Mapping[str, Any]) -> str:
    server, clients = r["server"], r["clients"]
    return (
        f"{c['clients']} writers and {c['learners']} learners for {r['seconds'] / 60:.0f} minutes: {c['acknowledged_steps']:,} steps, "
        f"{clients['steps_per_s_min']:.1f} to {clients['steps_per_s_max']:.1f} steps/s each, server at most "
        f"{server['anonymous_mib_max']:.0f} MiB of the {server['bound_mib']:,.0f} it said"
    )


def _hostile(c: Counts, r: Mapping[str, Any]) -> str:
    memory = r["MiB of anonymous memory"]
    return f"{r['seconds']:.0f} s of floods, garbage, slow and silent peers: at most {memory['most']} MiB of the {memory['bound']:,} it said"


def _network(c: Counts, r: Mapping[str, Any]) -> str:
    return f"{c['scenarios']:,} scenarios of cut, silent, slow and half-open connections, pauses and clocks"


def _chaos(c: Counts, r: Mapping[str, Any]) -> str:
    return f"CartPole solved {c['solved']} times of {c['runs']} under {c['kills']:,} kills, {c['steps']:,} steps made again and compared"


ROWS: tuple[tuple[str, str, tuple[tuple[str, Callable[[Counts, Mapping[str, Any]], str]], ...]], ...] = (
    ("An acknowledged step survives `kill -9` of the server at any point", "an oracle outside the process; every crash point",
     (("kills", _kills), ("kills-points", _points), ("chaos_demo", _chaos))),
    ("... and a loss of power", "a log of all writes and syncs, replayed into crash images", (("powerloss", _powerloss),)),
    ("Each step is stored once, whatever is sent again", "lost answers, cut connections, two connections of one session",
     (("network", _network),)),
    ("No sample holds damaged bytes, or steps of two episodes", "bits, pages and files damaged in every place",
     (("corruption", _corruption),)),
    ("A full or failing disk: no crash, no corruption, no false acknowledgement", "a real full disk; every call that can fail, failing",
     (("full_disk", _full_disk), ("io_faults", _io_faults))),
    ("Memory and disk stay within bounds, and nobody starves", "memory by the second, each client's rate", (("many_clients", _many_clients),)),
    ("Slow, dead or hostile clients neither block others nor grow memory", "peers that do all of it; fuzzing",
     (("hostile", _hostile), ("fuzz", _fuzz))),
)  # fmt: skip


def table() -> str:
    """Returns the table's lines."""
    lines = [f"| {' | '.join(_HEAD)} |", "|---|---|---|"]
    for promise, how, sources in ROWS:
        cells = []
        for name, sentence in sources:
            result = json.loads((RESULTS / f"{name}.json").read_bytes())
            violations = len(result["violations"])
            said = f"{sentence(result['counts'], result)}: {violations} violations" if violations else sentence(result["counts"], result)
            cells.append(f"{said} (`{result['command'].removeprefix('python -m ')}`)")
        lines.append(f"| {promise} | {how} | {'; '.join(cells)}; 0 violations |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the table into the README."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}{table()}{END}{after}")


if __name__ == "__main__":
    main()
