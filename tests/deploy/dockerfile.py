"""Reads the Dockerfile of deploy/, so that what is checked and what is built cannot differ."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/Dockerfile"


@dataclass
class Stage:
    """One FROM and the instructions after it, each its name and what follows it."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str | None:
        """Returns what follows the last instruction of this kind, None without one."""
        return next((rest for name, rest in reversed(self.steps) if name == instruction), None)


def stages(text: str | None = None) -> dict[str, Stage]:
    """Returns the stages of a Dockerfile by name, in their order; arguments have their defaults."""
    text = DOCKERFILE.read_text() if text is None else text
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
        elif name == "FROM":
            base, stage = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            base = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], base)
            found[stage] = current = Stage(stage, base)
        else:
            current.steps.append((name, rest))
    return found


def line_of(all_stages: dict[str, Stage], name: str) -> list[Stage]:
    """Returns a stage and those that it is made from, the first one first."""
    stage = all_stages[name]
    return [*(line_of(all_stages, stage.base) if stage.base in all_stages else []), stage]


def environment(all_stages: dict[str, Stage], name: str) -> dict[str, str]:
    """Returns what ENV sets in an image; PATH is what comes before the base's own."""
    values: dict[str, str] = {}
    for stage in line_of(all_stages, name):
        for instruction, rest in stage.steps:
            if instruction == "ENV":
                values |= dict(part.split("=", 1) for part in shlex.split(rest))
    return values


def words(rest: str | None) -> list[str]:
    """Returns the command of an instruction in its exec form. Raises ValueError for the shell form."""
    _, bracket, tail = (rest or "").partition("[")
    return list(json.loads(bracket + tail))
