"""The command line. Converts and calls; each failure is one sentence on stderr and an exit status.

Exit statuses: 0 fine; 1 the demo did not solve its task, or a package is not installed; 2 a wrong option, setting or
argument; 3 the store cannot be used; 4 the address cannot be bound, or no server answers; 5 anything else that was refused.
"""

import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table as RichTable

import replaysvc
from replaysvc.config import StoreConfig
from replaysvc.errors import InvalidRequestError, ReplayError, StorageError, StoreLockedError, UnavailableError
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server
from replaysvc.settings import LOG_LEVELS, Settings, load
from replaysvc.storage import System
from replaysvc.types import TableStats

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
_STATUSES: dict[type[ReplayError], int] = {InvalidRequestError: 2, StorageError: 3, UnavailableError: 4}
_READER = StoreConfig(recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)  # who only looks decodes nothing

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Target = Annotated[str, typer.Argument(help="host:port of a running service, or a store directory that no service has open")]


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except ReplayError as error:
        print(f"replaysvc: {error}", file=sys.stderr)
        raise typer.Exit(next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 5)) from None


def _version(show: bool) -> None:
    if show:
        print(f"replaysvc {replaysvc.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
) -> None:
    """A replay buffer that is a service."""


@app.command()
def serve(
    data: Annotated[Path | None, typer.Option(help="directory of the store; made if absent")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 for any free one [default: 7777]")] = None,
    host: Annotated[str | None, typer.Option(help="address to bind [default: 127.0.0.1]")] = None,
    config: Annotated[Path | None, typer.Option(envvar="REPLAYSVC_CONFIG", help="TOML file of settings")] = None,
    recent_cache_bytes: Annotated[int | None, typer.Option(help="RAM for decoded chunks as they are committed")] = None,
    faulted_cache_bytes: Annotated[int | None, typer.Option(help="RAM for decoded chunks read back from disk")] = None,
    snapshot_dir: Annotated[str | None, typer.Option(help="directory for the snapshots that clients ask for")] = None,
    log_level: Annotated[str | None, typer.Option(help=f"{', '.join(LOG_LEVELS)} [default: info]")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="allow an address that other machines reach")] = False,
) -> None:
    """Serve a store until SIGTERM or SIGINT. Every option is also a setting: REPLAYSVC_PORT, or `port` in the file."""
    options = {
        "data": data, "port": port, "host": host, "recent_cache_bytes": recent_cache_bytes,
        "faulted_cache_bytes": faulted_cache_bytes, "snapshot_dir": snapshot_dir, "log_level": log_level,
        "insecure": insecure or None,
    }  # fmt: skip
    with _failures():
        settings = load(options, config)
        _start_logging(settings)
        run_service(settings)


def _start_logging(settings: Settings) -> None:
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def run_service(settings: Settings, *, system: System | None = None) -> None:
    """Serves a store until SIGTERM or SIGINT; `system` is its clock and file system, the real ones by default."""
    if settings.data is None:
        raise InvalidRequestError(
            "setting data: expected the directory of the store (--data DIR or REPLAYSVC_DATA), found none"
        )
    if not (settings.insecure or _is_loopback(settings.host)):
        raise InvalidRequestError(
            f"setting host: expected an address of this machine alone, found {settings.host}; "
            "there is no authentication yet, so --insecure is needed to open it to others"
        )
    log = logging.getLogger(__name__)
    with _stop_signals() as await_signal, _bound(settings.data, settings, system) as (server, replay):
        server.start()
        log.info("serving %s with tables %s, process %d", settings.data, replay.tables(), os.getpid())
        print(f"listening on {server.address}", flush=True)
        log.info("stopping at %s", await_signal().name)
        server.stop(settings.grace_s)


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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return host == "localhost"


@contextmanager
def _bound(data: Path, settings: Settings, system: System | None) -> Iterator[tuple[Server, Replay]]:
    """Opens the store, but not before the address is known to be free: a refused start must touch nothing."""
    host = f"[{settings.host}]" if ":" in settings.host.strip("[]") and not settings.host.startswith("[") else settings.host
    address = f"{host}:{settings.port}"
    Server.probe(address)
    with Replay(data, settings.store(), system=system) as replay:
        yield Server(replay, address), replay


@contextmanager
def _opened(target: str) -> Iterator[Any]:
    """Opens TARGET: a client for host:port, the store itself for a directory."""
    host, _, port = target.rpartition(":")
    if (Path(target) / "FORMAT").is_file():
        try:
            replay = Replay(target, _READER)
        except StoreLockedError as error:
            raise StoreLockedError(f"{error}; if that is a service, give its host:port") from error
        with replay:
            yield replay
    elif host and port.isdigit() and not Path(target).exists():
        import replay_client

        config = replay_client.ClientConfig(reconnect_timeout_s=2.0)
        with replay_client.connect(target, config=config) as client:
            yield client
    else:
        raise InvalidRequestError(f"TARGET: expected host:port or a store directory, found {target!r}")


@app.command()
def tables(target: Target, as_json: Json = False) -> None:
    """List the tables of a service or store."""
    with _failures(), _opened(target) as replay:
        rows = [replay.table(name).stats() for name in replay.tables()]
        if as_json:
            print(json.dumps([asdict(row) for row in rows]))
            return
        table = RichTable("table", "steps", "episodes", "on disk", "ratio", "state")
        for row in rows:
            ratio = f"{row.raw_bytes / row.stored_bytes:.1f}x" if row.stored_bytes else "-"
            disk = f"{row.disk_bytes / 2**20:,.1f} MiB"
            table.add_row(row.name, f"{row.steps:,}", f"{row.episodes:,}", disk, ratio, row.waiting_for or "ready")
        Console().print(table)


@app.command()
def stats(
    target: Target,
    table: Annotated[str | None, typer.Argument(help="one table; all if left out")] = None,
    as_json: Json = False,
) -> None:
    """Print the counters of tables."""
    with _failures(), _opened(target) as replay:
        rows: list[TableStats] = [replay.table(name).stats() for name in ([table] if table else replay.tables())]
        if as_json:
            print(json.dumps([asdict(row) for row in rows]))
            return
        console = Console()
        for row in rows:
            shown = RichTable(row.name, "")
            for name, value in asdict(row).items():
                if name != "name":
                    shown.add_row(name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
            console.print(shown)


@app.command()
def demo(
    directory: Annotated[Path | None, typer.Option("--dir", help="run directory; made under runs/ if left out")] = None,
    seed: Annotated[int, typer.Option(help="seed of the environments and the learner")] = 1,
    sampler: Annotated[Literal["uniform", "prioritized"] | None, typer.Option(help="of the batches [default: uniform]")] = None,
    n_step: Annotated[int | None, typer.Option(min=1, help="rewards summed before the bootstrap value [default: 3]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --dir")] = False,
) -> None:
    """Solve CartPole-v1 through the service: server, two actors, learner and evaluator, each a process of its own."""
    from replaysvc.demo import run_demo

    with _failures():
        if resume and directory is None:
            raise InvalidRequestError("option --resume: expected --dir with it, which says what run to go on with; found none")
        raise typer.Exit(run_demo(directory=directory, seed=seed, sampler=sampler, n_step=n_step, resume=resume))
