"""A client of the admin door that sends exactly what it is told to."""

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self.headers["content-type"]
        return json.loads(self.body, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


class Browser:
    """Sends requests to a port of this machine, each on a connection of its own."""

    def __init__(self, port: int, *, token: str | None = None, context: Any = None) -> None:
        self.port, self._token, self._context = port, token, context

    def request(
        self, method: str, path: str, headers: list[tuple[str, str]] | None = None, body: bytes | None = None, *,
        host: str | None = "127.0.0.1",
    ) -> Answer:  # fmt: skip
        kind = http.client.HTTPConnection if self._context is None else http.client.HTTPSConnection
        options = {} if self._context is None else {"context": self._context}
        connection = kind("127.0.0.1", self.port, timeout=30, **options)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if host is not None:
                connection.putheader("Host", host)
            if self._token is not None:
                connection.putheader("Authorization", f"Bearer {self._token}")
            for name, value in headers or []:
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """GETs a path; `headers` with _ for -."""
        return self.request("GET", path, [(name.replace("_", "-"), value) for name, value in headers.items()])

    def post(self, path: str, data: Any) -> Answer:
        """POSTs an object as JSON."""
        return self.request("POST", path, [("Content-Type", "application/json")], json.dumps(data).encode())

    def connect(self) -> socket.socket:
        """Returns a connection on which nothing was sent."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def rest(connection: socket.socket) -> bytes:
    """Returns what comes on a connection until the other side ends it."""
    found = b""
    while True:
        try:
            part = connection.recv(1 << 16)
        except ConnectionResetError:
            return found
        if not part:
            return found
        found += part
