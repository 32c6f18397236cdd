"""Steps deep within long episodes: the same as ever, and found without a walk from the episode's beginning."""

import numpy as np
import pytest

from replaysvc.errors import ChunkCorruptError, InvalidRequestError
from replaysvc.index import episode_records
from replaysvc.index.chunk_links import NONE
from tests.builders import make_table, write_episode

STEPS = 601  # in chunks of three, of which the last has one step


@pytest.fixture
def table(replay):
    """A long episode, chunk by chunk between those of another one; capacity has removed its first few steps."""
    table = make_table(replay, chunk_steps=3, capacity_steps=2 * STEPS - 8)
    with table.writer("a") as long, table.writer("b") as other:
        long.begin(0)
        other.begin(100)
        for t in range(STEPS):
            for episode, writer in enumerate((long, other)):
                writer.append(t, 10 * t, 100 * episode + t + 1, truncated=t == STEPS - 1)
    return table


def check(table, start, stop):
    found = table.read_episode(0, start, stop)
    assert found["action"].tolist() == list(range(start, stop))
    assert found["reward"].tolist() == [10 * t for t in range(start, stop)]
    assert found["observation"].tolist() == list(range(start, stop + 1))


def first_of(table, episode=0):
    return next(record.first_step for record in table.episodes() if record.episode_id == episode)


@pytest.mark.parametrize(("back", "count"), [(600, 1), (300, 1), (300, 7), (9, 9), (1, 1), (4, 3), (590, 590)])
def test_any_range_is_read_as_it_was_written(table, back, count):
    start = max(STEPS - back, first_of(table))
    check(table, start, start + count)


def test_ranges_outside_what_is_stored_are_refused_as_ever(table):
    first = first_of(table)
    assert 0 < first < 9
    check(table, first, STEPS)
    for start, stop in ((first - 1, 50), (50, STEPS + 1), (50, 50)):
        with pytest.raises(InvalidRequestError, match=rf"\[{first}, {STEPS}\)"):
            table.read_episode(0, start, stop)


def test_a_late_step_is_found_without_a_walk_from_the_first(table, monkeypatch):
    """The links of early chunks lead nowhere, and nothing looks at all chunks."""
    monkeypatch.setattr(episode_records, "_readable", lambda *_: pytest.fail("looked at all"))
    index = table._engine._core.index
    index.chunks["next_row"][:100] = NONE
    check(table, STEPS - 40, STEPS)


def test_a_damaged_chunk_hides_its_own_steps_alone(table):
    """Chunk 100 of the long episode has steps 300 to 302."""
    index = table._engine._core.index
    (row,) = np.flatnonzero((index.chunks["episode_id"] == 0) & (index.chunks["first_step"] == 300))
    table._engine.note_damage(int(index.chunks["chunk_id"][row]), "so that it is")
    for start, stop in ((250, 300), (303, 400), (298, 300), (303, 304)):
        check(table, start, stop)
    told = rf"steps 300 to 302 are damaged; \[{first_of(table)}, 300\) and \[303, {STEPS}\) can be read"
    for start, stop in ((299, 301), (302, 303), (299, 304), (301, 310)):
        with pytest.raises(ChunkCorruptError, match=told):
            table.read_episode(0, start, stop)


def test_an_episode_that_goes_on_is_read_up_to_its_newest_step(replay):
    table = make_table(replay, chunk_steps=3)
    with table.writer() as writer:
        write_episode(writer, 7, end="open")
        writer.flush()
        check(table, 5, 7)
        writer.append(7, 70, 8)
        writer.flush()
        check(table, 6, 8)
