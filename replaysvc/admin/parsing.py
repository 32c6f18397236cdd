"""Bodies of requests: one JSON object, of a bounded size and depth."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from replaysvc.admin.guard import BODY_BYTES
from replaysvc.checks import shown
from replaysvc.errors import InvalidRequestError


async def json_object(request: Request) -> dict[str, Any]:
    """Returns the object in a request's body. Raises InvalidRequestError."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES:  # whatever its headers said
                raise InvalidRequestError(f"body: expected at most {BODY_BYTES} bytes, found more")
    except ClientDisconnect:
        raise InvalidRequestError("body: expected all of it, found an end") from None
    try:
        value = json.loads(bytes(body), object_pairs_hook=_object, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"body: expected JSON, found {shown(str(error))}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"body: expected an object, found {type(value).__name__}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that comes twice in an object")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant}, which is no number")


def checked(body: Mapping[str, Any], *names: str, must: Mapping[str, str]) -> None:
    """Refuses a body with other names than these, or one that does not have what it must have.

    Raises:
      InvalidRequestError: says which, and what was expected.
    """
    unknown = sorted(set(body) - set(names))
    if unknown:
        raise InvalidRequestError(f"{unknown[0][:100]}: unknown; there are {', '.join(names)}")
    for name, value in must.items():
        if body.get(name) != value:
            raise InvalidRequestError(f"{name}: expected {value!r}, the name of what is changed, found {shown(body.get(name))}")
