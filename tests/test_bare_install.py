"""The wheel, installed with its base dependencies only, is a whole client: it writes, samples and reads against a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ServiceProcess

ROOT = Path(__file__).parents[1]
EXTRAS = (
    "lmdb", "h5py", "fastapi", "torch", "gymnasium", "typer", "rich", "pydantic", "safetensors", "grpc_health", "uvicorn",
    "starlette", "prometheus_client", "plotly", "grpc_reflection",
)

FIND = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is not None]))
"""

USE = """
import json, sys
import numpy as np
import replay_client
from replay_client import FieldSpec, Signature, Transitions

observations = {"state": FieldSpec("state", (2,), np.float32), "image": FieldSpec("image", (4, 4), np.uint8)}
signature = Signature(observations, FieldSpec("action", (), np.int64))

def observation(t):
    return {"state": np.full(2, t, np.float32), "image": np.full((4, 4), t, np.uint8)}

with replay_client.connect(sys.argv[1]) as replay:
    table = replay.create_table("bare", signature)
    with table.writer(actor="bare") as writer:
        writer.begin(observation(0))
        for t in range(5):
            writer.append(t, float(t), observation(t + 1), terminated=t == 4)
        writer.flush(timeout_s=30)
    batch = table.sample(64, Transitions(n_step=2, gamma=0.5), seed=7)
    episode = table.read_episode(0)
    try:
        batch.torch()
    except ModuleNotFoundError as error:
        torch_error = [str(error), error.name]
    replay.put_params("policy", b"weights", version=1)
    print(json.dumps({
        "steps": table.stats().steps,
        "pairs": sorted({(int(t), float(o[0]), float(n[0])) for t, o, n in zip(
            batch.t, batch.observation["state"], batch.next_observation["state"])}),
        "images": episode["observation"]["image"][:, 0, 0].tolist(),
        "rewards": episode["reward"].tolist(),
        "terminated": episode["terminated"].tolist(),
        "torch_error": torch_error,
        "params": replay.get_params("policy").data.decode(),
        "from": replay_client.__file__,
    }))
"""


def run(*command: str | Path, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command away from this tree and its environment's Python path; fails unless it exits with `status`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == status, f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The `bin` of a new virtual environment that has the wheel and its base dependencies."""
    home = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", home, cwd=ROOT)
    (wheel,) = home.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home / "venv/bin/python")
    run(*pip, "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", wheel, cwd=home)
    return home / "venv/bin"


@pytest.fixture
def service(tmp_path):
    with ServiceProcess(tmp_path / "store") as service:
        yield service


def test_no_package_of_an_extra_is_installed(bare, tmp_path):
    done = run(bare / "python", "-c", FIND, *EXTRAS, "replaysvc", "replay_client", cwd=tmp_path)
    assert json.loads(done.stdout) == ["replaysvc", "replay_client"]


def test_bare_client_writes_samples_and_reads(bare, service, tmp_path):
    done = run(bare / "python", "-W", "error", "-c", USE, service.address, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert Path(found["from"]).is_relative_to(bare.parent)
    assert found["steps"] == 5
    assert found["pairs"] == [[0, 0, 2], [1, 1, 3], [2, 2, 4], [3, 3, 5], [4, 4, 5]]
    assert found["images"] == [0, 1, 2, 3, 4, 5]
    assert found["rewards"] == [0, 1, 2, 3, 4]
    assert found["terminated"] == [False, False, False, False, True]
    assert found["params"] == "weights"


def test_tensors_without_torch_say_what_to_install(bare, service, tmp_path):
    done = run(bare / "python", "-c", USE, service.address, cwd=tmp_path)
    sentence, name = json.loads(done.stdout)["torch_error"]
    assert name == "torch"
    assert "pip install 'replaysvc[torch]'" in sentence


def test_opening_a_store_says_what_to_install_and_makes_nothing(bare, tmp_path):
    done = run(bare / "python", "-c", "import replaysvc; replaysvc.open('store')", cwd=tmp_path, status=1)
    assert "pip install 'replaysvc[server]'" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("replaysvc", "serve", "--data", "store"), ("python", "-m", "replaysvc", "--help")])
def test_the_command_says_in_one_sentence_what_to_install(bare, tmp_path, command):
    done = run(bare / command[0], *command[1:], cwd=tmp_path, status=1)
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("replaysvc: ")
    assert "pip install 'replaysvc[server]'" in sentence
    assert list(tmp_path.iterdir()) == []
