"""What a sample request may ask for, checked before the work that it would make."""

import math

from replaysvc.config import MAX_LARGE_BYTES, MAX_MESSAGE_BYTES
from replaysvc.errors import InvalidRequestError
from replaysvc.layout import layout_of
from replaysvc.requests import Episodes, Sequences, Stack, Transitions, Window
from replaysvc.spec import Signature

HEADROOM = 1 << 20  # for headers and padding within a message
MAX_WINDOW_STEPS = 1 << 24  # batch_size * steps of a window: what long windows take while they are made, some GB at most


def check_request(signature: Signature, batch_size: int, what: Window, *, large: bool) -> None:
    """Refuses a request whose batch cannot be small enough, or whose windows are too long for so many items.

    Raises:
      InvalidRequestError: names the limit, or what of the request does not fit the signature.
    """
    field, text, steps = _steps(what)
    if batch_size * steps > MAX_WINDOW_STEPS:
        raise InvalidRequestError(
            f"{field}: expected batch_size * {text} of at most {MAX_WINDOW_STEPS}, found {batch_size * steps}"
        )
    check_bytes(batch_size * least_item_bytes(signature, what), large=large)


def check_bytes(size: int, *, large: bool) -> None:
    """Refuses a batch of `size` bytes that does not fit what carries it: a stream of pieces if `large`, else a message.

    Raises:
      InvalidRequestError: names the limit.
    """
    limit, where = (MAX_LARGE_BYTES, "") if large else (MAX_MESSAGE_BYTES, "one message of ")
    if size > limit - HEADROOM:
        raise InvalidRequestError(f"batch_size: expected a batch within {where}{limit} bytes, found about {size}; ask for less")


def _steps(what: Window) -> tuple[str, str, int]:
    """Returns what bounds the steps of a window: its field, how it counts, and the number."""
    match what:
        case Sequences():
            assert isinstance(what.stack, Stack)
            return "length", "(length + n_step + stack)", what.length + what.n_step + what.stack.frames
        case Episodes():
            return "max_steps", "max_steps", what.max_steps
        case _:
            return "n_step", "n_step", what.n_step


def least_item_bytes(signature: Signature, what: Window) -> int:
    """Returns the bytes that one item of a batch takes at least on the wire."""
    return _item_bytes(signature, what, what.length if isinstance(what, Sequences) else 1)


def most_item_bytes(signature: Signature, what: Window) -> int:
    """Returns about the bytes that one item of a batch takes at most on the wire, unless float16 does not hold its values."""
    if isinstance(what, Episodes):
        return _item_bytes(signature, what, what.max_steps)
    return least_item_bytes(signature, what)


def _item_bytes(signature: Signature, what: Window, steps: int) -> int:
    """Returns the bytes of an item of so many steps in stored precision, as `gather` and `gather_sequences` lay it out."""
    layout, size = layout_of(signature, what), 0
    for i, spec in enumerate(signature.columns):
        if i < signature.observation_columns:
            rows = _observation_rows(what, steps, max(1, layout.frames[i]))
        else:
            rows = 1 if i in layout.state else steps
        size += rows * spec.stored_dtype.itemsize * math.prod(spec.shape)
    return size


def _observation_rows(what: Window, steps: int, frames: int) -> int:
    """Returns how often an observation stands in an item: neighbouring steps and stacks share what they have in common."""
    match what:
        case Transitions(n_step=n_step) if n_step > 1:
            return 2 * frames
        case Sequences(n_step=n_step):
            return frames + steps + n_step - 1
        case _:
            return frames + steps
