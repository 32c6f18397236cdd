"""That `chaos_demo` can fail; the demo itself under kills is in `tests/learner/test_chaos_demo.py`."""

from tests.torture.chaos_demo import expect_kills, run_one
from tests.torture.report import Report


def test_demo_that_does_not_solve_its_task_and_one_without_kills_are_violations(tmp_path):
    report = Report("chaos_demo", 1)
    line = run_one(tmp_path / "run", 1, 60.0, report, limit_s=4.0)
    assert "NOT SOLVED, 0 kills" in line
    expect_kills(report, 60.0, 0)
    assert ["ended with status 1" in report.violations[0], "it tried nothing" in report.violations[-1]] == [True, True]
    report.counts["kills"] += 1
    before = list(report.violations)
    expect_kills(report, 60.0, 0)
    assert report.violations == before
    assert (report.counts["demos"], report.counts["solved"], report.counts["lost"]) == (1, 0, 0)
