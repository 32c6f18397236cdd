"""What deploy/ says holds: settings, ports, users, limits and files are real and agree, whatever runs the service."""

import argparse
import importlib
import json
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

import replay_client
from replaysvc.access import Access, Role
from replaysvc.rpc.limits import most_memory
from replaysvc.settings import Settings
from tests.deploy.dockerfile import words
from tests.deploy.files import (
    COMPOSE,
    CONTAINER,
    DEPLOY,
    GRACES,
    KUBERNETES,
    LIMITS,
    OURS,
    PLACES,
    POD,
    SERVICES,
    STAGES,
    STATEFUL_SET,
    TEXTS,
    UNIT,
    in_image,
    settings_of,
    size,
)  # fmt: skip

CONNECTIONS = 1024  # the most that a server takes, where it may open as many files


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_setting_that_is_named_exists(path):
    named = set(re.findall(r"\bREPLAYSVC_([A-Z_]+[A-Z])\b", path.read_text()))
    assert {name.lower() for name in named} <= set(Settings.model_fields)


@pytest.mark.parametrize("place", PLACES)
def test_settings_are_accepted_and_leave_no_door_open(place, monkeypatch):
    settings = settings_of(PLACES[place], monkeypatch)
    settings.check_exposure()
    assert settings.insecure is False
    assert settings.tokens_file is not None
    assert settings.tls_key is not None
    assert (settings.port, settings.admin_port) == (7777, 7780)


def test_the_image_alone_refuses_to_serve_everybody(monkeypatch):
    with pytest.raises(replay_client.InvalidRequestError, match="nobody is asked who they are"):
        settings_of(in_image("service", {}), monkeypatch).check_exposure()


@pytest.mark.parametrize("place", PLACES)
def test_the_memory_limit_has_room_for_all_that_the_settings_allow(place, monkeypatch):
    settings = settings_of(PLACES[place], monkeypatch)
    most = most_memory(settings.store(), settings.limits(), CONNECTIONS, admin=True).total
    assert size(LIMITS[place]) / 2 < most < size(LIMITS[place]) * 0.9
    if place != "systemd":
        assert (
            f"At most {-(-most >> 20)} MiB"
            in (DEPLOY / {"kubernetes": "kubernetes/statefulset.yaml"}.get(place, "compose.yaml")).read_text()
        )


@pytest.mark.parametrize("place", PLACES)
def test_it_is_killed_only_after_its_own_time_to_end(place, monkeypatch):
    assert int(str(GRACES[place]).removesuffix("s")) >= settings_of(PLACES[place], monkeypatch).grace_s + 30


def test_snapshots_are_on_the_volume_of_the_store():
    for place, volume in (("compose", "/data"), ("kubernetes", "/data"), ("systemd", "/var/lib/replaysvc")):
        paths = [PLACES[place][f"REPLAYSVC_{name}"] for name in ("DATA", "SNAPSHOT_DIR")]
        assert [str(Path(path).parent) for path in paths] == [volume, volume]
    assert SERVICES["replaysvc"]["volumes"] == ["store:/data"]
    assert {"name": "data", "mountPath": "/data"} in CONTAINER["volumeMounts"]
    assert UNIT["Service"]["StateDirectory"] == "replaysvc"
    assert STAGES["service"].last("VOLUME") == "/data"


# Credentials


