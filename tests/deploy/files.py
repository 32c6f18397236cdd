"""The files of deploy/ as tests see them, and the settings that each place gives the service."""

import configparser
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from replaysvc.settings import Settings, load
from tests.deploy.dockerfile import environment, stages

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
STAGES = stages()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: about for name, about in SERVICES.items() if "build" in about}
KUBERNETES = {path.name: list(yaml.safe_load_all(path.read_text())) for path in (DEPLOY / "kubernetes").glob("*.yaml")}
(STATEFUL_SET,) = KUBERNETES["statefulset.yaml"]
POD = STATEFUL_SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
UNIT = configparser.ConfigParser(strict=False, interpolation=None)
UNIT.optionxform = str  # type: ignore[assignment,method-assign]
UNIT.read(DEPLOY / "systemd/replaysvc.service")
TEXTS = [path for path in DEPLOY.rglob("*") if path.is_file() and "secrets" not in path.parts]


def settings_of(found: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Returns the settings that a process with these variables has."""
    for name in [name for name in os.environ if name.startswith("REPLAYSVC_")]:
        monkeypatch.delenv(name)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return load({}, None)


def in_image(stage: str, more: dict[str, Any]) -> dict[str, str]:
    """Returns the settings' variables of a container: the image's, and those that it is started with."""
    found = environment(STAGES, stage) | {name: str(value) for name, value in more.items()}
    return {name: value for name, value in found.items() if name.startswith("REPLAYSVC_")}


def in_unit() -> dict[str, str]:
    """Returns the settings' variables of the systemd unit, with those of the example of its environment file."""
    text = (DEPLOY / "systemd/replaysvc.service").read_text()
    example = (DEPLOY / "systemd/environment.example").read_text()
    lines = re.findall(r"^Environment=(REPLAYSVC_.*)$", text, re.MULTILINE) + re.findall(r"^\w.*$", example, re.MULTILINE)
    return dict(line.split("=", 1) for line in lines)


PLACES = {
    "compose": in_image("service", SERVICES["replaysvc"]["environment"]),
    "kubernetes": in_image("service", {each["name"]: each["value"] for each in CONTAINER["env"]}),
    "systemd": in_unit(),
}
LIMITS = {"compose": SERVICES["replaysvc"]["mem_limit"], "kubernetes": CONTAINER["resources"]["limits"]["memory"],
          "systemd": UNIT["Service"]["MemoryMax"]}  # fmt: skip
GRACES = {"compose": SERVICES["replaysvc"]["stop_grace_period"], "kubernetes": POD["terminationGracePeriodSeconds"],
          "systemd": UNIT["Service"]["TimeoutStopSec"]}  # fmt: skip


def size(text: str) -> int:
    """Returns the bytes of a size as compose, Kubernetes and systemd write it."""
    number, unit = re.fullmatch(r"(\d+)([gGmM])i?", text).groups()
    return int(number) << {"m": 20, "g": 30}[unit.lower()]
