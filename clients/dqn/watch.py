"""How far a run is, as the service and the run directory tell it to somebody who takes no part in it."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dqn.config import Config
from dqn.rundir import LearnerMetrics, Metrics, TrainEpisode
from replay_client import NotFoundError, Replay, TableStats, UnavailableError, WaitTimeoutError

_RATE_WINDOW_S = 5.0
_RECENT_EPISODES = 20


class Watch:
    """Looks at a run from outside. `stats` and `verdict` are those of the last look; None before there are any."""

    def __init__(self, replay: Replay, metrics: Metrics, config: Config) -> None:
        self._replay, self._metrics, self._config = replay, metrics, config
        self._first: _Look | None = None  # the first one with steps
        self._recent: list[_Look] = []
        self._sampled_before = 0  # by processes of the service that are no more: its own counter begins at 0 with each
        self.stats: TableStats | None = None
        self.verdict: dict[str, Any] | None = None

    @property
    def solved(self) -> bool:
        """Returns whether the evaluator's newest verdict says so."""
        return self.verdict is not None and bool(self.verdict["solved"])

    def look(self) -> None:
        """Asks again; returns without news while there is no table yet or no service any more."""
        try:
            self.stats = self._replay.table(self._config.table).stats()
            look = _Look(time.monotonic(), self.stats.next_position, self._sampled)
            if self._first is None and self.stats.next_position:
                self._first = look
            self._recent = [*(old for old in self._recent if old.at_s > look.at_s - _RATE_WINDOW_S), look]
            params = self._replay.get_params("evaluation")
            if params is not None:
                self.verdict = json.loads(params.data)
        except (NotFoundError, UnavailableError, WaitTimeoutError):  # whoever started the service sees how it is
            return

    def service_restarted(self) -> None:
        """To be called when the service was started anew: its counters since then begin at 0."""
        self._sampled_before = self._sampled
        if self.stats is not None:
            self.stats = replace(self.stats, sampled_items_total=0)

    @property
    def _sampled(self) -> int:
        return self._sampled_before + (self.stats.sampled_items_total if self.stats is not None else 0)

    def figures(self) -> dict[str, str]:
        """Returns what is worth showing while the run goes on, by name."""
        steps = self.stats.next_position if self.stats else 0
        steps_per_s, samples_per_s = self._recent[0].rates(self._recent[-1]) if self._recent else (0.0, 0.0)
        learner = next(iter(self._metrics.last(LearnerMetrics, 1)), None)
        returns = [episode["return_"] for episode in self._metrics.last(TrainEpisode, _RECENT_EPISODES)]
        verdict = self.verdict
        return {
            "steps": f"{steps:,}", "steps/s": f"{steps_per_s:,.0f}", "samples/s": f"{samples_per_s:,.0f}",
            "epsilon": f"{self._config.epsilon(steps):.2f}",
            "training return": f"{sum(returns) / len(returns):.1f}" if returns else "-",
            "evaluation": f"{verdict['mean_return']:.1f} (best {verdict['best_return']:.1f})" if verdict else "-",
            "policy version": str(learner["policy_version"]) if learner else "-",
            "staleness": f"{learner['staleness']:.1f} versions" if learner else "-",
        }  # fmt: skip

    def summary(self) -> Iterator[str]:
        """Yields the sentences that a run ends with."""
        if self.verdict:
            count, version = len(self.verdict["returns"]), self.verdict["policy_version"]
            yield (
                f"evaluation return {self.verdict['mean_return']:.1f}: mean of {count} greedy episodes of version {version}; "
                f"wanted {self._config.solved_return:g}"
            )
        stats = self.stats
        if stats is None or self._first is None or not stats.steps:
            return
        steps_per_s, samples_per_s = self._first.rates(self._recent[-1])
        yield f"{stats.next_position:,} steps, {steps_per_s:,.0f} steps/s"
        yield f"{self._sampled:,} samples, {samples_per_s:,.0f} samples/s"
        disk, chunks, raw = (total / stats.steps for total in (stats.disk_bytes, stats.stored_bytes, stats.raw_bytes))
        yield f"{disk:.1f} bytes on disk per step, {chunks:.1f} of them in chunks; raw (s, a, r, s') takes {raw:.1f}"
        yield f"compression ratio {raw / disk:.2f} on disk, {raw / chunks:.2f} in chunks"


@dataclass(frozen=True, slots=True)
class _Look:
    """The table's counters at a time."""

    at_s: float
    steps: int
    sampled: int

    def rates(self, later: "_Look") -> tuple[float, float]:
        """Returns stored steps and sampled transitions per second between two looks."""
        seconds = max(later.at_s - self.at_s, 1e-9)
        return (later.steps - self.steps) / seconds, (later.sampled - self.sampled) / seconds