def test_credentials_are_what_service_and_callers_need(credentials):
    access = Access(credentials / "tokens.toml")
    roles = {
        path.stem: access.identify(path.read_text().strip()).role for path in credentials.glob("*.token")
    }  # fmt: skip
    assert roles == {
        "actor-0": Role.WRITER, "actor-1": Role.WRITER, "learner": Role.LEARNER, "evaluator": Role.LEARNER,
        "prometheus": Role.VIEWER, "ops": Role.ADMIN,
    }  # fmt: skip
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o700
    assert {path.name for path in credentials.iterdir() if not path.stat().st_mode & stat.S_IROTH} == {"ca.key", "ops.token"}
    assert all(not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) for path in credentials.iterdir())
    text = subprocess.run(
        ["openssl", "x509", "-in", credentials / "server.pem", "-noout", "-ext", "subjectAltName"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert set(re.findall(r"(?:DNS|IP Address):([\w.]+)", text)) == {"localhost", "127.0.0.1", "replaysvc"}


def test_credentials_are_never_written_over(tmp_path):
    done = subprocess.run(["sh", DEPLOY / "credentials.sh", tmp_path, "replaysvc"], capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])


# Compose


@pytest.mark.parametrize("name", SERVICES)
def test_compose_confines_every_container(name):
    about = SERVICES[name]
    assert about["read_only"] is True
    assert about["cap_drop"] == ["ALL"]
    assert "cap_add" not in about
    assert about["security_opt"] == ["no-new-privileges:true"]
    assert about["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in about.get("ports", []))
    assert name in OURS or not about["user"].startswith(("0", "root"))
    waits = {other: how["condition"] for other, how in about.get("depends_on", {}).items()}
    assert set(waits.values()) <= {"service_healthy"}
    assert all("healthcheck" in SERVICES[other] or other == "replaysvc" for other in waits)


def test_compose_gives_each_container_what_it_names_and_nothing_else(credentials):
    for name, about in SERVICES.items():
        named = set(re.findall(r"/run/secrets/([\w.-]+)", json.dumps([about.get("command"), about.get("environment")])))
        if name == "prometheus":
            named = set(re.findall(r"/run/secrets/([\w.-]+)", (DEPLOY / "prometheus/scrape.yml").read_text()))
        assert named == set(about.get("secrets", [])), name
    assert {about["file"] for about in COMPOSE["secrets"].values()} == {f"./secrets/{name}" for name in COMPOSE["secrets"]}
    assert all((credentials / name).is_file() for name in COMPOSE["secrets"])
    used = {volume.split(":")[0] for about in SERVICES.values() for volume in about.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == set(COMPOSE["volumes"])
    assert all((DEPLOY / name).is_file() for name in used if name.startswith("."))


@pytest.mark.parametrize("name", [name for name in OURS if name != "replaysvc"])
def test_compose_runs_the_reference_agent_by_commands_that_exist(name, monkeypatch):
    assert words(STAGES["learner"].last("ENTRYPOINT")) == ["python", "-m"]
    module, *arguments = OURS[name]["command"]
    seen: list[argparse.Namespace] = []

    def parse(parser: argparse.ArgumentParser, given: list[str] | None) -> None:
        known, unknown = parser.parse_known_args(given)
        assert unknown == []
        seen.append(known)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(SystemExit):
        importlib.import_module(module).main(arguments)
    assert seen[0].address == "replaysvc:7777"
    assert (str(seen[0].token_file), str(seen[0].tls_ca)) == (f"/run/secrets/{name}.token", "/run/secrets/ca.pem")


# Kubernetes


def test_the_pod_satisfies_the_restricted_standard():
    (namespace,) = KUBERNETES["namespace.yaml"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert POD["securityContext"] | {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001} == POD["securityContext"]
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "privileged": False,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    (account,) = KUBERNETES["serviceaccount.yaml"]
    assert (account["automountServiceAccountToken"], POD["automountServiceAccountToken"]) == (False, False)
    assert POD["serviceAccountName"] == account["metadata"]["name"]
    assert STATEFUL_SET["spec"]["replicas"] == 1


def test_a_service_of_this_name_does_not_change_the_settings():
    """Kubernetes sets REPLAYSVC_PORT=tcp://... in the pods beside a Service `replaysvc`, unless told not to."""
    assert POD["enableServiceLinks"] is False


def test_kubernetes_ports_probes_selectors_and_secret_agree(monkeypatch):
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    settings = settings_of(PLACES["kubernetes"], monkeypatch)
    assert ports == {"grpc": settings.port, "admin": settings.admin_port}
    assert [int(port) for port in str(STAGES["service"].last("EXPOSE")).split()] == [*ports.values()]
    for probe, path in (("startupProbe", "/readyz"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert CONTAINER[probe]["httpGet"] == {"scheme": "HTTPS", "port": "admin", "path": path}
    labels = STATEFUL_SET["spec"]["template"]["metadata"]["labels"]
    assert STATEFUL_SET["spec"]["selector"] == {"matchLabels": labels}
    for service in KUBERNETES["services.yaml"]:
        assert service["spec"]["selector"] == labels
        assert all(port["port"] == ports[port["targetPort"]] for port in service["spec"]["ports"])
    (budget,), (policy,) = KUBERNETES["poddisruptionbudget.yaml"], KUBERNETES["networkpolicy.yaml"]
    assert budget["spec"]["selector"] == policy["spec"]["podSelector"] == {"matchLabels": labels}
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == set(ports)
    assert policy["spec"]["egress"] == []
    headless = next(service for service in KUBERNETES["services.yaml"] if service["spec"].get("clusterIP") == "None")
    assert STATEFUL_SET["spec"]["serviceName"] == headless["metadata"]["name"]
    assert settings.admin_names == f"replaysvc-0.{headless['metadata']['name']}.replaysvc.svc"

    (secret,) = KUBERNETES["secret.example.yaml"]
    volume = next(volume for volume in POD["volumes"] if volume["name"] == "server")
    at = next(mount["mountPath"] for mount in CONTAINER["volumeMounts"] if mount["name"] == "server")
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    files = {str(path) for path in (settings.tls_certificate, settings.tls_key, settings.tokens_file)}
    assert files == {f"{at}/{name}" for name in secret["stringData"]}
    (kustomization,) = KUBERNETES["kustomization.yaml"]
    assert {*kustomization["resources"], "kustomization.yaml", "secret.example.yaml"} == set(KUBERNETES)


# systemd


def test_the_unit_starts_the_service_as_its_own_user():
    unit = UNIT["Service"]
    assert unit["ExecStart"].split()[1:] == words(STAGES["service"].last("ENTRYPOINT"))[1:]
    assert (unit["User"], unit["KillSignal"], unit["NoNewPrivileges"], unit["ProtectSystem"]) == (
        "replaysvc",
        "SIGTERM",
        "yes",
        "strict",
    )
    assert unit["CapabilityBoundingSet"] == ""


# The document


def test_links_of_the_document_lead_to_files():
    text = (DEPLOY / "README.md").read_text()
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert targets
    assert [target for target in targets if not (DEPLOY / target).exists()] == []


def test_the_document_counts_the_alerts_right():
    (count,) = re.findall(r"has (\d+) alerts", (DEPLOY / "README.md").read_text())
    assert (DEPLOY / "prometheus/alerts.yml").read_text().count("- alert:") == int(count)


# The tools that read these files, where a machine has them

TOOLS = [
    tool for tool in (
        ["kubectl", "kustomize", "kubernetes"], ["promtool", "check", "config", "--syntax-only", "prometheus/scrape.yml"],
        ["promtool", "check", "rules", "prometheus/alerts.yml"], ["promtool", "test", "rules", "prometheus/alerts.test.yml"],
        ["hadolint", "Dockerfile"], ["sh", "-n", "credentials.sh"],
    ) if shutil.which(tool[0])
]  # fmt: skip


@pytest.mark.parametrize("command", TOOLS, ids=" ".join)
def test_tools_accept_the_files(command):
    done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
