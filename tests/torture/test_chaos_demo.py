"""That `chaos_demo` can fail; the demo itself under kills is in `tests/learner/test_chaos_demo.py`."""

from tests.torture.chaos_demo import run_one
from tests.torture.report import Report


def test_demo_that_does_not_solve_its_task_and_one_without_kills_are_violations(tmp_path):
    report = Report("chaos_demo", 1)
    line = run_one(tmp_path / "run", 1, 60.0, report, limit_s=4.0)
    assert "NOT SOLVED, 0 kills" in line
    assert ["ended with status 1" in report.violations[0], "it tried nothing" in report.violations[-1]] == [True, True]
    assert (report.counts["demos"], report.counts["solved"], report.counts["lost"]) == (1, 0, 0)
