"""The images: what they are made of, whom they run as, and that their commands serve and tell their health."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

import replay_client
import replaysvc
from tests.deploy.dockerfile import line_of, words
from tests.deploy.files import CONTAINER, KUBERNETES, ROOT, SERVICES, STAGES, TEXTS, in_image


@pytest.mark.parametrize("target", ["service", "learner"])
def test_images_run_as_a_user_without_rights_and_end_at_sigterm(target):
    stage = STAGES[target]
    assert stage.last("USER") == "10001:10001"
    assert [name for name, _ in stage.steps].index("USER") > max(i for i, (name, _) in enumerate(stage.steps) if name == "RUN")
    assert stage.last("STOPSIGNAL") == "SIGTERM"
    assert words(stage.last("ENTRYPOINT"))  # in its exec form: a shell would keep the signal for itself
    runs = " ".join(rest for part in line_of(STAGES, target) for name, rest in part.steps if name == "RUN")
    assert "groupadd --gid 10001" in runs
    assert "useradd --uid 10001 --gid 10001" in runs


def test_images_are_built_by_the_pinned_versions():
    assert {stage.base for stage in STAGES.values()} - set(STAGES) == {"python:3.11-slim"}
    runs = [rest for stage in STAGES.values() for name, rest in stage.steps if name == "RUN"]
    installs = [rest for rest in runs if re.search(r"\bpip\b.* install ", rest)]
    assert len(installs) == 4
    assert all("install -c constraints.txt" in rest for rest in installs)
    assert all("--build-constraint constraints.txt" in rest for rest in installs if '".[' in rest)
    (torch,) = {word for rest in installs for word in re.findall(r"torch==\S+", rest)}
    assert torch in (ROOT / "constraints.txt").read_text().splitlines()


def test_the_service_image_has_no_torch_and_the_learner_image_no_server():
    def extras(stage: str) -> str:
        return re.findall(r'"\.\[(.*)\]"', " ".join(rest for _, rest in STAGES[stage].steps))[0]

    assert extras("build-service") == "server"
    assert extras("build-learner") == "torch,gym"
    assert "torch" not in " ".join(rest for part in line_of(STAGES, "build-service") for _, rest in part.steps)


def test_the_builder_is_shown_what_it_copies_and_no_more():
    copied = {
        word for stage in STAGES.values() for name, rest in stage.steps if name == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
    }  # fmt: skip
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignore[0] == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_images_and_files_name_one_version_and_no_registry():
    texts = {path.name: path.read_text() for path in TEXTS}
    tags = {tag for text in texts.values() for tag in re.findall(r"\breplaysvc(?:-learner)?:(\d+\.\d+\S*\w)", text)}
    (kustomization,) = KUBERNETES["kustomization.yaml"]
    assert tags | {image["newTag"] for image in kustomization["images"]} == {replaysvc.__version__}
    images = {about["image"] for about in SERVICES.values()} | {CONTAINER["image"]} | {stage.base for stage in STAGES.values()}
    assert [image for image in images if "." in image.partition("/")[0] and "/" in image] == []
    assert [name for name, text in texts.items() if re.search(r"index-url|find-links|https?://[^ )]*(simple|pypi)", text)] == []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.mark.parametrize("secured", [True, False], ids=["secured", "insecure"])
def test_the_images_commands_serve_and_tell_their_health(secured, credentials, tmp_path):
    """With the image's variables, entry point, health check and signal, in this Python instead of the image's."""
    port, admin_port = free_port(), free_port()
    moved = {
        "REPLAYSVC_DATA": tmp_path / "store", "REPLAYSVC_SNAPSHOT_DIR": tmp_path / "snapshots", "REPLAYSVC_PORT": port,
        "REPLAYSVC_ADMIN_PORT": admin_port,
    }  # fmt: skip
    protected = {
        name: value.replace("/run/secrets", str(credentials)) for name, value in SERVICES["replaysvc"]["environment"].items()
    }  # fmt: skip
    variables = in_image("service", (protected if secured else {"REPLAYSVC_INSECURE": "true"}) | moved)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("REPLAYSVC_")}
    env = plain | variables | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "http_proxy": "http://127.0.0.1:9"}
    program, *arguments = words(STAGES["service"].last("ENTRYPOINT"))
    assert program == "replaysvc"
    python, *check = words(STAGES["service"].last("HEALTHCHECK"))
    assert python == "python"

    def is_healthy() -> bool:
        return subprocess.run([sys.executable, *check], env=env, capture_output=True, timeout=60, check=False).returncode == 0

    assert not is_healthy()
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", program, *arguments], env=env, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on 0.0.0.0:{port}\n", (tmp_path / "log").read_text()
        assert is_healthy()
        tls = replay_client.Tls(root_certificates=(credentials / "ca.pem").read_bytes()) if secured else None
        token = (credentials / "ops.token").read_text().strip() if secured else None
        with replay_client.connect(f"localhost:{port}", token=token, tls=tls) as replay:
            assert replay.tables() == []
        process.send_signal(getattr(signal, str(STAGES["service"].last("STOPSIGNAL"))))
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


