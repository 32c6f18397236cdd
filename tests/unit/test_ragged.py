"""Ragged arrays, and the fields that declare them: two columns below the client, one RaggedArray above."""

import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replaysvc.batch import episode_columns
from replaysvc.codec import ChunkDecoder, ChunkEncoder, ChunkInfo
from replaysvc.config import TableConfig
from replaysvc.errors import ChunkCorruptError, InvalidRequestError, SpecMismatchError
from replaysvc.ragged import RaggedArray
from replaysvc.spec import FieldSpec, Precision, Signature, unflatten
from replaysvc.tensors import to_torch
from replaysvc.writer import Writer

THREE = RaggedArray(np.array([1, 2, 3, 4, 5], np.int32), np.array([0, 2, 2, 5]), (3,))  # [1, 2], [], [3, 4, 5]
ACTION = FieldSpec("a", (), np.int64)


def spec(dtype="int32", shape=(4,), **options):
    return FieldSpec("x", shape, np.dtype(dtype), ragged=True, **options)


def lists(ragged):
    """Returns the items of a ragged array with one leading axis as lists."""
    return [item.tolist() for item in ragged]


# The array


def test_items_lie_between_their_offsets():
    assert len(THREE) == 3
    assert lists(THREE) == [[1, 2], [], [3, 4, 5]]
    assert THREE[-1].tolist() == THREE[(2,)].tolist() == THREE[np.int64(2)].tolist() == [3, 4, 5]
    assert THREE.lengths.tolist() == [2, 0, 3]
    assert (THREE[0].dtype, THREE.offsets.dtype, THREE.lengths.dtype) == (np.int32, np.int64, np.int64)


def test_items_of_sequences_are_row_major():
    """Two sequences of three steps: [1], [], [2, 3] and [4, 5], [6], []."""
    ragged = RaggedArray(np.arange(1, 7), np.array([0, 1, 1, 3, 5, 6, 6]), (2, 3))
    assert len(ragged) == 2
    assert ragged[0, 2].tolist() == ragged[-2, -1].tolist() == [2, 3]
    assert ragged[1, 0].tolist() == [4, 5]
    assert ragged.lengths.tolist() == [[1, 0, 2], [2, 1, 0]]
    second = ragged[1]
    assert (second.lead, second.offsets.tolist(), second.values.tolist()) == ((3,), [0, 2, 3, 3], [4, 5, 6])
    assert [lists(row) for row in ragged] == [[[1], [], [2, 3]], [[4, 5], [6], []]]


@pytest.mark.parametrize("index", [3, -4, (0, 0)])
def test_items_that_are_not_there_are_refused(index):
    with pytest.raises(IndexError, match="expected one of"):
        THREE[index]


@pytest.mark.parametrize("index", [1.0, "0", slice(2), None])
def test_only_ints_name_items(index):
    with pytest.raises(TypeError):
        THREE[index]


def test_padding_stands_where_the_mask_is_false():
    array, mask = THREE.padded()
    assert array.tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert mask.tolist() == [[True, True, False], [False, False, False], [True, True, True]]
    assert array.dtype == np.int32
    array, mask = THREE.padded(fill=-1, length=4)
    assert array.tolist() == [[1, 2, -1, -1], [-1, -1, -1, -1], [3, 4, 5, -1]]
    assert mask.shape == (3, 4)


def test_padding_keeps_all_other_axes():
    ragged = RaggedArray(np.arange(6.0).reshape(3, 2), np.array([0, 1, 1, 3, 3]), (2, 2))
    array, mask = ragged.padded(fill=9)
    assert array.tolist() == [[[[0, 1], [9, 9]], [[9, 9], [9, 9]]], [[[2, 3], [4, 5]], [[9, 9], [9, 9]]]]
    assert mask.tolist() == [[[True, False], [False, False]], [[True, True], [False, False]]]


def test_padding_of_nothing_has_length_0():
    array, mask = RaggedArray.from_lists([[], []], np.uint8, rest=(3,)).padded()
    assert (array.shape, mask.shape) == ((2, 0, 3), (2, 0))
    array, mask = RaggedArray.from_lists([], np.uint8).padded()
    assert (array.shape, mask.shape) == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"length": 2}, "length"), ({"length": 3.0}, "length"), ({"fill": 1 << 31}, "fill"), ({"fill": 0.5}, "fill")],
)
def test_padding_that_does_not_fit_is_refused(arguments, field):
    with pytest.raises(SpecMismatchError) as caught:
        THREE.padded(**arguments)
    assert caught.value.field == field


