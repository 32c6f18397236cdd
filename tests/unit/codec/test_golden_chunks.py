"""Chunks written by the first release. They decode to the same arrays for ever; nothing may write these files again."""

import json
from pathlib import Path

import numpy as np
import pytest

from replaysvc.codec import ChunkDecoder, widen
from replaysvc.codec.header import Stage
from replaysvc.spec import DTYPES, Signature
from tests.chunk_builders import make_info, same_bits

GOLDEN = Path(__file__).parents[2] / "golden" / "chunk_v1"
NAMES = ("dtypes", "frames", "one_step", "robot", "stored")


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
    assert stages == Stage.CAST | Stage.DELTA | Stage.SHUFFLE | Stage.ZSTD | Stage.OFFSETS
    assert dtypes == set(DTYPES)
    assert fallbacks > 0


def test_every_golden_file_is_looked_at():
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.{kind}" for name in NAMES for kind in ("chunk", "json", "npz")}
