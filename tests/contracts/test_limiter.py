"""Sampling and inserting that wait for each other, through both doors; the formula itself has tests of its own."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from replaysvc import Limiter, TableConfig, embedded_sink
from replaysvc.errors import InvalidRequestError, LimitedError, NotReadyError, UnavailableError, WaitTimeoutError
from replaysvc.limiter import LimiterState
from replaysvc.replay import Replay
from tests.builders import SCALARS, write_episode, write_episodes
from tests.service.checks import stored_lengths, write_numbered

QUEUE = TableConfig(chunk_steps=1, limiter=Limiter.queue(10))
WORDS = "must be sampled before"


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def flush_in_vain(writer):
    """Flushes until the writer knows that the limiter is why it cannot: a server waits for a second before it says so."""
    for _ in range(100):
        with pytest.raises(WaitTimeoutError) as caught:
            writer.flush(0.2)
        if WORDS in str(caught.value):
            return str(caught.value)
    return pytest.fail("the limiter is not named")


def fill(table, steps=10):
    """Writes an episode of `steps` without an end, and returns its writer, which waits for 20 ms at most."""
    writer = table.writer(limit_timeout_s=0.02)
    write_numbered(writer, 0, steps, end="open")
    writer.flush()
    return writer


def append(writer, step):
    """Appends a step to what `fill` wrote."""
    writer.append(step, 10 * step, step + 1)


def hold_back(writer, step):
    """Appends `step` and on, until the limiter lets no step more be taken; returns the first that was not.

    An embedded writer takes none of them. A client's takes one, which waits for its turn.
    """
    taken = 0
    with contextlib.suppress(WaitTimeoutError):
        append(writer, step)
        taken = 1
        flush_in_vain(writer)
    with pytest.raises(WaitTimeoutError, match=WORDS):
        append(writer, step + taken)
    return step + taken


def test_sampling_waits_for_min_steps_and_the_insert_that_reaches_them_releases_it(door, pool):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=1, limiter=Limiter(min_steps=10)))
    waiting = pool.submit(table.sample, 4, timeout_s=60)
    writer = fill(table, 9)
    with pytest.raises(NotReadyError, match="9 of 10 steps"):
        table.sample(4)
    assert not waiting.done()
    assert table.stats().waiting_for == "9 of 10 steps"
    append(writer, 9)
    assert len(waiting.result(60)) == 4
    assert table.stats().waiting_for == ""
    writer.close()


def test_a_full_queue_takes_a_step_for_each_that_is_sampled_and_waits_in_vain_count_nothing(door):
    table = door.create_table("t", SCALARS, QUEUE)
    writer, written = fill(table), 10
    for _ in range(3):
        refused = hold_back(writer, written)
        assert table.stats().steps == written
        table.sample(refused + 1 - written)
        writer.flush(60)
        append(writer, refused)  # again, now that there is room
        writer.flush(60)
        written = refused + 1
    assert stored_lengths(table) == {0: written}
    assert table.stats().sampled_items_total == written - 10
    writer.close()


def test_sampling_releases_a_blocked_insert(door, pool):
    table = door.create_table("t", SCALARS, QUEUE)
    writer = table.writer()
    write_numbered(writer, 0, 10, end="open")
    writer.flush()
    appended = [pool.submit(append, writer, 10)]
    appended.append(pool.submit(writer.flush, 60))
    table.sample(1)
    for future in appended:
        future.result(60)
    writer.flush()
    assert stored_lengths(table) == {0: 11}
    writer.close()


def test_an_insert_that_waits_lets_nobody_sample(door):
    """7 items are left of 10. The 4 or 5 steps that wait do not fit beside them, and an eighth is not to be had of those.

    Unless somebody waits for it.
    """
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=5, limiter=Limiter.queue(10)))
    writer = fill(table)
    with contextlib.suppress(WaitTimeoutError):  # a client takes the fifth, to wait with all of them
        for step in range(10, 15):
            append(writer, step)
    flush_in_vain(writer)
    table.sample(3)
    with pytest.raises(NotReadyError, match="3 items were sampled for 10 steps inserted; 1 more step"):
        table.sample(8)
    assert table.stats().steps == 10
    table.sample(2)  # 5 and 5 fit
    writer.flush(60)
    assert table.stats().steps >= 14
    writer.close()


def test_sampling_that_waits_in_vain_counts_nothing(door):
    table = door.create_table("t", SCALARS, QUEUE)
    writer = fill(table, 4)
    for _ in range(3):
        with pytest.raises(NotReadyError, match="1 more step must be inserted before 5 items"):
            table.sample(5, timeout_s=0.02)
    assert table.stats().sampled_items_total == 0
    assert len(table.sample(4)) == 4
    with pytest.raises(NotReadyError):
        table.sample(1)
    assert table.stats().sampled_items_total == 4
    writer.close()


def test_stats_say_what_sampling_waits_for(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=1, limiter=Limiter.queue(10, samples_per_insert=4)))
    assert table.stats().waiting_for == "0 of 1 steps"
    writer = fill(table, 2)
    assert (table.stats().ready, table.stats().waiting_for) == (True, "")
    table.sample(8)
    assert table.stats().waiting_for == (
        "limiter: 8 items were sampled for 2 steps inserted; 1 more step must be inserted before 1 item can be sampled"
    )
    assert not table.stats().ready
    writer.close()


def test_concurrent_writers_and_samplers_keep_the_ratio_at_all_times(door, pool, monkeypatch):
    """2 items a step, between 20 and 60 ahead; in the end 200 steps and 2 * 200 - 20 = 380 items, 95 batches of 4."""
    low, high, counts, seen = 20, 60, [0, 0], []
    count_insert, count_sample = LimiterState.count_insert, LimiterState.count_sample

    def counted(state, steps, items, count, n):
        counts[0] += steps
        counts[1] += items
        seen.append((counts[0], 2 * counts[0] - counts[1]))
        count(state, n)

    monkeypatch.setattr(LimiterState, "count_insert", lambda state, m: counted(state, m, 0, count_insert, m))
    monkeypatch.setattr(LimiterState, "count_sample", lambda state, n: counted(state, 0, n, count_sample, n))
    limiter = Limiter(min_steps=20, samples_per_insert=2, error_buffer=(low, high))
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=5, limiter=limiter))

    def write(worker):
        with table.writer(actor=f"actor-{worker}") as writer:
            for number in range(10):
                write_numbered(writer, 10 * worker + number, 10)
            writer.flush(60)

    def sample():
        batches = 0
        while True:
            try:
                batches += len(table.sample(4, timeout_s=0.1)) == 4
            except NotReadyError:
                if all(future.done() for future in writing):
                    return batches

    writing = [pool.submit(write, worker) for worker in range(2)]
    sampling = [pool.submit(sample) for _ in range(2)]
    for future in writing:
        future.result(120)
    assert sum(future.result(60) for future in sampling) == 95
    assert seen[-1] == (200, low)
    assert all(diff <= high for _, diff in seen)
    assert all(diff >= low for steps, diff in seen if steps >= 20)
    assert stored_lengths(table) == dict.fromkeys(range(20), 10)


def test_prefetch_does_not_run_ahead_of_the_ratio(door):
    """20 items are due; a stream that was asked for 3 batches of 4 leaves 8, whatever it might have fetched ahead."""
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=1, limiter=Limiter.queue(20)))
    write_episodes(table, [20])
    stream = table.stream(4, prefetch=8)
    for _ in range(3):
        assert len(next(stream)) == 4
    assert table.stats().sampled_items_total == 12
    stream.close()
    assert len(table.sample(8)) == 8
    with pytest.raises(NotReadyError):
        table.sample(1)


def test_another_limiter_releases_a_sampler_that_waits(door, pool):
    table = door.create_table("t", SCALARS, TableConfig(limiter=Limiter(min_steps=1000)))
    write_episodes(table, [3])
    waiting = pool.submit(table.sample, 2, timeout_s=60)
    assert table.stats().waiting_for == "3 of 1,000 steps"
    table.set_limiter(Limiter(min_steps=3))
    assert len(waiting.result(60)) == 2


def test_another_limiter_releases_a_writer_that_waits(door, pool):
    table = door.create_table("t", SCALARS, QUEUE)
    writer = table.writer()
    write_numbered(writer, 0, 10, end="open")
    writer.flush()
    written = pool.submit(append, writer, 10)
    table.set_limiter(Limiter.queue(11))
    written.result(60)
    writer.flush(60)
    assert table.stats().steps == 11
    writer.close()


def test_removals_below_min_steps_hold_sampling_back_and_let_inserts_through(door):
    """diff is at its largest, 10, with 10 steps. Without any, 5 more come in for min_steps, and no sixth."""
    limiter = Limiter(min_steps=5, samples_per_insert=1, error_buffer=(0, 10))
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=1, limiter=limiter))
    write_episodes(table, [5, 5])
    assert table.delete_episodes([0, 1]) == 2
    with pytest.raises(NotReadyError, match="0 of 5 steps"):
        table.sample(1)
    writer = table.writer(limit_timeout_s=0.02)
    write_episode(writer, 5, end="open")
    writer.flush()
    assert len(table.sample(1)) == 1
    refused = hold_back(writer, 5)
    assert table.stats().steps == 5
    table.sample(refused)  # 15 - 1 - 5 = 9 leaves room for one step, 15 - 1 - 6 = 8 for two
    writer.flush(60)
    append(writer, refused)
    writer.close()


def test_a_limited_table_does_not_hinder_another(door):
    limited, free = door.create_table("limited", SCALARS, QUEUE), door.create_table("free", SCALARS)
    writer = fill(limited)
    refused = hold_back(writer, 10)
    write_episodes(free, [500])
    assert free.stats().steps == 500
    assert limited.stats().steps == 10
    limited.set_limiter(Limiter())
    writer.flush(60)
    append(writer, refused)
    writer.close()


def test_a_part_filled_chunk_that_waits_comes_in_by_itself(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=5, flush_interval_s=0.01, limiter=Limiter.queue(10)))
    writer = fill(table)
    append(writer, 10)
    table.sample(1)
    assert len(table.sample(10, timeout_s=60)) == 10  # 9 are left, and the eleventh step's
    writer.close()


def test_what_a_closed_writer_could_not_store_in_time_comes_in_later(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=5, flush_interval_s=3600, limiter=Limiter.queue(10)))
    writer = fill(table)
    append(writer, 10)
    with pytest.raises(WaitTimeoutError, match="they stay queued"):
        writer.close(0.05)
    table.sample(1)
    assert len(table.sample(10, timeout_s=60)) == 10
    assert stored_lengths(table) == {0: 11}


def test_a_blocked_writer_keeps_no_other_from_sending_what_is_due(door, pool):
    limited = door.create_table("limited", SCALARS, QUEUE)
    free = door.create_table("free", SCALARS, TableConfig(flush_interval_s=0.01))
    writer, blocked = limited.writer(), limited.writer(limit_timeout_s=60)
    write_episode(writer, 10, end="open")
    writer.flush()
    blocked.begin(100)
    appended = pool.submit(lambda: [blocked.append(t, 0.0, t) for t in range(3)])
    with free.writer() as due:
        write_episode(due, 3, end="open")
        assert len(free.sample(1, timeout_s=30)) == 1
    limited.set_limiter(Limiter())
    appended.result(60)
    blocked.close()
    assert limited.stats().steps == 13
    writer.close()


def test_an_embedded_writer_waits_in_long_turns_to_the_end_of_its_patience(monkeypatch):
    """100 s: three turns of 30 s, as long as it would wait for room in the queue, and one of 10 s."""
    waits, clock = [], [0.0]

    def submit(*args, urgent, wait_s, epoch):
        waits.append(wait_s)
        clock[0] += wait_s
        raise LimitedError("limiter: no room")

    monkeypatch.setattr(embedded_sink, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    sink = embedded_sink.EmbeddedSink(SimpleNamespace(submit=submit, open_session=lambda *_, **__: -1), None, None, "", None)
    with pytest.raises(WaitTimeoutError, match=r"nothing was let in for 100 s \(limiter: no room\)"):
        sink.put(b"", wait=True, limit_timeout_s=100.0)
    assert waits == [30, 30, 30, 10]


def test_closing_the_store_releases_a_blocked_writer(replay, pool):
    table = replay.create_table("t", SCALARS, QUEUE)
    writer = table.writer()
    write_episode(writer, 10, end="open")
    writer.flush()
    blocked = pool.submit(append, writer, 10)
    replay.close()
    with pytest.raises(UnavailableError):
        blocked.result(60)


def test_counts_survive_a_restart(tmp_path):
    with Replay(tmp_path / "store") as replay:
        table = replay.create_table("t", SCALARS, QUEUE)
        write_episodes(table, [10])
        table.sample(6)
    with Replay(tmp_path / "store") as replay:
        table = replay.table("t")
        writer = table.writer(limit_timeout_s=0.02)
        write_episode(writer, 6, end="open")  # 16 inserted, 6 sampled
        writer.flush()
        with pytest.raises(WaitTimeoutError, match="16 steps were inserted for 6 items sampled"):
            writer.append(6, 0.0, 7)
        assert len(table.sample(10)) == 10
        with pytest.raises(NotReadyError, match="16 items were sampled for 16 steps inserted"):
            table.sample(1)
        writer.close()


def test_another_limiter_survives_a_restart(tmp_path):
    with Replay(tmp_path / "store") as replay:
        replay.create_table("t", SCALARS, QUEUE).set_limiter(Limiter(min_steps=77))
    with Replay(tmp_path / "store") as replay:
        assert replay.table("t").config.limiter == Limiter(min_steps=77)
        assert replay.table("t").stats().waiting_for == "0 of 77 steps"


def test_limiters_under_which_a_chunk_could_wait_for_ever_are_refused(door):
    with pytest.raises(InvalidRequestError, match="error_buffer.*chunk_steps"):
        door.create_table("t", SCALARS, TableConfig(chunk_steps=11, limiter=Limiter.queue(10)))
    assert door.tables() == []
    table = door.create_table("t", SCALARS, QUEUE)
    table.set_limiter(Limiter.queue(2))
    table = door.create_table("u", SCALARS, TableConfig(chunk_steps=11))
    with pytest.raises(InvalidRequestError, match="error_buffer.*chunk_steps"):
        table.set_limiter(Limiter.queue(10))
    write_episodes(table, [30])  # without a limiter still


def test_a_batch_that_could_wait_for_ever_is_refused(door):
    table = door.create_table("t", SCALARS, QUEUE)
    with pytest.raises(InvalidRequestError, match="max_diff - min_diff = 10"):
        table.sample(11, timeout_s=60)


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "soon"])
def test_a_limit_timeout_that_is_no_time_is_refused(door, timeout_s):
    table = door.create_table("t", SCALARS)
    with pytest.raises(InvalidRequestError, match="limit_timeout_s"):
        table.writer(limit_timeout_s=timeout_s)


def test_a_chunk_and_a_batch_never_wait_for_each_other_for_ever(door, pool):
    """Of at most 10 steps ahead 8 are there, and a batch needs 10: the next chunk of four is let in, two steps over."""
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=4, limiter=Limiter.queue(10)))
    with table.writer() as writer:
        write_episode(writer, 8)
        writer.flush()
        sampled = pool.submit(table.sample, 10, timeout_s=30)
        write_episode(writer, 4, episode=1)
        writer.flush()
        assert len(sampled.result(30)) == 10
    assert table.stats().limiter["inserted"] == 12
    assert table.stats().limiter["sampled"] == 10


def test_stream_goes_on_when_a_ratio_is_set_meanwhile(door):
    """It was drawing 32 batches at once, and the limiter now lets 80 items be sampled at once."""
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=10))
    write_episodes(table, [200])
    stream = table.stream(5, prefetch=32)
    for _ in range(3):
        next(stream)
    table.set_limiter(Limiter(min_steps=10, samples_per_insert=4.0, error_buffer=40.0))
    for _ in range(70):
        assert len(next(stream)) == 5
    stream.close()


def test_no_batch_is_drawn_ahead_once_a_ratio_holds_however_many_items_are_due(door):
    table = door.create_table("t", SCALARS, TableConfig(chunk_steps=10))
    write_episodes(table, [200])
    stream = table.stream(5, prefetch=8)
    next(stream)
    table.set_limiter(Limiter(min_steps=10, samples_per_insert=4.0, error_buffer=400.0))
    stream.close()
    before = table.stats().limiter["sampled"]
    stream = table.stream(5, prefetch=8)
    for _ in range(3):
        next(stream)
    assert table.stats().limiter["sampled"] == before + 15
    stream.close()
