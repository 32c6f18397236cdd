"""Prometheus's and Grafana's files name metrics and labels that there are, and each alert says what to do and has a test."""

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector

from replaysvc.metrics import FAMILIES, PREFIX
from replaysvc.settings import Settings
from tests.deploy.files import COMPOSE, DEPLOY

SCRAPE = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())
GROUPS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
ALERTS: dict[str, Any] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
ALERT_TESTS = (DEPLOY / "prometheus/alerts.test.yml").read_text()
DASHBOARD = json.loads((DEPLOY / "grafana/replaysvc.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

OF_PROMETHEUS = {"job", "instance", "le"}
LABELS: dict[str, set[str]] = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}
for _name, _family in FAMILIES.items():
    _suffixes = ("_bucket", "_sum", "_count") if _family.kind == "histogram" else ("",)
    LABELS |= {PREFIX + _name + _suffix: set(_family.labels) for _suffix in _suffixes}
LABELS |= {
    sample.name: set() for family in ProcessCollector(registry=CollectorRegistry()).collect() for sample in family.samples
}  # fmt: skip


def expressions() -> dict[str, str]:
    """Returns all that is asked of Prometheus, by where it stands."""
    found = {name: rule["expr"] for name, rule in ALERTS.items()}
    found |= {f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}
    found |= {
        f"variable {each['name']}": each["query"]["query"]
        for each in DASHBOARD["templating"]["list"]
        if each["type"] == "query"
    }
    found |= {f"annotation {each['name']}": each["expr"] for each in DASHBOARD["annotations"]["list"]}
    tests = re.findall(r"series: '([^']+)'|expr: '?([^'\n]+)", ALERT_TESTS)
    return found | {f"test {number}": series or expr for number, (series, expr) in enumerate(tests)}


def selected(expression: str) -> list[tuple[str, set[str]]]:
    """Returns the metrics of an expression, each with the labels that it is selected by."""
    found = re.findall(r"\b(up|ALERTS|(?:replaysvc|process)_\w+)\b(?:\{([^}]*)\})?(?!\")", expression)
    return [(name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels))) for name, labels in found]


EXPRESSIONS = expressions()


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_metrics_and_labels_that_are_asked_for_exist(place):
    found = selected(EXPRESSIONS[place])
    assert found
    for name, labels in found:
        assert name in LABELS
        assert labels <= LABELS[name] | OF_PROMETHEUS, name
    grouped = {
        label.strip() for words in re.findall(r"\b(?:by|on) \(([^)]*)\)", EXPRESSIONS[place]) for label in words.split(",")
    }
    known = {label for name, _ in found for label in LABELS[name]} | OF_PROMETHEUS
    assert grouped <= known


def test_what_must_not_be_lost_is_watched():
    """The metrics that tell of data refused, damaged or soon to be so each have an alert."""
    watched = {name for rule in ALERTS.values() for name, _ in selected(rule["expr"])}
    assert {
        "up", "replaysvc_fault", "replaysvc_disk_free_bytes", "replaysvc_commit_age_seconds", "replaysvc_corrupt_chunks_total",
        "replaysvc_scrub_damage_total", "replaysvc_quarantined_chunks", "replaysvc_quarantined_segments",
        "replaysvc_lost_segments", "replaysvc_quarantined_tables", "replaysvc_memory_bytes", "replaysvc_append_steps_total",
        "replaysvc_lmdb_commit_seconds_bucket", "replaysvc_rate_limited_seconds_total",
        "replaysvc_stale_priority_updates_total",
    } <= watched  # fmt: skip


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_means_and_what_to_do_and_is_tested(name):
    rule = ALERTS[name]
    assert set(rule["annotations"]) == {"summary", "description", "action"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert "$labels.instance" in rule["annotations"]["summary"]
    assert re.search(rf"\b{name}\b", ALERT_TESTS) or ("ReplaysvcDisk" in name and name in ALERT_TESTS)
    settings = set(
        re.findall(r"\b(?:disk_reserve_bytes|grace_s|\w+_cache_bytes|answer_bytes|request_bytes)\b", str(rule["annotations"]))
    )
    assert settings <= set(Settings.model_fields)


def test_the_alert_on_memory_knows_the_limit():
    (limit,) = re.findall(r"> 0\.9 \* (\d+)$", ALERTS["ReplaysvcMemoryNearLimit"]["expr"])
    assert COMPOSE["services"]["replaysvc"]["mem_limit"] == f"{int(limit) >> 30}g"
    assert f"limits: {{memory: {int(limit) >> 30}Gi}}" in (DEPLOY / "kubernetes/statefulset.yaml").read_text()


def test_prometheus_finds_the_service_by_a_name_that_it_answers_to():
    (job,) = SCRAPE["scrape_configs"]
    ((target,),) = [config["targets"] for config in job["static_configs"]]
    host, _, port = target.partition(":")
    environment = COMPOSE["services"]["replaysvc"]["environment"]
    assert host in COMPOSE["services"]
    assert host in environment["REPLAYSVC_ADMIN_NAMES"].split(",")
    assert (job["scheme"], port) == ("https", "7780")
    assert 'job="replaysvc"' in ALERTS["ReplaysvcDown"]["expr"]
    assert job["job_name"] == "replaysvc"
    assert SCRAPE["rule_files"] == ["alerts.yml"]


def test_the_dashboard_is_provisioned_where_its_files_are():
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards.yaml").read_text())["providers"]
    grafana = COMPOSE["services"]["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounted["./grafana/replaysvc.json"].startswith(provider["options"]["path"] + "/")
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == mounted["./grafana/replaysvc.json"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == SCRAPE["global"]["scrape_interval"]


def test_panels_lie_side_by_side_and_ask_the_chosen_prometheus():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    sources = {json.dumps(target["datasource"]) for panel in PANELS for target in panel["targets"]}
    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}
    assert all(panel["title"] and panel["description"] for panel in PANELS)
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)
