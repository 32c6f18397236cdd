"""Protobuf messages to the types of this project and back; checks what only the wire can get wrong."""

import json
from typing import Any

from replaysvc.config import TableConfig
from replaysvc.errors import InvalidRequestError, SpecMismatchError
from replaysvc.requests import Transitions
from replaysvc.spec import Signature
from replaysvc.types import EpisodeRecord
from replaysvc.v1 import replay_pb2 as pb

MAX_CHUNKS = 65_536
_MAX_JSON = 1 << 20


def parse_json(field: str, text: str) -> dict[str, Any]:
    """Returns the JSON object in `text`. Raises SpecMismatchError."""
    if len(text) > _MAX_JSON:
        raise SpecMismatchError(field, f"at most {_MAX_JSON} characters", str(len(text)))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecMismatchError(field, "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise SpecMismatchError(field, "a JSON object", type(value).__name__)
    return value


def signature_of(text: str) -> Signature:
    """Returns the signature in `text`."""
    return Signature.from_json(parse_json("signature_json", text))


def config_of(text: str) -> TableConfig:
    """Returns the table configuration in `text`, the default one if it is empty."""
    return TableConfig.from_json(parse_json("config_json", text)) if text else TableConfig()


def table_info(name: str, signature: Signature, config: TableConfig) -> pb.TableInfo:
    """Returns the message that describes a table."""
    return pb.TableInfo(name=name, signature_json=json.dumps(signature.to_json()), config_json=json.dumps(config.to_json()))


def session_of(session_id: bytes) -> bytes:
    """Returns a checked session id."""
    if len(session_id) != 16:
        raise SpecMismatchError("session_id", "16 bytes", f"{len(session_id)} bytes")
    return session_id


def actor_of(actor: str) -> str:
    """Returns a checked actor name."""
    if len(actor) > 128 or not actor.isprintable():
        raise SpecMismatchError("actor", "up to 128 printable characters", repr(actor[:140]))
    return actor


def chunks_of(request: pb.AppendRequest) -> list[tuple[int, bytes]]:
    """Returns the (sequence, chunk) pairs of a request, whose numbers must follow each other."""
    if not 0 < len(request.chunks) <= MAX_CHUNKS:
        raise SpecMismatchError("chunks", f"1 to {MAX_CHUNKS}", str(len(request.chunks)))
    pairs = [(message.sequence, message.chunk) for message in request.chunks]
    first = pairs[0][0]
    if first < 0 or [sequence for sequence, _ in pairs] != list(range(first, first + len(pairs))):
        found = f"a run that starts with {[sequence for sequence, _ in pairs[:3]]}"
        raise SpecMismatchError("chunks.sequence", "consecutive numbers >= 0", found)
    return pairs


def window_of(request: pb.SampleRequest) -> Transitions:
    """Returns the window that a sample request asks for."""
    if request.WhichOneof("what") is None:
        return Transitions()
    return Transitions(n_step=request.transitions.n_step, gamma=request.transitions.gamma)


def episode_message(record: EpisodeRecord) -> pb.Episode:
    """Returns the message of an episode record."""
    message = pb.Episode(
        episode_id=record.episode_id, actor=record.actor, length=record.length, first_step=record.first_step,
        terminated=record.terminated, truncated=record.truncated, closed=record.closed, policy_version=record.policy_version,
        started_at_s=record.started_at_s, metadata_json=json.dumps(record.metadata, ensure_ascii=False),
    )  # fmt: skip
    setattr(message, "return", record.return_)  # a Python keyword, so no argument of that name
    return message


def piece_limit(size: int, limit: int) -> None:
    """Raises InvalidRequestError if streamed pieces add up to more than `limit` bytes."""
    if size > limit:
        raise InvalidRequestError(f"params: expected at most {limit} bytes, found more")
