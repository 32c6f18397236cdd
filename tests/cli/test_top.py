"""`replaysvc top`: what it tells, of a service and of a store, on a terminal and without one."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

import replay_client
import replaysvc as package
from replaysvc.replay import Replay
from replaysvc.rpc.calls import CallInterceptor
from replaysvc.rpc.server import Server
from replaysvc.top import drawn
from replaysvc.views import ActivityView, ActorView, DiskOutlook, DiskView, LearnerView, Reason, Verdict
from replaysvc.watch import Look, Seen, framed, look
from tests.builders import SCALARS, make_table, write_episodes
from tests.processes import ServiceProcess
from tests.waiting import wait_until

QUIET = {"open_episodes": 0, "sessions": 1, "episodes": 2}
IDLE = {"batches": 1, "mean_s": 0.0025, "waited_share": 0.25, "last_wait": "", "last_seen_s": 1.0}


MIB = 1 << 20


def actor(name, steps, *, policy_version=-1, last_seen_s=1.0, state="writing"):
    return ActorView(name=name, steps=steps, policy_version=policy_version, last_seen_s=last_seen_s, state=state, **QUIET)


def learner(name, *, table="t", items_per_s=10.0):
    return LearnerView(name=name, table=table, sampler="uniform", items=100, items_per_s=items_per_s, batches_per_s=2.0, **IDLE)


def seen(stats, at_s, *, actors=(), learners=(), newest=None, reasons=(), status="ok", days_left=None):
    """Returns a look at one table, at `at_s`."""
    view = DiskView(used_bytes=1, free_bytes=300 * MIB, total_bytes=1200 * MIB, reserve_bytes=0, refuses=False)
    told = ActivityView(
        actors={"t": tuple(actors)}, learners=tuple(learners), newest_policy_version=newest,
        verdict=Verdict(status=status, reasons=tuple(reasons)),
        disk=DiskOutlook(view=view, growth_bytes_per_day=None, days_left=days_left),
    )  # fmt: skip
    return Look({"t": Seen(stats, at_s)}, told, at_s, 1_700_000_000.0 + at_s)


@pytest.fixture
def stats(replay):
    """Counters of a table of 5 steps, of which none was sampled."""
    return make_table(replay, [3, 2]).stats()


def printed(frame, width=120):
    """Returns a frame as a terminal would get it."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    console.print(drawn(frame))
    return console.file.getvalue()


def test_rates_are_the_difference_of_two_looks(stats):
    later = replace(stats, appended_steps_total=25, sampled_items_total=400, cache_hits_total=300,
                    limiter=stats.limiter | {"inserted": 25, "sampled": 400, "samples_per_insert": 16.0})  # fmt: skip
    (row,) = framed("x", seen(stats, 10.0), seen(later, 14.0)).tables
    assert (row.steps_in_per_s, row.items_out_per_s, row.cache_hit_share) == (5.0, 100.0, 0.75)
    assert (row.samples_per_insert, row.samples_per_insert_target) == (16.0, 16.0)


def test_first_look_has_no_rates_nor_has_one_at_counters_that_began_anew(stats):
    for before, now in ((None, stats), (replace(stats, appended_steps_total=9, sampled_items_total=7), stats)):
        earlier = None if before is None else seen(before, 1.0)
        (row,) = framed("x", earlier, seen(now, 2.0)).tables
        assert (row.steps_in_per_s, row.items_out_per_s, row.cache_hit_share) == (None, None, None)
    assert framed("x", seen(stats, 1.0), seen(stats, 2.0)).tables[0].steps_in_per_s == 0.0


def test_verdict_of_the_service_is_shown_with_its_reasons(stats):
    assert "  ok  1 table" in printed(framed("x", None, seen(stats, 1.0))).replace("\x1b[1;32mok\x1b[0m", "ok")
    reasons = (
        Reason(level="failing", table="t", sentence="table t: it takes no more steps"),
        Reason(level="note", table=None, sentence="learner l: it waits 90% of the time"),
    )
    frame = framed("x", None, seen(stats, 1.0, status="failing", reasons=reasons))
    for words in ("failing", "failing: table t: it takes no more steps", "note: learner l: it waits 90% of the time"):
        assert words in printed(frame)
    assert json.loads(json.dumps(frame.asdict()))["verdict"] == {
        "status": "failing",
        "reasons": [
            {"level": "failing", "table": "t", "sentence": "table t: it takes no more steps"},
            {"level": "note", "table": None, "sentence": "learner l: it waits 90% of the time"},
        ],
    }  # fmt: skip