def test_padding_goes_wherever_the_lengths_say():
    ragged = RaggedArray.from_padded(np.array([[1, 2, 9], [9, 9, 9], [3, 4, 5]]), np.array([2, 0, 3], np.uint32))
    assert (ragged.values.tolist(), ragged.offsets.tolist(), ragged.lead) == ([1, 2, 3, 4, 5], [0, 2, 2, 5], (3,))


@pytest.mark.parametrize(
    ("padded", "lengths"),
    [
        (np.zeros((2, 3)), [1, 4]),
        (np.zeros((2, 3)), [-1, 1]),
        (np.zeros((2, 3)), np.array([1, 2**32 - 1], np.uint32)),
        (np.zeros((2, 3)), np.array([1, 2**64 - 1], np.uint64)),
        (np.zeros((2, 3)), [1.0, 2.0]),
        (np.zeros((2, 3)), [1]),
        (np.zeros(2), [1, 1]),
        (np.zeros(2), 1),
    ],
)
def test_lengths_that_do_not_fit_are_refused(padded, lengths):
    with pytest.raises(SpecMismatchError) as caught:
        RaggedArray.from_padded(padded, lengths)
    assert caught.value.field == "lengths"


@pytest.mark.parametrize(
    ("offsets", "lead"),
    [
        ([0, 2, 2], (3,)),
        ([1, 2, 2, 5], (3,)),
        ([0, 3, 2, 5], (3,)),
        ([0, 2, 2, 4], (3,)),
        ([0.0, 2.0, 2.0, 5.0], (3,)),
        ([0, 5], ()),
    ],
)
def test_offsets_that_do_not_fit_are_refused(offsets, lead):
    with pytest.raises(SpecMismatchError):
        RaggedArray(np.arange(5), np.array(offsets), lead)


def test_a_lead_and_values_that_are_none_are_refused():
    for values, offsets, lead in [(np.arange(5), [0, 1, 2, 5], (-1, -3)), (np.array(5), [0], (0,))]:
        with pytest.raises(SpecMismatchError, match="ragged array"):
            RaggedArray(values, np.array(offsets), lead)


def test_unsigned_offsets_that_fall_are_refused():
    with pytest.raises(SpecMismatchError, match="offsets"):
        RaggedArray(np.arange(5), np.array([0, 3, 2, 5], np.uint64), (3,))


def test_lists_are_converted_as_at_append():
    ragged = RaggedArray.from_lists([[1, 2], [], np.array([3, 4, 5], np.uint8)], np.int32)
    assert (ragged.values.dtype, ragged.lead) == (np.int32, (3,))
    assert lists(ragged) == lists(THREE)
    with pytest.raises(SpecMismatchError):
        RaggedArray.from_lists([[1], [0.5]], np.int32)
    with pytest.raises(SpecMismatchError):
        RaggedArray.from_lists([[1], [[2]]], np.int32)
    with pytest.raises(SpecMismatchError):
        RaggedArray.from_lists([[256]], np.uint8)


def test_a_ragged_array_is_immutable_and_survives_pickle():
    with pytest.raises(AttributeError):
        THREE.lead = (1,)
    assert lists(pickle.loads(pickle.dumps(THREE))) == lists(THREE)


ITEMS = st.lists(st.lists(st.tuples(st.integers(-128, 127), st.integers(-128, 127)), max_size=5), max_size=12)


@settings(max_examples=200, deadline=None)
@given(items=ITEMS, extra=st.integers(0, 3), fill=st.integers(-128, 127))
def test_lists_survive_padding_and_back(items, extra, fill):
    ragged = RaggedArray.from_lists(items, np.int8, rest=(2,))
    assert [list(map(tuple, item)) for item in lists(ragged)] == items
    padded, mask = ragged.padded(fill, max(map(len, items), default=0) + extra)
    assert (padded[~mask] == fill).all()
    assert mask.sum(axis=-1).tolist() == [len(item) for item in items]
    back = RaggedArray.from_padded(padded, ragged.lengths)
    assert back.values.tolist() == ragged.values.tolist()
    assert back.offsets.tolist() == ragged.offsets.tolist()


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=6))
def test_every_item_of_sequences_is_found_under_its_index(lengths):
    lengths = np.array(lengths)
    padded = np.arange(lengths.size * 4).reshape(*lengths.shape, 4)
    ragged = RaggedArray.from_padded(padded, lengths)
    assert ragged.lengths.tolist() == lengths.tolist()
    for b, t in np.ndindex(lengths.shape):
        assert ragged[b, t].tolist() == ragged[b][t].tolist() == padded[b, t, : lengths[b, t]].tolist()


