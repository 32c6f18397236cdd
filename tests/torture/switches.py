"""Guards of the service, each with the way to switch it off in the process that asks for it. For tests/torture/guards.py."""

from collections.abc import Callable
from typing import Any


def _fsync() -> None:
    import lmdb

    from replaysvc.storage import System

    opened = lmdb.open

    def unsynced(*arguments: Any, **options: Any) -> Any:
        return opened(*arguments, **options | {"sync": False, "metasync": False})

    lmdb.open = unsynced
    System.fsync_directory = System.fsync_file = lambda self, path: None  # type: ignore[method-assign]


def _dedupe() -> None:
    from replaysvc.table import staging

    stage = staging.stage

    def doubling(staged: Any, request: Any, sessions: Any, open_episodes: Any, lost: Any) -> None:
        """Takes what was sent again as a session of its own, so that it is stored again."""
        again = request.session_id in sessions and request.sequences[0] <= sessions[request.session_id]
        if again:
            request.session_id, request.sequences = bytes(8) + request.session_id[:8], range(len(request.chunks))
        stage(staged, request, {} if again else sessions, open_episodes, lost)

    staging.stage = doubling


def _checksum() -> None:
    from replaysvc.codec import decoder, header
    from replaysvc.codec.checksum import checksum

    read = header.read_header

    def believing(chunk: Any, signature: Any) -> Any:
        """Puts the checksum right before it is looked at."""
        data = bytearray(chunk)
        real = checksum(bytes(data[:8]), bytes(data[16:]))
        data[8:16] = real.to_bytes(8, "little")
        return read(bytes(data), signature)

    decoder.read_header = believing


def _bomb() -> None:
    from replaysvc.codec import zstd

    zstd._check_frame = lambda frame, size: None


def _lease() -> None:
    from replaysvc.table.leases import Leases

    Leases.expired = lambda self: []  # type: ignore[method-assign]


def _pause() -> None:
    from replaysvc.table.leases import Leases

    Leases.excuse = lambda self, seconds: None  # type: ignore[method-assign]


def _epoch() -> None:
    from replaysvc.table import staging, table

    staging.check_epoch = table.check_epoch = lambda actor, epoch, *sessions: None


def _lost() -> None:
    from replaysvc.table import staging

    stage = staging.stage

    def forgiving(staged: Any, request: Any, sessions: Any, open_episodes: Any, lost: Any) -> None:
        stage(staged, request, sessions, open_episodes, {})

    staging.stage = forgiving


def _token() -> None:
    from replaysvc.access import Access, Identity, Role

    Access.identify = lambda self, secret: Identity("anybody", Role.ADMIN)  # type: ignore[method-assign]


def _role() -> None:
    from replaysvc.rpc import auth

    auth.check_role = lambda caller, method: None


def _store_lock() -> None:
    import fcntl

    fcntl.flock = lambda handle, operation: None  # type: ignore[assignment]


def _share() -> None:
    from replaysvc.rpc.admission import Shares

    Shares.take = lambda self, peer, amount: None  # type: ignore[method-assign]


SWITCHES: dict[str, Callable[[], None]] = {
    "fsync": _fsync, "dedupe": _dedupe, "checksum": _checksum, "bomb check": _bomb, "lease": _lease, "own pause": _pause,
    "epoch": _epoch, "lost writer": _lost, "token check": _token, "role check": _role, "store lock": _store_lock,
    "shares of memory": _share,
}  # fmt: skip
