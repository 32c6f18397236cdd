"""Builds the images of deploy/Dockerfile and runs deploy/compose.yaml where there is no Docker, by the same commands.

    python -m tests.deploy.rehearse DIRECTORY [--pip-conf FILE] [--minutes 5] [--only-service]

Needs root, a Linux with overlayfs, and packages to install. An image is this machine's root with an overlay for what the
Dockerfile's instructions write, and this Python at /usr/local, as in the base image. A container is a chroot into it, read-only
but for its volumes and /tmp, with its user, without capabilities; all are in one network namespace, where the names of services
are those of the loopback. Prometheus takes part if it is installed. Says what it checked; exit status 1 if anything was wrong.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import replay_client
from tests.deploy.dockerfile import ROOT, environment, line_of, stages, words
from tests.waiting import wait_until

STAGES = stages()
PROMETHEUS = "127.0.0.1:9090"
EMPTY = {
    "Samples per insert", "Age of the newest snapshot", "Priorities that are ignored", "Largest priority", "Hindsight goals",
}  # fmt: skip
"""Panels with nothing to show of this run, or of a part: it has no limit, snapshot, priorities or goals."""
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
PREFIX = Path(sys.base_prefix)


def mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def overlay(lower: Path, folder: Path, at: Path) -> None:
    """Mounts `lower` at `at`; what is written goes to a directory in `folder`."""
    for name in ("upper", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    at.mkdir(parents=True, exist_ok=True)
    mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work", at)


class Image:
    """What a stage of the Dockerfile makes, in a directory; mounted while this process lives."""

    def __init__(self, folder: Path, stage: str, instance: str = "") -> None:
        self.folder, self.stage = folder / stage, stage
        self.root = folder / f"{stage}{instance}-root"
        self.env = {"PATH": PATH, "LD_LIBRARY_PATH": "/usr/local/lib"}  # where a Python that shares its library has it
        for name, value in environment(STAGES, stage).items():
            self.env[name] = value.replace("$PATH", self.env["PATH"])
        overlay(Path("/"), self.folder / "files", self.root)
        overlay(PREFIX, self.folder / "python", self.root / "usr/local")
        mount("-t", "proc", "proc", self.root / "proc")
        mount("--bind", "/dev", self.root / "dev")

    def build(self, pip_conf: Path | None, built: dict[str, "Image"]) -> None:
        """Follows the instructions of the stage, which begins with what its base left."""
        here = "/"
        for part in line_of(STAGES, self.stage):
            for name, rest in part.steps:
                if name == "WORKDIR":
                    here = rest
                    (self.root / here.lstrip("/")).mkdir(parents=True, exist_ok=True)
                elif part.name != self.stage:
                    continue  # done before this stage was copied from its base
                elif name == "COPY":
                    self._copy(here, shlex.split(rest), built)
                elif name == "RUN":
                    self._run(here, rest, pip_conf)

    def _copy(self, here: str, parts: list[str], built: dict[str, "Image"]) -> None:
        source = ROOT
        if parts[0].startswith("--from="):
            source = built[parts.pop(0).partition("=")[2]].root
        *names, target = parts
        into = self.root / os.path.join(here, target).lstrip("/")
        for name in names:
            found = source / name.lstrip("/")
            at = into / found.name if target.endswith("/") else into
            at.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(
                    found, at, symlinks=True, ignore=shutil.ignore_patterns("__pycache__") if source == ROOT else None
                )
            else:
                shutil.copy2(found, at)

    def _run(self, here: str, rest: str, pip_conf: Path | None) -> None:
        command = re.sub(r"--mount=\S+\s+", "", rest)
        print(f"{self.stage}: {' '.join(command.split())}", flush=True)
        if pip_conf is not None:
            (self.root / "etc/pip.conf").touch()
            mount("--bind", pip_conf, self.root / "etc/pip.conf")
        script = f"cd {here} && {command}"
        subprocess.run(["/usr/sbin/chroot", self.root, "sh", "-ec", script], env=self.env | {"HOME": "/root"}, check=True)
        if pip_conf is not None:
            subprocess.run(["umount", self.root / "etc/pip.conf"], check=True)


def build(folder: Path, names: list[str], pip_conf: Path | None) -> None:
    """Builds stages and what they are made from, each once."""
    built: dict[str, Image] = {}

    def need(name: str) -> None:
        if name in built:
            return
        stage = STAGES[name]
        from_stages = [stage.base, *re.findall(r"--from=(\S+)", " ".join(rest for _, rest in stage.steps))]
        for other in from_stages:
            if other in STAGES:
                need(other)
        if (folder / name).exists():
            raise FileExistsError(f"{folder / name}: expected a directory without earlier builds")
        if stage.base in STAGES:
            subprocess.run(["cp", "-a", folder / stage.base, folder / name], check=True)
            for work in (folder / name).glob("*/work"):
                shutil.rmtree(work)
        image = Image(folder, name)
        image.build(pip_conf, built)
        built[name] = image

    for name in names:
        need(name)
    for name in names:
        files = folder / name / "files/upper/opt/replaysvc"
        size = sum(file.lstat().st_size for file in files.rglob("*")) / 2**20
        packages = sorted(path.name.partition("-")[0] for path in files.glob("lib/python*/site-packages/*.dist-info"))
        print(f"{name}: {size:,.0f} MiB in /opt/replaysvc: {', '.join(packages)}", flush=True)


class Container:
    """A service of compose.yaml in its image, read-only."""

    def __init__(self, folder: Path, service: str) -> None:
        about = COMPOSE["services"][service]
        self.service, self.about = service, about
        self.stage = about["build"]["target"]
        self.image = Image(folder, self.stage, f"-{service}")
        root = self.image.root
        assert about["read_only"] is True
        assert about["cap_drop"] == ["ALL"]
        targets = [volume.split(":")[1] for volume in about.get("volumes", [])]
        for target in targets:
            volume = folder / "volumes" / service
            if not volume.exists():  # as Docker does: what the image has there, with its owner
                subprocess.run(["cp", "-a", root / target.lstrip("/"), volume], check=True)
            mount("--bind", volume, root / target.lstrip("/"))
        (root / "run/secrets").mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "tmpfs", root / "run")
        (root / "run/secrets").mkdir()
        for name in about["secrets"]:
            (root / "run/secrets" / name).touch()
            mount("--bind", "-o", "ro", ROOT / "deploy" / COMPOSE["secrets"][name]["file"], root / "run/secrets" / name)
        (root / "etc/hosts").write_text("127.0.0.1 localhost replaysvc\n")
        mount("-o", "remount,ro", root)
        mount("-o", "remount,ro", root / "usr/local")
        mount("-o", "remount,ro", root / "run")
        for target in about["tmpfs"]:
            mount("-t", "tmpfs", "tmpfs", root / target.lstrip("/"))
        user = STAGES[self.stage].last("USER")
        assert user is not None
        uid, gid = user.split(":")
        rights = f"--reuid {uid} --regid {gid} --clear-groups --no-new-privs --bounding-set -all --inh-caps -all --"
        self.prefix = ["/usr/sbin/chroot", str(root), "setpriv", *rights.split()]
        self.env = self.image.env | {name: str(value) for name, value in about.get("environment", {}).items()}
        self.log = folder / f"{service}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts what the container would run."""
        command = [*words(STAGES[self.stage].last("ENTRYPOINT")), *self.about.get("command", [])]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*self.prefix, *command], env=self.env, stdout=log, stderr=log)

    def run(self, *command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Runs a command in the container."""
        return subprocess.run([*self.prefix, *command], env=self.env, capture_output=True, text=True, timeout=60, **options)

    def is_healthy(self) -> bool:
        """Returns whether the image's health check passes."""
        check = self.run(*words(STAGES[self.stage].last("HEALTHCHECK")))
        return check.returncode == 0

    def stop(self) -> tuple[int, float]:
        """Ends it as `docker stop` does; returns its exit status, and how many seconds that took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(getattr(signal, str(STAGES[self.stage].last("STOPSIGNAL"))))
        return self.process.wait(60), time.monotonic() - began


class Checks:
    """What was looked at, and whether all of it was as it should be."""

    def __init__(self) -> None:
        self.wrong = 0

    def __call__(self, what: str, fine: bool, found: object = "") -> None:
        self.wrong += not fine
        print(f"{'ok   ' if fine else 'WRONG'} {what}{f': {found}' if found != '' else ''}", flush=True)


def seconds_until(condition: Callable[[], object], timeout_s: float) -> float | None:
    """Returns after how many seconds a condition held, None if it did not come true in time."""
    began = time.monotonic()
    try:
        wait_until(condition, timeout_s)
    except AssertionError:
        return None
    return time.monotonic() - began


def run(folder: Path, minutes: float) -> int:
    """Runs the services of compose.yaml that have an image; returns how many checks failed."""
    check = Checks()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    (folder / "volumes").mkdir(exist_ok=True)
    service = Container(folder, "replaysvc")
    unprotected = subprocess.run(
        [*service.prefix, "replaysvc", "serve"], env=service.image.env, capture_output=True, text=True, timeout=60, check=False
    )
    check("without a certificate it refuses to start", unprotected.returncode == 2, unprotected.stderr.strip())
    check("it is not healthy while it does not run", not service.is_healthy())
    service.start()
    try:
        took = seconds_until(lambda: b"listening on" in service.log.read_bytes(), 60)
        check("it listens", took is not None, f"after {took:.1f} s" if took is not None else service.log.read_text())
        check("its health check passes", seconds_until(service.is_healthy, 15) is not None)
        status = Path(f"/proc/{service.process.pid}/status").read_text() if service.process else ""
        shown = dict(
            line.split(":\t") for line in status.splitlines() if line.startswith(("Uid", "CapEff", "CapBnd", "NoNewPrivs"))
        )
        check("its user is 10001, it has no capabilities and gets none", shown == {
            "Uid": "10001\t10001\t10001\t10001", "CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1",
        }, shown)  # fmt: skip
        for place in ("/opt/replaysvc/x", "/usr/local/x", "/etc/x", "/x"):
            check(f"{place} cannot be written", service.run("touch", place).returncode != 0)
        watching = start_prometheus(folder)
        if (folder / "learner").exists():
            learn(folder, minutes, check)
        if watching is not None:
            look_at_metrics(check)
            watching.terminate()
        stop_and_start_again(service, check)
    finally:
        if service.process is not None and service.process.poll() is None:
            service.process.kill()
    return check.wrong


def learn(folder: Path, minutes: float, check: Checks) -> None:
    """Runs learner, evaluator and actors until they end by themselves."""
    others = [
        Container(folder, name)
        for name, about in COMPOSE["services"].items()
        if about.get("build", {}).get("target") == "learner"
    ]
    for other in others:
        other.start()
    began = time.monotonic()
    for other in others:
        assert other.process is not None
        try:
            status: int | None = other.process.wait(max(60 * minutes - (time.monotonic() - began), 1))
        except subprocess.TimeoutExpired:
            status = None
            other.stop()
        last = other.log.read_text().splitlines()[-1:]
        check(
            f"{other.service} ends by itself, with status 0",
            status == 0,
            f"{status} after {time.monotonic() - began:.0f} s; {last}",
        )


def stop_and_start_again(service: Container, check: Checks) -> None:
    """Ends the service as `docker stop` does, and looks whether it has afterwards what it had."""
    secrets = ROOT / "deploy/secrets"
    tls = replay_client.Tls(root_certificates=(secrets / "ca.pem").read_bytes())

    def steps() -> dict[str, int]:
        with replay_client.connect("replaysvc:7777", token=(secrets / "ops.token").read_text().strip(), tls=tls) as replay:
            return {name: replay.table(name).stats().next_position for name in replay.tables()}

    before = steps()
    status, seconds = service.stop()
    grace = float(COMPOSE["services"]["replaysvc"]["stop_grace_period"].removesuffix("s"))
    check("SIGTERM ends it with status 0", status == 0 and seconds < grace, f"{status} after {seconds:.1f} of {grace:g} s")
    service.log.rename(service.log.with_suffix(".first.log"))
    service.start()
    seconds_until(lambda: b"listening on" in service.log.read_bytes(), 60)
    after = steps()
    check("after a start it has what it had", after == before, after)
    check("and ends again", service.stop()[0] == 0)


def start_prometheus(folder: Path) -> "subprocess.Popen[bytes] | None":
    """Starts this machine's Prometheus as compose.yaml does, if there is one."""
    if shutil.which("prometheus") is None:
        print("no prometheus on this machine: metrics are not looked at", flush=True)
        return None
    mount("-t", "tmpfs", "tmpfs", "/run")
    for name in COMPOSE["services"]["prometheus"]["secrets"]:
        at = Path("/run/secrets") / name
        at.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "deploy" / COMPOSE["secrets"][name]["file"], at)
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost replaysvc\n")
    mount("--bind", hosts, "/etc/hosts")
    config = ROOT / "deploy/prometheus/scrape.yml"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/prometheus"]
    with (folder / "prometheus.log").open("wb") as log:
        return subprocess.Popen([*command, f"--web.listen-address={PROMETHEUS}"], stdout=log, stderr=log)


