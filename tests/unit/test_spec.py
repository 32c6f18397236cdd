"""Field specs and signatures: what is accepted, what is refused, and what a signature of an environment looks like."""

import json
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from replaysvc.errors import InvalidRequestError, SpecMismatchError
from replaysvc.spec import DTYPES, FieldSpec, Precision, Signature, flatten, leaves, unflatten


def spec(dtype, shape=(), **options):
    return FieldSpec("x", shape, np.dtype(dtype), **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_taken_as_it_is(dtype):
    value = np.ones((2,), dtype)
    assert spec(dtype, (2,)).check(value) is value


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("float32", 1),
        ("float32", np.float64(0.5)),
        ("int8", -128),
        ("uint8", 255),
        ("int64", np.uint8(3)),
        ("int8", True),
        ("float16", 2),
    ],
)
def test_values_that_survive_are_converted(declared, value):
    assert spec(declared).check(value) == value
    assert spec(declared).check(value).dtype == declared


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int8", 128),
        ("int64", np.uint64(1 << 63)),
        ("float16", 70_000.0),
        ("float32", 1e300),
        ("bool", 1),
        ("int32", 1.0),
        ("float32", True),
        ("float32", 1j),
        ("int32", "1"),
        ("float32", None),
    ],
)
def test_values_that_do_not_survive_are_refused(declared, value):
    with pytest.raises(SpecMismatchError, match="^x: expected"):
        spec(declared).check(value)


def test_infinities_and_nan_pass_unless_finite_is_asked():
    for value in (np.inf, -np.inf, np.nan):
        assert np.array_equal(spec("float32").check(value), np.float32(value), equal_nan=True)
        with pytest.raises(SpecMismatchError, match="finite"):
            spec("float32", finite=True).check(np.float32(value))


@pytest.mark.parametrize(
    "arguments",
    [
        {"dtype": "object"},
        {"dtype": "U5"},
        {"dtype": "datetime64[s]"},
        {"dtype": "complex128"},
        {"shape": (-1,)},
        {"shape": (1 << 20, 1 << 20)},
        {"shape": (1 << 40, 0)},
        {"shape": (1 << 62, 0)},
        {"shape": (0, 1 << 62)},
        {"finite": 1},
        {"finite": "x"},
        {"shape": (3,), "ragged": 1},
        {"max_error": -1.0},
        {"max_error": float("nan")},
        {"dtype": "int8", "precision": Precision.FLOAT16},
    ],
)
def test_impossible_specs_are_refused(arguments):
    with pytest.raises(InvalidRequestError):
        FieldSpec(**({"name": "x", "shape": (), "dtype": "float32"} | arguments))


def test_flags_are_plain_bools_so_that_the_hash_survives_the_disk():
    for given in (np.True_, True):
        signature = Signature(spec("float32", finite=given), spec("int8"))
        assert signature.columns[0].finite is True
        assert Signature.from_json(json.loads(json.dumps(signature.to_json()))).hash == signature.hash


def test_trees_nest_32_levels_deep_and_no_deeper():
    """What is read from the disk, or the wire, may not be deeper; so nothing deeper may be made."""
    tree = spec("float32")
    for _ in range(32):
        tree = {"k": tree}
    signature = Signature(tree, spec("int8"))
    assert Signature.from_json(signature.to_json()) == signature
    itself = {}
    itself["k"] = itself
    for deeper in ({"k": tree}, (tree,), itself):
        with pytest.raises(SpecMismatchError, match="observation: expected at most 32 levels of nesting"):
            Signature(deeper, spec("int8"))


def test_precision_is_settled_by_the_signature():
    tree = {
        "state": spec("float64"),
        "achieved_goal": spec("float64"),
        "pixels": spec("uint8"),
        "exact": spec("float32", precision=Precision.LOSSLESS),
    }
    signature = Signature(tree, spec("float32"), log_prob=spec("float32"))
    assert {c.name: c.cast for c in signature.columns} == {
        "observation/achieved_goal": False,
        "observation/exact": False,
        "observation/pixels": False,
        "observation/state": True,
        "action": False,
        "reward": False,
        "log_prob": False,
    }


