"""Inputs that nearly are right: bytes, JSON and protobuf messages, changed by chance. All chance is a generator's."""

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    0, 1, 2, 3, 7, 8, 15, 16, 63, 64, 127, 128, 255, 256, 1000, 4095, 4096, 65_535, 65_536, (1 << 24) - 1, 1 << 24,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 48, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63,
    (1 << 64) - 1,
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e30, 1.1e30, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", " ", "a", "t", "..", ".", "/", "../../etc/passwd", "a/b", "\0", "a\0b", "\n", "x" * 64, "x" * 65, "x" * 5000, "ü",
    "名前", "\u202e", "-", "con", "observation", "action", "reward", "uniform", "prioritized", "<b>", "%s%n", "{}", "1e9",
)  # fmt: skip
_DEEP = "[" * 3000, '{"a":' * 3000, "[" * 3000 + "]" * 3000


def number(rng: random.Random) -> int:
    """Returns an edge of some integer type, or a number near one, of either sign."""
    value = rng.choice(NUMBERS) + rng.choice((0, 0, 0, 1, -1))
    return -value if rng.random() < 0.2 else value


def change_bytes(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Returns `data` after one to four changes; parts of `others` may get into it."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(10):
            case 0 | 1 | 2 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            case 3 | 4:
                data = data[:at] + rng.randbytes(rng.choice((1, 1, 2, 4, 8))) + data[at + 1 :]
            case 5:
                code = rng.choice(("<H", "<I", "<Q", ">Q", "<i", "<q"))
                size = struct.calcsize(code)
                data = data[:at] + (number(rng) & (1 << 8 * size) - 1).to_bytes(size, "little") + data[at + size :]
            case 6:
                data = data[:at]
            case 7:
                data = data[:at] + data[at + rng.choice((1, 2, 4, 8, 64)) :]
            case 8:
                data = data[:at] + data[at : at + rng.choice((1, 8, 64))] * rng.choice((2, 2, 3, 20)) + data[at:]
            case _ if others:
                other = rng.choice(others)
                data = data[:at] + other[rng.randrange(len(other) + 1) :][: rng.choice((4, 64, 4096))] + data[at:]
    return data[: 1 << 20]


def odd_value(rng: random.Random) -> Any:
    """Returns a plain value of any JSON type."""
    match rng.randrange(10):
        case 0 | 1 | 2:
            return number(rng)
        case 3:
            return rng.choice(FLOATS)
        case 4 | 5:
            return rng.choice(TEXTS)
        case 6:
            return rng.choice((None, True, False))
        case 7:
            return [odd_value(rng) for _ in range(rng.randrange(4))]
        case 8:
            return {rng.choice(TEXTS): odd_value(rng) for _ in range(rng.randrange(3))}
        case _:
            return 10 ** rng.choice((20, 400)) * rng.choice((1, -1))


def change_json(rng: random.Random, value: Any) -> Any:
    """Returns a copy of a JSON value with a part of it replaced, dropped, added or moved."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        copy = dict(value)
        key = rng.choice(list(copy))
        match rng.randrange(8):
            case 0:
                del copy[key]
            case 1:
                copy[rng.choice(TEXTS)] = copy[key]
            case 2:
                copy[key] = odd_value(rng)
            case _:
                copy[key] = change_json(rng, copy[key])
        return copy
    if isinstance(value, list) and value and rng.random() < 0.9:
        items, at = list(value), rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                del items[at]
            case 1:
                items *= rng.choice((2, 50))
            case _:
                items[at] = change_json(rng, items[at])
        return items
    return odd_value(rng)


def json_text(rng: random.Random, seeds: Sequence[Any]) -> str:
    """Returns the text of a changed JSON value, sometimes with the text itself changed."""
    value = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = change_json(rng, value)
    if rng.random() < 0.002:
        return rng.choice(_DEEP)
    text = json.dumps(value)
    return change_bytes(rng, text.encode()).decode(errors="replace") if rng.random() < 0.2 else text


Hint = Callable[[random.Random], Any]


def message(rng: random.Random, kind: Any, hints: dict[str, Hint], depth: int = 0) -> Any:
    """Returns a message of class `kind`. `hints` make the values of fields by name, most of the time."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if rng.random() < (0.15 if field.name not in hints else 0.02):
            continue
        if field.message_type is not None:
            if depth < 4 and rng.random() < 0.5:
                child = message(rng, field.message_type._concrete_class, hints, depth + 1)
                if field.is_repeated:
                    getattr(made, field.name).extend([child] * rng.choice((1, 1, 2, 5)))
                else:
                    getattr(made, field.name).CopyFrom(child)
            continue
        make = hints.get(field.name)
        values = [
            make(rng) if make is not None and rng.random() < 0.9 else _scalar(rng, field)
            for _ in range(rng.choice((0, 1, 2, 8)) if field.is_repeated else 1)
        ]
        try:
            if field.is_repeated:
                getattr(made, field.name).extend(values)
            else:
                setattr(made, field.name, values[0])
        except (ValueError, TypeError):  # a hint for a field of the same name and another type, or out of its range
            continue
    return made


def _scalar(rng: random.Random, field: Any) -> Any:
    match field.cpp_type:
        case field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return rng.choice(FLOATS)
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 8, 15, 16, 17, 64)))
        case field.CPPTYPE_STRING:
            return rng.choice(TEXTS)
        case field.CPPTYPE_ENUM:
            return rng.choice((0, 1, 2, 3, 4, 99, -1))
        case field.CPPTYPE_INT32 | field.CPPTYPE_UINT32:
            return number(rng) % (1 << 31)
        case _:
            return number(rng) % (1 << 63)
