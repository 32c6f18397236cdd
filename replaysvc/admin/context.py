"""What the admin door is given: the store, who may look, what the other door counts, and how the service was started."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from replaysvc.access import Access
from replaysvc.activity import Activity
from replaysvc.health import Health
from replaysvc.replay import Replay


class Metrics(Protocol):
    """What renders /metrics."""

    def render(self) -> tuple[bytes, str]:
        """Returns the body and its content type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """One admin door.

    health: whose looks go on as long as the door is open. access: knows the tokens; None: everyone may do everything. status:
    of the gRPC door, "starting", "serving" or "draining". address: of that door. data: the store's directory. version: of
    replaysvc. names: host names that browsers may call besides localhost and IP addresses. settings, limits: plain values, to
    be shown. log_lines: the last lines of the log. wall: a clock.
    """

    replay: Replay
    health: Health
    access: Access | None
    activity: Activity
    metrics: Metrics
    status: Callable[[], str]
    address: str
    data: str
    version: str
    names: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    log_lines: Callable[[], Sequence[str]] = list
    wall: Callable[[], float] = time.time
