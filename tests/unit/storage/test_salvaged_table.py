"""A table of which a segment was damaged or set aside, as its users see it."""

import pytest

import replaysvc as package
from replaysvc import TableConfig
from replaysvc.maintenance.fsck import check
from replaysvc.options import Limiter
from tests.builders import SCALARS, write_episodes

PAGE = 4096


@pytest.fixture
def path(tmp_path):
    """60 steps in 20 episodes, of which 30 were sampled."""
    config = TableConfig(limiter=Limiter(min_steps=10, samples_per_insert=1, error_buffer=500))
    with package.open(tmp_path / "store") as replay:
        table = replay.create_table("t", SCALARS, config)
        write_episodes(table, [3] * 20)
        table.sample(30)
    return tmp_path / "store"


def segment_of(path):
    (segment,) = path.glob("tables/t/seg-*")
    return segment


def flip_a_bit(segment):
    """Of the kind of the page that leads to all others."""
    data = bytearray((segment / "data.mdb").read_bytes())
    newest = max((0, PAGE), key=lambda meta: int.from_bytes(data[meta + 144 : meta + 152], "little"))
    data[int.from_bytes(data[newest + 128 : newest + 136], "little") * PAGE + 10] ^= 1
    (segment / "data.mdb").write_bytes(data)


def test_one_bit_costs_no_step_and_the_service_goes_on(path):
    flip_a_bit(segment_of(path))
    for steps in (60, 64):
        with package.open(path) as replay:
            table = replay.table("t")
            assert (table.stats().steps, table.stats().quarantined_segments) == (steps, 1)
            assert len(table.sample(8).reward) == 8
            write_episodes(table, [4])
    assert check(path).status == 0


def test_positions_that_are_skipped_count_for_no_steps_with_the_limiter(path):
    """Else no writer would be let in any more: 2^32 steps would wait to be sampled."""
    flip_a_bit(segment_of(path))
    for inserted in (60, 64):
        with package.open(path) as replay:
            table = replay.table("t")
            assert (table.stats().limiter["inserted"], table.stats().limiter["sampled"]) == (inserted, 30)
            write_episodes(table, [4])


def test_what_an_older_release_had_set_aside_is_served_again_after_a_repair(path):
    """Meanwhile the table went on at position 2^32, and saved that as its beginning."""
    segment = segment_of(path)
    flip_a_bit(segment)
    segment.rename(path / "quarantine" / f"t-{segment.name}")
    with package.open(path) as replay:
        assert replay.table("t").stats().steps == 0
        write_episodes(replay.table("t"), [4] * 10)
    assert [check(path).status, check(path, repair=True).status, check(path).status] == [2, 1, 0]
    with package.open(path) as replay:
        stats = replay.table("t").stats()
        assert (stats.steps, stats.first_position, stats.next_position) == (100, 0, 40 + (1 << 32))
        assert sorted(record.episode_id for record in replay.table("t").episodes(limit=100))[:20] == list(range(20))
