"""What is fuzzed, but for the service's methods: each target makes inputs, and takes one.

`take` may raise what a target's `declared` names. All else, and whatever takes too long or too much memory, is a violation.
"""

import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import zstandard

from replay_client.frames import join_pieces
from replaysvc import FieldSpec, Fifo, Limiter, Precision, Prioritized, Signature, TableConfig
from replaysvc.batch import BatchColumn
from replaysvc.checks import check_name
from replaysvc.codec import ChunkDecoder, ChunkEncoder, checksum
from replaysvc.codec.header import FIXED, MAX_STEPS, PREFIX, Stage, raw_size, rows_of, write_chunk
from replaysvc.errors import ReplayError
from replaysvc.rpc import convert
from replaysvc.rpc.frames import COMPRESSED_COLUMN_BYTES, encode_frame, frame_pieces
from replaysvc.storage import records
from replaysvc.storage.manifest import Entry, Manifest
from replaysvc.storage.records import CHECKSUM, INDEX_DTYPE, EpisodeEntry
from replaysvc.storage.state import pack_file, unpack_file
from tests.chunk_builders import make_info, with_checksum
from tests.frames import decode_frame
from tests.torture.mutations import FLOATS, NUMBERS, TEXTS, change_bytes, change_json, json_text, number

_KEPT = 400  # inputs that led to something new, to be changed further


_FIELDS = (
    (0, "<4s"), (4, "<H"), (16, "<Q"), (24, "<Q"), (32, "<Q"), (40, "<I"), (44, "<I"), (48, "<q"), (56, "<d"),
    (64, "<I"), (68, "<I"),
    *((72 + 12 * i + at, code) for i in range(8) for at, code in ((0, "<B"), (1, "<B"), (4, "<I"), (8, "<I"))),
)  # fmt: skip
"""Where the fields of a chunk's header and descriptors lie, and their codes."""


class Target:
    """One thing to fuzz. The first byte of an input says which of its kinds it is, `corpus` has the inputs by that byte."""

    name: ClassVar[str]
    share: ClassVar[float]  # of all inputs
    declared: ClassVar[tuple[type[BaseException], ...]] = (ReplayError,)

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.corpus: dict[int, list[bytes]] = {}
        self._right: dict[int, list[bytes]] = {}

    def begin_with(self, inputs: Sequence[bytes]) -> None:
        """Makes `inputs`, which are right, what others are made of."""
        for data in inputs:
            self._right.setdefault(data[0], []).append(data)
        self.corpus = {kind: list(found) for kind, found in self._right.items()}

    def pick(self, rng: random.Random) -> bytes:
        """Returns a right input, or one that led to something new."""
        kind = rng.choice(list(self.corpus))
        return rng.choice((self._right if rng.random() < 0.6 else self.corpus)[kind])

    def make(self, rng: random.Random) -> bytes:
        """Returns an input."""
        data = self.pick(rng)
        return data[:1] + change_bytes(rng, data[1:], self._right[data[0]])

    def take(self, data: bytes) -> str:
        """Does with the input what the product does; returns a word for what came of it."""
        raise NotImplementedError

    def settle(self) -> None:
        """Is called now and then, between inputs: puts back what they have changed."""

    def keep(self, data: bytes) -> None:
        """Adds an input that led to something new to the corpus."""
        if (kept := self.corpus.get(data[0] if data else 0)) is not None and len(kept) < _KEPT:
            kept.append(data)

    def kept(self, most: int, size: int) -> list[bytes]:
        """Returns the corpus: up to `most` inputs of each kind, of up to `size` bytes, without those that it began with."""
        new = ([data for data in kept if data not in self._right[kind]] for kind, kept in self.corpus.items())
        return [data for kept in new for data in [data for data in kept if len(data) <= size][:most]]

    def close(self) -> None:
        """Gives back what the target holds."""


