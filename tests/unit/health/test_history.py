"""Rates and growth of what was counted, by hand."""

import math

import numpy as np
import pytest

from replaysvc.health.history import COARSE, FINE, MOST_TABLES, POINTS, Counters, History, days_left


def counters(steps=0, items=0, hits=0, disk=0, uuid="u"):
    return Counters(uuid=uuid, steps=steps, items=items, hits=hits, disk_bytes=disk)


def filled(rows, *, start=1000.0, period=2.0):
    """Returns a history of one table `t`; `rows` are counters by look."""
    history = History()
    for i, row in enumerate(rows):
        history.note(5000.0 + i * period, start + i * period, {"t": row}, 10 * i, 100 * i)
    return history


def plain(points):
    """Returns points as lists, None for what is not known."""
    return {
        name: [None if math.isnan(value) else round(float(value), 9) for value in values] for name, values in points.items()
    }


def test_points_are_differences():
    history = filled([counters(100, 10, 5, 7), counters(104, 30, 15, 8), counters(104, 34, 15, 6)])
    assert plain(history.points("t", 600)) == {
        "at_s": [5002.0, 5004.0],
        "steps_in_per_s": [2.0, 0.0],
        "items_out_per_s": [10.0, 2.0],
        "bytes_in_per_s": [None, None],  # of single tables nobody counts them
        "bytes_out_per_s": [None, None],
        "samples_per_insert": [5.0, None],  # 20 of 4; 4 of none
        "cache_hit_share": [0.5, 0.0],
        "disk_bytes": [8.0, 6.0],
    }
    whole = plain(history.points(None, 600))
    assert (whole["bytes_in_per_s"], whole["bytes_out_per_s"]) == ([5.0, 5.0], [50.0, 50.0])
    assert whole["steps_in_per_s"] == [2.0, 0.0]


def test_nothing_is_known_at_first():
    assert {len(values) for values in History().points(None, 600).values()} == {0}
    assert {len(values) for values in filled([counters(5)]).points("t", 600).values()} == {0}
    assert {len(values) for values in filled([counters(5)]).points("other", 600).values()} == {0}
    assert History().rates("t") == History().rates(None)
    assert set(History().rates(None).values()) == {0.0}
    assert History().growth() is None


def test_rates_are_of_the_last_ten_seconds():
    rows = [counters(steps=1000 * i, items=0) for i in range(5)] + [
        counters(steps=4000 + 2 * i, items=6 * i) for i in range(1, 6)
    ]
    rates = filled(rows).rates("t")  # from look 4 to look 9
    assert rates == {"steps_in_per_s": 1.0, "items_out_per_s": 3.0, "bytes_in_per_s": 0.0, "bytes_out_per_s": 0.0}
    assert filled(rows).rates(None)["bytes_in_per_s"] == 5.0


def test_what_was_there_before_the_first_look_is_no_rate_but_a_table_made_later_is():
    history = History()
    history.note(0.0, 0.0, {"old": counters(1_000_000)}, 0, 0)
    history.note(2.0, 2.0, {"old": counters(1_000_000), "new": counters(40, uuid="n")}, 0, 0)
    assert plain(history.points(None, 600))["steps_in_per_s"] == [20.0]
    assert plain(history.points("new", 600))["steps_in_per_s"] == []  # of one look
    assert history.rates("old")["steps_in_per_s"] == 0.0


def test_table_that_is_deleted_and_made_anew_begins_anew_and_nothing_falls():
    history = History()
    history.note(0.0, 0.0, {"t": counters(100, uuid="a")}, 0, 0)
    history.note(2.0, 2.0, {}, 0, 0)
    assert plain(history.points("t", 600))["at_s"] == []
    history.note(4.0, 4.0, {"t": counters(6, uuid="b")}, 0, 0)
    history.note(6.0, 6.0, {"t": counters(8, uuid="c")}, 0, 0)  # deleted and made anew between two looks
    assert plain(history.points(None, 600))["steps_in_per_s"] == [0.0, 3.0, 4.0]
    assert plain(history.points("t", 600))["at_s"] == []


