"""The command as its users run it: a process with its own options and environment."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def replaysvc(tmp_path):
    """Returns a function that runs `replaysvc ARGUMENTS` in `tmp_path` to its end. `settings` become REPLAYSVC_* variables."""

    def run(*arguments: object, launcher: tuple[str, ...] = (), **settings: object) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REPLAYSVC_")}
        environment |= {f"REPLAYSVC_{name.upper()}": str(value) for name, value in settings.items()}
        command = [sys.executable, *launcher, "-m", "replaysvc", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture
def refused(replaysvc):
    """Returns a function that runs a command which must fail: one sentence, nothing on stdout. Returns status and sentence."""

    def run(*arguments: object, **options: object) -> tuple[int, str]:
        done = replaysvc(*arguments, **options)
        (sentence,) = done.stderr.splitlines()
        assert sentence.startswith("replaysvc: ")
        assert done.stdout == ""
        return done.returncode, sentence.removeprefix("replaysvc: ")

    return run
