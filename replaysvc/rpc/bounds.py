"""What a sample request may ask for, checked before the work that it would make."""

import math

from replaysvc.config import MAX_LARGE_BYTES, MAX_MESSAGE_BYTES
from replaysvc.errors import InvalidRequestError
from replaysvc.requests import Episodes, Sequences, Stack, Window
from replaysvc.spec import Signature

HEADROOM = 1 << 20  # for headers and padding within a message
MAX_WINDOW_STEPS = 1 << 24  # batch_size * steps of a window: what long windows take while they are made, some GB at most


def check_request(signature: Signature, batch_size: int, what: Window, *, large: bool) -> None:
    """Refuses a request whose batch cannot be small enough, or whose windows are too long for so many items.

    Raises:
      InvalidRequestError: names the limit.
    """
    check_bytes(batch_size * least_item_bytes(signature, what), large=large)
    field, text, steps = _steps(what)
    if batch_size * steps > MAX_WINDOW_STEPS:
        raise InvalidRequestError(
            f"{field}: expected batch_size * {text} of at most {MAX_WINDOW_STEPS}, found {batch_size * steps}"
        )


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
            return "length", "(length + n_step + stack)", what.length + what.n_step + _stack(what).frames
        case Episodes():
            return "max_steps", "max_steps", what.max_steps
        case _:
            return "n_step", "n_step", what.n_step


def _stack(what: Window) -> Stack:
    return what.stack if isinstance(what.stack, Stack) else Stack(what.stack)


def least_item_bytes(signature: Signature, what: Window) -> int:
    """Returns the bytes that one item of a batch takes at least on the wire."""
    steps = what.length if isinstance(what, Sequences) else 1
    return steps * step_bytes(signature, what)


def most_item_bytes(signature: Signature, what: Window) -> int:
    """Returns about the bytes that one item of a batch takes at most on the wire, unless float16 does not hold its values."""
    return what.max_steps * step_bytes(signature, what) if isinstance(what, Episodes) else least_item_bytes(signature, what)


def step_bytes(signature: Signature, what: Window) -> int:
    """Returns the bytes that one step takes at least: its columns in stored precision, observations twice, frames counted."""
    stack, first = _stack(what), signature.observation_columns
    once = frozenset(what.state) if isinstance(what, Sequences) else frozenset()
    goals = {what.her.achieved, what.her.desired} if what.her else {"achieved_goal", "desired_goal"}
    size = 0
    for i, spec in enumerate(signature.columns):
        stored = spec.stored_dtype.itemsize * math.prod(spec.shape)
        top, _, rest = spec.name.partition("/")
        if i < first:
            stacked = {spec.name, rest} & set(stack.columns) if stack.columns else not {spec.name, rest} & goals
            size += 2 * stored * (stack.frames if stacked else 1)
        elif not once & {spec.name, top}:
            size += stored
    return size
