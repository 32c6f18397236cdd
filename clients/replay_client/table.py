"""A table of a service, with the methods of an embedded one."""

import json
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from replay_client.connection import translated
from replay_client.frames import decode_frame
from replaysvc.batch import assemble, episode_columns
from replaysvc.checks import check_number
from replaysvc.codec import ChunkDecoder
from replaysvc.config import EPISODES_PAGE_BYTES, TableConfig
from replaysvc.errors import NotFoundError, NotReadyError, SpecMismatchError, UnavailableError, WaitTimeoutError
from replaysvc.requests import Transitions
from replaysvc.spec import Signature
from replaysvc.types import Batch, EpisodeRecord, TableStats
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.writer import Writer

if TYPE_CHECKING:
    from replay_client.client import Client

_MAX_BATCH = 1 << 20
_UNDER_WAY_BYTES = 128 << 20  # of batches that a stream has asked for: each lies in the server's memory until it is sent
_WAIT_SLICE_S = 5.0  # a waiting sample call asks again at least this often
_PAUSE_S = 0.2  # and at most this often, should the server have too many of them to let it wait there


class RemoteTable:
    """A table behind a client. Thread-safe and picklable."""

    def __init__(self, client: "Client", name: str, signature: Signature, config: TableConfig) -> None:
        self._client = client
        self.name, self.signature, self.config = name, signature, config
        self._declared = {spec.name: spec.dtype for spec in signature.columns if spec.cast}
        self._declared |= {f"next_{name}": dtype for name, dtype in self._declared.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (RemoteTable, (self._client, self.name, self.signature, self.config))

    def writer(self, actor: str = "") -> Writer:
        """Returns a writer of episodes; `actor` names who writes, up to 128 characters. Writers of one actor share a sender."""
        if not isinstance(actor, str) or len(actor) > 128 or not actor.isprintable():
            raise SpecMismatchError("actor", "up to 128 printable characters", repr(actor))
        return Writer(self.signature, self.config, self._client.sender(self.name, actor), clock=time.monotonic)

    def sample(
        self, batch_size: int, what: Transitions = Transitions(), *, sampler: str = "uniform", seed: int | None = None,
        timeout_s: float = 0.0,
    ) -> Batch:  # fmt: skip
        """Returns a batch of `batch_size` transitions, drawn with replacement.

        The same seed, table state and request give the same batch. `timeout_s` waits for a table that is not ready.

        Raises:
          NotReadyError: the table holds too few steps; says how many of how many.
        """
        request = self._request(batch_size, what, sampler, seed, timeout_s)
        return self._sample(request, time.monotonic() + timeout_s)

    def stream(
        self, batch_size: int, what: Transitions = Transitions(), *, sampler: str = "uniform", prefetch: int = 4,
        timeout_s: float = 60.0,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yields batches without end, each as `sample` gives it, with `prefetch` requests under way; fewer of large batches."""
        prefetch = check_number("prefetch", prefetch, 1, 64)
        request = self._request(batch_size, what, sampler, None, timeout_s)
        most = _UNDER_WAY_BYTES // (self.signature.raw_step_bytes * request.batch_size)
        return self._stream(request, min(prefetch, max(1, most)), timeout_s)

    def _stream(self, request: pb.SampleRequest, prefetch: int, timeout_s: float) -> Iterator[Batch]:
        connection = self._client.connection
        under_way: deque[Any] = deque()
        try:
            while True:
                while len(under_way) < prefetch:
                    under_way.append(connection.start_sample(request, connection.config.call_timeout_s))
                future = under_way.popleft()
                try:
                    with translated(connection.address):
                        frame = future.result()
                except (UnavailableError, WaitTimeoutError, NotReadyError):
                    yield self._sample(request, time.monotonic() + timeout_s)
                    continue
                yield self._batch(frame)
        finally:
            for future in under_way:
                future.cancel()

    def _request(
        self, batch_size: int, what: Transitions, sampler: str, seed: int | None, timeout_s: float
    ) -> pb.SampleRequest:
        batch_size = check_number("batch_size", batch_size, 1, _MAX_BATCH)
        timeout_s = check_number("timeout_s", timeout_s, 0, 86_400, whole=False)
        if seed is not None:
            seed = check_number("seed", seed, 0, (1 << 64) - 1)
        if not isinstance(what, Transitions):
            raise SpecMismatchError("what", "Transitions", type(what).__name__)
        if not isinstance(sampler, str) or not sampler:
            raise SpecMismatchError("sampler", "a name", repr(sampler))
        window = pb.Transitions(n_step=what.n_step, gamma=what.gamma)
        return pb.SampleRequest(
            table=self.name, batch_size=batch_size, sampler=sampler, seed=seed, timeout_s=timeout_s, transitions=window
        )

    def _sample(self, request: pb.SampleRequest, deadline: float) -> Batch:
        connection = self._client.connection

        def attempt() -> bytes:
            left = max(0.0, deadline - time.monotonic())
            timed = pb.SampleRequest()
            timed.CopyFrom(request)
            timed.timeout_s = min(left, _WAIT_SLICE_S)
            return connection.sample(timed, connection.config.call_timeout_s + timed.timeout_s)

        while True:
            asked = time.monotonic()
            try:
                return self._batch(connection.retrying(attempt))
            except NotReadyError:
                now = time.monotonic()
                if now >= deadline:
                    raise
                if now - asked < _PAUSE_S:
                    time.sleep(min(deadline - now, _PAUSE_S * random.uniform(0.5, 1.0)))

    def _batch(self, frame: bytes) -> Batch:
        return assemble(self.signature, decode_frame(frame, self._declared))

    def stats(self) -> TableStats:
        """Returns the table's counters."""
        response = self._call("TableStats", pb.TableStatsRequest(table=self.name))
        known = TableStats.__dataclass_fields__
        return TableStats(**{name: value for name, value in json.loads(response.stats_json).items() if name in known})

    def episodes(
        self, *, limit: int = 100, before_id: int | None = None, actor: str | None = None, closed_only: bool = False
    ) -> list[EpisodeRecord]:
        """Returns records of stored episodes, the newest first."""
        limit = check_number("limit", limit, 1, 100_000)
        if before_id is not None:
            before_id = check_number("before_id", before_id, 0, (1 << 63) - 1)
        if actor is not None and not isinstance(actor, str):
            raise SpecMismatchError("actor", "a name", repr(actor))
        records: list[EpisodeRecord] = []
        while True:
            request = pb.ListEpisodesRequest(
                table=self.name, limit=limit - len(records), before_id=before_id, actor=actor, closed_only=closed_only
            )
            page = self._call("ListEpisodes", request)
            records += map(_record, page.episodes)
            if len(records) >= limit or page.ByteSize() < EPISODES_PAGE_BYTES:
                return records
            before_id = records[-1].episode_id

    def read_episode(self, episode_id: int, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        """Returns steps [start, stop) of an episode by column name; observations have one row more.

        Raises:
          NotFoundError: no such episode. InvalidRequestError: a range outside the stored steps.
          ChunkCorruptError: the bytes are damaged, on the disk or on their way.
        """
        episode_id = check_number("episode_id", episode_id, 0, (1 << 63) - 1)
        start = check_number("start", start, 0, 1 << 62)
        if stop is not None:
            stop = check_number("stop", stop, 0, 1 << 62)
        request = pb.ReadEpisodeRequest(table=self.name, episode_id=episode_id, start=start, stop=stop)
        connection = self._client.connection
        pieces = connection.retrying(lambda: connection.call_stream("ReadEpisode", request))
        decoded = ChunkDecoder(self.signature).decode([chunk for piece in pieces for chunk in piece.chunks])
        if not decoded:
            raise NotFoundError(f"episode {episode_id} is not in table {self.name}")
        info = decoded[-1].header.info
        return episode_columns(self.signature, decoded, start, info.first_step + info.n_steps if stop is None else stop)

    def _call(self, method: str, request: Any) -> Any:
        connection = self._client.connection
        return connection.retrying(lambda: connection.call(method, request))


def table_of(client: "Client", info: pb.TableInfo) -> RemoteTable:
    """Returns the table that a message describes."""
    signature = Signature.from_json(json.loads(info.signature_json))
    return RemoteTable(client, info.name, signature, TableConfig.from_json(json.loads(info.config_json)))


def _record(message: pb.Episode) -> EpisodeRecord:
    return EpisodeRecord(
        episode_id=message.episode_id, actor=message.actor, length=message.length, first_step=message.first_step,
        return_=getattr(message, "return"), terminated=message.terminated, truncated=message.truncated, closed=message.closed,
        policy_version=message.policy_version, started_at_s=message.started_at_s,
        metadata=json.loads(message.metadata_json or "{}"),
    )  # fmt: skip
