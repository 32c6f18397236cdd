"""The client's `Replay`: the methods of the embedded store, over gRPC."""

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from replay_client.connection import Connection, ProcessLock, Tls
from replay_client.lifetimes import close_together
from replay_client.priorities import PrioritySender, send_priorities
from replay_client.sender import Sender
from replay_client.table import RemoteTable, table_of
from replaysvc.checks import check_flag, check_name, check_number, check_text, shown
from replaysvc.config import ClientConfig, TableConfig
from replaysvc.errors import AlreadyExistsError, NotFoundError, SpecMismatchError
from replaysvc.spec import Signature
from replaysvc.types import Params
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.views import ActivityView, ActorView, DiskOutlook, DiskView, LearnerView, Reason, Verdict

_PIECE_BYTES = 1 << 20
_SNAPSHOT_TIMEOUT_S = 3600.0  # it copies all that is stored


class Client:
    """A connection to a service. Thread-safe, picklable, usable after a fork; connects on first use."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = ProcessLock()
        self._senders: dict[tuple[int, str, str, str, int | None], Sender] = {}
        self._priorities: dict[tuple[int, str, str], PrioritySender] = {}
        self._retired: list[Sender] = []  # of tables that were deleted

    def __reduce__(self) -> tuple[Any, ...]:
        return (Client, (self._connection,))

    def create_table(
        self, name: str, signature: Signature, config: TableConfig | None = None, *, exist_ok: bool = False
    ) -> RemoteTable:
        """Makes a table; with `exist_ok`, returns the existing one, whose own configuration holds.

        Raises:
          AlreadyExistsError: the name is taken, or (with `exist_ok`) by a table of another signature.
        """
        check_name("table", name)
        if not isinstance(signature, Signature):
            raise SpecMismatchError("signature", "a Signature", type(signature).__name__)
        if config is not None and not isinstance(config, TableConfig):
            raise SpecMismatchError("config", "a TableConfig", type(config).__name__)
        exist_ok = check_flag("exist_ok", exist_ok)
        request = pb.CreateTableRequest(
            name=name, signature_json=json.dumps(signature.to_json()), exist_ok=exist_ok,
            config_json=json.dumps((config or TableConfig()).to_json()),
        )  # fmt: skip

        def again() -> Any:
            """An attempt whose answer was lost may have made the table: then it is there, with just this description."""
            try:
                return self._connection.call("CreateTable", request)
            except AlreadyExistsError:
                found = self._connection.call("GetTable", pb.GetTableRequest(name=name))
                if (found.table.signature_json, found.table.config_json) != (request.signature_json, request.config_json):
                    raise
                return found

        attempt = lambda: self._connection.call("CreateTable", request)  # noqa: E731
        made = table_of(self, self._connection.retrying(attempt, again=again).table)
        if not exist_ok:
            self._forget(name)  # those of an earlier table of this name
        return made

    def table(self, name: str) -> RemoteTable:
        """Returns a table. Raises NotFoundError."""
        check_text("table", name)
        return table_of(self, self._call("GetTable", pb.GetTableRequest(name=name)).table)

    def tables(self) -> list[str]:
        """Returns the names of all tables."""
        return sorted(table.name for table in self._call("ListTables", pb.ListTablesRequest()).tables)

    def delete_table(self, name: str) -> None:
        """Deletes a table with all its data. Raises NotFoundError."""
        check_text("table", name)
        request = pb.DeleteTableRequest(name=name)

        def again() -> None:
            with contextlib.suppress(NotFoundError):  # an attempt whose answer was lost has deleted it
                self._connection.call("DeleteTable", request)

        self._connection.retrying(lambda: self._connection.call("DeleteTable", request), again=again)
        self._forget(name)

    def put_params(self, name: str, data: bytes, *, version: int) -> None:
        """Keeps a parameter set, durably, in place of the one of a smaller version.

        Raises:
          AlreadyExistsError: the stored version is as large or larger (putting the same again is fine).
        """
        check_name("params", name)
        version = check_number("version", version, 0, (1 << 63) - 1)
        if not isinstance(data, bytes):
            raise SpecMismatchError("data", "bytes", type(data).__name__)

        def pieces() -> Iterator[pb.PutParamsRequest]:
            for start in range(0, max(1, len(data)), _PIECE_BYTES):
                piece = data[start : start + _PIECE_BYTES]
                yield pb.PutParamsRequest(name=name, version=version, size=len(data), piece=piece)

        self._connection.retrying(lambda: self._connection.call("PutParams", pieces()))

    def get_params(self, name: str, *, newer_than: int = -1) -> Params | None:
        """Returns the parameter set `name` if its version is above `newer_than`, else None.

        Raises:
          NotFoundError: nothing was put under this name yet.
        """
        check_text("params", name)
        newer_than = check_number("newer_than", newer_than, -1, (1 << 63) - 1)
        request = pb.GetParamsRequest(name=name, newer_than=newer_than)
        pieces = self._connection.retrying(lambda: self._connection.call_stream("GetParams", request))
        if not pieces:
            return None
        return Params(pieces[0].version, b"".join(message.piece for message in pieces))

    def activity(self, table: str | None = None) -> ActivityView:
        """Returns who writes and who samples, in all tables or one, as far as the service has seen since it was started; and
        whether all is well.

        Of the actors, at most 1,000: those that were heard of last.

        Raises:
          NotFoundError: no such table. ReplayError: an older service that does not tell.
        """
        request = pb.ActivityRequest(table="" if table is None else check_text("table", table))
        told = json.loads(self._call("Activity", request).activity_json)
        actors: dict[str, list[ActorView]] = {}
        for each in told["actors"]:
            actors.setdefault(each["table"], []).append(_known(ActorView, each))
        learners = tuple(_known(LearnerView, each) for each in told["learners"])
        return ActivityView(
            actors={name: tuple(seen) for name, seen in actors.items()}, learners=learners,
            newest_policy_version=told["newest_policy_version"], verdict=_verdict(told.get("verdict")),
            disk=_outlook(told.get("disk")),
        )  # fmt: skip

    def snapshot(self, path: str) -> None:
        """Copies the store as it is now, durably, on the server's machine: `path` is the name of a new directory there, within
        the server's `snapshot_dir`, and no path.

        Raises:
          SpecMismatchError: no plain name. ConfigurationError: the server has no `snapshot_dir`.
          AlreadyExistsError: a snapshot has this name: if the server was away meanwhile, perhaps this one.
        """
        request = pb.SnapshotRequest(name=check_name("snapshot", path))
        self._connection.retrying(lambda: self._connection.call("Snapshot", request, timeout_s=_SNAPSHOT_TIMEOUT_S))

    def close(self) -> None:
        """Stores what writers were given, and sends the priorities that nobody waited for, for up to `call_timeout_s`, ends the
        writers, and closes this process's connection; a later call connects again. Raises what kept it from storing all. In a
        signal handler, raise SystemExit instead: it may stand in the middle of an `append`, which this would wait for; the
        interpreter's exit does the same afterwards."""
        with self._lock:
            senders: list[Sender | PrioritySender] = [*self._retired, *self._senders.values(), *self._priorities.values()]
            self._senders, self._priorities, self._retired = {}, {}, []
        errors = close_together(senders, self._connection.config.call_timeout_s)
        self._connection.close()  # ends calls that are under way
        for sender in senders:
            sender.join()
        if errors:
            raise errors[0]

    def _forget(self, table: str) -> None:
        """Lets the next writers of a table that was deleted begin anew; earlier ones learn of it from the service."""
        with self._lock:
            gone = [self._senders.pop(key) for key in list(self._senders) if key[1] == table]
            idle = [sender for sender in gone if sender.idle]
            self._retired = [sender for sender in self._retired + gone if not (sender.ended or sender in idle)]
            for key in [key for key, sender in self._priorities.items() if key[1] == table and sender.idle]:
                del self._priorities[key]
        for sender in idle:  # else its thread would wait for ever for nothing
            sender.close(0.0)

    def sender(self, table: str, uuid: str, actor: str, epoch: int | None, lease_s: float) -> Sender:
        """Returns this process's sender for the writers of `actor` to a table, which has leases of `lease_s`."""
        with self._lock:
            key = (os.getpid(), table, uuid, actor, epoch)
            if key not in self._senders or self._senders[key].ended:
                self._senders[key] = Sender(self._connection, table, actor, epoch, lease_s, uuid)
            return self._senders[key]

    def priorities(self, table: str, uuid: str) -> PrioritySender:
        """Returns this process's sender of the priorities of a table that nobody waits for."""
        with self._lock:
            key = (os.getpid(), table, uuid)
            if key not in self._priorities or self._priorities[key].ended:
                send = functools.partial(send_priorities, self._connection, table, uuid)
                self._priorities[key] = PrioritySender(table, send)
            return self._priorities[key]

    @property
    def connection(self) -> Connection:
        """Returns the connection, for this package's own modules."""
        return self._connection

    def _call(self, method: str, request: Any) -> Any:
        return self._connection.retrying(lambda: self._connection.call(method, request))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _verdict(told: dict[str, Any] | None) -> Verdict | None:
    if told is None:
        return None
    return Verdict(status=told["status"], reasons=tuple(_known(Reason, each) for each in told["reasons"]))


def _outlook(told: dict[str, Any] | None) -> DiskOutlook | None:
    return None if told is None else _known(DiskOutlook, told | {"view": _known(DiskView, told["view"])})


def _known(view: Any, told: dict[str, Any]) -> Any:
    """Returns a view of those of its fields that are told; a newer service tells more."""
    return view(**{name: value for name, value in told.items() if name in view.__dataclass_fields__})


def connect(address: str, *, token: str | None = None, tls: Tls | None = None, config: ClientConfig | None = None) -> Client:
    """Returns a client of the service at `address` (host:port). Nothing is sent before the first call.

    `token` needs `tls` unless the server is on this machine.
    """
    if config is not None and not isinstance(config, ClientConfig):
        raise SpecMismatchError("config", "a ClientConfig", shown(config))
    return Client(Connection(address, token, tls, config or ClientConfig()))
