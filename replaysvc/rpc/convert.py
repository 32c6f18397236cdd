"""Protobuf messages to the types of this project and back; checks what only the wire can get wrong."""

import json
import re
import struct
from dataclasses import asdict, fields
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np

from replaysvc.checks import check_epoch_number, check_number
from replaysvc.codec.header import MAX_RAW_BYTES, decoded_bytes
from replaysvc.config import MAX_UPDATES, TableConfig
from replaysvc.embedded_table import EmbeddedTable
from replaysvc.errors import SpecMismatchError
from replaysvc.options import Limiter
from replaysvc.requests import (
    AtEnd,
    DenseReward,
    EpisodeFilter,
    Episodes,
    Goal,
    Her,
    Sequences,
    SparseReward,
    Stack,
    StackPadding,
    Terminated,
    Transitions,
    Window,
    client_reward,
    client_success,
)
from replaysvc.rpc.wire import MAX_CHUNKS
from replaysvc.spec import Signature
from replaysvc.table import Table
from replaysvc.types import Array, EpisodeRecord
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.views import ActivityView

MAX_NAMES = 1000
MAX_ITEMS = 1 << 20  # of a sample request
_REMEMBERED_BYTES = 1 << 10  # of a window's message
_MAX_JSON = 1 << 19
_MAX_DEPTH = 32  # of JSON: a signature nests as observations do
_NESTING = re.compile(r'''[\[{]|[\]}]|"(?:[^"\\]|\\.)*"?''')


