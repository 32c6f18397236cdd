"""Fixtures of the learner's tests: runs in temporary directories."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dqn.config import Config
from dqn.rundir import RunDirectory
from tests.learner import toys


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    toys.register()


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunDirectory]:
    """Returns a function that makes a run with a small configuration, changed by its keyword arguments."""

    def make(**changes: object) -> RunDirectory:
        return RunDirectory.create(tmp_path / "run", toys.small_config(**changes))

    return make


@pytest.fixture
def config() -> Config:
    return toys.small_config()


@pytest.fixture
def stopped() -> threading.Event:
    """Returns the event of a process that was asked to stop before its first step."""
    stop = threading.Event()
    stop.set()
    return stop
