"""What a training run takes, by numbers worked out by hand."""

import pytest

from replaysvc.capacity import StepSize, Training, disk_bytes_of, needs_of
from replaysvc.errors import SpecMismatchError

SIZE = StepSize(raw_bytes=164, disk_bytes=64, cached_bytes=60, chunk_steps=64)


def test_hundred_million_steps_of_a_hundred_environments_take_84_minutes():
    needs = needs_of(Training(steps=100_000_000, environments=100, rollout_steps=1000, rollout_s=5.0))
    assert needs.steps_per_s == 20_000  # 100 * 1000 / 5
    assert needs.wall_s == 5000
    assert needs.wall_s / 3600 == pytest.approx(1.39, abs=0.005)
    assert (needs.disk_bytes, needs.memory_bytes, needs.cost) == (None, None, None)


def test_a_billion_steps_at_ten_thousand_a_second_take_28_hours():
    needs = needs_of(Training(steps=1_000_000_000, steps_per_s=10_000.0))
    assert needs.wall_s / 3600 == pytest.approx(27.8, abs=0.03)


def test_disk_and_memory_are_of_what_is_kept_and_cost_is_of_all():
    training = Training(steps=2_000_000, environments=6, rollout_steps=100, rollout_s=1.0)
    needs = needs_of(training, SIZE, capacity_steps=1_000_000, hit_rate=0.25, prioritized=2, core_hour_price=0.36)
    assert needs.kept_steps == 1_000_000
    assert needs.disk_bytes == 64_000_000
    assert needs.disk_bytes_per_s == 600 * 64
    # 200 MiB; 15,625 chunks of 150 bytes; 10 bytes a step for each of 2 samplers; a quarter of 60 bytes a step
    assert needs.memory_bytes == 209_715_200 + 2_343_750 + 20_000_000 + 15_000_000
    assert needs.cost == pytest.approx(0.36 * 8 * (2_000_000 / 600) / 3600)  # 6 environments, and 2


def test_capacity_beyond_all_steps_keeps_all_of_them():
    assert needs_of(Training(steps=10), SIZE, capacity_steps=100).kept_steps == 10


def test_large_chunks_take_whole_pages_and_small_ones_share_them():
    assert disk_bytes_of(4000) == 4096 + 130
    assert disk_bytes_of(4090) == 8192 + 130  # with the 16 bytes that a page begins with
    assert disk_bytes_of(1000) == 1130


@pytest.mark.parametrize(
    "make",
    [
        lambda: Training(steps=0), lambda: Training(steps=1, environments=0), lambda: Training(steps=1, rollout_s=0.0),
        lambda: Training(steps=1, steps_per_s=float("nan")), lambda: needs_of(Training(steps=1), hit_rate=1.5),
        lambda: needs_of(Training(steps=1), core_hour_price=-1.0), lambda: needs_of(Training(steps=1), capacity_steps=0),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(SpecMismatchError):
        make()
