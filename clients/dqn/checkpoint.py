"""Checkpoints: everything the learner needs to go on exactly where it stopped, as safetensors and JSON, never pickle.

A checkpoint is a directory named by its update count. It is written under another name and renamed when it is whole, so
a learner that is killed while it writes leaves the previous checkpoint as the newest one.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from dqn.rundir import sync_directory

_NAME = re.compile(r"[0-9]{10}")
_KEPT = 2  # the newest, and one more in case somebody is reading the other


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `policy_version` is the last one published."""

    updates: int = 0
    policy_version: int = 0


def save_checkpoint(directory: Path, progress: Progress, network: nn.Module, target: nn.Module, optimiser: Optimizer) -> Path:
    """Writes a checkpoint under `directory`, durable on return, and removes all but the newest few. Returns its path."""
    path = directory / f"{progress.updates:010d}"
    unfinished = directory / f"unfinished-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    tensors, settings = flatten_optimiser(optimiser)
    save_file(_copies(network.state_dict()), unfinished / "network.safetensors")
    save_file(_copies(target.state_dict()), unfinished / "target.safetensors")
    save_file(tensors, unfinished / "optimiser.safetensors")
    save_file({"torch": torch.get_rng_state()}, unfinished / "rng.safetensors")
    (unfinished / "state.json").write_text(json.dumps({"progress": asdict(progress), "param_groups": settings}, indent=2))
    for file in unfinished.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_directory(unfinished)
    shutil.rmtree(path, ignore_errors=True)
    unfinished.replace(path)
    sync_directory(directory)
    for old in _whole(directory)[:-_KEPT]:
        shutil.rmtree(old)
    return path


def newest_checkpoint(directory: Path) -> Path | None:
    """Returns the newest whole checkpoint under `directory`."""
    found = _whole(directory)
    return found[-1] if found else None


def load_checkpoint(path: Path, network: nn.Module, target: nn.Module, optimiser: Optimizer) -> Progress:
    """Brings networks, optimiser and torch's generator to the state that was saved, bit for bit; returns how far that was.

    Raises:
      OSError, ValueError, safetensors.SafetensorError, RuntimeError: not a checkpoint of such networks.
    """
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    network.load_state_dict(load_file(path / "network.safetensors"))
    target.load_state_dict(load_file(path / "target.safetensors"))
    restore_optimiser(optimiser, load_file(path / "optimiser.safetensors"), state["param_groups"])
    torch.set_rng_state(load_file(path / "rng.safetensors")["torch"])
    return Progress(**state["progress"])


def flatten_optimiser(optimiser: Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Returns an optimiser's state as tensors named `parameter/entry`, and its settings as plain data."""
    state = optimiser.state_dict()
    tensors = {
        f"{parameter}/{entry}": torch.as_tensor(value).clone()
        for parameter, entries in state["state"].items()
        for entry, value in entries.items()
    }
    return tensors, state["param_groups"]


def restore_optimiser(optimiser: Optimizer, tensors: dict[str, Tensor], settings: list[dict[str, Any]]) -> None:
    """Undoes `flatten_optimiser`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parameter, _, entry = name.partition("/")
        state.setdefault(int(parameter), {})[entry] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": settings})


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _whole(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