def look_at_metrics(check: Checks) -> None:
    """Looks whether Prometheus has the service's metrics, and what the alerts and the dashboard make of them."""

    def ask(path: str, **query: str) -> Any:
        with urllib.request.urlopen(
            f"http://{PROMETHEUS}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30
        ) as answer:
            return json.load(answer)["data"]

    def value(expression: str) -> list[Any]:
        return list(ask("query", query=expression)["result"])

    came = seconds_until(lambda: [each["value"][1] for each in value('up{job="replaysvc"}')] == ["1"], 60)
    errors = [target["lastError"] for target in ask("targets")["activeTargets"]]
    check("Prometheus reads the metrics", came is not None, errors)
    seconds_until(lambda: not value("count_over_time(up[5m]) < 3"), 90)
    empty = [title for title, expression in dashboard_queries() if not value(expression)]
    check("the panels of the dashboard have data", set(empty) <= EMPTY, f"empty: {', '.join(empty)}")
    firing = [alert["labels"]["alertname"] for alert in ask("alerts")["alerts"]]
    check("no alert is on", not firing, firing)


def dashboard_queries() -> list[tuple[str, str]]:
    """Returns the expressions of the dashboard with the titles of their panels, for all tables and the last five minutes."""
    dashboard = json.loads((ROOT / "deploy/grafana/replaysvc.json").read_text())
    values = {"$__rate_interval": "1m", "$__range": "5m", "$instance": ".*", "$table": ".*"}
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]
    for name, text in values.items():
        found = [(title, expression.replace(name, text)) for title, expression in found]
    return found


def main() -> int:
    """Builds, then runs, each in namespaces of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "directory", type=Path, help="to work in; images that it has from an earlier call are taken as they are"
    )
    parser.add_argument("--pip-conf", type=Path, help="pip's configuration, as the build secret pip.conf")
    parser.add_argument("--minutes", type=float, default=5.0, help="most that the run may learn")
    parser.add_argument("--only-service", action="store_true", help="without the image `learner`, which has torch")
    parser.add_argument("--within", choices=["build", "run"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.directory.resolve()
    names = ["service"] if options.only_service else ["service", "learner"]
    if options.within == "build":
        build(folder, names, options.pip_conf)
        return 0
    if options.within == "run":
        return min(run(folder, options.minutes), 1)
    folder.mkdir(parents=True, exist_ok=True)
    again = [sys.executable, "-m", "tests.deploy.rehearse", *sys.argv[1:], "--within"]
    if not all((folder / name).exists() for name in names):
        subprocess.run(["unshare", "-m", "--propagation", "private", *again, "build"], check=True)
    return subprocess.run(["unshare", "-m", "-n", "--propagation", "private", *again, "run"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
