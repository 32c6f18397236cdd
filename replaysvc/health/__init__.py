"""Whether all is well: rates over time, who writes and who samples, and a verdict with reasons. Every door tells the same."""

from replaysvc.health.health import Health

__all__ = ["Health"]