def parse_json(field: str, text: str) -> dict[str, Any]:
    """Returns the JSON object in `text`. Raises SpecMismatchError."""
    if len(text) > _MAX_JSON:
        raise SpecMismatchError(field, f"at most {_MAX_JSON} characters", str(len(text)))
    if _depth(text) > _MAX_DEPTH:
        raise SpecMismatchError(field, f"JSON of at most {_MAX_DEPTH} levels", "more")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SpecMismatchError(field, "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise SpecMismatchError(field, "a JSON object", type(value).__name__)
    return value


def _depth(text: str) -> int:
    """Returns how deeply brackets nest in JSON; what is no JSON has some depth, too."""
    depth = deepest = 0
    for token in _NESTING.finditer(text):
        if token[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= 1
    return deepest


def signature_of(text: str) -> Signature:
    """Returns the signature in `text`."""
    return Signature.from_json(parse_json("signature_json", text))


def config_of(text: str) -> TableConfig:
    """Returns the table configuration in `text`, the default one if it is empty."""
    return TableConfig.from_json(parse_json("config_json", text)) if text else TableConfig()


def table_info(table: EmbeddedTable | Table) -> pb.TableInfo:
    """Returns the message that describes a table."""
    return pb.TableInfo(
        name=table.name, signature_json=json.dumps(table.signature.to_json()), config_json=json.dumps(table.config.to_json()),
        uuid=table.uuid,
    )  # fmt: skip


def session_of(session_id: bytes) -> bytes:
    """Returns a checked session id."""
    if len(session_id) != 16:
        raise SpecMismatchError("session_id", "16 bytes", f"{len(session_id)} bytes")
    return session_id


def epoch_of(request: pb.OpenSessionRequest | pb.AppendRequest) -> int | None:
    """Returns the epoch of a request, None if it has none."""
    return check_epoch_number(request.epoch) if request.HasField("epoch") else None


def alive_of(request: pb.OpenSessionRequest | pb.AppendRequest) -> tuple[int, ...]:
    """Returns the keys of the episodes that a request says are alive."""
    if len(request.open_episodes) > MAX_CHUNKS:
        raise SpecMismatchError("open_episodes", f"at most {MAX_CHUNKS}", str(len(request.open_episodes)))
    return tuple(request.open_episodes)


def chunks_of(request: pb.AppendRequest) -> list[tuple[int, bytes]]:
    """Returns the (sequence, chunk) pairs of a request, whose numbers must follow each other."""
    if not 0 < len(request.chunks) <= MAX_CHUNKS:
        raise SpecMismatchError("chunks", f"1 to {MAX_CHUNKS}", str(len(request.chunks)))
    pairs = [(message.sequence, message.chunk) for message in request.chunks]
    first = pairs[0][0]
    if first < 0 or [sequence for sequence, _ in pairs] != list(range(first, first + len(pairs))):
        found = f"a run that starts with {[sequence for sequence, _ in pairs[:3]]}"
        raise SpecMismatchError("chunks.sequence", "consecutive numbers >= 0", found)
    decoded = sum(_decoded(chunk) for _, chunk in pairs)
    if decoded > MAX_RAW_BYTES:
        raise SpecMismatchError("chunks", f"at most {MAX_RAW_BYTES} bytes in one request, once decoded", str(decoded))
    return pairs


def _decoded(chunk: bytes) -> int:
    """Returns the bytes that a chunk says it takes once decoded; the decoder refuses one that lies, or cannot be read."""
    try:
        return decoded_bytes(chunk)
    except struct.error:
        return 0


def batches_of(request: pb.SampleRequest) -> int:
    """Returns how many batches a request asks for."""
    batches: int = check_number("batches", request.batches or 1, 1, MAX_ITEMS)
    return batches


def window_of(request: pb.SampleRequest) -> Window:
    """Returns the window that a sample request asks for. What the message leaves unset has the window's own default."""
    kind = request.WhichOneof("what")
    if kind is None:
        return Transitions()
    data = getattr(request, kind).SerializeToString()
    return _remembered_window(kind, data) if len(data) <= _REMEMBERED_BYTES else _window(kind, data)


def _window(kind: str, data: bytes) -> Window:
    """Returns the window that the bytes of a message say."""
    match kind:
        case "sequences":
            return Sequences(**_options(pb.Sequences.FromString(data)))
        case "episodes":
            return Episodes(**_options(pb.Episodes.FromString(data)))
        case _:
            message = pb.Transitions.FromString(data)
            return Transitions(**_options(message) | {"n_step": message.n_step, "gamma": message.gamma})


_remembered_window = lru_cache(maxsize=256)(_window)  # learners ask for the same again and again


_ENUMS: dict[str, type[Enum]] = {"padding": StackPadding, "at_end": AtEnd, "goal": Goal, "terminated": Terminated}


def _options(message: Any) -> dict[str, Any]:
    """Returns the fields that are set in a message of a window or a part of one, each as the dataclass takes it."""
    options: dict[str, Any] = {}
    for field, value in message.ListFields():
        match field.name:
            case "stack":
                options["stack"] = Stack(**{"frames": 0} | _options(value))
            case "her":
                options["her"] = _her(value)
            case "columns" | "state":
                options[field.name] = _names(field.name, value)
            case name if name in _ENUMS:
                options[name] = _member(name, field.enum_type, value)
            case name:
                options[name] = value
    if isinstance(message, pb.Sequences):
        options.setdefault("length", 0)
    return options


def _her(message: pb.Her) -> Her:
    options = _options(message)
    sparse, dense = options.pop("sparse", None), options.pop("dense", None)
    if sparse is not None:
        options["reward"] = SparseReward(**_options(sparse))
    elif dense is not None:
        options["reward"] = DenseReward(**_options(dense))
    else:
        options["reward"] = client_reward
        if options.get("terminated", Terminated.SUCCESS) is Terminated.SUCCESS:
            options["success"] = client_success
    return Her(**options)


def _member(name: str, kind: Any, number: int) -> Enum:
    """Returns the member of an enum that a number on the wire stands for: their names differ by a prefix alone."""
    if number not in kind.values_by_number:
        raise SpecMismatchError(name, f"one of {sorted(kind.values_by_number)}", str(number))
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return _ENUMS[name][kind.values_by_number[number].name.removeprefix(prefix)]


def _names(name: str, values: Any) -> tuple[str, ...]:
    if len(values) > MAX_NAMES:
        raise SpecMismatchError(name, f"at most {MAX_NAMES} names", str(len(values)))
    return tuple(values)


def numbers_of(field: str, data: bytes, dtype: str) -> Array:
    """Returns the numbers of eight bytes each in a field, at most MAX_UPDATES of them."""
    if len(data) % 8 or len(data) > 8 * MAX_UPDATES:
        raise SpecMismatchError(field, f"up to {MAX_UPDATES} numbers of 8 bytes", f"{len(data)} bytes")
    return np.frombuffer(data, dtype).astype(dtype[1:])


def episode_ids_of(request: pb.DeleteEpisodesRequest) -> list[int]:
    """Returns the episodes of a request."""
    if len(request.episode_ids) > MAX_UPDATES:
        raise SpecMismatchError("episode_ids", f"at most {MAX_UPDATES}", str(len(request.episode_ids)))
    return [check_number("episode_ids", number, 0, (1 << 63) - 1) for number in request.episode_ids]


def limiter_of(text: str) -> Limiter:
    """Returns the limiter in `text`."""
    return Limiter.from_json(parse_json("limiter_json", text))


def filter_of(request: pb.ListEpisodesRequest) -> EpisodeFilter:
    """Returns what a request asks of episodes. Raises SpecMismatchError."""
    names = [each.name for each in fields(EpisodeFilter)]
    return EpisodeFilter(**{name: getattr(request, name) for name in names if request.HasField(name)})


def capacity_of(request: pb.SetCapacityRequest) -> dict[str, int | None]:
    """Returns the capacities in a request, None where it has none."""
    names = ("capacity_steps", "capacity_bytes", "capacity_episodes")
    return {name: getattr(request, name) if request.HasField(name) else None for name in names}


def activity_json(view: ActivityView) -> str:
    """Returns the JSON of who writes and who samples, as `ActivityResponse` says."""
    actors = [{"table": table} | asdict(seen) for table, all_seen in view.actors.items() for seen in all_seen]
    return json.dumps({
        "actors": actors, "learners": [asdict(seen) for seen in view.learners],
        "newest_policy_version": view.newest_policy_version, "verdict": None if view.verdict is None else asdict(view.verdict),
        "disk": None if view.disk is None else asdict(view.disk),
    })  # fmt: skip


def episode_message(record: EpisodeRecord) -> pb.Episode:
    """Returns the message of an episode record."""
    message = pb.Episode(
        episode_id=record.episode_id, actor=record.actor, length=record.length, first_step=record.first_step,
        terminated=record.terminated, truncated=record.truncated, closed=record.closed, policy_version=record.policy_version,
        started_at_s=record.started_at_s, metadata_json=json.dumps(record.metadata, ensure_ascii=False),
        end_reason=record.end_reason,
    )  # fmt: skip
    setattr(message, "return", record.return_)  # a Python keyword, so no argument of that name
    return message

