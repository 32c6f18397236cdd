"""From a plan to the columns of sequences and whole episodes, [B, T, ...].

Observations travel once: the frames that the first stack needs, those of the T steps, and those after them; `batch.assemble`
takes observations and next observations out of them. The table holds its lock around these functions.
"""

import numpy as np

from replaysvc.batch import COUNTS, BatchColumn
from replaysvc.nstep import sequence_targets
from replaysvc.relabel import Ends
from replaysvc.requests import Sequences, Stack, Transitions
from replaysvc.sampling.gather import Source, item_columns, relabeled_ends
from replaysvc.sampling.planning import Plan
from replaysvc.types import Array
from replaysvc.windows import past_ends


def gather_sequences(plan: Plan, source: Source) -> list[BatchColumn]:
    """Returns the columns of planned sequences or episodes. Every chunk is in the cache, or else among the fetched."""
    what, windows, layout = plan.what, plan.windows, plan.layout
    assert not isinstance(what, Transitions)
    n_step = what.n_step if isinstance(what, Sequences) else 1
    length = windows.length - n_step + 1
    signature, observations = source.signature, source.signature.observation_columns
    steps, seen = source.along(windows)
    rewards = source.take_own(layout.reward, steps).values
    ends = Ends(rewards, windows.counts, *source.flags(source.anchors(windows.end_row, windows.end_offset)))
    first = source.anchors(windows.runs[:, 0], windows.firsts[:, 0])
    goal, columns = None, item_columns(plan, source, first)
    if plan.goals is not None:
        ends, goal, extra = relabeled_ends(plan, source, ends)
        columns += extra
        if ends.counts is not windows.counts:
            windows = windows.cut(ends.counts)
            steps, seen = source.along(windows)
    stacked = None
    if plan.frames is not None:
        rows, offsets = windows.observations()
        before = plan.frames.rows[:, :-1], plan.frames.offsets[:, :-1]
        stacked = source.place(np.concatenate((before[0], rows), axis=1), np.concatenate((before[1], offsets), axis=1))
    if n_step > 1:  # which looks past the sequence for rewards alone
        steps, _ = source.along(windows.until(length))
    past = past_ends(ends.counts, length)
    stack = what.stack
    assert isinstance(stack, Stack)
    for i in range(len(signature.columns)):
        if i == layout.reward:
            continue
        if layout.frames[i]:
            assert stacked is not None
            assert plan.frames is not None
            before_start = np.zeros(stacked.shape, np.bool_)
            before_start[:, : layout.most_frames - 1] = plan.frames.padded()[:, :-1]
            columns.append(source.take_frames(i, stacked, before_start, stack.padding))
        elif i == layout.desired:
            assert plan.goals is not None
            assert goal is not None
            columns.append(
                BatchColumn(signature.columns[i].name, _with_goal(source.take_wide(i, seen), plan.goals.relabeled, goal))
            )
        elif i < observations:
            columns.append(source.take(i, seen))
        elif i in layout.state:
            columns.append(source.take(i, first))
        else:
            columns.append(_zeroed(source, i, source.take(i, steps), past))
    targets = sequence_targets(*ends, what.gamma, length, n_step, source.allocate)
    columns.append(BatchColumn(COUNTS, ends.counts))
    return columns + [BatchColumn(name, values) for name, values in targets._asdict().items()]


def _with_goal(values: Array, relabeled: Array, goal: Array) -> Array:
    values[relabeled] = goal[relabeled, None]
    return values


def _zeroed(source: Source, i: int, column: BatchColumn, past: Array) -> BatchColumn:
    """Returns the column with zeros at `past`, the numbers among all B * T of the steps that are not there."""
    if not past.size or not column.values.size:
        return column
    if column.offset_rows is not None:
        column = BatchColumn(column.name, column.widen(source.signature.columns[i]))
    column.values.reshape(-1, *column.values.shape[2:])[past] = 0
    return column
