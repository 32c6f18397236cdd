"""A service process with tokens and TLS as SECURITY.md sets it up, and what its log holds; and what no source file may hold."""

import ast
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import replay_client
from replay_client import ClientConfig, PermissionDeniedError, ReplayError, UnauthenticatedError
from replaysvc.access import Role, append_token, new_token
from replaysvc.logs import OneLine
from tests.builders import SCALARS, write_episodes
from tests.processes import ServiceProcess, run_script
from tests.service.certificates import tls_of

ROOT = Path(__file__).parents[2]
SECURITY = (ROOT / "SECURITY.md").read_text()
CONFIG = ClientConfig(reconnect_timeout_s=5)
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+ ")  # how each line of the service's log begins


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", SECURITY, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory in which the console blocks of SECURITY.md were run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for script in blocks("console"):
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
    return tmp_path


def serve_options(script: str) -> list[str]:
    """Returns the options of the documented `replaysvc serve`, without its store; 0.0.0.0 and all."""
    words = script.split()
    assert words[:4] == ["replaysvc", "serve", "--data", "store"]
    return words[4:]


def test_security_document_works_as_it_says(folder):
    serve, look = blocks("sh")
    (script,) = blocks("python")
    files = [*folder.glob("*.key"), *folder.glob("*.token"), folder / "tokens.toml"]
    assert len(files) == 6
    assert [path for path in files if path.stat().st_mode & 0o077] == []
    with ServiceProcess(folder / "store", *serve_options(serve)) as service:
        address = f"localhost:{service.port}"
        assert script.count("localhost:7777") == look.count("localhost:7777") == 1
        script = (
            script.replace("localhost:7777", address) + "replay.put_params('p', b'1', version=0); print(replay.get_params('p'))"
        )
        assert run_script(script) == "Params(version=0, data=b'1')\n"
        look = look.replace("localhost:7777", address).split()
        done = subprocess.run(look, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert "table" in done.stdout
        tls = tls_of(Path("ca.pem"))
        with replay_client.connect(address, tls=tls, config=CONFIG) as nobody, pytest.raises(UnauthenticatedError):
            nobody.tables()
        for _ in range(3):
            with socket.create_connection(("localhost", service.port), 30) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert b"HTTP" not in stranger.recv(100)
        assert service.terminate() == 0
    log = service.log.read_text()
    assert "--insecure" not in log
    assert [line for line in log.splitlines() if not LINE.match(line)] == []


def test_client_certificate_of_the_document_works_as_it_says(folder):
    options = ["--tls-certificate", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem"]
    tls = tls_of(Path("ca.pem"), (Path("actor-2.pem"), Path("actor-2.key")))
    with ServiceProcess(folder / "store", "--host", "0.0.0.0", *options) as service:
        with replay_client.connect(f"localhost:{service.port}", tls=tls, config=CONFIG) as actor:
            write_episodes(actor.create_table("t", SCALARS), [3])
            with pytest.raises(PermissionDeniedError):
                actor.delete_table("t")
        shown = ["--tls-ca", "ca.pem", "--tls-certificate", "actor-2.pem", "--tls-key", "actor-2.key"]
        done = subprocess.run(
            ["replaysvc", "stats", f"localhost:{service.port}", "t", "--json", *shown],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert '"steps": 3' in done.stdout


def test_log_at_its_loudest_holds_no_token_and_forged_names_make_no_lines(tmp_path):
    secrets = []
    for role in Role:
        secret, lines = new_token(f"the-{role}", role)
        append_token(tmp_path / "tokens.toml", lines)
        secrets.append(secret)
    guess, told = "guess-" + secrets[1], []
    options = ["--tokens-file", str(tmp_path / "tokens.toml"), "--log-level", "debug"]
    with ServiceProcess(tmp_path / "store", *options) as service:
        for token in (guess, *secrets, None):  # the first refusal is the one that is logged
            with replay_client.connect(service.address, token=token, config=CONFIG) as client:
                calls = [
                    lambda c=client: write_episodes(c.create_table("t", SCALARS, exist_ok=True), [3]),
                    lambda c=client: c.table("t").sample(4),
                    lambda c=client: c.table("absent\n2026-01-01 00:00:00,000 INFO replaysvc.cli forged"),
                    lambda c=client: c.delete_table("x\r\nforged"),
                    lambda c=client: c.get_params("p\nforged"),
                    lambda c=client: c.snapshot("s"),
                ]
                for call in calls:
                    try:
                        call()
                    except ReplayError as error:
                        told.append(str(error))
        assert service.terminate() == 0
    log = service.log.read_text() + service.printed
    assert [secret for secret in secrets if secret in log + str(told)] == []
    assert "refused '/replaysvc.v1." in log
    assert "expected a token that this service knows" in str(told)
    assert [line for line in log.splitlines() if not LINE.match(line)] == []
    assert not any(line.startswith("2026-01-01 ") for line in log.splitlines())


def test_log_line_is_one_line():
    formatter = OneLine("%(levelname)s %(message)s")
    try:
        raise ValueError("first\n2026-01-01 INFO forged")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "", 0, "a %s", ("b\r\n\x1b[2J\u2028\u202ec ä",), sys.exc_info())
    first, *others = formatter.format(record).splitlines()
    assert first == r"ERROR a b\r\n\x1b[2J\u2028\u202ec ä"
    assert others
    assert all(line.startswith("  ") for line in others)


BANNED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "tarfile", "zipfile"}
BANNED_NAMES = {"eval", "exec", "compile", "__import__"}
BANNED_CALLS = {"extractall", "ParseDict", "system", "popen"}
BANNED_LOADS = {"torch.load", "np.load", "numpy.load", "np.fromfile"}  # whatever their arguments say


def unsafe(source: str) -> list[str]:
    """Returns what a source uses that makes code or objects of bytes, or shells of strings."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [name for name in names if name.partition(".")[0] in BANNED_MODULES]
        elif isinstance(node, ast.Name) and node.id in BANNED_NAMES:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and (node.attr in BANNED_CALLS or ast.unparse(node) in BANNED_LOADS):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "shell"):
            found.append(node.arg)
    return found


def test_no_source_makes_objects_of_bytes():
    sources = [path for top in ("replaysvc", "clients") for path in (ROOT / top).rglob("*.py")]
    assert len(sources) > 50
    assert {str(path): found for path in sources if (found := unsafe(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as p",
        "import yaml",
        "eval('1')",
        "exec(text)",
        "np.load(f)",
        "torch.load(f, weights_only=True)",
        "np.save(f, x, allow_pickle=True)",
        "subprocess.run(x, shell=True)",
        "os.system(x)",
        "json_format.ParseDict(x, m)",
    ],
)
def test_what_makes_objects_of_bytes_is_found(source):
    assert len(unsafe(source)) == 1
