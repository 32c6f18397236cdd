"""Credentials as deploy/credentials.sh makes them."""

import os
import subprocess
import sys

import pytest

from tests.deploy.files import DEPLOY


@pytest.fixture(scope="session")
def credentials(tmp_path_factory):
    """Returns a directory of them, for the host name of compose.yaml."""
    directory = tmp_path_factory.mktemp("deploy") / "secrets"
    path = {"RUN_REPLAYSVC": f"{sys.executable} -m replaysvc", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = ["sh", DEPLOY / "credentials.sh", directory, "replaysvc"]
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return directory
