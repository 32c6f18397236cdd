"""Lines of the log: one a record, whatever is in it, as text or as JSON."""

import json
import logging
import sys

from replaysvc.activity import request_id
from replaysvc.logs import LINES, JsonLines, OneLine, Recent


def record(message, *args, error=None):
    made = logging.LogRecord("replaysvc.x", logging.WARNING, "x.py", 1, message, args, error)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def raised():
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        return sys.exc_info()


def test_text_is_one_line():
    line = OneLine("%(levelname)s %(message)s").format(record("a %s", "b\nWARNING c\u2028\x1b[31m"))
    assert line == "WARNING a b\\nWARNING c\\u2028\\x1b[31m"


def test_traces_are_indented_below_it():
    line = OneLine("%(levelname)s %(message)s").format(record("a", error=raised()))
    assert line.startswith("WARNING a\n  Traceback")
    assert all(part.startswith("  ") for part in line.splitlines()[1:])


def test_json_is_one_line_with_all_of_it():
    line = JsonLines().format(record("a %s", 'b"\n\u2028é', error=raised()))
    assert "\n" not in line
    assert line.isascii()
    told = json.loads(line)
    assert told.pop("exception").endswith("ValueError: first\nsecond")
    assert told == {
        "time": "2023-11-14T22:13:20.250Z", "level": "WARNING", "logger": "replaysvc.x", "message": 'a b"\n\u2028é',
    }  # fmt: skip


def test_json_names_the_request_it_is_about():
    assert "request_id" not in json.loads(JsonLines().format(record("a")))
    mark = request_id.set("0123456789ab")
    try:
        assert json.loads(JsonLines().format(record("a")))["request_id"] == "0123456789ab"
    finally:
        request_id.reset(mark)


def test_the_last_lines_are_kept_and_no_longer_ones():
    recent = Recent()
    for number in range(LINES + 10):
        recent.handle(record("line %d", number))
    recent.handle(record("x" * 100_000))
    lines = recent.lines()
    assert len(lines) == LINES
    assert lines[0].endswith("WARNING replaysvc.x line 11")
    assert len(lines[-1]) == 2000
