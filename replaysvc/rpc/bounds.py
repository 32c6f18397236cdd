"""What a sample request may ask for, checked before the work that it would make."""

import math
from functools import lru_cache
from typing import NamedTuple

from replaysvc.config import MAX_MESSAGE_BYTES
from replaysvc.errors import InvalidRequestError
from replaysvc.layout import layout_of
from replaysvc.requests import Episodes, Sequences, Stack, Transitions, Window
from replaysvc.spec import Signature

HEADROOM = 1 << 20  # for headers and padding within a message
MAX_WINDOW_STEPS = 1 << 20  # batch_size * steps of a window: the table waits while they are found and copied, some 0.2 s
MAX_SUMMED_STEPS = 1 << 26  # batch_size * length * n_step of sequences: their n-step returns, as long again


def check_request(signature: Signature, batch_size: int, what: Window, *, large: int | None) -> None:
    """Refuses a request whose batch cannot be small enough, or whose windows are too long for so many items.

    `large`: bytes of the largest batch that is sent in pieces; None: it must fit one message.

    Raises:
      InvalidRequestError: names the limit, or what of the request does not fit the signature.
    """
    field, text, steps = _steps(what)
    if batch_size * steps > MAX_WINDOW_STEPS:
        raise InvalidRequestError(
            f"{field}: expected batch_size * {text} of at most {MAX_WINDOW_STEPS}, found {batch_size * steps}"
        )
    if isinstance(what, Sequences) and (summed := batch_size * what.length * what.n_step) > MAX_SUMMED_STEPS:
        raise InvalidRequestError(
            f"n_step: expected batch_size * length * n_step of at most {MAX_SUMMED_STEPS}, found {summed}"
        )
    check_bytes(batch_size * item_bytes(signature, what).least, large=large)


def check_bytes(size: int, *, large: int | None) -> None:
    """Refuses a batch of `size` bytes that does not fit what carries it: pieces of `large` bytes in all, or None: a message.

    Raises:
      InvalidRequestError: names the limit.
    """
    limit, where = (large, "") if large is not None else (MAX_MESSAGE_BYTES, "one message of ")
    if size > limit - HEADROOM:
        raise InvalidRequestError(f"batch_size: expected a batch within {where}{limit} bytes, found about {size}; ask for less")


def _steps(what: Window) -> tuple[str, str, int]:
    """Returns what bounds the steps of a window: its field, how it counts, and the number."""
    match what:
        case Sequences():
            return "length", "(length + n_step + stack)", what.length + what.n_step + _frames(what)
        case Episodes():
            return "max_steps", "(max_steps + stack)", what.max_steps + _frames(what)
        case _:
            return "n_step", "(n_step + stack)", what.n_step + _frames(what)


def _frames(what: Window) -> int:
    return what.stack.frames if isinstance(what.stack, Stack) else what.stack


class ItemBytes(NamedTuple):
    """The bytes that one item of a batch takes on the wire: at least; and about at most, unless float16 does not hold its
    values."""

    least: int
    most: int


@lru_cache(maxsize=256)  # learners ask for the same again and again
def item_bytes(signature: Signature, what: Window) -> ItemBytes:
    """Returns how large an item is."""
    least = _item_bytes(signature, what, what.length if isinstance(what, Sequences) else 1)
    return ItemBytes(least, _item_bytes(signature, what, what.max_steps) if isinstance(what, Episodes) else least)


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
