"""What stands before every page and every method: whom a browser thinks that it talks to, and on whose behalf.

Without tokens, everyone on this machine may do everything, and a browser on this machine runs the scripts of strangers. They
reach 127.0.0.1 as well: straight, which `Sec-Fetch-Site` and `Origin` tell, or by a name of theirs that is made to point there
(DNS rebinding), which `Host` tells: a rebound name is never an address, never localhost, and not among those that we know.
"""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Callable, Hashable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replaysvc.access import bearer
from replaysvc.activity import new_request_id, request_id
from replaysvc.admin.answers import GUARDS, of_error, refusal
from replaysvc.admin.room import Body, Room
from replaysvc.errors import UnauthenticatedError, UnavailableError

log = logging.getLogger(__name__)

HEAD_BYTES = 16 << 10  # of a request without its body
BODY_BYTES = 256 << 10  # the ids of 10,000 episodes fit, the largest that there are
_PIECE_BYTES = 64 << 10  # of an answer
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")
_LENGTH = re.compile("[0-9]{1,20}")
_PROBES = frozenset({"/livez", "/readyz"})


class Guard:
    """An ASGI application before another one. `names`: host names, in small letters, besides localhost and IP addresses.
    `tokens`: whether callers are known by theirs, or by their addresses alone."""

    def __init__(self, app: ASGIApp, names: frozenset[str], *, tokens: bool = False) -> None:
        self._app, self._names, self._tokens, self._room = app, names, tokens, Room()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        asked = new_request_id()
        request_id.set(asked)
        send = _with_headers(send, asked)
        refused = self._refused(scope)
        if refused is not None:
            await refusal(refused[0], refused[1], refused[2], **refused[3])(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # the same answer, of which the connection leaves out the body
            scope = {**scope, "method": "GET"}
        if scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        body = Body(self._room, self._who(scope), receive)
        if scope["method"] == "GET":
            try:
                body.enter()
            except UnavailableError as error:
                await of_error(error, connection="close")(scope, receive, send)
                return
        try:
            await self._app(scope, body.receive, _settling(send, body.leave))
        except asyncio.CancelledError:
            log.warning("%s %.200s was under way at the end, and is left behind", scope["method"], scope["path"])
            raise
        except Exception:  # which was answered already
            log.exception("%s %.200s failed", scope["method"], scope["path"])
        finally:
            body.leave()

    def _who(self, scope: Scope) -> Hashable:
        """Returns on whose account a request goes. A wrong token is nobody's: its request is refused before it costs much."""
        shown = [value.decode("latin-1") for key, value in scope["headers"] if key == b"authorization"] if self._tokens else []
        try:
            secret = bearer(shown)
        except UnauthenticatedError:
            secret = None
        return secret or (scope["client"] or ("unknown",))[0]

    def _refused(self, scope: Scope) -> tuple[int, str, str, dict[str, str]] | None:
        """Returns status, error, sentence and headers of the answer to a request that is not let in."""
        head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(k) + len(v) + 4 for k, v in scope["headers"])
        if head > HEAD_BYTES:
            sentence = f"expected a request of at most {HEAD_BYTES} bytes before its body, found {head}"
            return 431, "InvalidRequestError", sentence, {"connection": "close"}
        headers: dict[str, list[str]] = {}
        for key, value in scope["headers"]:
            headers.setdefault(key.decode("latin-1"), []).append(value.decode("latin-1"))
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_known(hosts[0]):
            sentence = "host: expected localhost, an IP address or a name in the setting admin_names, found another"
            return 400, "InvalidRequestError", sentence, {}
        if not scope["path"].startswith("/") or not scope["path"].isprintable():
            return 400, "InvalidRequestError", "target: expected a path of printable characters", {}
        if not _is_ours(scope, headers, hosts[0]):
            sentence = "expected a request of this page itself, found one on behalf of another site"
            return 403, "PermissionDeniedError", sentence, {}
        if scope["method"] not in ("GET", "HEAD", "POST"):
            close = {"allow": "GET, HEAD, POST", "connection": "close"}
            return 405, "InvalidRequestError", "method: expected GET, HEAD or POST", close
        return _refused_body(scope["method"], headers)

    def _is_known(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].strip("[]").lower()
        if name == "localhost" or name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_ours(scope: Scope, headers: dict[str, list[str]], host: str) -> bool:
    """Returns whether a request comes of no page at all, or of one of this very address."""
    schemes = {"https"} if scope["scheme"] == "https" else {"http", "https"}  # the latter of a proxy that ends TLS
    own = {f"{scheme}://{host.lower()}" for scheme in schemes}
    if any(origin.lower() not in own for origin in headers.get("origin", [])):
        return False
    sites = set(headers.get("sec-fetch-site", []))
    if sites <= {"same-origin", "none"}:
        return True
    # a link from elsewhere to the page itself, which holds no data, in a window of its own
    is_link = headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == ["document"]
    return is_link and scope["method"] in ("GET", "HEAD") and scope["path"] == "/"


def _refused_body(method: str, headers: dict[str, list[str]]) -> tuple[int, str, str, dict[str, str]] | None:
    lengths, close = headers.get("content-length", []), {"connection": "close"}
    if method != "POST":
        if "transfer-encoding" in headers or lengths not in ([], ["0"]):
            return 400, "InvalidRequestError", "body: expected none, found one", close
        return None
    if "transfer-encoding" in headers or len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        return 411, "InvalidRequestError", "content-length: expected one, before the body", close
    if int(lengths[0]) > BODY_BYTES:
        return 413, "InvalidRequestError", f"body: expected at most {BODY_BYTES} bytes, found {lengths[0]}", close
    types = headers.get("content-type", [])
    if len(types) != 1 or types[0].partition(";")[0].strip().lower() != "application/json":
        return 415, "InvalidRequestError", "content-type: expected application/json", close
    return None


def _settling(send: Send, settle: Callable[[], None]) -> Send:
    """Calls `settle` as soon as there is an answer: a client may take its time to read it, which is not our work."""

    async def settling(message: Message) -> None:
        settle()
        await send(message)

    return settling


def _with_headers(send: Send, asked: str) -> Send:
    """Adds the headers of every answer, and sends it in pieces, each as the client has taken the one before."""

    async def guarded(message: Message) -> None:
        body = message.get("body", b"")
        if len(body) > _PIECE_BYTES:  # in one piece, the connection would keep a copy of all of it
            last = (len(body) - 1) // _PIECE_BYTES * _PIECE_BYTES
            for at in range(0, last, _PIECE_BYTES):
                await send({"type": message["type"], "body": body[at : at + _PIECE_BYTES], "more_body": True})
            message = {**message, "body": body[last:]}
        if message["type"] == "http.response.start":
            there = {key for key, _ in message.get("headers", [])}
            more = [*GUARDS, (b"x-request-id", asked.encode())]
            if b"cache-control" not in there:
                more.append((b"cache-control", b"no-store"))
            message["headers"] = [*message.get("headers", []), *more]
        await send(message)

    return guarded
