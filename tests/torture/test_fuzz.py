"""The fuzzer in small, and that it notices what it looks for."""

import pytest

from tests.torture.fuzz import TARGETS, run


@pytest.mark.parametrize("name", list(TARGETS))
def test_whatever_bytes_arrive_only_declared_errors_come_out_soon_and_in_little_memory(name, tmp_path):
    count = 4000 if name == "service" else 20_000
    report = run(count, 3, targets=(name,), save=tmp_path)
    assert report.violations == []
    assert report.counts[f"{name}: inputs"] == count
    assert report.counts[f"{name}: undeclared"] == 0


def test_decoder_that_believes_frames_is_caught(tmp_path):
    report = run(1500, 3, targets=("chunks",), broken="frames unchecked", save=tmp_path)
    assert any("memory" in violation or "MemoryError" in violation for violation in report.violations), report.violations
    assert any(file.name.startswith("chunks-") for file in tmp_path.iterdir())


def test_error_that_is_not_declared_is_caught_and_its_input_saved(tmp_path):
    report = run(3000, 3, targets=("texts",), broken="a bug", save=tmp_path)
    assert any("KeyError" in violation for violation in report.violations)
    assert any("KeyError" in file.name for file in tmp_path.iterdir())


def test_same_seed_gives_the_same_inputs(tmp_path):
    first, second = (run(3000, 7, targets=("frames",), save=tmp_path).counts for _ in range(2))
    assert first == second
