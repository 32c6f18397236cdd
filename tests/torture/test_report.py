"""What a script leaves behind: the last whole run's results."""

import sys

import pytest

from tests.torture import guards, network, report


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return tmp_path


def run(monkeypatch, module, *options):
    monkeypatch.setattr(sys, "argv", [module.__name__, *options])
    return module.main()


def test_a_run_of_one_guard_leaves_the_results_of_all_of_them(results, monkeypatch):
    monkeypatch.setattr(guards, "failures", lambda name, tests: (True, tests[0]))
    assert run(monkeypatch, guards) == 0
    whole = (results / "guards.json").read_text()
    assert run(monkeypatch, guards, "--only", "fsync") == 0
    assert (results / "guards.json").read_text() == whole


def test_a_run_of_some_scenarios_leaves_no_results(results, monkeypatch):
    assert run(monkeypatch, network, "--only", sorted(network.SCENARIOS)[0], "--count", "0") == 0
    assert list(results.iterdir()) == []
