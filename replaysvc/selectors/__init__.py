"""Selectors choose positions; they know nothing of the data.

A position is an int64 key that is never reused: a table adds at its end and removes mostly at its front. `Runs`, `Tally` and
`SumTree` hold what can be drawn; the `draw_` functions draw from them with replacement, by the generator they are handed, so
that one seed gives one batch. A `Queue` draws without chance and uses up what it hands out. All work is vectorised over the
batch. Calls are never concurrent: the table owns the one lock.
"""

from replaysvc.selectors.drawn import Drawn, Population
from replaysvc.selectors.importance import importance_weights, largest_weight
from replaysvc.selectors.prioritized import Priorities, check_priorities, deduplicate_last, draw_prioritized
from replaysvc.selectors.queue import Queue
from replaysvc.selectors.recency import draw_recent
from replaysvc.selectors.runs import Runs
from replaysvc.selectors.sum_tree import SumTree, run_starts
from replaysvc.selectors.tally import Tally
from replaysvc.selectors.uniform import draw_uniform

__all__ = [
    "Drawn", "Population", "Priorities", "Queue", "Runs", "SumTree", "Tally", "check_priorities", "deduplicate_last",
    "draw_prioritized", "draw_recent", "draw_uniform", "importance_weights", "largest_weight", "run_starts",
]  # fmt: skip
