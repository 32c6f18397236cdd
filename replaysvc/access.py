"""Who may call what: roles, the tokens that stand for them, and the file that lists the tokens.

A token's secret is 256 random bits, shown once when it is made; the file has its SHA-256 alone, so a copy of the file opens
nothing. The file is read again when it changes: a token works, or works no more, from the next call on.
"""

import hashlib
import hmac
import logging
import math
import os
import re
import secrets
import stat
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from replaysvc.checks import check_name
from replaysvc.errors import InvalidRequestError, PermissionDeniedError, ReplayError, UnauthenticatedError

log = logging.getLogger(__name__)

_SECRET_BYTES = 32
_MAX_FILE_BYTES, _MAX_TOKENS = 1 << 20, 1000
_SETTLED_S = 2.0  # a file changed within so short a time may change again without a new time of change
_LOG_EVERY_S = 10.0


class Role(StrEnum):
    """What a caller is there for."""

    WRITER = "writer"
    LEARNER = "learner"
    VIEWER = "viewer"
    ADMIN = "admin"


_LOOKING = frozenset({Role.VIEWER, Role.LEARNER, Role.ADMIN})
_WRITING = frozenset({Role.WRITER, Role.ADMIN})
_LEARNING = frozenset({Role.LEARNER, Role.ADMIN})
_MAKING = _WRITING | _LEARNING
_ALL = frozenset(Role)
_ADMIN = frozenset({Role.ADMIN})

MAY: dict[str, frozenset[Role]] = {
    "CreateTable": _MAKING,
    "GetTable": _ALL,
    "ListTables": _LOOKING,
    "DeleteTable": _ADMIN,
    "OpenSession": _WRITING,
    "Append": _WRITING,
    "Sample": _LEARNING,
    "SampleLarge": _LEARNING,
    "UpdatePriorities": _LEARNING,
    "SetLimiter": _LEARNING,
    "SetCapacity": _ADMIN,
    "DeleteEpisodes": _ADMIN,
    "TableStats": _ALL,  # actors keep pace with the learner by it
    "Activity": _LOOKING,
    "ListEpisodes": _LOOKING,
    "ReadEpisode": _LOOKING,
    "PutParams": _MAKING,
    "GetParams": _ALL,
    "OpenShared": _LEARNING,
    "Snapshot": _ADMIN,
    "Compact": _ADMIN,
}
"""Method -> the roles that may call it. One that is not here is refused to everyone."""

PAGES: dict[str, frozenset[Role]] = {
    "session": _ALL,  # who asks is told who it is
    **dict.fromkeys(
        (
            "openapi", "metrics", "overview", "history", "tables", "table", "ages", "columns", "sampler", "episodes",
            "episode-points", "episode", "steps", "priorities", "image", "strip", "actors", "learners", "storage", "jobs",
        ), _LOOKING,
    ),
    "configuration": _ADMIN,
    "log": _ADMIN,  # it names callers
    "delete-table": _ADMIN,
    "delete-episodes": _ADMIN,
    "limiter": _ADMIN,
    "capacity": _ADMIN,
    "compact": _ADMIN,
    "snapshot": _ADMIN,
    "scrub": _ADMIN,
}  # fmt: skip
"""Page of the admin door, or what is done there -> the roles that may. What is in neither table is refused to everyone."""

OPEN_PAGES = frozenset({"index", "static", "livez", "readyz"})
"""Pages that everyone may load: they hold no data, or tell whether the service is up and nothing else."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls: the name of a token or certificate, and its role."""

    name: str
    role: Role


ANYONE = Identity("anyone", Role.ADMIN)
"""Every caller of a service that asks nobody who they are."""


def check_role(caller: Identity, method: str, table: Mapping[str, frozenset[Role]] = MAY) -> None:
    """Refuses what the caller's role may not do, by a table of methods or pages.

    Raises:
      PermissionDeniedError: names the roles that may.
    """
    may = table.get(method, frozenset())
    if caller.role not in may:
        roles = " or ".join(sorted(may)) or "none: nobody may call it"
        raise PermissionDeniedError(f"{method}: expected the role {roles}, found {caller.role} (of {caller.name})")


def bearer(values: Sequence[str]) -> str | None:
    """Returns the secret in the `authorization` values of a call, None if there are none. Raises UnauthenticatedError."""
    if not values:
        return None
    scheme, _, secret = values[0].partition(" ")
    if len(values) > 1 or scheme.lower() != "bearer" or not secret:
        raise UnauthenticatedError("authorization: expected one 'Bearer TOKEN', found something else")
    return secret


@dataclass(frozen=True, slots=True)
class _Token:
    identity: Identity
    digest: bytes


