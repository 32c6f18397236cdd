"""The demo's processes: they learn, go on with an earlier run, say why one failed, and never outlive the demo."""

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from rich.console import Console

import replaysvc
from dqn.config import Config
from dqn.processes import Children, Service
from dqn.rundir import Evaluation, Metrics, RunDirectory
from replaysvc.demo import run_demo
from replaysvc.errors import InvalidRequestError

RUN = (
    "import sys; from pathlib import Path; from replaysvc.demo import run_demo; sys.exit(run_demo(directory=Path(sys.argv[1])))"
)


def processes_of(directory):
    """Returns the running processes that were started for a run directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(directory) in word for word in process.info["cmdline"] or ()) and process.pid != os.getpid():
            found.append(process)
    return found


def printed(console):
    return console.file.getvalue()


def plain():
    return Console(file=io.StringIO(), width=200, highlight=False)


def test_demo_out_of_time_is_resumed_and_solves_cartpole(tmp_path):
    path = tmp_path / "run"
    terminal = Console(file=io.StringIO(), width=200, force_terminal=True)
    limit_s = 5.5  # in which processes start and a few thousand steps are made: a fast machine has solved it after eight
    assert run_demo(directory=path, seed=1, time_limit_s=limit_s, console=terminal) == 1
    assert "out of time" in printed(terminal)
    assert processes_of(path) == []

    console = plain()
    assert run_demo(directory=path, resume=True, console=console) == 0, printed(console)
    assert processes_of(path) == []
    assert "service at 127.0.0.1:" in printed(console)
    ending = printed(console)[printed(console).index("evaluation return") :]
    for words in ("steps/s", "samples/s", "bytes on disk per step", "compression ratio", "wall time", str(path)):
        assert words in ending
    looking = shlex.split(ending.splitlines()[-1])
    assert looking[1:] == ["serve", "--data", str(path / "replay"), "--port", "0", "--admin-port", "8080"]
    assert shutil.which(looking[0])
    with Metrics(RunDirectory(path)) as metrics:
        (last,) = metrics.last(Evaluation, 1)
    assert last["mean_return"] >= 475
    assert last["episodes"] == 20
    with replaysvc.open(path / "replay") as replay:
        assert replay.get_params("best").data == (path / "best.safetensors").read_bytes()
        assert {record.actor for record in replay.table("cartpole").episodes(limit=50)} == {"actor-0", "actor-1"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_no_process_outlives_the_demo(tmp_path, number):
    path = tmp_path / "run"
    demo = subprocess.Popen([sys.executable, "-u", "-c", RUN, str(path)], stdout=subprocess.PIPE, text=True)
    with demo:
        for line in demo.stdout:
            if line.startswith("steps "):  # printed once all processes are started
                break
        others = [process for process in processes_of(path) if process.pid != demo.pid]
        demo.send_signal(number)
        rest = demo.stdout.read()
    assert len(others) == 5
    assert demo.returncode == (-9 if number == signal.SIGKILL else 1)
    assert ("is kept" in rest) == (number != signal.SIGKILL)
    _, alive = psutil.wait_procs(others, timeout=60)
    assert alive == []


def test_service_that_cannot_start_is_shown_with_its_last_words(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "replay").write_text("not a store")
    console = plain()
    assert run_demo(directory=path, console=console) == 1
    assert "service ended with status 3" in printed(console)
    assert str(path / "replay") in printed(console)


def test_options_of_the_command_are_those_of_the_run(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "replay").write_text("not a store")  # so that it ends at once
    command = [sys.executable, "-m", "replaysvc", "demo", "--dir", str(path)]
    options = ["--seed", "4", "--sampler", "prioritized", "--n-step", "5"]
    assert subprocess.run([*command, *options], capture_output=True).returncode == 1
    assert RunDirectory(path).config == Config(seed=4, sampler="prioritized", n_step=5)
    refused = subprocess.run([*command, "--sampler", "newest"], capture_output=True, text=True)
    assert (refused.returncode, "newest" in refused.stderr) == (2, True)


def test_process_that_fails_is_found_with_the_end_of_its_log(tmp_path):
    with Children(tmp_path) as children:
        service = children.start("service", "http.server", "0", "--bind", "127.0.0.1")
        child = children.start("actor-0", "no_such_module")
        child.process.wait(30)
        assert children.failed() is child
        assert "no_such_module" in child.last_lines()
        assert service.process.poll() is None
    assert service.process.poll() == -signal.SIGTERM


def test_service_that_ends_is_a_failure_whatever_its_status(tmp_path):
    with Children(tmp_path) as children:
        service = children.start("service", "platform")
        assert service.process.wait(30) == 0
        assert children.failed() is service


def test_service_that_is_killed_comes_back_on_its_port(tmp_path, make_run):
    with Children(tmp_path) as children:
        service = Service(children, make_run())
        assert service.await_listening()
        address, kills = service.address, 2
        for _ in range(kills):
            service.kill()
            assert not service.gone
            assert service.await_listening()
            assert children.failed() is None
        assert (service.address, service.kills, len(service.outages_s)) == (address, kills, kills)
        assert list(children.complaints()) == []


def test_service_that_does_not_come_back_is_a_failure(tmp_path, make_run):
    run = make_run()
    with Children(tmp_path) as children:
        service = Service(children, run)
        assert service.await_listening()
        for name in ("FORMAT", "FORMAT.bak"):
            (run.path / "replay" / name).write_text("no format")
        service.kill()
        assert not service.await_listening()
        assert service.gone
        failed = children.failed()
        assert failed is not None
        assert (failed.name, failed.process.poll()) == ("service", 3)


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "2026-01-02 03:04:05,678 ERROR replay_client.sender: table t: chunks are refused",
        "2026-01-02 03:04:05,678 CRITICAL dqn.actor: no",
        "E0102 03:04:05.678901 12345 chttp2_transport.cc:123] trouble",
    ],
)
def test_errors_in_logs_are_found(tmp_path, line):
    with Children(tmp_path) as children:
        child = children.start("actor-0", "platform")
        assert child.process.wait(30) == 0
        assert list(children.complaints()) == []
        with child.log.open("a") as log:
            log.write(f"2026-01-02 03:04:05,678 INFO dqn.actor: took 7 steps\n{line}\n")
        assert list(children.complaints()) == [f"{child.log}: {line}"]


def test_run_directory_with_a_run_is_refused_unless_resumed(tmp_path, make_run):
    run = make_run()
    console = plain()
    with pytest.raises(InvalidRequestError, match=r"option --dir: .*resume"):
        run_demo(directory=run.path, console=console)
    with pytest.raises(InvalidRequestError, match="option --dir: expected a run to go on with"):
        run_demo(directory=tmp_path / "none", resume=True, console=console)
