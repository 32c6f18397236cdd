"""Checks that options share: each returns the value in its plain form, or says which field, what was expected and found."""

import numbers
import re
from typing import Any

from replaysvc.errors import SpecMismatchError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MAX_ACTOR = 128
MAX_EPOCH = 1 << 62


def check_name(what: str, name: str) -> str:
    """Returns `name` if it may name a table or parameter set: it becomes a directory name.

    Raises:
      SpecMismatchError: other than letters, digits, `_`, `.`, `-` (up to 64, the first a letter or digit).
    """
    if not isinstance(name, str) or not NAME.fullmatch(name) or ".." in name:
        raise SpecMismatchError(what, "1 to 64 letters, digits, '_', '.' or '-', the first a letter or digit", repr(name))
    return name


def check_number(field: str, value: object, low: float, high: float, *, whole: bool = True) -> Any:
    """Returns `value` as a plain int (or float, if not `whole`); numpy's numbers are taken too.

    Raises:
      SpecMismatchError: no number, or not within [low, high].
    """
    if type(value) is int and whole and low <= value <= high:  # as a rule
        return value
    kind: Any = numbers.Integral if whole else numbers.Real
    if isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high:  # a NaN is within nothing
        return int(value) if whole else float(value)
    raise SpecMismatchError(field, f"{'a whole number' if whole else 'a number'} from {low} to {high}", repr(value))


def check_actor(actor: object) -> str:
    """Returns `actor` if it may name who writes. Raises SpecMismatchError."""
    if not isinstance(actor, str) or len(actor) > MAX_ACTOR or not actor.isprintable():
        raise SpecMismatchError("actor", f"up to {MAX_ACTOR} printable characters", repr(actor)[: MAX_ACTOR + 12])
    return actor


def check_epoch_number(epoch: object) -> int | None:
    """Returns a writer's epoch, which may be None. Raises SpecMismatchError."""
    return None if epoch is None else int(check_number("epoch", epoch, 0, MAX_EPOCH))