SIGNATURES = (
    Signature(FieldSpec("", (), np.int64), FieldSpec("", (), np.int64)),
    Signature(
        FieldSpec("", (4,), np.float32, Precision.FLOAT16), FieldSpec("", (), np.bool_), empty=FieldSpec("", (0,), np.float32)
    ),
    Signature(
        {"a": FieldSpec("", (3,), np.float64, Precision.FLOAT16, max_error=0.1), "b": FieldSpec("", (2, 2), np.uint8)},
        (FieldSpec("", (), np.complex64), FieldSpec("", (2,), np.int16)),
        list=FieldSpec("", (4, 2), np.float32, ragged=True), half=FieldSpec("", (), np.float16),
    ),
)  # fmt: skip


class Chunks(Target):
    """The decoder of chunks. The first byte of an input says which signature it is for."""

    name, share = "chunks", 0.4

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._decoders = [ChunkDecoder(signature) for signature in SIGNATURES]
        self._valid: list[bytes] = []
        right = []
        rng = np.random.default_rng(0)
        for number_, signature in enumerate(SIGNATURES):
            encoder = ChunkEncoder(signature)
            for n_steps in (1, 2, 40):
                columns = []
                for i, spec in enumerate(signature.columns):
                    rows = rows_of(i, n_steps, signature.observation_columns)
                    most = spec.name.endswith("/length")
                    columns.append(rng.integers(0, 5 if most else 2, (rows, *spec.shape)).astype(spec.dtype))
                chunk = encoder.encode(make_info(signature, n_steps, metadata=b'{"a": 1}'), columns)
                self._valid.append(chunk)
                right.append(bytes([number_]) + chunk)
        self.begin_with(right)

    def make(self, rng: random.Random) -> bytes:
        data = self.pick(rng)
        which, chunk = data[0] % len(SIGNATURES), data[1:]
        match rng.randrange(8):
            case 0:
                return data[:1] + change_bytes(rng, chunk, self._valid)
            case 1 | 2:
                chunk = self._made(rng, SIGNATURES[which])
            case 3 | 4 if len(chunk) > PREFIX.size + FIXED.size:
                chunk = self._field(rng, chunk)
            case _:
                chunk = chunk[:16] + change_bytes(rng, chunk[16:], self._valid)
        if len(chunk) > 16 and rng.random() < 0.9:
            chunk = with_checksum(chunk, {})
        return bytes([which]) + chunk

    @staticmethod
    def _field(rng: random.Random, chunk: bytes) -> bytes:
        """Puts an edge into a field of the header, or of a descriptor."""
        at, code = rng.choice(_FIELDS)
        size = struct.calcsize(code)
        if code == "<d":
            new = struct.pack(code, rng.choice(FLOATS))
        else:
            new = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, "little")
        return chunk[:at] + new + chunk[at + size :]

    @staticmethod
    def _made(rng: random.Random, signature: Signature) -> bytes:
        """Puts a chunk together: honest sizes or not, any stages, frames that lie."""
        n_steps = rng.choice((1, 1, 2, 3, 40, rng.randrange(1, 300), MAX_STEPS))
        columns = []
        for i, spec in enumerate(signature.columns):
            stages = Stage(rng.choice((0, 2, 4, 6, 8, 10, 14, rng.randrange(32))))
            size = raw_size(spec, rows_of(i, n_steps, signature.observation_columns), stages)
            stated = size if rng.random() < 0.95 else number(rng) & 0xFFFF_FFFF
            if n_steps == MAX_STEPS or rng.random() < 0.3:
                payload = _frame(rng, size)
                stages |= Stage.ZSTD
            else:
                payload = rng.randbytes(size) if rng.random() < 0.3 else bytes(size)
                if stages & Stage.ZSTD:
                    payload = zstandard.compress(payload, 1)
            columns.append((stages, stated, payload))
        return write_chunk(make_info(signature, n_steps, metadata=rng.choice((b"", b"{}", b"[", b"\xff"))), columns)

    def take(self, data: bytes) -> str:
        decoder, chunk = self._decoders[data[0] % len(SIGNATURES) if data else 0], data[1:]
        (header,) = decoder.headers([chunk])
        (decoded,) = decoder.decode([memoryview(chunk)], [header])
        signature = SIGNATURES[data[0] % len(SIGNATURES)]
        for i, (spec, column) in enumerate(zip(signature.columns, decoded.columns, strict=True)):
            rows = rows_of(i, header.info.n_steps, signature.observation_columns)
            assert column.values.shape == (rows, *spec.shape)
            assert column.values.dtype in (spec.dtype, spec.stored_dtype)
        return "decoded"


