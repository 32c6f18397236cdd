"""Chunks of the first release, `grid` of a later one. They decode to the same arrays for ever; nothing writes them again."""

import json
from pathlib import Path

import numpy as np
import pytest

from replaysvc.codec import ChunkDecoder, widen
from replaysvc.codec.header import ALL_STAGES, Stage
from replaysvc.spec import DTYPES, Signature
from tests.chunk_builders import make_info, same_bits

GOLDEN = Path(__file__).parents[2] / "golden" / "chunk_v1"
NAMES = ("dtypes", "frames", "grid", "one_step", "robot", "stored")


def load(name):
    described = json.loads((GOLDEN / f"{name}.json").read_text())
    return described, Signature.from_json(described["signature"]), (GOLDEN / f"{name}.chunk").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_golden_chunk_decodes_to_its_arrays(name):
    _, signature, chunk = load(name)
    (decoded,) = ChunkDecoder(signature).decode([chunk])
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as expected:
        arrays = [expected[f"arr_{i}"] for i in range(len(signature.columns))]
    for column, spec, array in zip(decoded.columns, signature.columns, arrays, strict=True):
        assert same_bits(widen(column, spec), array), spec.name


@pytest.mark.parametrize("name", NAMES)
def test_golden_header_says_what_its_writer_said(name):
    described, signature, chunk = load(name)
    (decoded,) = ChunkDecoder(signature).decode([chunk])
    info = described["info"]
    n_steps, metadata = info.pop("n_steps"), info.pop("metadata").encode()
    assert decoded.header.info == make_info(signature, n_steps, metadata=metadata, **info)
    assert [int(payload.stages) for payload in decoded.header.payloads] == described["stages"]
    assert decoded.header.fallbacks == described["fallbacks"]
    assert f"{signature.hash:016x}" == described["signature_hash"]


def test_golden_chunk_of_plain_values_decodes_to_what_can_be_read_by_eye():
    _, signature, chunk = load("stored")
    (decoded,) = ChunkDecoder(signature).decode([chunk])
    assert [column.values.tolist() for column in decoded.columns] == [
        [[1, -1], [70000, -2], [3, 1 << 30]],
        [500, -500],
        [-2.0, 1.0],
    ]


def test_golden_chunks_cover_every_stage_and_every_dtype():
    stages, dtypes, fallbacks = Stage(0), set(), 0
    for name in NAMES:
        described, signature, _ = load(name)
        for bits in described["stages"]:
            stages |= Stage(bits)
        dtypes |= {column.dtype for column in signature.columns}
        fallbacks += described["fallbacks"]
    assert stages == Stage(ALL_STAGES)
    assert dtypes == set(DTYPES)
    assert fallbacks > 0


def test_golden_chunk_of_grids_covers_what_may_meet_in_a_column():
    described, _, _ = load("grid")
    stages = [Stage(bits) for bits in described["stages"]]
    with_grid = [one for one in stages if one & Stage.GRID]
    assert {bool(one & Stage.OFFSETS) for one in with_grid} == {bool(one & Stage.DELTA) for one in with_grid} == {True, False}
    assert any(one & Stage.TRANSPOSE and not one & Stage.GRID for one in stages)


def test_golden_grids_are_what_was_written_where_that_was_a_multiple_of_the_step():
    """The first two joints were clipped at -1 and 1; the place's second dimension were eighths around -5 million."""
    _, signature, chunk = load("grid")
    (decoded,) = ChunkDecoder(signature).decode([chunk])
    joints, place = (widen(*pair) for pair in zip(decoded.columns[:2], signature.columns[:2], strict=True))
    assert [(int((joints[:, i] == -1).sum()), int((joints[:, i] == 1).sum())) for i in (0, 1)] == [(28, 43), (30, 31)]
    assert np.abs(joints[:, :2]).max() == 1
    assert place[:, 1].tolist() == [-5e6 + t / 8 for t in range(121)]


def test_every_golden_file_is_looked_at():
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.{kind}" for name in NAMES for kind in ("chunk", "json", "npz")}