def test_time_without_a_look_is_a_gap():
    history = History()
    for at in (0.0, 2.0, 30.0, 32.0):
        history.note(at, at, {"t": counters(int(at))}, 0, 0)
    assert plain(history.points("t", 600))["steps_in_per_s"] == [1.0, None, 1.0]
    assert plain(history.points("t", 600))["disk_bytes"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("looks", [POINTS - 5, POINTS, POINTS + 3, 700, FINE - 1, FINE, FINE + 1, 2 * FINE + 7])
def test_there_are_at_most_450_points_whatever_was_kept(looks):
    history = filled([counters(steps=2 * i) for i in range(looks)])
    points = history.points("t", 1800)
    assert POINTS / 2 - 2 <= len(points["at_s"]) <= POINTS
    assert np.unique(points["steps_in_per_s"]).tolist() == [1.0]
    assert (np.diff(points["at_s"]) > 0).all()


def test_points_stay_where_they_are_while_more_come():
    history = filled([counters(steps=i * i) for i in range(700)])
    before = dict(zip(*(history.points("t", 1800)[name].tolist() for name in ("at_s", "steps_in_per_s")), strict=True))
    history.note(5000.0 + 1400, 1000.0 + 1400, {"t": counters(700 * 700)}, 0, 0)
    after = dict(zip(*(history.points("t", 1800)[name].tolist() for name in ("at_s", "steps_in_per_s")), strict=True))
    shared = before.keys() & after.keys()
    assert len(shared) > 300
    assert {at: before[at] for at in shared} == {at: after[at] for at in shared}


def test_a_window_holds_no_more_than_was_asked_for():
    history = filled([counters(steps=2 * i) for i in range(FINE)])
    assert len(history.points("t", 60)["at_s"]) == 30 + 1  # and the one before, to differ from
    assert history.points("t", 60)["at_s"][0] == 5000.0 + 2 * (FINE - 1) - 60


def test_a_day_is_told_by_minutes():
    history = filled([counters(steps=600 * i) for i in range(COARSE + 10)], period=60.0)
    points = history.points("t", 86_400)
    assert 300 <= len(points["at_s"]) <= POINTS
    assert np.unique(points["steps_in_per_s"]).tolist() == [10.0]
    assert points["at_s"][-1] - points["at_s"][0] > 80_000


def test_young_process_tells_of_a_day_all_that_it_knows():
    history = filled([counters(steps=2 * i) for i in range(100)])
    assert len(history.points("t", 86_400)["at_s"]) == 99


def test_only_so_many_tables_have_a_history_of_their_own_and_all_count():
    history = History()
    for i in range(2):
        history.note(2.0 * i, 2.0 * i, {f"t{n}": counters(steps=2 * i) for n in range(MOST_TABLES + 10)}, 0, 0)
    assert len(history._tables) == MOST_TABLES
    assert plain(history.points(None, 600))["steps_in_per_s"] == [MOST_TABLES + 10.0]


def test_growth_is_that_of_the_last_hour_in_bytes_a_day():
    assert filled([counters(disk=1000 * i) for i in range(300)]).growth() is None  # 598 s are too few
    assert filled([counters(disk=1000 * i) for i in range(301)]).growth() == 500 * 86_400
    slower = [counters(disk=10**9 * min(i, 60)) for i in range(180)]
    assert filled(slower, period=60.0).growth() == 0.0
    assert filled([counters(disk=-i) for i in range(400)]).growth() == -0.5 * 86_400


@pytest.mark.parametrize(
    ("free", "reserve", "growth", "days"),
    [
        (1100, 100, 500.0, 2.0), (100, 100, 500.0, 0.0), (50, 100, 500.0, 0.0), (1100, 100, 0.0, None), (1100, 100, -5.0, None),
        (1100, 100, None, None),
    ],
)  # fmt: skip
def test_days_until_the_disk_is_full(free, reserve, growth, days):
    assert days_left(free, reserve, growth) == days
