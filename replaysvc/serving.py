"""`replaysvc serve`, from its settings to its end: the doors are opened in order, and closed in order.

Nothing is touched before all is known to be fine: the addresses are free, the files can be read, the packages are there. The
admin door, if there is one, opens after the store and before gRPC, and is closed after it: whoever watches sees the drain.
"""

import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import replaysvc
from replaysvc.access import Access
from replaysvc.activity import Activity
from replaysvc.errors import InvalidRequestError
from replaysvc.health import Health
from replaysvc.logs import Recent
from replaysvc.replay import Replay
from replaysvc.rpc.limits import Memory, allowed_memory, most_memory, report_memory
from replaysvc.rpc.server import Server
from replaysvc.rpc.tls import TlsFiles
from replaysvc.settings import Settings
from replaysvc.storage import System

if TYPE_CHECKING:
    from replaysvc.admin.server import AdminServer

log = logging.getLogger(__name__)

_STOP_S = 5.0  # for a look under way


def run_service(settings: Settings, *, system: System | None = None, recent: Recent | None = None) -> None:
    """Serves a store until SIGTERM or SIGINT.

    `system` is its clock and file system, the real ones by default; `recent` keeps the last lines of the log.
    """
    if settings.data is None:
        raise InvalidRequestError(
            "setting data: expected the directory of the store (--data DIR or REPLAYSVC_DATA), found none"
        )
    settings.check_exposure()
    doors = _opened(settings.data, settings, system, recent or Recent())
    with _stop_signals() as await_signal, doors as (server, replay, admin):
        for name, words in settings.exposures.items():
            _warn(f"{server.address if name == 'host' else admin.url if admin else ''} is open to whoever reaches it: {words}")
        report_memory(_memory(settings, server), allowed_memory())
        server.start()
        log.info("serving %s with tables %s, process %d", settings.data, replay.tables(), os.getpid())
        dashboard = f"\ndashboard on {admin.url}" if admin is not None else ""
        print(f"listening on {server.address}{dashboard}", flush=True)
        log.info("stopping at %s", await_signal().name)
        server.stop(settings.grace_s)


def _warn(sentence: str) -> None:
    warning = f"{sentence} (--insecure)"
    log.warning(warning)
    if not log.isEnabledFor(logging.WARNING):  # whatever is logged, this is to be seen
        print(f"replaysvc: WARNING: {warning}", file=sys.stderr, flush=True)


def _memory(settings: Settings, server: Server) -> Memory:
    return most_memory(settings.store(), settings.limits(), server.connections, admin=settings.admin_port is not None)


@contextmanager
def _stop_signals() -> Iterator[Callable[[], signal.Signals]]:
    """Gives a function that waits for SIGTERM or SIGINT; one that came before it was called counts too.

    Signals arrive as bytes at a socket, whatever thread the system gives them to. A handler that sets an Event could find
    the Event's own lock held by the thread that it interrupts.
    """
    receiver, sender = socket.socketpair()
    with receiver, sender:
        sender.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        before = signal.set_wakeup_fd(sender.fileno())
        try:
            yield lambda: signal.Signals(receiver.recv(1)[0])
        finally:
            signal.set_wakeup_fd(before)


@contextmanager
def _opened(
    data: Path, settings: Settings, system: System | None, recent: Recent
) -> Iterator[tuple[Server, Replay, "AdminServer | None"]]:
    """Opens the store, but not before all else is known to be fine: a refused start must touch nothing."""
    access = Access(settings.tokens_file) if settings.tokens_file is not None else None
    tls = None
    if settings.tls_certificate is not None and settings.tls_key is not None:
        tls = TlsFiles(certificate=settings.tls_certificate, key=settings.tls_key, client_ca=settings.tls_client_ca)
        tls.read()
    address = f"{_in_brackets(settings.host)}:{settings.port}"
    Server.probe(address)
    with _admin_socket(settings) as at:
        activity = Activity()
        with Replay(data, settings.store(), system=system) as replay, _watched(replay, activity) as health:
            server = Server(
                replay, address, access=access, tls=tls, limits=settings.limits(), activity=activity, health=health,
                reflection=settings.reflection,
            )  # fmt: skip
            if at is None:
                yield server, replay, None
                return
            admin = _admin(settings, data, at, replay, health, server, access, activity, tls, recent)
            admin.start()
            try:
                yield server, replay, admin
            finally:
                admin.stop()  # before the store closes: afterwards every look would fail


@contextmanager
def _watched(replay: Replay, activity: Activity) -> Iterator[Health]:
    """Gives what looks at a store all the time, whoever asks."""
    health = Health(replay, activity)
    health.watch.start()
    try:
        yield health
    finally:
        health.watch.stop(_STOP_S)


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host.strip("[]") and not host.startswith("[") else host


@contextmanager
def _admin_socket(settings: Settings) -> Iterator[socket.socket | None]:
    """Gives a socket that listens at the admin door's address, if there is to be one."""
    if settings.admin_port is None:
        yield None
        return
    try:
        from replaysvc.admin.server import bind
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("replaysvc"):
            raise
        raise InvalidRequestError(
            f"setting admin_port: {error.name} is missing; it needs: pip install 'replaysvc[server]'"
        ) from error
    if settings.admin_port and (settings.admin_host, settings.admin_port) == (settings.host, settings.port):
        raise InvalidRequestError("setting admin_port: expected another port than that of gRPC, found the same")
    with bind(settings.admin_host, settings.admin_port) as at:
        yield at


def _admin(
    settings: Settings, data: Path, at: socket.socket, replay: Replay, health: Health, server: Server, access: Access | None,
    activity: Activity, tls: TlsFiles | None, recent: Recent,
) -> "AdminServer":  # fmt: skip
    from replaysvc.admin.context import Admin
    from replaysvc.admin.server import AdminServer
    from replaysvc.metrics import Metrics

    memory = _memory(settings, server)
    admin = Admin(
        replay=replay, health=health, access=access, activity=activity,
        metrics=Metrics(replay, activity, server.load, lambda: server.status),
        status=lambda: server.status, address=server.address, data=os.fspath(data),
        version=replaysvc.__version__, names=settings.names,
        settings=settings.model_dump(mode="json"), limits=_limits(settings, memory), log_lines=recent.lines,
    )  # fmt: skip
    return AdminServer(admin, at, host=_in_brackets(settings.admin_host), tls=_Certificate(tls) if tls is not None else None)


def _limits(settings: Settings, memory: Memory) -> dict[str, Any]:
    """Returns what bounds the memory of the service: the limits, and the most that it may take with them."""
    return asdict(settings.limits()) | {"most_memory_bytes": memory.total, "allowed_memory_bytes": allowed_memory()}


class _Certificate:
    """The TLS context of the admin door, which follows changes of the files."""

    def __init__(self, files: TlsFiles) -> None:
        self._files, self._state, self._complaint = files, files.state(), ""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(files.certificate, files.key)

    def refresh(self) -> None:
        """Reads the files again if they have changed and fit each other; connections from then on get what is in them."""
        state = self._files.state()
        if state == self._state:
            return
        try:
            self._files.read()
            self.context.load_cert_chain(self._files.certificate, self._files.key)
        except (InvalidRequestError, OSError) as error:  # perhaps half of an exchange of files: the next look comes soon
            if str(error) != self._complaint:
                log.error("admin door: %s; the certificate that was read before stays in use", error)
            self._complaint = str(error)
            return
        self._state, self._complaint = state, ""
        log.info("tls_certificate %s: read again, for the admin door", self._files.certificate)
