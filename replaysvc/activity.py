"""What goes through a door: its calls, by method and outcome, and who draws batches, how fast, and what they wait for.

The store knows no callers, so this is counted where calls come in. Each note takes a few microseconds whatever was noted
before, under a lock of its own. What is kept is bounded: methods and codes are fixed sets, and of learners the last 1,024 are
known.
"""

import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar

from replaysvc.access import MAY
from replaysvc.histogram import SECONDS, Histogram
from replaysvc.views import CallCounts, HistogramView, LearnerView

METHODS = frozenset(MAY) | {"Check", "ServerReflectionInfo"}
"""Names of methods that are counted one by one."""

OTHER = "other"
"""What all other methods are counted as: their names are the caller's."""

_MOST_LEARNERS = 1024
_SLOT_S, _SLOTS = 5.0, 12  # the last minute
_LEAST_SPAN_S = 1.0  # that a rate is told of: else the first batch of a learner would be thousands a second
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Which call is being handled, so that what is logged meanwhile can say it. "" outside of calls."""


def new_request_id() -> str:
    """Returns a name for a call: 12 hexadecimal digits, by chance."""
    return os.urandom(6).hex()


def request_id_of(asked: object) -> str:
    """Returns the name that a caller gave its call; a new one if it gave none, or one that does not belong in a log."""
    return asked if isinstance(asked, str) and _REQUEST_ID.fullmatch(asked) else new_request_id()


class _Learner:
    """One who draws, from one table by one sampler."""

    __slots__ = ("batches", "items", "last_seen", "last_wait", "recent", "since")

    def __init__(self, since: float) -> None:
        self.since = self.last_seen = since
        self.items = self.batches = 0
        self.last_wait = ""
        self.recent: deque[list[float]] = deque(maxlen=_SLOTS)  # slot number, items, batches, seconds, seconds waited

    def note(self, now: float, items: int, batches: int, seconds: float, waited_s: float) -> None:
        self.last_seen = now
        self.items += items
        self.batches += batches
        slot = now // _SLOT_S
        if not self.recent or self.recent[-1][0] != slot:
            self.recent.append([slot, 0, 0, 0.0, 0.0])
        last = self.recent[-1]
        last[1] += items
        last[2] += batches
        last[3] += seconds
        last[4] += waited_s

    def view(self, key: tuple[str, str, str], now: float) -> LearnerView:
        first = now // _SLOT_S - _SLOTS + 1
        recent = [slot for slot in self.recent if slot[0] >= first]
        items, batches, seconds, waited_s = (sum(slot[i] for slot in recent) for i in range(1, 5))
        span_s = max(_LEAST_SPAN_S, now - max(self.since, first * _SLOT_S))
        name, table, sampler = key
        return LearnerView(
            name=name, table=table, sampler=sampler, items=self.items, batches=self.batches, items_per_s=items / span_s,
            batches_per_s=batches / span_s, mean_s=(seconds - waited_s) / batches if batches else 0.0,
            waited_share=min(1.0, waited_s / max(span_s, seconds)),  # of several calls at once, the share of their time
            last_wait=self.last_wait, last_seen_s=now - self.last_seen,
        )  # fmt: skip


class Activity:
    """Counts what goes through a door. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[tuple[str, str], Histogram] = {}
        self._leaving: dict[str, Histogram] = {}
        self._refused: dict[str, int] = {}
        self._received = self._sent = 0
        self._learners: OrderedDict[tuple[str, str, str], _Learner] = OrderedDict()

    def call(self, method: str, code: str, seconds: float, received: int, sent: int) -> None:
        """Counts a call that was handled. `code`: its gRPC status by name. received, sent: bytes of its messages."""
        key = (method if method in METHODS else OTHER), code
        with self._lock:
            if (histogram := self._seconds.get(key)) is None:
                histogram = self._seconds[key] = Histogram(SECONDS)
            histogram.observe(seconds)
            self._received += received
            self._sent += sent

    def left(self, method: str, seconds: float) -> None:
        """Counts an answer that has left: so long after its method was done with it."""
        method = method if method in METHODS else OTHER
        with self._lock:
            if (histogram := self._leaving.get(method)) is None:
                histogram = self._leaving[method] = Histogram(SECONDS)
            histogram.observe(seconds)

    def refused(self, code: str) -> None:
        """Counts a call whose caller is not known, or may not make it."""
        with self._lock:
            self._refused[code] = self._refused.get(code, 0) + 1

    def sampled(
        self, learner: str, table: str, sampler: str, items: int, seconds: float, waited_s: float, wait: str = "", *,
        batches: int = 1,
    ) -> None:  # fmt: skip
        """Counts a draw that took `seconds`, `waited_s` of them for data or a limiter. `wait` says why it got nothing, and then
        it counts as no batch."""
        key = learner, table, sampler
        with self._lock:
            now = self.clock()
            if (found := self._learners.get(key)) is None:
                found = self._learners[key] = _Learner(now - seconds)
                if len(self._learners) > _MOST_LEARNERS:
                    self._learners.popitem(last=False)
            else:
                self._learners.move_to_end(key)
            if wait:
                found.last_wait = wait
            found.note(now, items, 0 if wait else batches, seconds, waited_s)

    def calls(self) -> CallCounts:
        """Returns the calls since the start, without those under way: `Server.load` tells of these."""
        with self._lock:
            return CallCounts(
                seconds={key: histogram.view() for key, histogram in self._seconds.items()},
                received_bytes=self._received, sent_bytes=self._sent, refused=dict(self._refused),
            )  # fmt: skip

    def answers(self) -> Mapping[str, HistogramView]:
        """Returns, by method, the seconds that answers took to leave."""
        with self._lock:
            return {method: histogram.view() for method, histogram in self._leaving.items()}

    def learners(self) -> list[LearnerView]:
        """Returns all learners that are known, the one seen last first."""
        with self._lock:
            now = self.clock()
            return [learner.view(key, now) for key, learner in reversed(self._learners.items())]
