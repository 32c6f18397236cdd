"""Which open episodes still have a writer: each is alive for `lease_s` after anything was heard of it.

A writer that dies leaves its episode without an end. Leases find that out: chunks renew them, and so do the writers' own
heartbeats while nothing happens in their environments. Not thread-safe: the table's lock is held around every call.
"""

from collections.abc import Callable, Iterable

from replaysvc.table.staging import EpisodeName


class Leases:
    """When each open episode of a table was last heard of, on a clock that nobody sets."""

    def __init__(self, monotonic: Callable[[], float], lease_s: float | None, names: Iterable[EpisodeName]) -> None:
        """`lease_s` None: open episodes stay open. `names`: the open episodes of a table that was just opened."""
        self._monotonic, self._lease_s = monotonic, lease_s
        now = monotonic()
        self._heard_at = dict.fromkeys(names, now)

    def renew(self, session_id: bytes, keys: Iterable[int]) -> None:
        """Notes that episodes of a session, by their keys, are alive; those not begun yet, or ended, are passed over."""
        now = self._monotonic()
        for key in keys:
            if (session_id, key) in self._heard_at:
                self._heard_at[session_id, key] = now

    def begin(self, name: EpisodeName) -> None:
        """Notes that an episode was begun, or goes on."""
        self._heard_at[name] = self._monotonic()

    def end(self, name: EpisodeName) -> None:
        """Forgets an episode that is open no more."""
        self._heard_at.pop(name, None)

    def expired(self) -> list[EpisodeName]:
        """Returns the episodes of which nothing was heard for too long."""
        if self._lease_s is None:
            return []
        return self.silent(self._lease_s)

    def silent(self, seconds: float) -> list[EpisodeName]:
        """Returns the episodes of which nothing was heard for so long, whether or not there are leases."""
        limit = self._monotonic() - seconds
        return [name for name, heard_at in self._heard_at.items() if heard_at < limit]

    def excuse(self, seconds: float) -> None:
        """Prolongs all leases by a time in which this process itself stood still, and could hear of nobody."""
        self._heard_at = {name: heard_at + seconds for name, heard_at in self._heard_at.items()}
