"""`replaysvc serve --admin-port`: its second line, its end, and every way in which it refuses to start."""

import contextlib
import http.client
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading

import pytest

import replay_client
from replaysvc.access import Role, append_token, new_token
from tests.builders import SCALARS, write_episodes
from tests.processes import ServiceProcess, run_script
from tests.service.certificates import issue, make_ca
from tests.waiting import wait_until

ADMIN = ("--admin-port", "0")


class Dashboard:
    """A service in a process of its own, and its dashboard."""

    def __init__(self, process):
        found = re.fullmatch(r"(https?)://127\.0\.0\.1:(\d+)/", process.dashboard)
        self.scheme, self.port = found[1], int(found[2])

    def get(self, path, *, context=None, **headers):
        kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
        connection = kind("127.0.0.1", self.port, timeout=30, **({"context": context} if context else {}))
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def test_dashboard_is_told_after_the_address_and_ends_with_the_service(tmp_path):
    with ServiceProcess(tmp_path / "store", *ADMIN) as service:
        dashboard = Dashboard(service)
        assert dashboard.get("/livez") == (200, b'{"status":"ok"}')
        assert dashboard.get("/readyz")[0] == 200
        assert dashboard.get("/")[0] == 200
        status, metrics = dashboard.get("/metrics")
        assert (status, b"replaysvc_build_info" in metrics) == (200, True)
        with replay_client.connect(service.address) as client:
            write_episodes(client.create_table("t", SCALARS), [3])
            status, told = dashboard.get("/api/v1/overview")
            assert (status, b'"steps":3' in told, b'"method":"Append"' in told) == (200, True, True)
        idle = socket.create_connection(("127.0.0.1", dashboard.port))
        with idle:
            assert (service.terminate(), service.printed) == (0, "")
    log = (tmp_path / "store.log").read_text()
    assert f"dashboard on http://127.0.0.1:{dashboard.port}/" in log
    assert "Traceback" not in log
    assert " ERROR " not in log


def test_log_and_configuration_are_told(tmp_path):
    with ServiceProcess(tmp_path / "store", *ADMIN, "--log-format", "json") as service:
        dashboard = Dashboard(service)
        assert b"serving" in dashboard.get("/api/v1/log")[1]
        assert b'{"name":"log_format","value":"json","secret":false}' in dashboard.get("/api/v1/configuration")[1]
    assert (tmp_path / "store.log").read_text().startswith('{"time": "')


def test_without_the_setting_nothing_of_it_is_loaded():
    loaded = run_script(
        "import sys, replaysvc.plan\nprint([name for name in ('fastapi', 'uvicorn', 'starlette', 'prometheus_client', 'h11')"
        " if name in sys.modules])"
    )
    assert loaded == "[]\n"


def test_busy_port_is_refused_and_no_store_made(tmp_path, refused):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, sentence = refused("serve", "--data", "store", "--port", "0", "--admin-port", port)
    assert (status, sentence) == (4, f"address 127.0.0.1:{port}: cannot be bound: Address already in use")
    assert list(tmp_path.iterdir()) == []


def test_address_of_another_machine_is_refused_and_no_store_made(tmp_path, refused):
    status, sentence = refused(
        "serve", "--data", "store", "--port", "0", *ADMIN, "--admin-host", "192.0.2.1", "--insecure"
    )  # fmt: skip
    assert status == 4
    assert sentence.startswith("address 192.0.2.1:0: cannot be bound: ")
    assert list(tmp_path.iterdir()) == []


def test_address_that_others_reach_is_refused_unprotected(tmp_path, refused):
    status, sentence = refused("serve", "--data", "store", "--port", "0", *ADMIN, "--admin-host", "0.0.0.0")
    assert status == 2
    assert sentence.startswith(
        "setting admin_host: expected an address of this machine alone, found 0.0.0.0, where nobody is asked who they are, in "
        "plain text; for others, give tls_certificate and tls_key, with tokens_file"
    )
    assert list(tmp_path.iterdir()) == []


def test_insecure_opens_an_address_with_a_warning_for_each_door(tmp_path):
    options = (*ADMIN, "--admin-host", "0.0.0.0", "--host", "0.0.0.0", "--insecure", "--log-level", "error")
    with ServiceProcess(tmp_path / "store", *options) as service:
        service.terminate()
    lines = (tmp_path / "store.log").read_text().splitlines()
    assert len(lines) == 2
    assert all(
        "is open to whoever reaches it: nobody is asked who they are, in plain text (--insecure)" in line for line in lines
    )
    assert "http://0.0.0.0:" in lines[1]