def test_tensors_are_values_and_offsets():
    tensors = to_torch({"tokens": THREE}, "cpu")["tokens"]
    assert (tensors["values"].tolist(), tensors["values"].dtype) == ([1, 2, 3, 4, 5], torch.int32)
    assert (tensors["offsets"].tolist(), tensors["offsets"].dtype) == ([0, 2, 2, 5], torch.int64)
    table = torch.arange(6.0).reshape(6, 1)
    sums = torch.nn.functional.embedding_bag(
        tensors["values"].long(), table, tensors["offsets"], mode="sum", include_last_offset=True
    )
    assert sums.tolist() == [[3.0], [0.0], [12.0]]


# The field


def test_values_keep_their_own_length():
    assert spec().check([1, 2]).tolist() == [1, 2]
    assert spec().check([1, 2, 3, 4]).dtype == np.int32
    assert spec(shape=(4, 2)).check(np.ones((3, 2), np.int32)).shape == (3, 2)


@pytest.mark.parametrize("empty", [[], (), np.empty(0), np.empty((0, 2), np.int32)])
def test_an_empty_value_needs_neither_dtype_nor_further_axes(empty):
    value = spec(shape=(4, 2)).check(empty)
    assert (value.shape, value.dtype) == ((0, 2), np.int32)


@pytest.mark.parametrize(
    ("value", "expected", "found"),
    [
        ([1, 2, 3, 4, 5], "shape up to (4,)", "shape (5,)"),
        (7, "shape up to (4,)", "shape ()"),
        ([[1]], "shape up to (4,)", "shape (1, 1)"),
        ([1.0], "dtype int32", "dtype float64"),
        ([1 << 31], "values within the range of int32", "int64 values outside it"),
    ],
)
def test_values_that_do_not_fit_are_refused(value, expected, found):
    with pytest.raises(SpecMismatchError) as caught:
        spec().check(value)
    assert (caught.value.field, caught.value.expected, caught.value.found) == ("x", expected, found)


@pytest.mark.parametrize("value", [np.ones((2, 3), np.int32), np.empty((0, 3), np.int32), np.ones(2, np.int32), [[1, 2], [3]]])
def test_further_axes_are_fixed(value):
    with pytest.raises(SpecMismatchError, match="^x: expected"):
        spec(shape=(4, 2)).check(value)


def test_fixed_fields_take_no_shorter_value():
    with pytest.raises(SpecMismatchError):
        FieldSpec("x", (4,), np.dtype("int32")).check([1, 2])
    with pytest.raises(SpecMismatchError):
        FieldSpec("x", (4,), np.dtype("int32")).check([])


@pytest.mark.parametrize(
    "arguments",
    [{"shape": ()}, {"shape": (0,)}, {"shape": (1 << 32, 0)}, {"dtype": "float32", "precision": Precision.FLOAT16}],
)
def test_impossible_ragged_fields_are_refused(arguments):
    with pytest.raises(SpecMismatchError, match="^x[.:]"):
        spec(**arguments)


def test_a_ragged_leaf_is_two_columns():
    signature = Signature(
        {"tokens": spec(), "state": FieldSpec("s", (2,), np.float32)}, spec("uint8", (3, 2)), legal=spec("float32")
    )
    assert [(c.name, str(c.dtype), c.shape, c.cast, c.ragged) for c in signature.columns] == [
        ("observation/state", "float32", (2,), True, False),
        ("observation/tokens", "int32", (4,), False, True),
        ("observation/tokens/length", "uint32", (), False, False),
        ("action", "uint8", (3, 2), False, True),
        ("action/length", "uint32", (), False, False),
        ("reward", "float32", (), False, False),
        ("legal", "float32", (4,), False, True),
        ("legal/length", "uint32", (), False, False),
    ]
    assert signature.observation_columns == 3
    assert signature.raw_step_bytes == 2 * (8 + 16 + 4) + (6 + 4) + 4 + (16 + 4)
    assert "observation/tokens: ragged int32[4]" in repr(signature)


def test_ragged_floats_are_lossless_unless_a_bound_is_given():
    signature = Signature(
        {
            "exact": spec("float32"),
            "near": spec("float32", precision=Precision.FLOAT16, max_error=0.5),
            "fixed": FieldSpec("f", (4,), np.float32),
        },
        ACTION,
    )
    cast = {c.name: c.cast for c in signature.columns}
    assert (cast["observation/exact"], cast["observation/near"], cast["observation/fixed"]) == (False, True, True)


