"""The generated code in replaysvc/v1 is what protos/generate.sh makes of replay.proto."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-protoc/bin/python"
GENERATED = ("replay_pb2.py", "replay_pb2.pyi", "replay_pb2_grpc.py")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    assert PYTHON.is_file(), "the generator is missing: `make test` installs it into .venv-protoc"
    out = tmp_path_factory.mktemp("generated")
    done = subprocess.run([ROOT / "protos/generate.sh", PYTHON, out], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return out / "replaysvc/v1"


def test_the_generator_makes_just_the_committed_files(generated):
    committed = {path.name for path in (ROOT / "replaysvc/v1").iterdir() if path.name not in ("__init__.py", "__pycache__")}
    assert {path.name for path in generated.iterdir()} == committed == set(GENERATED)


@pytest.mark.parametrize("name", GENERATED)
def test_committed_code_is_up_to_date(generated, name):
    assert (ROOT / "replaysvc/v1" / name).read_text() == (generated / name).read_text()
