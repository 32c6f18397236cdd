"""What goes through a door: its calls, by method and outcome, and who draws batches, how fast, and what they wait for.

The store knows no callers, so this is counted where calls come in. A note takes a microsecond or two, whatever was noted
before, under no lock but its own. What is kept is bounded: methods and codes are fixed sets, and of learners the last 1,024
are known.
"""

import itertools
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
_NOTES = 64  # that are counted together: it takes a third of the time that they take one by one, each with cold caches
_SLOT_S, _SLOTS = 5.0, 12  # the last minute
_LEAST_SPAN_S = 1.0  # that a rate is told of: else the first batch of a learner would be thousands a second
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROCESS, _numbers = os.urandom(3).hex(), itertools.count()  # a chance for each call would be a system call for each

REQUEST_KEY = "x-request-id"
"""Metadata of a call, or a header, and of its answer: what the log calls it. A caller may choose it."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Which call is being handled, so that what is logged meanwhile can say it. "" outside of calls."""


def new_request_id() -> str:
    """Returns a name for a call: 12 hexadecimal digits, 6 of the process by chance and 6, or more, that count its calls."""
    return f"{_PROCESS}{next(_numbers):06x}"


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
        self.last_seen = max(self.last_seen, now)
        self.items += items
        self.batches += batches
        slot = now // _SLOT_S
        if not self.recent or self.recent[-1][0] < slot:  # notes of several threads may come a little out of order
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
    """Counts what goes through a door. Thread-safe.

    A note is only put down where it is made, and counted with the next ones, or when somebody looks: a call has better to do.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._calls: deque[tuple[str, str, float, int, int, float | None, bool]] = deque()  # not counted yet
        self._draws: deque[tuple[float, tuple[str, str, str], int, float, float, str, int]] = deque()
        self._seconds: dict[tuple[str, str], Histogram] = {}
        self._waits: dict[str, int] = {}
        self._leaving: dict[str, Histogram] = {}
        self._refused: dict[str, int] = {}
        self._received = self._sent = 0
        self._learners: OrderedDict[tuple[str, str, str], _Learner] = OrderedDict()

    def call(
        self, method: str, code: str, seconds: float, received: int, sent: int, leaving_s: float | None = None,
        wait: bool = False,
    ) -> None:  # fmt: skip
        """Counts a call that was handled. `code`: its gRPC status by name. received, sent: bytes of its messages. leaving_s:
        how long its answer took to leave, beside `seconds`. wait: whether it ended since there was nothing for it yet, which
        its code does not tell."""
        self._calls.append((method, code, seconds, received, sent, leaving_s, wait))
        if len(self._calls) >= _NOTES:
            self._settle()

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
        self._draws.append((self.clock(), (learner, table, sampler), items, seconds, waited_s, wait, batches))
        if len(self._draws) >= _NOTES:
            self._settle()

    def calls(self) -> CallCounts:
        """Returns the calls since the start, without those under way: `Server.load` tells of these."""
        self._settle()
        with self._lock:
            return CallCounts(
                seconds={key: histogram.view() for key, histogram in self._seconds.items()}, waits=dict(self._waits),
                received_bytes=self._received, sent_bytes=self._sent, refused=dict(self._refused),
            )  # fmt: skip

    def answers(self) -> Mapping[str, HistogramView]:
        """Returns, by method, the seconds that answers took to leave."""
        self._settle()
        with self._lock:
            return {method: histogram.view() for method, histogram in self._leaving.items()}

    def learners(self) -> list[LearnerView]:
        """Returns all learners that are known, the one seen last first."""
        self._settle()
        with self._lock:
            now = self.clock()
            return [learner.view(key, now) for key, learner in reversed(self._learners.items())]

    def _settle(self) -> None:
        """Counts what was noted so far."""
        with self._lock:
            for _ in range(len(self._calls)):  # nobody else takes out what is in there
                self._count_call(*self._calls.popleft())
            for _ in range(len(self._draws)):
                self._count_draw(*self._draws.popleft())

    def _count_call(
        self, method: str, code: str, seconds: float, received: int, sent: int, leaving_s: float | None, wait: bool
    ) -> None:
        if method not in METHODS:
            method = OTHER
        key = method, code
        if (histogram := self._seconds.get(key)) is None:
            histogram = self._seconds[key] = Histogram(SECONDS)
        histogram.observe(seconds)
        if wait:
            self._waits[method] = self._waits.get(method, 0) + 1
        self._received += received
        self._sent += sent
        if leaving_s is not None:
            if (histogram := self._leaving.get(method)) is None:
                histogram = self._leaving[method] = Histogram(SECONDS)
            histogram.observe(leaving_s)

    def _count_draw(
        self, at: float, key: tuple[str, str, str], items: int, seconds: float, waited_s: float, wait: str, batches: int
    ) -> None:
        if (found := self._learners.get(key)) is None:
            found = self._learners[key] = _Learner(at - seconds)
            if len(self._learners) > _MOST_LEARNERS:
                self._learners.popitem(last=False)
        else:
            self._learners.move_to_end(key)
        if wait:
            found.last_wait = wait
        found.note(at, items, 0 if wait else batches, seconds, waited_s)