def _frame(rng: random.Random, size: int) -> bytes:
    """Returns a zstd frame of blocks that repeat one byte, which states `size` or something else, and holds that or not."""
    stated = (
        size if rng.random() < 0.8 else rng.choice((size + 1, size - 1, 1 << 40, 300 << 20, 0, number(rng))) & (1 << 64) - 1
    )
    held = size if rng.random() < 0.8 else rng.choice((size + 1, 300 << 20, 0))
    blocks = [struct.pack("<IBQ", 0xFD2FB528, rng.choice((0xE0, 0xE0, 0xE0, 0xE4, 0xC0, 0xE1)), stated)]
    while held > 0 or len(blocks) == 1:
        length = min(held, 128 << 10)
        held -= length
        last = held <= 0
        blocks.append((length << 3 | 1 << 1 | last).to_bytes(3, "little") + b"\0")
    return b"".join(blocks)


class Records(Target):
    """What a segment, a small file or a manifest holds. The first byte of an input says which."""

    name, share = "records", 0.3
    kinds = ("index", "episode", "session", "meta", "file", "manifest")

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        index = np.zeros(3, INDEX_DTYPE)
        index["chunk_id"] = range(3)
        entry = EpisodeEntry(5, bytes(16), 7, "actor", 1e9, b'{"a": 1}')
        description = {"format": 1, "table": "x", "first_chunk_id": 0, "next_position": 0, "next_episode_id": 0}
        manifest = Manifest("store", 1e9, {"FORMAT": Entry(100, 100, 1 << 63), "tables/t/table.json": Entry(9, 9, 9)})
        right = {
            "index": b"".join(records.pack_index(index)), "episode": records.pack_episode(entry),
            "session": bytes(16) + records.pack_session(bytes(16), 5, 1e9), "meta": records.pack_meta(description),
            "file": pack_file(b"RPD1", bytes(24)), "manifest": manifest.to_bytes(),
        }  # fmt: skip
        self.begin_with([bytes([i]) + right[kind] for i, kind in enumerate(self.kinds)])
        self._manifest = json.loads(right["manifest"])

    def make(self, rng: random.Random) -> bytes:
        data = self.pick(rng)
        kind = self.kinds[data[0] % len(self.kinds)]
        if kind == "manifest":
            text = json_text(rng, [self._manifest])
            content = change_json(rng, self._manifest)
            if rng.random() < 0.7 and isinstance(content, dict):
                content.pop("checksum", None)
                seal = checksum(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
                text = json.dumps(content | {"checksum": f"{seal:016x}"})
            return bytes([self.kinds.index(kind)]) + text.encode(errors="replace")
        body = change_bytes(rng, data[1:], self._right[data[0]])
        if rng.random() < 0.7 and kind in ("episode", "session", "meta"):
            body = body[: -CHECKSUM.size] + CHECKSUM.pack(checksum(body[: -CHECKSUM.size]))
        if rng.random() < 0.7 and kind == "file" and len(body) >= 24:
            body = body[:16] + CHECKSUM.pack(checksum(body[:16], body[24:])) + body[24:]
        return bytes([self.kinds.index(kind)]) + body

    def take(self, data: bytes) -> str:
        kind, body = self.kinds[data[0] % len(self.kinds) if data else 0], data[1:]
        size = INDEX_DTYPE.itemsize + CHECKSUM.size
        match kind:
            case "index":
                found, damaged = records.unpack_index([body[i : i + size] for i in range(0, len(body), size)])
                return f"{min(len(found), 3)} records, {min(damaged, 3)} damaged"
            case "episode":
                return "none" if records.unpack_episode(body) is None else "an episode"
            case "session":
                return "none" if records.unpack_session(body[:16], body[16:]) is None else "a mark"
            case "meta":
                return "none" if records.unpack_meta(body) is None else "a description"
            case "file":
                return "none" if unpack_file(b"RPD1", body) is None else "data"
            case _:
                return f"{min(len(Manifest.from_bytes(Path('m'), body).files), 3)} files"


class Frames(Target):
    """What the client makes of a server's answers. The first byte says whether they come whole or in pieces."""

    name, share = "frames", 0.14

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        spec = FieldSpec("observation", (2,), np.float32, Precision.FLOAT16)
        self._specs = {"observation": spec}
        columns = [
            BatchColumn("observation", np.ones((4, 2), np.float16), np.array([1], np.uint32), np.ones((1, 2), np.float32)),
            BatchColumn("action", np.arange(4)),
            BatchColumn("terminated", np.zeros(4, np.bool_)),
            BatchColumn("positions", np.arange(4)),
        ]
        pieces = b"".join(frame_pieces(columns, 64))
        large = BatchColumn("action", np.zeros(COMPRESSED_COLUMN_BYTES // 8))
        frames = [encode_frame(columns), encode_frame(columns[:1]), encode_frame([*columns, large], compressed=True)]
        self.begin_with([b"\1" + pieces, *(b"\0" + frame for frame in frames)])

    def take(self, data: bytes) -> str:
        body: bytes | bytearray = data[1:]
        if data[:1] == b"\1":
            body = join_pieces(body[i : i + 64] for i in range(0, len(body), 64))
        columns = decode_frame(body, self._specs)
        for column in columns.values():
            if column.name in self._specs:
                column.widen(self._specs[column.name])
        return f"{min(len(columns), 4)} columns"


class Texts(Target):
    """Signatures, options and limiters as JSON, and names. The first byte of an input says which."""

    name, share = "texts", 0.1
    kinds = ("signature", "config", "limiter", "name")
    seeds: ClassVar[dict[str, Sequence[Any]]] = {
        "signature": [signature.to_json() for signature in SIGNATURES],
        "config": [
            TableConfig().to_json(),
            TableConfig(samplers={"a": Fifo(), "b": Prioritized()}, capacity_steps=9, chunk_steps=2).to_json(),
        ],
        "limiter": [Limiter().to_json(), Limiter(samples_per_insert=2.0, error_buffer=(-4.0, 8.0), min_steps=3).to_json()],
    }

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        seeds = ((i, seed) for i, kind in enumerate(self.kinds) for seed in self.seeds.get(kind, TEXTS))
        self.begin_with([bytes([i]) + json.dumps(seed).encode() for i, seed in seeds])

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return super().make(rng)
        i = rng.randrange(len(self.kinds))
        seeds = self.seeds.get(self.kinds[i])
        text = rng.choice(TEXTS) + rng.choice(TEXTS) if seeds is None else json_text(rng, seeds)
        return bytes([i]) + text.encode(errors="replace")

    def take(self, data: bytes) -> str:
        kind, text = self.kinds[data[0] % len(self.kinds) if data else 0], data[1:].decode(errors="replace")
        match kind:
            case "signature":
                signature = convert.signature_of(text)
                assert Signature.from_json(signature.to_json()) == signature
            case "config":
                config = convert.config_of(text)
                assert TableConfig.from_json(json.loads(json.dumps(config.to_json()))) is not None
            case "limiter":
                convert.limiter_of(text)
            case _:
                check_name("table", text)
        return f"a {kind}"
