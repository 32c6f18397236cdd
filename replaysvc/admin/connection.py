"""HTTP connections with bounds: on the time that a request, and an answer, may take, and on how many there are.

uvicorn itself waits for ever for a request's end, and for a client that does not read. Whoever does either gives way here. What
cannot be parsed is answered as all else is.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from replaysvc.admin.answers import HEADERS, error_body
from replaysvc.admin.guard import HEAD_BYTES

REQUEST_S = 10.0  # from a connection, or the first byte of its next request, to the request's end
ANSWER_S = 60.0  # from there to the last byte that the client takes
MOST_CONNECTIONS = 256  # of one more, that which keeps us waiting for longest is closed


class Connection(H11Protocol):
    """One connection; lives in the event loop of its server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._waits = False  # for the end of a request
        self._since = 0.0
        self.is_given_up = False
        super().connection_made(transport)  # type: ignore[arg-type]  # as asyncio's own protocols have it
        self._await_request()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        """Ends a connection. One that ends already is still among all: of many newcomers at once, each needs another one."""
        connections: list[Any] = list(self.connections)
        there = [other for other in connections if not other.is_given_up]
        if len(there) <= MOST_CONNECTIONS:
            return
        others = [other for other in there if other is not self]
        waiting = [other for other in others if other.is_idle] or [other for other in others if other.is_taken]
        if waiting:
            min(waiting, key=lambda other: other._since).give_up()

    @property
    def is_idle(self) -> bool:
        """Returns whether no whole request is under way."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    @property
    def is_taken(self) -> bool:
        """Returns whether a client is about to take its answer."""
        return self.cycle is not None and self.cycle.response_started

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_idle:
            self._await_answer()
        elif not self._waits:
            self._await_request()

    def on_response_complete(self) -> None:
        self._await_answer()  # to be taken by the client
        super().on_response_complete()  # which may begin with the next request, if it has come already

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._waits, self._since = True, self.loop.time()
        self._arm(REQUEST_S)

    def _await_answer(self) -> None:
        self._waits, self._since = False, self.loop.time()
        self._arm(ANSWER_S)

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.give_up)

    def give_up(self) -> None:
        """Ends the connection, whatever the client has still to send or to take."""
        self.is_given_up = True
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP, or more of it than is read."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        sentence = f"expected a request of at most {HEAD_BYTES} bytes before its body" if status == 431 else "expected HTTP/1.1"
        body = error_body("InvalidRequestError", sentence)
        headers: list[Any] = [*HEADERS, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        if self.cycle is not None:  # whoever answers just now need not
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            reason = HTTPStatus(status).phrase.encode()
            parts = (h11.Response(status_code=status, headers=headers, reason=reason), h11.Data(data=body), h11.EndOfMessage())
            for part in parts:
                self.transport.write(self.conn.send(part) or b"")
        except h11.LocalProtocolError:  # amid an answer
            self.transport.abort()
        self.transport.close()
