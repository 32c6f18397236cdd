"""Checks that options share: each returns the value in its plain form, or says which field, what was expected and found."""

import numbers
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from replaysvc.errors import SpecMismatchError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MAX_ACTOR = 128
MAX_EPOCH = 1 << 62
MAX_TIMEOUT_S = 86_400.0
_SHOWN = 200


def shown(value: object) -> str:
    """Returns what a message says was found: its repr, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # of a whole number of thousands of digits, say
        text = f"a {type(value).__name__} that has no repr"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def check_name(what: str, name: str) -> str:
    """Returns `name` if it may name a table or parameter set: it becomes a directory name.

    Raises:
      SpecMismatchError: other than letters, digits, `_`, `.`, `-` (up to 64, the first a letter or digit).
    """
    if not isinstance(name, str) or not NAME.fullmatch(name) or ".." in name:
        raise SpecMismatchError(what, "1 to 64 letters, digits, '_', '.' or '-', the first a letter or digit", shown(name))
    return name


def check_text(field: str, value: object) -> str:
    """Returns `value` if it may be asked for as a name: any text that can travel as UTF-8. Raises SpecMismatchError."""
    if not isinstance(value, str) or not value or not _encodes(value):
        raise SpecMismatchError(field, "a name", shown(value))
    return value


def check_path(field: str, value: object) -> str:
    """Returns a path as text. Raises SpecMismatchError: what no file system takes."""
    path = value if isinstance(value, str) else value.__fspath__() if hasattr(value, "__fspath__") else None
    if not isinstance(path, str) or not path or "\0" in path or not _encodes(path, "surrogateescape"):
        raise SpecMismatchError(field, "the path of a directory", shown(value))
    return path


def _encodes(text: str, errors: str = "strict") -> bool:
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def check_flag(field: str, value: object) -> bool:
    """Returns `value` as a plain bool; numpy's is taken too. Raises SpecMismatchError."""
    if not isinstance(value, bool | np.bool_):
        raise SpecMismatchError(field, "a bool", shown(value))
    return bool(value)


def check_timeout(value: object) -> float:
    """Returns how many seconds a call may wait. Raises SpecMismatchError."""
    return float(check_number("timeout_s", value, 0, MAX_TIMEOUT_S, whole=False))


def check_ids(field: str, values: object, most: int) -> list[int]:
    """Returns ids, each once, in order. Raises SpecMismatchError: no collection of them, or more than `most`."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise SpecMismatchError(field, "a collection of episode ids", shown(values))
    ids: set[int] = set()
    for value in values:
        ids.add(check_number(field, value, 0, (1 << 63) - 1))
        if len(ids) > most:
            raise SpecMismatchError(field, f"at most {most}", "more")
    return sorted(ids)


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
    raise SpecMismatchError(field, f"{'a whole number' if whole else 'a number'} from {low} to {high}", shown(value))


def check_actor(actor: object) -> str:
    """Returns `actor` if it may name who writes. Raises SpecMismatchError."""
    if not isinstance(actor, str) or len(actor) > MAX_ACTOR or not actor.isprintable():
        raise SpecMismatchError("actor", f"up to {MAX_ACTOR} printable characters", shown(actor))
    return actor


def check_epoch_number(epoch: object) -> int | None:
    """Returns a writer's epoch, which may be None. Raises SpecMismatchError."""
    return None if epoch is None else int(check_number("epoch", epoch, 0, MAX_EPOCH))
