"""What a step looks like: the field specs of a table, as flat columns and as the nesting that the user sees.

A signature is a tree (FieldSpec, dict or tuple, nested at will) for the observation, one for the action and one for each
extra. Everything below the client works on the flat list `Signature.columns`, one leaf each, named by its path:
`observation/position`, `action`, `log_prob`. Dict keys are sorted, so the order in which somebody wrote them down
changes neither the columns nor the hash. A ragged leaf is two columns: its values, padded with zeros to the declared shape,
and right after it its lengths, `<path>/length`. No other leaf can have that name, since below a leaf there is nothing.

`terminated` and `truncated` are no columns: only the last step of an episode can carry them, so the chunk's header does.
"""

import hashlib
import json
import math
import operator
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from replaysvc.errors import ChunkCorruptError, InvalidRequestError, SpecMismatchError
from replaysvc.ragged import RaggedArray

DTYPES = tuple(map(np.dtype, (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64",
)))  # fmt: skip
MAX_STEP_BYTES = 48 << 20  # one step with both its observations: must fit a 64 MiB message
MAX_DEPTH = 32  # of trees; chosen by hand
MAX_COLUMNS = 256  # chosen by hand; bounds the header that a decoder must walk
RESERVED_NAMES = frozenset(
    (
        "observation", "action", "reward", "terminated", "truncated", "next_observation", "discount", "positions", "episode_id",
        "t", "probability", "importance_weight", "age_s", "policy_version", "mask", "is_first", "relabeled", "metadata",
    )
)  # fmt: skip
GOAL_NAMES = frozenset(("achieved_goal", "desired_goal"))
_KEY = re.compile(r"[^/\x00-\x1f\x7f]{1,64}")


