"""Numbers that JSON or browsers could not hold as they are."""

import json
import struct
import zlib

import numpy as np
import pytest

from replaysvc import FieldSpec, RaggedArray
from replaysvc.admin.answers import encoded
from replaysvc.admin.images import layout_of, resized, side_by_side
from replaysvc.admin.numbers import Stored, first_values, plain
from replaysvc.admin.png import png
from replaysvc.options import WeightNorm

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NAN, None), (INF, None), (-INF, None), (1.5, 1.5), (True, True), (None, None), ("x", "x"), (3, 3),
        ((1 << 53) - 1, (1 << 53) - 1), (1 << 53, str(1 << 53)), (-(1 << 53), str(-(1 << 53))),
        ((1 << 64) - 1, str((1 << 64) - 1)),
        (np.float32(0.5), 0.5), (np.float64("nan"), None), (np.int64(5), 5), (np.uint64((1 << 64) - 1), str((1 << 64) - 1)),
        (np.bool_(True), True), (WeightNorm.BATCH, "batch"), ({1: (NAN, 2)}, {"1": [None, 2]}),
        (np.array([1.0, NAN, INF]), [1.0, None, None]), (np.array([[1, 2]]), [[1, 2]]), (np.array([], np.float64), []),
        (np.array([1, 1 << 60]), [1, str(1 << 60)]), (np.array([True]), [True]), (np.array([1 + 2j], np.complex64), ["(1+2j)"]),
        (np.array(5), 5), (np.array(NAN), None),
    ],
)  # fmt: skip
def test_plain_values(value, expected):
    assert plain(value) == expected
    assert json.loads(encoded(value)) == expected


def test_json_is_ascii_whatever_others_wrote():
    assert encoded({"name": "é\u2028</script>\ud800"}) == b'{"name":"\\u00e9\\u2028</script>\\ud800"}'


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([1.5, NAN, INF, -INF], np.float32), [1.5, "nan", "inf", "-inf"]),
        (np.array([[NAN], [2.0]], np.float16), [["nan"], [2.0]]),
        (np.array([1 << 62, 3], np.int64), [str(1 << 62), 3]),
        (np.array([1.0]), [1.0]),
    ],
)
def test_stored_values_say_what_they_are(values, expected):
    assert plain(Stored(values)) == expected


def told(rows, most):
    values, cut = first_values(rows, most)
    return plain(values), cut


def test_only_the_first_values_of_a_row_are_told():
    rows = np.arange(12).reshape(2, 3, 2)
    assert told(rows, 6) == (rows.tolist(), False)
    assert told(rows, 4) == ([[0, 1, 2, 3], [6, 7, 8, 9]], True)
    ragged = RaggedArray(np.array([1.0, NAN, 3.0]), np.array([0, 0, 1, 3]), (3,))
    assert told(ragged, 2) == ([[], [1.0], ["nan", 3.0]], False)
    assert told(ragged, 1) == ([[], [1.0], ["nan"]], True)


# -- images -----------------------------------------------------------------------------------------------------------


def pixels_of(data):
    """Reads a PNG as the standard says: width, height, colour type, and the bytes of its rows; checks every checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks.append((kind, body))
        at += 12 + length
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, rest) == (8, [0, 0, 0])
    samples = {0: 1, 2: 3}[colour]
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, 1 + width * samples)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape((height, width) if samples == 1 else (height, width, 3))


@pytest.mark.parametrize("shape", [(1, 1), (8, 9), (84, 84), (8, 9, 3), (1, 1, 3)])
def test_png_holds_every_pixel(shape):
    pixels = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(pixels_of(png(pixels)), pixels)
    np.testing.assert_array_equal(pixels_of(png(pixels[::-1])), pixels[::-1])  # not contiguous


def spec(shape, dtype=np.uint8, **options):
    return FieldSpec("x", shape, dtype, **options)


@pytest.mark.parametrize(
    ("shape", "planes", "plane_shape"),
    [
        ((84, 84), 1, (84, 84)), ((84, 84, 1), 1, (84, 84)), ((84, 84, 3), 1, (84, 84, 3)), ((1, 84, 84), 1, (84, 84)),
        ((3, 84, 84), 1, (84, 84, 3)), ((4, 84, 84), 4, (84, 84)), ((84, 84, 4), 4, (84, 84)), ((12, 84, 84), 12, (84, 84)),
        ((4, 84, 84, 3), 4, (84, 84, 3)), ((4, 84, 84, 1), 4, (84, 84)), ((4, 3, 84, 84), 4, (84, 84, 3)),
        ((4, 1, 84, 84), 4, (84, 84)), ((210, 160, 3), 1, (210, 160, 3)), ((2, 84, 84), 2, (84, 84)),
    ],
)  # fmt: skip
def test_planes_lie_where_the_shape_says(shape, planes, plane_shape):
    layout = layout_of(spec(shape))
    assert layout is not None
    assert layout.planes == planes
    row = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    assert [layout.plane(row, i).shape for i in range(planes)] == [plane_shape] * planes


def test_planes_hold_their_own_pixels():
    first, last = np.zeros((4, 8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8)
    first[2], last[..., 2] = 7, 7
    for row in (first, last):
        layout = layout_of(spec(row.shape))
        assert [int(layout.plane(row, i).max()) for i in range(4)] == [0, 0, 7, 0]
    colours = np.zeros((3, 8, 8), np.uint8)
    colours[1] = 5
    assert layout_of(spec((3, 8, 8))).plane(colours, 0)[0, 0].tolist() == [0, 5, 0]


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((), np.uint8, {}), ((84,), np.uint8, {}), ((4, 4), np.uint8, {}), ((7, 84), np.uint8, {}), ((84, 84), np.int64, {}),
        ((84, 84), bool, {}), ((84, 84), np.complex64, {}), ((3000, 84), np.uint8, {}), ((84, 84), np.uint8, {"ragged": True}),
        ((2, 2, 2, 2, 2), np.uint8, {}), ((0, 84), np.uint8, {}),
    ],
)  # fmt: skip
def test_what_is_no_image_is_none(shape, dtype, options):
    assert layout_of(spec(shape, dtype, **options)) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 0.5, 1.0], [0, 128, 255]), ([0.0, 100.0, 255.0], [0, 100, 255]), ([-1.0, 0.0, 1.0], [0, 128, 255]),
     ([NAN, INF, 1.0], [0, 255, 255]), ([NAN, NAN, NAN], [0, 0, 0]), ([-5.0, -5.0, -5.0], [0, 0, 0])],
)  # fmt: skip
def test_floats_become_bytes_by_their_range(values, expected):
    row = np.zeros((8, 8), np.float32)
    row[:] = values[0]
    row[0, :3] = values
    found = layout_of(spec((8, 8), np.float32)).plane(row, 0)
    assert (found.dtype, found[0, :3].tolist()) == (np.uint8, expected)


def test_images_are_scaled_and_laid_side_by_side():
    image = np.array([[0, 100], [200, 250]], np.uint8)
    assert resized(image, 4).tolist() == [[0, 0, 100, 100]] * 2 + [[200, 200, 250, 250]] * 2
    assert resized(image, 1).tolist() == [[250]]
    assert side_by_side([image, image]).tolist() == [[0, 100, 255, 0, 100], [200, 250, 255, 200, 250]]
    colours = np.zeros((2, 2, 3), np.uint8)
    assert side_by_side([colours]).shape == (2, 2, 3)
