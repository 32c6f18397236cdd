"""The processes of a run reach a service that has TLS and tokens, by the options that containers give them."""

import json
import signal
import subprocess
import sys

import pytest

import replay_client
from dqn.config import Config
from dqn.rundir import RunDirectory
from tests.processes import ServiceProcess
from tests.service.certificates import issue, make_ca, tls_of
from tests.waiting import wait_until


@pytest.fixture
def secured(tmp_path):
    """Gives a service, and the options that reach it as `role`."""
    ca = make_ca(tmp_path)
    certificate, key = issue(ca, "server", "DNS:localhost")
    tokens = tmp_path / "tokens.toml"
    secrets = {}
    for role in ("writer", "learner"):
        command = [sys.executable, "-m", "replaysvc", "token", role, "--role", role, "--file", str(tokens)]
        secrets[role] = tmp_path / f"{role}.token"
        secrets[role].write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    options = ("--tokens-file", str(tokens), "--tls-certificate", str(certificate), "--tls-key", str(key))
    with ServiceProcess(tmp_path / "store", *options) as service:

        def reach(role: str) -> list[str]:
            return ["--address", f"localhost:{service.port}", "--token-file", str(secrets[role]), "--tls-ca", str(ca)]

        def look() -> replay_client.Client:
            token = secrets["learner"].read_text().strip()
            return replay_client.connect(f"localhost:{service.port}", token=token, tls=tls_of(ca))

        yield reach, look


def start(module: str, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-m", module, *options], stderr=subprocess.PIPE, text=True)


def end(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=60)[1]


def test_learner_and_actor_show_their_tokens_and_a_run_that_is_there_goes_on(secured, tmp_path):
    reach, look = secured
    run = tmp_path / "run"
    actor = start("dqn.actor", *reach("writer"))
    learner = start("dqn.learner", *reach("learner"), "--begin-or-resume", str(run), "--seed", "7")
    try:
        with look() as replay:
            wait_until(lambda: "cartpole" in replay.tables() and replay.table("cartpole").stats().next_position > 0, 120)
        printed = end(learner)
        assert RunDirectory(run).config == Config(seed=7), printed

        learner = start("dqn.learner", *reach("learner"), "--begin-or-resume", str(run), "--seed", "8")
        with look() as replay:
            before = replay.get_params("policy").version
            wait_until(lambda: replay.get_params("policy").version > before or learner.poll() is not None, 120)
            assert json.loads(replay.get_params("config").data)["seed"] == 7
        assert "Traceback" not in end(learner) + end(actor)
    finally:
        for process in (actor, learner):
            process.kill()
            process.communicate()


def test_without_its_token_an_actor_ends_with_an_error(secured):
    reach, _ = secured
    address, _, tls = reach("writer")[:2], None, reach("writer")[4:]
    actor = start("dqn.actor", *address, *tls)
    _, printed = actor.communicate(timeout=60)
    assert actor.returncode == 1
    assert "UnauthenticatedError" in printed