class Access:
    """Knows who a secret stands for. Thread-safe."""

    def __init__(self, tokens_file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """Reads the file; without one, no secret stands for anyone.

        Raises:
          InvalidRequestError: it cannot be read, is not as it should be, or others may write to it.
        """
        self._file, self._clock = tokens_file, clock
        self._lock = threading.Lock()
        self._tokens: list[_Token] = []
        self._seen: tuple[int, ...] = ()  # how the file was when it was last read
        self._settled = False  # whether a later change is sure to show
        self._complaint = ""
        if tokens_file is not None:
            self._look(tokens_file)
            self._tokens = _read(tokens_file)
            self._warn_if_empty()
            if is_readable_by_others(tokens_file):
                log.warning("tokens file %s: others on this machine can read it; chmod 600 is better", tokens_file)

    def identify(self, secret: str) -> Identity:
        """Returns whom a secret stands for.

        Raises:
          UnauthenticatedError: nobody.
        """
        digest, found = hashlib.sha256(secret.encode(errors="replace")).digest(), None
        for token in self._current():
            if hmac.compare_digest(token.digest, digest):  # and on to the last: how long it takes tells nothing
                found = token.identity
        if found is None:
            raise UnauthenticatedError("authorization: expected a token that this service knows, found another")
        return found

    def _current(self) -> list[_Token]:
        if self._file is None:
            return []
        with self._lock:
            if self._look(self._file):
                self._read_again(self._file)
            return self._tokens

    def _look(self, file: Path) -> bool:
        """Returns whether the file may be another than when it was last read, and takes note of how it is."""
        try:
            status = os.stat(file)
            seen: tuple[int, ...] = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
            settled = abs(self._clock() - status.st_mtime) > _SETTLED_S
        except OSError:
            seen, settled = (), True
        changed = seen != self._seen or not self._settled
        self._seen, self._settled = seen, settled
        return changed

    def _read_again(self, file: Path) -> None:
        try:
            tokens = _read(file)
        except InvalidRequestError as error:
            if str(error) != self._complaint:
                log.error("%s; the tokens that were read before stay in force", error)
            self._complaint = str(error)
            return
        changed, self._tokens, self._complaint = tokens != self._tokens or self._complaint, tokens, ""
        if changed:
            log.info("tokens file %s: read again, %d tokens", file, len(tokens))
            self._warn_if_empty()

    def _warn_if_empty(self) -> None:
        if not self._tokens:
            log.warning("tokens file %s: 0 tokens: nobody may call", self._file)


def _read(file: Path) -> list[_Token]:
    """Returns the tokens in a file. Raises InvalidRequestError."""
    try:
        with file.open("rb") as handle:
            if os.fstat(handle.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise InvalidRequestError(f"tokens file {file}: others may write it, expected its owner alone")
            data = handle.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise InvalidRequestError(f"tokens file {file}: expected at most {_MAX_FILE_BYTES} bytes, found more")
        content = tomllib.loads(data.decode())
    except OSError as error:
        raise InvalidRequestError(f"tokens file {file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, or no UTF-8
        raise InvalidRequestError(f"tokens file {file}: expected TOML, found: {error}") from error
    entries = content.pop("token", [])
    if content or not isinstance(entries, list) or len(entries) > _MAX_TOKENS:
        found = f"{', '.join(map(repr, content))}" if content else "something else"
        raise InvalidRequestError(f"tokens file {file}: expected up to {_MAX_TOKENS} [[token]] and nothing else, found {found}")
    try:
        tokens = [_token_of(number, entry) for number, entry in enumerate(entries, 1)]
    except InvalidRequestError as error:
        raise InvalidRequestError(f"tokens file {file}: {error}") from error
    if len({token.digest for token in tokens}) < len(tokens):
        raise InvalidRequestError(f"tokens file {file}: expected each sha256 once, found one twice")
    return tokens


def _token_of(number: int, entry: Any) -> _Token:
    if not isinstance(entry, dict) or set(entry) != {"name", "role", "sha256"}:
        found = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise InvalidRequestError(f"token {number}: expected name, role and sha256, found {found}")
    name = check_name(f"token {number}, name", entry["name"])
    if entry["role"] not in list(Role):
        raise InvalidRequestError(f"token {number}, role: expected {', '.join(Role)}, found {entry['role']!r}")
    if not isinstance(entry["sha256"], str) or not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]):
        raise InvalidRequestError(f"token {number}, sha256: expected 64 hexadecimal digits, found another value")
    return _Token(Identity(name, Role(entry["role"])), bytes.fromhex(entry["sha256"]))


def is_readable_by_others(file: Path) -> bool:
    """Returns whether more users than the owner may read a file."""
    return bool(os.stat(file).st_mode & (stat.S_IRGRP | stat.S_IROTH))


def new_token(name: str, role: Role) -> tuple[str, str]:
    """Returns a new secret, and the lines that make it known in a tokens file. Raises SpecMismatchError."""
    check_name("name", name)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return secret, f'[[token]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{digest}"\n'


def append_token(file: Path, lines: str) -> None:
    """Appends the lines of a token to a tokens file, which is made (for its owner alone) if there is none; durable.

    Raises:
      InvalidRequestError: what is there is no tokens file, or cannot be written.
    """
    gap = b""
    if file.exists():
        _read(file)
        gap = b"\n" if file.read_bytes().endswith(b"\n") else b"\n\n"
    try:
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, gap + lines.encode())  # in one go: a service that reads it meanwhile finds all or nothing
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise InvalidRequestError(f"tokens file {file}: cannot be written: {error.strerror}") from error


class Refusals:
    """Logs refused calls, but a line every ten seconds at most: who is refused may try as often as it likes. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next = -math.inf
        self._unsaid = 0

    def note(self, peer: str, method: str, error: ReplayError) -> None:
        """Logs one, or counts it for the next line. `error` holds no secret; `peer` and `method` may be anything."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                self._unsaid += 1
                return
            unsaid, self._unsaid, self._next = self._unsaid, 0, now + _LOG_EVERY_S
        more = f" (and {unsaid} other calls since the last such line)" if unsaid else ""
        log.warning("refused %.80r from %.80r: %s%s", method, peer, error, more)
