"""The thread that serves the admin door, beside all the others of the service."""

import asyncio
import logging
import socket
import ssl
import threading
import time
from typing import Protocol

import anyio.to_thread
import uvicorn

from replaysvc.admin.app import guarded, make_app
from replaysvc.admin.connection import Connection
from replaysvc.admin.context import Admin
from replaysvc.admin.guard import HEAD_BYTES
from replaysvc.errors import UnavailableError

log = logging.getLogger(__name__)
_library_log = logging.getLogger("uvicorn.error")

THREADS = 4  # that look at the store at once
_START_S = 30.0
_STOP_S = 5.0  # for what is under way, and then no longer
_BACKLOG = 128  # also how many connections are taken at a time: those that must give way have gone before more come


class Tls(Protocol):
    """A certificate: the context that has it, which `refresh` brings up to date."""

    context: ssl.SSLContext

    def refresh(self) -> None:
        """Reads the files again if they have changed; called every few seconds."""


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address; port 0 for any free one. Who connects waits until the server starts.

    Raises:
      UnavailableError: the address is in use or not of this machine.
    """
    address = f"{host}:{port}"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        at = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UnavailableError(f"address {address}: cannot be bound: {error.strerror or error}") from error
    try:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        at.bind(where)
        at.listen(_BACKLOG)
        at.setblocking(False)
    except OSError as error:
        at.close()
        raise UnavailableError(f"address {address}: cannot be bound: {error.strerror or error}") from error
    return at


class AdminServer:
    """Serves one admin door at a socket that listens. `host`: as it stands in addresses."""

    def __init__(self, admin: Admin, at: socket.socket, *, host: str = "127.0.0.1", tls: Tls | None = None) -> None:
        self._socket = at
        self.port = int(at.getsockname()[1])
        self.url = f"{'http' if tls is None else 'https'}://{host}:{self.port}/"
        if tls is not None:
            admin.health.watch.also.append(tls.refresh)
        self.app = make_app(admin)
        context = tls.context if tls is not None else None
        _library_log.setLevel(logging.ERROR)  # of bad requests it would warn as often as they come
        self._server = uvicorn.Server(
            uvicorn.Config(
                guarded(self.app, admin), http=Connection, loop="asyncio", lifespan="off", ws="none", interface="asgi3",
                log_config=None, access_log=False, proxy_headers=False, server_header=False, timeout_keep_alive=5,
                timeout_graceful_shutdown=2, h11_max_incomplete_event_size=HEAD_BYTES, backlog=_BACKLOG,
                ssl_context_factory=(lambda *_: context) if context is not None else None,
            )
        )  # fmt: skip
        # its workers are daemons as it is: a look that never ends must not keep the process alive
        self._thread = threading.Thread(target=self._run, name="replaysvc-admin", daemon=True)

    @property
    def connections(self) -> int:
        """Returns how many connections are open."""
        return len(self._server.server_state.connections)

    def start(self) -> None:
        """Begins to serve. Raises UnavailableError: the thread ended, see the log."""
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._server.started:
            self._thread.join(0.01)
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise UnavailableError("the admin door could not be opened; the log has the cause")
        log.info("dashboard on %s", self.url)

    def stop(self) -> None:
        """Ends: no new requests, a moment for those under way. A look that does not end is left behind."""
        _library_log.setLevel(logging.CRITICAL)  # what it has to cut off now is told by the guard
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
            if self._thread.is_alive():
                log.warning("admin door: a request did not end within %g s, and is left behind", _STOP_S)
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException:
            log.exception("admin door: its thread ended")

    async def _serve(self) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        await self._server.serve(sockets=[self._socket])
