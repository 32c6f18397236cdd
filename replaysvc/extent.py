"""How much a batch is, before it is there: what tells how many of them to draw together."""

from dataclasses import dataclass

from replaysvc.requests import Episodes, Sequences, Stack, Transitions, Window
from replaysvc.spec import Signature

_GROUP_BYTES = 2 << 20  # of batches that are drawn together: what a draw, or a call, costs beside them is little then
_GROUP_WORK = 1 << 18  # and of steps that are looked at for them


@dataclass(frozen=True, slots=True)
class Extent:
    """Of a batch, at most: its bytes as plain steps, frames of stacks among them; those as it travels, in which a sequence's
    next observations are no others; the steps that are looked at for it, however small it is. 0 where nothing can be told."""

    raw_bytes: int
    sent_bytes: int
    work: int

    def together(self, most: int) -> int:
        """Returns how many such batches to draw at once: several small ones, up to `most`, but 1 at least."""
        if not self.work:
            return 1
        return max(1, min(most, _GROUP_BYTES // self.sent_bytes, _GROUP_WORK // self.work))


def extent_of(signature: Signature, what: Window, batch_size: int) -> Extent:
    """Returns the extent of batches like `what`; of episodes, nothing can be told."""
    if isinstance(what, Episodes):
        return Extent(0, 0, 0)
    assert isinstance(what, Transitions | Sequences)
    assert isinstance(what.stack, Stack)
    frames, n_step = what.stack.frames, what.n_step
    steps, work, again = frames, n_step + frames, 0
    if isinstance(what, Sequences):
        steps += what.length + n_step - 2
        work = max(what.length + n_step + frames, what.length * n_step // 64)
        again = (steps - 1) * sum(spec.row_bytes for spec in signature.columns[: signature.observation_columns])
    raw = signature.raw_step_bytes * steps
    return Extent(batch_size * raw, batch_size * (raw - again), batch_size * work)
