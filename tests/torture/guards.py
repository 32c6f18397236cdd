"""Switches the guards of the service off, one by one, and runs the tests that must notice: the table of who watches what.

    python -m tests.torture.guards [--only NAME]

Exit status 1 if a guard is switched off and its tests pass all the same, or if they fail with nothing switched off.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.torture.report import Report, progress_bar
from tests.torture.switches import SWITCHES

ROOT = Path(__file__).parents[2]
WATCHED_BY = {
    "fsync": ("tests/torture/test_powerloss.py",),
    "dedupe": ("tests/service/test_exactly_once.py",),
    "checksum": ("tests/unit/codec/test_damaged_chunks.py", "tests/torture/test_corruption.py"),
    "bomb check": ("tests/unit/codec/test_hostile_chunks.py",),
    "lease": ("tests/contracts/test_leases.py",),
    "own pause": ("tests/engine/test_endings.py",),
    "epoch": ("tests/contracts/test_leases.py",),
    "lost writer": ("tests/contracts/test_leases.py",),
    "token check": ("tests/service/test_security_tokens.py",),
    "role check": ("tests/service/test_security_roles.py",),
    "store lock": ("tests/unit/storage/test_store.py",),
    "shares of memory": ("tests/service/test_admission_shares.py",),
}


def failures(name: str, tests: tuple[str, ...]) -> tuple[bool, str]:
    """Runs tests with a guard switched off; returns whether any failed, and the first that did."""
    path = os.pathsep.join([str(Path(__file__).parent / "switched_off"), str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "120", *tests],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": path, "SWITCHED_OFF": name}, capture_output=True, text=True,
    )  # fmt: skip
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 1, failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else done.stdout[-2000:]


def main() -> int:
    """Runs all, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(SWITCHES), help="one guard")
    only = parser.parse_args().only
    report = Report("guards", 0, part=only is not None)
    names = [only] if only else list(SWITCHES)
    seen: dict[str, str] = {}
    with progress_bar(len(names), "guards") as advance:
        for name in names:
            noticed, what = failures(name, WATCHED_BY[name])
            print(f"{name:>18}: {what if noticed else 'NOTICED BY NOBODY'}", flush=True)
            report.counts["guards switched off"] += 1
            if noticed:
                report.counts["noticed by a test"] += 1
                seen[name] = what
            else:
                report.violations.append(f"{name}: switched off, and {' '.join(WATCHED_BY[name])} do not fail: {what}")
            advance()
    report.figures["noticed_by"] = seen
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
