"""The command line. Converts and calls; each failure is one sentence on stderr and an exit status.

Exit statuses: 0 fine; 1 the demo did not solve its task, or a package is not installed; 2 a wrong option, setting or
argument; 3 the store cannot be used; 4 the address cannot be bound, or no server answers; 5 anything else that was refused.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import replaysvc
from replaysvc.access import Role, append_token, new_token
from replaysvc.checks import shown
from replaysvc.config import StoreConfig
from replaysvc.errors import InvalidRequestError, ReplayError, StorageError, StoreLockedError, UnavailableError
from replaysvc.logs import start_logging
from replaysvc.replay import Replay
from replaysvc.serving import run_service
from replaysvc.settings import LOG_FORMATS, LOG_LEVELS, load
from replaysvc.types import TableStats

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
_STATUSES: dict[type[ReplayError], int] = {InvalidRequestError: 2, StorageError: 3, UnavailableError: 4}
_IN_OPTIONS = (
    ("connect with tls=Tls(root_certificates=...)", "give --tls-ca"),
    ("is not signed by a CA in tls.root_certificates", "is not signed by a CA in --tls-ca"),
    ("since tls is given", "since --tls-ca is given"),
    ("found none in tls", "found none; give --tls-certificate and --tls-key"),
    ("found one that it does not accept in tls", "found one that it does not accept in --tls-certificate"),
    ("token: expected tls with it", "option --token-file: expected --tls-ca with it"),
    ("tls: expected private_key and certificate_chain", "options --tls-key and --tls-certificate: expected them"),
    ("tls.root_certificates: ", "option --tls-ca: "), ("tls.private_key: ", "option --tls-key: "),
    ("tls.certificate_chain: ", "option --tls-certificate: "),
)  # fmt: skip
"""What the client's errors say in Python's words, and in those of the commands."""
_READER = StoreConfig(recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)  # who only looks decodes nothing

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Target = Annotated[str, typer.Argument(help="host:port of a running service, or a store directory that no service has open")]
TokenFile = Annotated[Path | None, typer.Option(envvar="REPLAYSVC_TOKEN_FILE", help="file with the token to show the service")]
TlsCa = Annotated[Path | None, typer.Option(envvar="REPLAYSVC_TLS_CA", help="PEM file of the CA that signed its certificate")]
TlsCertificate = Annotated[Path | None, typer.Option(help="PEM file of the certificate to show it, with its --tls-key")]
TlsKey = Annotated[Path | None, typer.Option(help="PEM file of that certificate's key")]


@contextmanager
def failures() -> Iterator[None]:
    try:
        yield
    except ReplayError as error:
        sentence = str(error)
        for words, in_options in _IN_OPTIONS:
            sentence = sentence.replace(words, in_options)
        print(f"replaysvc: {sentence}", file=sys.stderr)
        raise typer.Exit(next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 5)) from None
    except OSError as error:  # a path that the file system does not even look at: too long, not allowed
        if error.filename is None:
            raise
        print(f"replaysvc: {shown(error.filename)} cannot be used: {error.strerror}", file=sys.stderr)
        raise typer.Exit(_STATUSES[StorageError]) from None


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
    tokens_file: Annotated[Path | None, typer.Option(help="TOML file of who may call, see `replaysvc token`")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file of the service's certificate")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="PEM file of the CA whose certificates callers must have")] = None,
    recent_cache_bytes: Annotated[int | None, typer.Option(help="RAM for decoded chunks as they are committed")] = None,
    faulted_cache_bytes: Annotated[int | None, typer.Option(help="RAM for decoded chunks read back from disk")] = None,
    snapshot_dir: Annotated[str | None, typer.Option(help="directory for the snapshots that clients ask for")] = None,
    log_level: Annotated[str | None, typer.Option(help=f"{', '.join(LOG_LEVELS)} [default: info]")] = None,
    log_format: Annotated[str | None, typer.Option(help=f"{', '.join(LOG_FORMATS)} [default: text]")] = None,
    admin_port: Annotated[int | None, typer.Option(help="TCP port of the dashboard, its API, metrics and probes")] = None,
    admin_host: Annotated[str | None, typer.Option(help="address to bind for it [default: 127.0.0.1]")] = None,
    admin_names: Annotated[str | None, typer.Option(help="host names that browsers may call it by, as in a,b")] = None,
    reflection: Annotated[bool, typer.Option("--reflection", help="let gRPC tools ask what methods there are")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="allow an address that others reach, unprotected")] = False,
) -> None:
    """Serve a store until SIGTERM or SIGINT. Every option is also a setting: REPLAYSVC_PORT, or `port` in the file."""
    options = {
        "data": data, "port": port, "host": host, "tokens_file": tokens_file, "tls_certificate": tls_certificate,
        "tls_key": tls_key, "tls_client_ca": tls_client_ca, "recent_cache_bytes": recent_cache_bytes,
        "faulted_cache_bytes": faulted_cache_bytes, "snapshot_dir": snapshot_dir, "log_level": log_level,
        "log_format": log_format, "admin_port": admin_port, "admin_host": admin_host, "admin_names": admin_names,
        "reflection": reflection or None, "insecure": insecure or None,
    }  # fmt: skip
    with failures():
        settings = load(options, config)
        run_service(settings, recent=start_logging(settings.log_level, settings.log_format))


@dataclass(frozen=True, slots=True)
class Shown:
    """What a command shows a service: files of a token, and of a CA, a certificate and a key."""

    token_file: Path | None = None
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None

    def options(self) -> dict[str, Any]:
        """Returns them as `replay_client.connect` takes them. Raises InvalidRequestError."""
        from replay_client import Tls

        token = _content("--token-file", self.token_file)
        files = {
            "root_certificates": _content("--tls-ca", self.tls_ca), "private_key": _content("--tls-key", self.tls_key),
            "certificate_chain": _content("--tls-certificate", self.tls_certificate),
        }  # fmt: skip
        options: dict[str, Any] = {"token": token.decode(errors="replace").strip()} if token is not None else {}
        return options | ({"tls": Tls(**files)} if any(files.values()) else {})


def _content(option: str, file: Path | None) -> bytes | None:
    try:
        return file.read_bytes() if file is not None else None
    except OSError as error:
        raise InvalidRequestError(f"option {option}: {file} cannot be read: {error.strerror}") from error


@contextmanager
def opened(target: str, shown: Shown | None = None) -> Iterator[Any]:
    """Opens TARGET: a client for host:port, the store itself for a directory."""
    path, (host, _, port) = Path(target), target.rpartition(":")
    if (path / "MANIFEST.json").is_file():
        raise StorageError(f"TARGET: {target} is a snapshot; `replaysvc restore` makes a store of it")
    if (path / "FORMAT").is_file():
        try:
            replay = Replay(target, _READER)
        except StoreLockedError as error:
            raise StoreLockedError(f"{error}; if that is a service, give its host:port") from error
        with replay:
            yield replay
    elif host and port.isdigit() and not path.exists():
        import replay_client

        config = replay_client.ClientConfig(reconnect_timeout_s=2.0)
        with replay_client.connect(target, config=config, **(shown or Shown()).options()) as client:
            yield client
    else:
        raise StorageError(f"TARGET: expected host:port or a store directory, found {target!r}, which {_what_is_wrong(target)}")


def _what_is_wrong(target: str) -> str:
    path = Path(target)
    if not target or not path.exists():
        return "does not exist"
    if not path.is_dir():
        return "is no directory"
    return "is no store: it has no file FORMAT" if any(path.iterdir()) else "is empty"


@app.command()
def tables(
    target: Target,
    as_json: Json = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """List the tables of a service or store."""
    with failures(), opened(target, Shown(token_file, tls_ca, tls_certificate, tls_key)) as replay:
        rows = [replay.table(name).stats() for name in replay.tables()]
        if as_json:
            print(json.dumps([asdict(row) for row in rows]))
            return
        if not rows:
            print("no tables")
            return
        table = RichTable("table", "steps", "episodes", "on disk", "ratio", "state")
        for row in rows:
            ratio = f"{row.raw_bytes / row.stored_bytes:.1f}x" if row.stored_bytes else "-"
            disk = f"{row.disk_bytes / 2**20:,.1f} MiB"
            table.add_row(row.name, f"{row.steps:,}", f"{row.episodes:,}", disk, ratio, _state(row))
        Console().print(table)


def _state(row: TableStats) -> str:
    if row.fault:
        return escape(f"takes no steps: {row.fault}")
    waits = (("sampling", row.waiting_for), ("writing", row.inserting_waits_for))
    return escape("; ".join(f"{side} waits: {why}" for side, why in waits if why)) or "ready"


@app.command()
def stats(
    target: Target,
    table: Annotated[str | None, typer.Argument(help="one table; all if left out")] = None,
    as_json: Json = False,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Print the counters of tables."""
    with failures(), opened(target, Shown(token_file, tls_ca, tls_certificate, tls_key)) as replay:
        rows: list[TableStats] = [replay.table(name).stats() for name in ([table] if table else replay.tables())]
        if as_json:
            print(json.dumps([asdict(row) for row in rows]))
            return
        if not rows:
            print("no tables")
        console = Console()
        for row in rows:
            shown = RichTable(row.name, "")
            for name, value in asdict(row).items():
                if name != "name":
                    shown.add_row(name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
            console.print(shown)


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="who will show it, for logs and messages")],
    role: Annotated[Role, typer.Option(help="what it allows")],
    file: Annotated[Path | None, typer.Option(help="tokens file to append to; made if absent")] = None,
) -> None:
    """Make a token: print its secret, this once, and the lines for the tokens file (or append them with --file)."""
    with failures():
        secret, lines = new_token(name, role)
        if file is not None:
            append_token(file, lines)
        print(secret if file is not None else f"{secret}\n\n{lines}", end="\n" if file is not None else "")


@app.command()
def demo(
    directory: Annotated[Path | None, typer.Option("--dir", help="run directory; made under runs/ if left out")] = None,
    seed: Annotated[int, typer.Option(help="seed of the environments and the learner")] = 1,
    sampler: Annotated[Literal["uniform", "prioritized"] | None, typer.Option(help="of the batches [default: uniform]")] = None,
    n_step: Annotated[int | None, typer.Option(min=1, help="rewards summed before the bootstrap value [default: 3]")] = None,
    kill_every: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="kill -9 the server so often, and check the data at the end")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --dir")] = False,
) -> None:
    """Solve CartPole-v1 through the service: server, two actors, learner and evaluator, each a process of its own."""
    from replaysvc.demo import run_demo

    with failures():
        if resume and directory is None:
            raise InvalidRequestError("option --resume: expected --dir with it, which says what run to go on with; found none")
        status = run_demo(
            directory=directory, seed=seed, sampler=sampler, n_step=n_step, kill_every_s=kill_every, resume=resume
        )
        raise typer.Exit(status)
