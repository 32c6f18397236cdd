"""Answers of the admin door: JSON, and errors as JSON; and the headers that every answer has."""

import json
from typing import Any

from starlette.responses import Response

from replaysvc.admin.numbers import plain
from replaysvc.errors import ReplayError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS: list[tuple[bytes, bytes]] = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""Headers of every answer, whatever else it has."""

HEADERS: list[tuple[bytes, bytes]] = [*GUARDS, (b"content-type", b"application/json"), (b"cache-control", b"no-store")]
"""Headers of an answer that holds data or tells of an error."""

MOST_BYTES = 4 << 20  # of an answer; pages are cut so that they stay below


def encoded(data: Any) -> bytes:
    """Returns data as JSON, in ASCII: text that no UTF-8 can hold comes from others, too."""
    return json.dumps(plain(data), allow_nan=False, separators=(",", ":")).encode()


def error_body(name: str, message: str) -> bytes:
    """Returns what tells of an error."""
    return encoded({"error": name, "message": message})


def json_answer(data: Any, status: int = 200) -> Response:
    """Returns data as an answer."""
    return Response(encoded(data), status, media_type="application/json")


def refusal(status: int, name: str, message: str, **headers: str) -> Response:
    """Returns an error as an answer; `headers` with _ for -."""
    more = {key.replace("_", "-"): value for key, value in headers.items()}
    return Response(error_body(name, message), status, headers=more, media_type="application/json")


def of_error(error: ReplayError, **headers: str) -> Response:
    """Returns the answer that tells of an error of ours; `headers` with _ for -."""
    if error.http_status == 401:
        headers["www_authenticate"] = "Bearer"
    if error.retry_after_s is not None or error.http_status == 503:
        headers["retry_after"] = str(max(1, round(error.retry_after_s or 1)))
    return refusal(error.http_status, error.name, str(error), **headers)