def test_disk_is_told_with_its_share_and_what_is_left(stats):
    frame = framed("x", None, seen(stats, 1.0, days_left=12.34))
    assert "disk 75% full, 300.0 MiB free, full in about 12 days" in printed(frame)
    assert frame.asdict()["disk"]["view"]["free_bytes"] == 300 * MIB
    assert "300.0 MiB free\n" in printed(framed("x", None, seen(stats, 1.0)))


def test_states_of_actors_and_learners_are_told(stats):
    actors, learners = [actor("a", 1, state="stale")], [replace(learner("l"), state="waiting")]
    lines = re.sub(r"\x1b\[[\d;]*m", "", printed(framed("x", None, seen(stats, 1.0, actors=actors, learners=learners))))
    assert re.search(r"^a +t .* stale *$", lines, re.MULTILINE)
    assert re.search(r"^l +t .* waiting *$", lines, re.MULTILINE)


def test_actors_stand_by_how_busy_they_are_and_say_how_stale_their_policy_is(stats):
    before = seen(stats, 0.0, actors=[actor("slow", 10), actor("fast", 10)])
    actors = [actor("slow", 12, policy_version=7), actor("new", 50), actor("fast", 30, policy_version=4)]
    found = framed("x", before, seen(stats, 2.0, actors=actors, newest=7)).actors
    assert [(each.seen.name, each.steps_per_s, each.staleness) for each in found] == [
        ("fast", 10.0, 3), ("slow", 1.0, 0), ("new", None, None)
    ]  # fmt: skip


def test_who_is_busy_elsewhere_is_left_out_of_one_table(stats):
    told = ActivityView(
        actors={"t": (actor("here", 1),), "u": (actor("there", 1),)}, learners=(learner("l"), learner("m", table="u")),
        newest_policy_version=None,
    )  # fmt: skip
    frame = framed("x", None, Look({"t": Seen(stats, 1.0)}, told, 1.0, 1.0))
    assert ([each.seen.name for each in frame.actors], [each.name for each in frame.learners]) == (["here"], ["l"])


def test_many_actors_are_cut_and_counted(stats):
    shown = printed(framed("x", None, seen(stats, 1.0, actors=[actor(f"a{i:02}", 1) for i in range(25)])))
    assert ("a19" in shown, "a20" in shown, "and 5 more" in shown) == (True, False, True)