def test_key_order_changes_neither_columns_nor_hash():
    a, b = spec("float32"), spec("uint8")
    one, two = Signature({"a": a, "b": b}, a), Signature({"b": b, "a": a}, a)
    assert one == two
    assert [c.name for c in one.columns] == [c.name for c in two.columns]
    tree = one.observation
    assert list(flatten(tree, {"b": 2, "a": 1}, "o")) == list(flatten(tree, {"a": 1, "b": 2}, "o")) == [1, 2]


@pytest.mark.parametrize("value", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, [1, 2], 5])
def test_values_of_another_nesting_are_refused(value):
    signature = Signature({"a": spec("float32"), "b": spec("uint8")}, spec("float32"))
    with pytest.raises(SpecMismatchError, match="^observation: expected a dict"):
        list(flatten(signature.observation, value, "observation"))


def test_signature_survives_json_and_pickle():
    signature = Signature(
        {"a": (spec("float32", (2,), max_error=0.5), spec("uint8"))}, spec("int64"), action_mask=spec("bool", (4,))
    )
    assert Signature.from_json(signature.to_json()) == signature
    assert pickle.loads(pickle.dumps(signature)).columns == signature.columns


@pytest.mark.parametrize(
    "data", [{}, {"observation": 1}, {"observation": {"leaf": {}}, "action": {}, "reward": {}, "extras": {}}]
)
def test_json_that_is_no_signature_is_refused(data):
    with pytest.raises(InvalidRequestError):
        Signature.from_json(data)


@pytest.mark.parametrize("name", ["reward", "discount", "positions", "mask"])
def test_reserved_extra_names_are_refused(name):
    with pytest.raises(InvalidRequestError, match=name):
        Signature.from_json(
            Signature(spec("float32"), spec("int8")).to_json() | {"extras": {name: {"leaf": spec("int8").to_json()}}}
        )


def test_signature_is_immutable():
    signature = Signature(spec("float32"), spec("int8"))
    with pytest.raises(AttributeError):
        signature.hash = 1


class Spaces:
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space


def test_signature_of_every_space_and_nesting():
    observation = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(5, start=2), spaces.MultiBinary([2, 3]))),
            "deep": spaces.Dict({"state": spaces.Box(-1, 1, (4,), np.float64)}),
        }
    )
    signature = Signature.from_env(Spaces(observation, spaces.MultiDiscrete([3, 4])))
    assert [(c.name, str(c.dtype), c.shape) for c in signature.columns] == [
        ("observation/deep/state", "float32", (4,)),
        ("observation/image", "uint8", (8, 8, 3)),
        ("observation/pair/0", "int64", ()),
        ("observation/pair/1", "int8", (2, 3)),
        ("action", "int64", (2,)),
        ("reward", "float32", ()),
    ]
    sample = observation.sample()
    for leaf, value in zip(leaves(signature.observation), flatten(signature.observation, sample, "observation"), strict=True):
        leaf.check(value)


def test_float64_observations_are_declared_float32_unless_asked_otherwise():
    env = Spaces(spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (1,), np.float64))
    assert str(Signature.from_env(env).columns[0].dtype) == "float32"
    assert "float32[3] as float16" in repr(Signature.from_env(env))
    assert str(Signature.from_env(env, keep_float64=True).columns[0].dtype) == "float64"
    assert str(Signature.from_env(env).columns[1].dtype) == "float64"


def test_vector_environments_give_the_signature_of_one_of_them():
    vector = gym.make_vec("CartPole-v1", num_envs=3)
    assert Signature.from_env(vector) == Signature.from_env(gym.make("CartPole-v1"))
    vector.close()


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), None])
def test_spaces_without_a_fixed_shape_are_refused_by_place(space):
    env = Spaces(spaces.Box(-1, 1, (3,)), space)
    with pytest.raises(SpecMismatchError, match="^action: expected a Box"):
        Signature.from_env(env)


def test_unflatten_gives_the_declared_nesting():
    signature = Signature({"a": (spec("int8"), spec("int8"))}, spec("int8"))
    assert unflatten(signature.observation, {"observation/a/0": 1, "observation/a/1": 2}) == {"a": (1, 2)}