class Precision(Enum):
    """How exactly a float field is kept."""

    AUTO = "auto"  # FLOAT16 for float observations that are neither goals nor ragged, LOSSLESS for all else
    FLOAT16 = "float16"  # kept as float16 within `max_error`; a chunk that does not fit is kept lossless
    LOSSLESS = "lossless"  # bit for bit


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One array of a step: its shape and dtype, and how exactly it is kept.

    `max_error` is the largest absolute error that FLOAT16 may cause; None means 2^-10 of the largest range that any
    dimension of the field covers within a chunk. `finite` refuses NaN and infinities at `append`.

    `ragged`: a step's value is [n, *shape[1:]] with an n of its own, up to shape[0]; batches hold RaggedArrays.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    precision: Precision = Precision.AUTO
    max_error: float | None = None
    finite: bool = False
    ragged: bool = False

    def __post_init__(self) -> None:
        try:
            shape = tuple(operator.index(n) for n in (self.shape if isinstance(self.shape, tuple | list) else (self.shape,)))
            dtype, precision = np.dtype(self.dtype), Precision(self.precision)
        except (TypeError, ValueError) as error:
            found = f"{self.shape!r}, {self.dtype!r}, {self.precision!r}"
            raise SpecMismatchError(str(self.name), "a shape, a dtype and a Precision", found) from error
        if not isinstance(self.name, str) or self.dtype is None:
            raise SpecMismatchError(str(self.name), "a name and a dtype", f"{self.name!r}, {self.dtype!r}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype.newbyteorder("="))
        object.__setattr__(self, "precision", precision)
        if self.dtype not in DTYPES:
            raise SpecMismatchError(self.name, "one of " + ", ".join(str(d) for d in DTYPES), str(dtype))
        if len(shape) > 8 or any(n < 0 for n in shape):
            raise SpecMismatchError(f"{self.name}.shape", "up to 8 sizes >= 0", str(shape))
        wide = math.prod(n or 1 for n in shape) * self.dtype.itemsize  # numpy refuses an array by that, too, though it is empty
        if wide > MAX_STEP_BYTES:
            raise SpecMismatchError(self.name, f"at most {MAX_STEP_BYTES} bytes a step, a size of 0 taken as 1", str(wide))
        for flag in ("finite", "ragged"):
            if not isinstance(getattr(self, flag), bool | np.bool_):  # JSON would keep a 1, and its hash be another
                raise SpecMismatchError(f"{self.name}.{flag}", "a bool", repr(getattr(self, flag)))
            object.__setattr__(self, flag, bool(getattr(self, flag)))
        if self.precision is Precision.FLOAT16 and self.dtype.kind != "f":
            raise SpecMismatchError(f"{self.name}.precision", "FLOAT16 on a float dtype only", str(self.dtype))
        if self.max_error is not None:
            if not (isinstance(self.max_error, int | float) and 0 <= self.max_error <= sys.float_info.max):
                raise SpecMismatchError(f"{self.name}.max_error", "a finite number >= 0", repr(self.max_error))
            object.__setattr__(self, "max_error", float(self.max_error))
        if self.ragged:
            if not shape or not 1 <= shape[0] < 1 << 32:
                raise SpecMismatchError(f"{self.name}.shape", "1 to 2^32-1 values at most as the first size", str(shape))
            if self.precision is Precision.FLOAT16 and self.max_error is None:  # the zeros of the padding would widen the range
                raise SpecMismatchError(f"{self.name}.max_error", "a number, as the field is ragged and FLOAT16", "None")

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of one step as declared."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def cast(self) -> bool:
        """Returns whether chunks keep this field as float16 where the error bound allows."""
        return self.precision is Precision.FLOAT16 and self.dtype.itemsize > 2

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Returns the dtype in which the field is normally kept: float16 where cast, the declared one elsewhere."""
        return np.dtype(np.float16) if self.cast else self.dtype

    def check(self, value: object) -> np.ndarray[Any, Any]:
        """Returns `value` as an array of the declared shape and dtype; of a ragged field, as long as it is, without padding.

        Accepted besides the declared dtype: integers for integers and floats, floats of another width for floats, bool
        for integers, each only if the values survive (no wrap-around, no overflow to infinity).

        Raises:
          SpecMismatchError: wrong shape, dtype kind or range, NaN or infinity where `finite` is set, object arrays.
        """
        if type(value) is np.ndarray and value.dtype == self.dtype and value.shape == self.shape and not (
            self.finite or self.ragged
        ):  # as a rule
            return value
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, and tensors that numpy cannot take
            raise SpecMismatchError(self.name, f"an array of {self.dtype}{list(self.shape)}", str(error)) from error
        if isinstance(value, np.ma.MaskedArray):
            raise SpecMismatchError(self.name, "an array without a mask", "a masked array")
        if self.ragged and array.shape == (0,):  # an empty list has neither a dtype nor further axes of its own
            return np.empty((0, *self.shape[1:]), self.dtype)
        if array.dtype != self.dtype:
            array = self._convert(array)
        fitting = (min(len(array), self.shape[0]), *self.shape[1:]) if self.ragged and array.ndim else self.shape
        if array.shape != fitting:
            raise SpecMismatchError(self.name, f"shape {'up to ' * self.ragged}{self.shape}", f"shape {array.shape}")
        if self.finite and array.dtype.kind in "fc" and not np.isfinite(array).all():
            raise SpecMismatchError(self.name, "finite values", str(array.reshape(-1)[~np.isfinite(array.reshape(-1))][0]))
        return array

    def _convert(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        source, target = array.dtype.kind, self.dtype.kind
        if source + target not in ("iu", "ui", "ii", "uu", "if", "uf", "ff", "bi", "bu", "cc", "fc"):
            raise SpecMismatchError(self.name, f"dtype {self.dtype}", f"dtype {array.dtype}")
        with np.errstate(over="ignore", invalid="ignore"):
            converted = array.astype(self.dtype)
        if target in "iu":
            kept = bool((converted == array).all() and ((converted < 0) == (array < 0)).all())
        else:
            kept = bool((np.isinf(converted) <= ~np.isfinite(array)).all())
        if not kept:
            raise SpecMismatchError(self.name, f"values within the range of {self.dtype}", f"{array.dtype} values outside it")
        return converted

    def to_json(self) -> dict[str, Any]:
        """Returns the plain form that `from_json` reads; the name is the place in the tree and not part of it."""
        plain = {
            "shape": list(self.shape), "dtype": self.dtype.name, "precision": self.precision.value,
            "max_error": self.max_error, "finite": self.finite,
        }  # fmt: skip
        return plain | ({"ragged": True} if self.ragged else {})  # absent elsewhere: hashes are older than ragged fields


Tree: TypeAlias = "FieldSpec | Mapping[str, Tree] | tuple[Tree, ...]"
REWARD = FieldSpec("reward", (), np.dtype(np.float32), Precision.LOSSLESS, finite=True)


class Signature:
    """The field specs of a table. Immutable; equal signatures have equal hashes on every machine.

    `observation` and `action` take a FieldSpec, or dicts and tuples of them; so does each extra, given by name.
    Precision.AUTO is settled here: float observations that are neither goals nor ragged are kept as float16, all else lossless.
    """

    __slots__ = ("action", "columns", "extras", "hash", "observation", "observation_columns", "raw_step_bytes", "reward")

    observation: Tree
    action: Tree
    reward: FieldSpec
    extras: Mapping[str, Tree]
    columns: tuple[FieldSpec, ...]  # flat: those of observation, action, reward, extras; named by path
    observation_columns: int  # how many of them, counted from the first, are observations (T+1 rows an episode)
    raw_step_bytes: int  # of one step as (s, a, r, s') in the declared dtypes, extras included: what a plain buffer keeps
    hash: int  # 64 bits over the canonical JSON

    def __init__(self, observation: Tree, action: Tree, *, reward: FieldSpec = REWARD, **extras: Tree) -> None:
        _check_extras(extras)
        put = object.__setattr__
        put(self, "observation", _settle(observation, "observation"))
        put(self, "action", _settle(action, "action"))
        put(self, "reward", _settle(reward, "reward"))
        if not isinstance(self.reward, FieldSpec) or self.reward.shape or self.reward.dtype != np.float32:
            raise SpecMismatchError(
                "reward", "a FieldSpec of shape () and dtype float32, since returns are summed from it", repr(reward)
            )
        put(self, "reward", replace(self.reward, finite=True))
        put(self, "extras", {name: _settle(tree, name) for name, tree in sorted(extras.items())})
        trees: list[Tree] = [self.observation, self.action, self.reward, *self.extras.values()]
        put(self, "columns", tuple(column for tree in trees for column in columns_of(tree)))
        put(self, "observation_columns", sum(2 if leaf.ragged else 1 for leaf in leaves(self.observation)))
        sizes = [c.row_bytes * (2 if i < self.observation_columns else 1) for i, c in enumerate(self.columns)]
        put(self, "raw_step_bytes", sum(sizes))
        if not self.observation_columns:
            raise InvalidRequestError("observation: expected at least one field, found an empty tree")
        if len(self.columns) > MAX_COLUMNS:
            raise InvalidRequestError(f"signature: expected at most {MAX_COLUMNS} fields, found {len(self.columns)}")
        if self.raw_step_bytes > MAX_STEP_BYTES:
            raise InvalidRequestError(
                f"signature: expected at most {MAX_STEP_BYTES} bytes a step (s, a, r, s'), found {self.raw_step_bytes}"
            )
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()
        put(self, "hash", int.from_bytes(hashlib.blake2b(canonical, digest_size=8).digest(), "little"))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Signature is immutable, cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signature) and self.hash == other.hash

    def __hash__(self) -> int:
        return self.hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Signature.from_json, (self.to_json(),))

    def __repr__(self) -> str:
        rows = (
            f"{c.name}: {'ragged ' * c.ragged}{c.dtype}{list(c.shape)} as {'float16' if c.cast else 'lossless'}"
            for c in self.columns
        )
        return "Signature(" + ", ".join(rows) + ")"

    def to_json(self) -> dict[str, Any]:
        """Returns the plain form that `from_json` reads."""
        return {
            "observation": _tree_to_json(self.observation), "action": _tree_to_json(self.action),
            "reward": self.reward.to_json(), "extras": {name: _tree_to_json(tree) for name, tree in self.extras.items()},
        }  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Signature":
        """Returns the signature that `to_json` described.

        Raises:
          InvalidRequestError: the data describe no signature.
        """
        try:
            extras = {name: _tree_from_json(tree, name, 0) for name, tree in data["extras"].items()}
            _check_extras(extras)
            reward = _tree_from_json({"leaf": data["reward"]}, "reward", 0)
            observation = _tree_from_json(data["observation"], "observation", 0)
            action = _tree_from_json(data["action"], "action", 0)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InvalidRequestError(f"signature: expected the JSON form of a signature, found {error!r}") from error
        assert isinstance(reward, FieldSpec)
        return Signature(observation, action, reward=reward, **extras)

    @staticmethod
    def from_env(env: Any, *, keep_float64: bool = False, reward: FieldSpec = REWARD, **extras: Tree) -> "Signature":
        """Returns the signature of a Gymnasium environment, single or vector (then of one of its environments).

        float64 observations are declared float32, since their precision is an accident of the simulator more often than
        a need; `keep_float64=True` keeps the dtype. `extras` declares further fields by name.

        Raises:
          InvalidRequestError: a space that has no fixed shape (Text, Graph, Sequence), or no space at all.
        """
        from replaysvc.spaces import tree_of_space

        observation = getattr(env, "single_observation_space", None) or getattr(env, "observation_space", None)
        action = getattr(env, "single_action_space", None) or getattr(env, "action_space", None)
        return Signature(
            tree_of_space(observation, "observation", keep_float64=keep_float64),
            tree_of_space(action, "action", keep_float64=True),
            reward=reward,
            **extras,
        )


def _check_extras(extras: Mapping[str, Tree]) -> None:
    for name in extras:
        if name in RESERVED_NAMES or not _KEY.fullmatch(name):
            raise InvalidRequestError(f"extra {name!r}: the name is reserved or no plain name, choose another")


def leaves(tree: Tree) -> Iterator[FieldSpec]:
    """Yields the field specs of `tree` in column order."""
    if isinstance(tree, FieldSpec):
        yield tree
    else:
        for child in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(child)


def columns_of(tree: Tree) -> Iterator[FieldSpec]:
    """Yields the flat columns of `tree`, which is settled: its leaves, each ragged one followed by its lengths."""
    for leaf in leaves(tree):
        yield leaf
        if leaf.ragged:
            yield FieldSpec(length_name(leaf), (), np.dtype(np.uint32), Precision.LOSSLESS)


def length_name(leaf: FieldSpec) -> str:
    """Returns the name of the column that has the lengths of a ragged leaf."""
    return f"{leaf.name}/length"


def flatten(tree: Tree, value: object, path: str) -> Iterator[object]:
    """Yields the leaves of `value` in column order, looked up by key, so that the order of its own keys is free.

    Raises:
      SpecMismatchError: `value` is not nested as `tree` is.
    """
    if isinstance(tree, FieldSpec):
        yield value
    elif isinstance(tree, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(tree):
            found = f"keys {sorted(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__
            raise SpecMismatchError(path, f"a dict with keys {sorted(tree)}", found)
        for key, child in tree.items():
            yield from flatten(child, value[key], f"{path}/{key}")
    else:
        if not isinstance(value, tuple | list) or len(value) != len(tree):
            found = f"{len(value)} values" if isinstance(value, tuple | list) else type(value).__name__
            raise SpecMismatchError(path, f"a tuple of {len(tree)} values", found)
        for i, child in enumerate(tree):
            yield from flatten(child, value[i], f"{path}/{i}")


def unflatten(tree: Tree, columns: Mapping[str, Any]) -> Any:
    """Returns the values in `columns` (by path) nested as `tree` is, those of ragged leaves as RaggedArrays.

    Raises:
      ChunkCorruptError: the lengths of a ragged leaf do not fit its values.
    """
    if isinstance(tree, FieldSpec):
        if not tree.ragged:
            return columns[tree.name]
        try:
            return RaggedArray.from_padded(columns[tree.name], columns[length_name(tree)])
        except SpecMismatchError as error:  # bytes of a writer that is not ours: no chunk says how long an item may be
            raise ChunkCorruptError(f"{tree.name}: {error}") from error
    if isinstance(tree, Mapping):
        return {key: unflatten(child, columns) for key, child in tree.items()}
    return tuple(unflatten(child, columns) for child in tree)


def _settle(tree: Any, path: str, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise SpecMismatchError(path[: path.index("/")], f"at most {MAX_DEPTH} levels of nesting", "more")
    if isinstance(tree, FieldSpec):
        precision = tree.precision
        if precision is Precision.AUTO:
            parts = path.split("/")
            lossy = parts[0] == "observation" and tree.dtype.kind == "f" and not (tree.ragged or GOAL_NAMES.intersection(parts))
            precision = Precision.FLOAT16 if lossy else Precision.LOSSLESS
        return replace(tree, name=path, precision=precision)
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise SpecMismatchError(path, "keys of 1 to 64 printable characters without '/'", repr(key))
        return {key: _settle(tree[key], f"{path}/{key}", depth + 1) for key in sorted(tree)}
    if isinstance(tree, tuple | list):
        return tuple(_settle(child, f"{path}/{i}", depth + 1) for i, child in enumerate(tree))
    raise SpecMismatchError(path, "a FieldSpec, dict or tuple", type(tree).__name__)


def _tree_to_json(tree: Tree) -> dict[str, Any]:
    if isinstance(tree, FieldSpec):
        return {"leaf": tree.to_json()}
    if isinstance(tree, Mapping):
        return {"dict": {key: _tree_to_json(child) for key, child in tree.items()}}
    return {"tuple": [_tree_to_json(child) for child in tree]}


def _tree_from_json(data: Mapping[str, Any], path: str, depth: int) -> Tree:
    if depth > MAX_DEPTH:
        raise SpecMismatchError(path[: path.index("/")], f"at most {MAX_DEPTH} levels of nesting", "more")
    ((kind, body),) = data.items()
    if kind == "leaf":
        return FieldSpec(
            path, tuple(body["shape"]), np.dtype(body["dtype"]), Precision(body["precision"]), body["max_error"],
            bool(body["finite"]), bool(body.get("ragged", False)),
        )  # fmt: skip
    if kind == "dict":
        return {key: _tree_from_json(child, f"{path}/{key}", depth + 1) for key, child in body.items()}
    if kind == "tuple":
        return tuple(_tree_from_json(child, f"{path}/{i}", depth + 1) for i, child in enumerate(body))
    raise InvalidRequestError(f"{path}: expected leaf, dict or tuple, found {kind!r}")