HOSTILE = {
    "\x1b[2J\x1b]0;owned\x07": r"\x1b[2J\x1b]0;owned\x07",
    "[red]loud[/red]": "[red]loud[/red]",
    "two\nlines\rover": r"two\nlines\rover",
    "\u202egnp.exe\ud800": r"\u202egnp.exe\ud800",
    "[/]": "[/]",
    "日本語": "日本語",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(stats, name):
    stats = replace(stats, waiting_for=f"{name} steps", inserting_waits_for=f"{name} items")
    reasons = (Reason(level="warning", table=name, sentence=f"table {name}: x"),)
    now = seen(stats, 1.0, actors=[actor(name, 7), actor("plain", 7)], learners=[learner(name)], reasons=reasons)
    shown = printed(framed(name, None, now))
    escapes = re.compile(r"\x1b\[[\d;]*m")  # colours, of our own
    lines = escapes.sub("", shown).splitlines()
    assert all(character.isprintable() for line in lines for character in line)
    assert sum(HOSTILE[name] in line for line in lines) == 6  # the target, the reason, two waits, actor and learner
    rows = [line for line in lines if "1 s ago" in line][:2]
    assert len({cell_len(line[: line.index("1 s ago")]) for line in rows}) == 1  # their columns stand below each other


def test_long_names_leave_room_for_the_numbers(stats):
    now = seen(stats, 1.0, actors=[actor("日" * 60, 12_345_678), actor("x" * 128, 12_345_678)])
    for width in (80, 120):
        shown = printed(framed("x", None, now), width)
        assert shown.count("12,345,678") == 2
        assert (shown.count("日"), shown.count("x")) == (15, 32)  # and x, the target
        assert max(map(cell_len, re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines())) <= width


@pytest.fixture
def store(tmp_path):
    with package.open(tmp_path / "store") as replay:
        write_episodes(replay.create_table("short", SCALARS), [3, 1200])
        replay.create_table("empty", SCALARS)
    return tmp_path / "store"


def test_one_frame_without_a_terminal_of_a_service_and_of_its_store(store, replaysvc):
    with ServiceProcess(store) as service:
        of_service = replaysvc("top", service.address, "--interval", 0.1)
        told = json.loads(replaysvc("top", service.address, "--interval", 0.1, "--json").stdout)
        one = json.loads(replaysvc("top", service.address, "--interval", 0.1, "--json", "--table", "short").stdout)
    of_store = replaysvc("top", store, "--interval", 0.1, "--once")
    for done in (of_service, of_store):
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("2 tables, 1,203 steps") == 1
        assert re.search(r"^short +1,203 +0 +0 ", done.stdout, re.MULTILINE)
        assert "empty: sampling waits: 0 of 1 steps" in done.stdout
        assert "\x1b" not in done.stdout
    rows = [(row["name"], row["steps"], row["steps_in_per_s"]) for row in told["tables"]]
    assert rows == [("empty", 0, 0.0), ("short", 1203, 0.0)]
    assert told["verdict"] == {"status": "ok", "reasons": []}
    assert [row["name"] for row in one["tables"]] == ["short"]


def test_store_without_tables_is_told_as_such(tmp_path, replaysvc):
    package.open(tmp_path / "store").close()
    assert "0 tables, 0 steps" in replaysvc("top", "store", "--interval", 0.1).stdout


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--table", "absent"], 5, "table 'absent' does not exist; there are ['empty', 'short']"),
        (["--interval", 0], 2, "interval: expected a number from 0.1 to 3600, found 0.0"),
        (["--interval", "nan"], 2, "interval: expected a number from 0.1 to 3600, found nan"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(store, refused, options, status, words):
    assert refused("top", store, *options) == (status, words)


def test_address_without_a_service_is_refused_at_the_first_look(refused):
    status, sentence = refused("top", "127.0.0.1:1")
    assert status == 4
    assert sentence.startswith("no server answers at 127.0.0.1:1")


def test_older_service_is_shown_without_actors(tmp_path, monkeypatch):
    ask = CallInterceptor.intercept_service
    unknown = lambda self, continuation, details: (  # noqa: E731
        None if details.method.endswith("/Activity") else ask(self, continuation, details)
    )
    monkeypatch.setattr(CallInterceptor, "intercept_service", unknown)
    with Replay(tmp_path / "store") as replay:
        make_table(replay, [3])
        server = Server(replay, "127.0.0.1:0")
        server.start()
        with replay_client.connect(f"127.0.0.1:{server.port}") as client:
            found = look(client, client.activity)
        server.stop(5.0)
    frame = framed("x", None, found)
    assert (frame.tables[0].steps, frame.actors, frame.learners, frame.verdict) == (3, None, None, None)
    shown = printed(frame)
    assert "3 steps" in shown
    assert "does not say whether all is well" in shown
    assert "ok" not in shown


class Terminal:
    """`replaysvc top` on a terminal of its own."""

    def __init__(self, *arguments):
        self._ours, theirs = pty.openpty()
        os.set_blocking(self._ours, False)
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        command = [sys.executable, "-m", "replaysvc", "top", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
        os.close(theirs)
        self._text = ""

    def says(self, words):
        """Returns whether `words` came since the last words that were waited for."""
        with suppress(OSError):  # nothing yet, or no more
            self._text += os.read(self._ours, 1 << 16).decode()
        _, found, rest = self._text.partition(words)
        if found:
            self._text = rest
        return found

    def rest(self):
        self.says("\0")
        return self._text

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(*arguments):
    shown = Terminal(*arguments)
    try:
        yield shown
    finally:
        shown.close()


def test_it_goes_on_over_a_restart_of_the_service_and_ends_quietly(store):
    with ServiceProcess(store) as service, terminal(service.address, "--interval", 0.1) as shown:
        for words in ("1,203 steps", "1,203 steps"):
            wait_until(lambda words=words: shown.says(words))
        service.kill()
        wait_until(lambda: shown.says("no server answers"))
        wait_until(lambda: shown.says("trying again"))
        service.start()
        wait_until(lambda: shown.says("ok"))
        shown.process.send_signal(signal.SIGINT)
        wait_until(lambda: shown.process.poll() is not None)
        assert shown.process.returncode == 0
        assert not re.search("Traceback|Abort|replaysvc:", shown.rest())


def test_terminal_gets_its_cursor_back_when_it_is_ended(store):
    with terminal(store, "--interval", 0.1) as shown:
        wait_until(lambda: shown.says("\x1b[?25l"))  # hidden
        wait_until(lambda: shown.says("1,203 steps"))
        shown.process.send_signal(signal.SIGTERM)
        wait_until(lambda: shown.says("\x1b[?25h"))
        wait_until(lambda: shown.process.poll() is not None)
        assert shown.process.returncode == 0


def test_json_on_a_terminal_is_a_line_a_look_until_it_is_ended(store):
    with terminal(store, "--interval", 0.1, "--json") as shown:
        for _ in range(3):
            wait_until(lambda: shown.says('"newest_policy_version": null}'))
        shown.process.send_signal(signal.SIGINT)
        wait_until(lambda: shown.process.poll() is not None)
        assert shown.process.returncode == 0
