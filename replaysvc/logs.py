"""The service's log on stderr: a line a record, as text or as JSON, and the last of these lines for whoever asks."""

import json
import logging
import sys
import textwrap
import time
from collections import deque
from typing import Any

from replaysvc.activity import request_id

LINES = 500  # kept for whoever asks
_MOST_CHARACTERS = 2_000  # of a line that is kept
_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class OneLine(logging.Formatter):
    """A line for each record: names and sentences of others cannot make lines that look like the service's own."""

    def __init__(self, fmt: str = _TEXT) -> None:
        super().__init__(fmt)

    def formatMessage(self, record: logging.LogRecord) -> str:
        message = super().formatMessage(record)
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)

    def formatException(self, ei: Any) -> str:
        return textwrap.indent(super().formatException(ei), "  ")


class JsonLines(logging.Formatter):
    """A JSON object on a line for each record: time, level, logger, message; of a request, its id; the exception, if any."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z", "level": record.levelname, "logger": record.name,
            "message": record.getMessage(),
        }  # fmt: skip
        if asked := request_id.get():
            line["request_id"] = asked
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Recent(logging.Handler):
    """Keeps the last lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(OneLine())
        self._lines: deque[str] = deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record)[:_MOST_CHARACTERS])
        except Exception:
            self.handleError(record)

    def lines(self) -> list[str]:
        """Returns the last lines, the oldest first."""
        self.acquire()
        try:
            return list(self._lines)
        finally:
            self.release()


def start_logging(level: str, log_format: str) -> Recent:
    """Sends what is logged from `level` on to stderr, in `log_format` (text or json); returns what keeps the last of it."""
    handler, recent = logging.StreamHandler(sys.stderr), Recent()
    handler.setFormatter(JsonLines() if log_format == "json" else OneLine())
    logging.basicConfig(level=logging.getLevelNamesMapping()[level.upper()], handlers=[handler, recent])
    return recent
