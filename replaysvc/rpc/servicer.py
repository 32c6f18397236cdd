"""The methods of the service: each converts, calls the store, converts back. No decisions here."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from replaysvc.batch import BatchColumn
from replaysvc.checks import check_name, check_number
from replaysvc.config import EPISODES_PAGE_BYTES, MAX_MESSAGE_BYTES
from replaysvc.errors import AlreadyExistsError, ConfigurationError, NotFoundError, SpecMismatchError, UnavailableError
from replaysvc.replay import Replay
from replaysvc.rpc import convert
from replaysvc.rpc.bounds import check_bytes, check_request, most_item_bytes
from replaysvc.rpc.frames import batch_bytes, encode_frame, encode_message, frame_pieces
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc

_APPEND_TIMEOUT_S = 300.0  # longest a call waits for its commit; the client gives up much earlier
_WAIT_SLICE_S = 1.0  # longest that a call waits for data or a limiter; the client asks again, so no worker is held for long
_PIECE_BYTES = 4 << 20
_MAX_PARAMS_BYTES = 2 << 30
_LARGE_BATCHES = 2  # that may be larger than a message, made and sent at once: 1 GiB each, and as much while it is made
_PAGE_EPISODES = 256  # records are read in pages of so many
_UPLOADS = 4  # parameter sets that may arrive at once
_TRANSFER_S = 300.0  # longest that one streamed call may take: a peer that stops reading or sending must not keep its worker


class ReplayServicer(replay_pb2_grpc.ReplayServiceServicer):
    """Serves one store.

    `max_waiting` bounds how many sample calls may wait for data at once, `max_waiting_appends` how many appends may wait for a
    table's limiter or for room, and `max_transfers` how many streamed calls may be under way, so that appends, which bring the
    data, and samples, which let the limiter go on, always find a worker.
    """

    def __init__(self, replay: Replay, *, max_waiting: int, max_waiting_appends: int, max_transfers: int) -> None:
        self._replay = replay
        self._waiting_appends = threading.BoundedSemaphore(max_waiting_appends)
        self._large = threading.BoundedSemaphore(_LARGE_BATCHES)
        self._snapshots = threading.BoundedSemaphore(1)
        self._waiting = threading.BoundedSemaphore(max_waiting)
        self._transfers = threading.BoundedSemaphore(max_transfers)
        self._uploads = threading.BoundedSemaphore(_UPLOADS)

    def CreateTable(self, request: pb.CreateTableRequest, context: Any) -> pb.CreateTableResponse:
        signature, config = convert.signature_of(request.signature_json), convert.config_of(request.config_json)
        table = self._replay.create_table(request.name, signature, config, exist_ok=request.exist_ok)
        return pb.CreateTableResponse(table=convert.table_info(table.name, table.signature, table.config))

    def GetTable(self, request: pb.GetTableRequest, context: Any) -> pb.GetTableResponse:
        table = self._replay.engine(request.name)
        return pb.GetTableResponse(table=convert.table_info(table.name, table.signature, table.config))

    def ListTables(self, request: pb.ListTablesRequest, context: Any) -> pb.ListTablesResponse:
        response = pb.ListTablesResponse()
        for name in self._replay.tables():
            with contextlib.suppress(NotFoundError):  # deleted meanwhile
                engine = self._replay.engine(name)
                response.tables.append(convert.table_info(name, engine.signature, engine.config))
        return response

    def DeleteTable(self, request: pb.DeleteTableRequest, context: Any) -> pb.DeleteTableResponse:
        self._replay.delete_table(request.name)
        return pb.DeleteTableResponse()

    def OpenSession(self, request: pb.OpenSessionRequest, context: Any) -> pb.OpenSessionResponse:
        last = self._replay.engine(request.table).open_session(convert.session_of(request.session_id))
        return pb.OpenSessionResponse(last_sequence=last)

    def Append(self, request: pb.AppendRequest, context: Any) -> pb.AppendResponse:
        engine, session = self._replay.engine(request.table), convert.session_of(request.session_id)
        timeout_s = min(_APPEND_TIMEOUT_S, context.time_remaining() or _APPEND_TIMEOUT_S)
        with _place(self._waiting_appends) as has_place:
            last = engine.append(
                session, convert.actor_of(request.actor), convert.chunks_of(request), urgent=request.urgent,
                timeout_s=timeout_s, wait_s=_WAIT_SLICE_S if has_place else 0.0,
            )  # fmt: skip
        return pb.AppendResponse(last_sequence=last)

    def Sample(self, request: pb.SampleRequest, context: Any) -> pb.SampleResponse:
        return encode_message(self._draw(request))

    def sample_frame(self, request: pb.SampleRequest, context: Any) -> bytes:
        """A raw method beside the service: see replay.proto."""
        return encode_frame(self._draw(request))

    def sample_pieces(self, request: pb.SampleRequest, context: Any) -> Iterator[bytes]:
        """The other raw method. Its places are taken before the draw: what a queue hands out is not handed out again."""
        with _limited(self._transfers, context), self._large_place(request):
            yield from frame_pieces(self._draw(request, large=True), _PIECE_BYTES)

    @contextlib.contextmanager
    def _large_place(self, request: pb.SampleRequest) -> Iterator[None]:
        """Holds one of the few places for a batch that may take much more memory than a message does."""
        signature = self._replay.engine(request.table).signature
        if request.batch_size * most_item_bytes(signature, convert.window_of(request)) <= MAX_MESSAGE_BYTES:
            yield
            return
        if not self._large.acquire(timeout=_WAIT_SLICE_S):
            raise UnavailableError(f"{_LARGE_BATCHES} large batches are being made and sent already; try again")
        try:
            yield
        finally:
            self._large.release()

    def _draw(self, request: pb.SampleRequest, *, large: bool = False) -> list[BatchColumn]:
        engine, what = self._replay.engine(request.table), convert.window_of(request)
        check_request(engine.signature, request.batch_size, what, large=large)  # refuse before the work
        wait_s = min(request.timeout_s, _WAIT_SLICE_S)
        with _place(self._waiting if wait_s > 0 else None) as has_place:
            columns: list[BatchColumn] = engine.draw(
                request.batch_size, what, sampler=request.sampler or "uniform",
                seed=request.seed if request.HasField("seed") else None,
                beta=request.beta if request.HasField("beta") else None,
                timeout_s=wait_s if has_place else min(wait_s, 0.0),
            )  # fmt: skip
        check_bytes(batch_bytes(columns), large=large)
        return columns

    def UpdatePriorities(self, request: pb.UpdatePrioritiesRequest, context: Any) -> pb.UpdatePrioritiesResponse:
        positions = convert.numbers_of("positions", request.positions, "<i8")
        priorities = convert.numbers_of("priorities", request.priorities, "<f8")
        engine = self._replay.engine(request.table)
        counts = engine.update_priorities(request.sampler or "prioritized", positions, priorities)
        return pb.UpdatePrioritiesResponse(applied=counts.applied, ignored=counts.ignored)

    def SetLimiter(self, request: pb.SetLimiterRequest, context: Any) -> pb.SetLimiterResponse:
        self._replay.engine(request.table).set_limiter(convert.limiter_of(request.limiter_json))
        return pb.SetLimiterResponse()

    def DeleteEpisodes(self, request: pb.DeleteEpisodesRequest, context: Any) -> pb.DeleteEpisodesResponse:
        deleted = self._replay.engine(request.table).delete_episodes(
            convert.episode_ids_of(request), open_episodes=request.open_episodes
        )
        return pb.DeleteEpisodesResponse(deleted=deleted)

    def TableStats(self, request: pb.TableStatsRequest, context: Any) -> pb.TableStatsResponse:
        return pb.TableStatsResponse(stats_json=json.dumps(asdict(self._replay.engine(request.table).stats())))

    def ListEpisodes(self, request: pb.ListEpisodesRequest, context: Any) -> pb.ListEpisodesResponse:
        before = request.before_id if request.HasField("before_id") else None
        actor = request.actor if request.HasField("actor") else None
        engine, wanted = self._replay.engine(request.table), request.limit or 1000
        check_number("limit", wanted, 1, 100_000)
        response, size = pb.ListEpisodesResponse(), 0
        while len(response.episodes) < wanted and size < EPISODES_PAGE_BYTES:
            limit = min(_PAGE_EPISODES, wanted - len(response.episodes))
            records = engine.episodes(limit, before, actor, request.closed_only)
            for record in records:
                response.episodes.append(convert.episode_message(record))
                size += response.episodes[-1].ByteSize()
            if len(records) < limit:
                break
            before = records[-1].episode_id
        return response

    def ReadEpisode(self, request: pb.ReadEpisodeRequest, context: Any) -> Iterator[pb.ReadEpisodeResponse]:
        stop = request.stop if request.HasField("stop") else None
        with _limited(self._transfers, context):
            for chunks in self._replay.engine(request.table).episode_chunks(request.episode_id, request.start, stop):
                yield pb.ReadEpisodeResponse(chunks=chunks)

    def PutParams(self, requests: Iterator[pb.PutParamsRequest], context: Any) -> pb.PutParamsResponse:
        pieces: list[bytes] = []
        name, version, promised, size = "", -1, 0, 0
        with _limited(self._uploads, context):
            for number, request in enumerate(requests):
                if number == 0:
                    name, version, promised = request.name, request.version, request.size
                pieces.append(request.piece)
                size += len(pieces[-1])
                convert.piece_limit(size, _MAX_PARAMS_BYTES)
            if not pieces:
                raise SpecMismatchError("PutParams", "at least one message", "none")
            if size != promised:  # a sender that died looks like one that ended
                raise SpecMismatchError("PutParams.piece", f"{promised} bytes in all", f"{size}")
            self._replay.put_params(name, b"".join(pieces), version=version)
        return pb.PutParamsResponse()

    def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> pb.SnapshotResponse:
        name, folder = check_name("snapshot", request.name), self._replay.config.snapshot_dir
        if folder is None:
            raise ConfigurationError("snapshot: this server has no snapshot_dir in its settings, so it makes none for clients")
        path = os.path.join(folder, name)
        with _place(self._snapshots) as has_place:
            if not has_place:
                raise UnavailableError("another snapshot is being made; try again")
            if os.path.lexists(path):
                raise AlreadyExistsError(f"snapshot {name} exists already")
            self._replay.snapshot(path)
        return pb.SnapshotResponse()

    def GetParams(self, request: pb.GetParamsRequest, context: Any) -> Iterator[pb.GetParamsResponse]:
        with _limited(self._transfers, context):
            found = self._replay.get_params(request.name, newer_than=request.newer_than)
            if found is not None:
                for start in range(0, max(1, len(found.data)), _PIECE_BYTES):
                    yield pb.GetParamsResponse(version=found.version, piece=found.data[start : start + _PIECE_BYTES])


@contextlib.contextmanager
def _place(places: threading.BoundedSemaphore | None) -> Iterator[bool]:
    """Holds one of some places while there is one; gives whether there was."""
    has_place = places is not None and places.acquire(blocking=False)
    try:
        yield has_place
    finally:
        if places is not None and has_place:
            places.release()


@contextlib.contextmanager
def _limited(calls: threading.BoundedSemaphore, context: Any) -> Iterator[None]:
    """Holds one of so many streamed calls, and cancels it when it takes too long."""
    if not calls.acquire(blocking=False):
        raise UnavailableError("too many parameter sets, episodes or large batches are being transferred; try again")
    watch = threading.Timer(_TRANSFER_S, context.cancel)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        calls.release()