def test_no_leaf_can_have_the_name_of_a_length():
    tree = {"length": spec(), "tokens": {"length": spec(), "x": spec()}, "tokens_length": ACTION}
    names = [c.name for c in Signature(tree, {"length": spec()}, length=spec()).columns]
    assert len(set(names)) == len(names) == 12
    for key in ("tokens/length", "/length"):
        with pytest.raises(InvalidRequestError):
            Signature({"tokens": spec(), key: ACTION}, ACTION)
        with pytest.raises(InvalidRequestError):
            Signature(spec(), ACTION, tokens=spec(), **{key: ACTION})


def test_ragged_is_part_of_the_signature_and_absent_where_it_is_not_used():
    fixed, ragged = Signature(FieldSpec("x", (4,), np.int32), ACTION), Signature(spec(), ACTION)
    assert fixed != ragged
    assert fixed.to_json()["observation"] == {
        "leaf": {"shape": [4], "dtype": "int32", "precision": "lossless", "max_error": None, "finite": False}
    }
    assert ragged.to_json()["observation"]["leaf"]["ragged"] is True
    for signature in (fixed, ragged):
        assert Signature.from_json(signature.to_json()) == signature
        assert pickle.loads(pickle.dumps(signature)).columns == signature.columns


def test_hash_of_a_signature_without_ragged_fields_is_as_it_was():
    assert Signature(FieldSpec("o", (), np.int64), ACTION).hash == 0x8A6314BD2885A3DC


def test_unflatten_makes_ragged_arrays():
    signature = Signature({"tokens": spec(shape=(2,)), "n": ACTION}, ACTION)
    columns = {
        "observation/n": np.array([8, 9]),
        "observation/tokens": np.array([[1, 0], [2, 3]], np.int32),
        "observation/tokens/length": np.array([1, 2], np.uint32),
    }
    value = unflatten(signature.observation, columns)
    assert value["n"].tolist() == [8, 9]
    assert lists(value["tokens"]) == [[1], [2, 3]]


# The writer's chunks, and hostile ones


class Kept:
    """A sink that keeps its chunks."""

    def __init__(self):
        self.chunks = []

    def put(self, chunk, **_):
        self.chunks.append(chunk)

    def next_episode_key(self):
        return 0

    def make_lock(self):
        return threading.Lock()

    def flush(self, timeout_s):
        pass

    def attach(self, writer):
        pass

    detach = attach


def test_rows_of_a_chunk_hold_zeros_beyond_their_values():
    """The buffers' second row is used for every step of a chunk length of 1."""
    signature, sink = Signature(spec(), spec("uint8", (2, 2))), Kept()
    with Writer(signature, TableConfig(chunk_steps=1), sink, clock=lambda: 0.0) as writer:
        writer.begin([9])
        writer.append([[1, 2], [3, 4]], 0.0, [1, 2, 3, 4])
        writer.append([[5, 6]], 0.0, [5], truncated=True)
    first, second = ChunkDecoder(signature).decode(sink.chunks)
    assert [column.values.tolist() for column in first.columns] == [
        [[9, 0, 0, 0], [1, 2, 3, 4]], [1, 4], [[[1, 2], [3, 4]]], [2], [0.0]
    ]  # fmt: skip
    assert [column.values.tolist() for column in second.columns] == [
        [[1, 2, 3, 4], [5, 0, 0, 0]], [4, 1], [[[5, 6], [0, 0]]], [1], [0.0]
    ]  # fmt: skip


@pytest.mark.parametrize("length", [5, 2**31, 2**32 - 1])
def test_a_chunk_with_impossible_lengths_is_corrupt(length):
    signature = Signature(spec(), ACTION)
    info = ChunkInfo(
        signature_hash=signature.hash, episode_key=0, first_step=0, n_steps=1, terminated=True, truncated=False,
        policy_version=-1, reward_sum=0.0, metadata=b"",
    )  # fmt: skip
    columns = [np.ones((2, 4), np.int32), np.array([4, length], np.uint32), np.zeros(1, np.int64), np.zeros(1, np.float32)]
    chunk = ChunkEncoder(signature).encode(info, columns)
    with pytest.raises(ChunkCorruptError, match="observation.*length"):
        episode_columns(signature, ChunkDecoder(signature).decode([chunk]), 0, 1)


@pytest.mark.parametrize("lengths", [[2, 5], [2, 2**32 - 1]])
def test_a_batch_with_impossible_lengths_is_corrupt(lengths):
    columns = {"observation": np.ones((2, 4), np.int32), "observation/length": np.array(lengths, np.uint32)}
    with pytest.raises(ChunkCorruptError, match=f"^observation: lengths: expected 0 to 4, found {lengths[1]}$"):
        unflatten(Signature(spec(), ACTION).observation, columns)