def test_client_certificates_alone_are_refused_with_it(tmp_path, refused):
    """A browser shows none, so the dashboard would be a way around them."""
    issue(make_ca(tmp_path), "server", "DNS:localhost")
    tls = ("--tls-certificate", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem")
    status, sentence = refused("serve", "--data", "store", "--port", "0", *ADMIN, *tls)
    assert status == 2
    assert sentence.startswith("setting admin_port: expected tokens_file with it")
    assert not (tmp_path / "store").exists()


def test_same_port_for_both_doors_is_refused(tmp_path, refused):
    status, sentence = refused("serve", "--data", "store", "--port", "7123", "--admin-port", "7123")
    assert status == 2
    assert sentence == "setting admin_port: expected another port than that of gRPC, found the same"
    assert list(tmp_path.iterdir()) == []


def test_tokens_and_tls_hold_for_the_dashboard_too_and_a_new_certificate_is_used(tmp_path):
    issue(make_ca(tmp_path), "server", "DNS:localhost", "IP:127.0.0.1")
    secret, lines = new_token("v", Role.VIEWER)
    append_token(tmp_path / "tokens.toml", lines)
    options = ("--tls-certificate", "server.pem", "--tls-key", "server.key", "--tokens-file", "tokens.toml")
    paths = [str(tmp_path / option) if "." in option else option for option in options]
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with ServiceProcess(tmp_path / "store", *ADMIN, *paths) as service:
        dashboard = Dashboard(service)
        assert dashboard.scheme == "https"
        assert dashboard.get("/livez", context=trusting)[0] == 200
        assert dashboard.get("/api/v1/overview", context=trusting)[0] == 401
        assert dashboard.get("/api/v1/overview", context=trusting, Authorization=f"Bearer {secret}")[0] == 200
        assert dashboard.get("/api/v1/log", context=trusting, Authorization=f"Bearer {secret}")[0] == 403
        with pytest.raises(OSError):
            dashboard.get("/livez")  # in plain text

        def number():
            with socket.create_connection(("127.0.0.1", dashboard.port)) as plain, trusting.wrap_socket(
                plain, server_hostname="localhost"
            ) as connection:  # fmt: skip
                return connection.getpeercert()["serialNumber"]

        before = number()
        (tmp_path / "server.key").write_text("half of an exchange")
        issue(tmp_path / "ca.pem", "server", "DNS:localhost", "IP:127.0.0.1")
        wait_until(lambda: number() != before)
        assert service.terminate() == 0


STUCK = """
import sys, threading
from replaysvc.admin import tables
from replaysvc.plan import app

def look(*_):
    print("looking", flush=True)
    threading.Event().wait()

tables.table_of = look
app(["serve", "--data", sys.argv[1], "--port", "0", "--admin-port", "0"])
"""


def test_signal_ends_the_service_under_a_look_that_never_ends(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(tmp_path / "store")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    try:
        assert process.stdout.readline().startswith("listening on ")
        port = int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asking = threading.Thread(target=lambda: _ask(connection), daemon=True)
        asking.start()
        assert process.stdout.readline() == "looking\n"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log
    assert "GET /api/v1/tables/t was under way at the end, and is left behind" in log
    assert "Traceback" not in log


def _ask(connection):
    try:
        connection.request("GET", "/api/v1/tables/t")
        connection.getresponse()
    except (OSError, http.client.HTTPException):  # cut off
        pass


def test_readiness_ends_before_calls_under_way_do(tmp_path):
    """While the service drains, its dashboard says so."""
    with (
        ServiceProcess(tmp_path / "store", *ADMIN) as service,
        replay_client.connect(service.address) as client,
    ):
        dashboard = Dashboard(service)
        waiting = threading.Thread(target=lambda: _sample(client.create_table("t", SCALARS)), daemon=True)
        waiting.start()
        wait_until(lambda: b'"waiting":{"insert":0,"sample":1}' in dashboard.get("/api/v1/tables")[1])
        service.signal(signal.SIGTERM)
        wait_until(lambda: dashboard.get("/readyz")[0] == 503)
        assert dashboard.get("/livez")[0] == 200
        assert b'"status":"draining"' in dashboard.get("/api/v1/overview")[1]
        assert service.wait() == 0


def _sample(table):
    with contextlib.suppress(replay_client.UnavailableError):
        table.sample(1, timeout_s=60)
