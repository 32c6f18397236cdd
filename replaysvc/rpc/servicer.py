"""The methods of the service: each converts, calls the store, converts back. No decisions here."""

import contextlib
import io
import itertools
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from replaysvc.activity import Activity
from replaysvc.batch import BatchColumn
from replaysvc.checks import check_actor, check_name, check_number
from replaysvc.config import EPISODES_PAGE_BYTES, MAX_MESSAGE_BYTES
from replaysvc.embedded_table import EmbeddedTable
from replaysvc.errors import (
    AlreadyExistsError,
    ConfigurationError,
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    SpecMismatchError,
    UnavailableError,
)
from replaysvc.health import Health
from replaysvc.jobs import asked_by
from replaysvc.replay import Replay
from replaysvc.rpc import convert
from replaysvc.rpc.admission import current
from replaysvc.rpc.auth import caller
from replaysvc.rpc.bounds import check_bytes, check_request, item_bytes
from replaysvc.rpc.frames import batch_bytes, encode_frame, encode_message, frame_pieces
from replaysvc.rpc.limits import ANSWER_COPIES, LARGE_COPIES, REQUEST_COPIES, Limits
from replaysvc.rpc.regions import Slot
from replaysvc.rpc.shared import SharedMemory
from replaysvc.table import Table
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc

_APPEND_TIMEOUT_S = 300.0  # longest a call waits for its commit; the client gives up much earlier
_WAIT_SLICE_S = 1.0  # longest that a call waits for data or a limiter; the client asks again, so no worker is held for long
_PIECE_BYTES = 4 << 20
_PAGE_EPISODES = 256  # records are read in pages of so many
_PAGE_BYTES = 2 * EPISODES_PAGE_BYTES  # at most, since the last of its records may be long
_ACTIVITY_BYTES = 4 << 20  # of 1,000 actors and 1,024 learners, with room for long names
_ITEM_BYTES = 64  # what an item takes beside its fields
_TRANSFER_S = 300.0  # longest that one streamed call may take: a peer that stops reading or sending must not keep its worker


class ReplayServicer(replay_pb2_grpc.ReplayServiceServicer):
    """Serves one store. Each call holds a worker of its kind; waiting ones are fewer, so that others always find one."""

    def __init__(self, replay: Replay, limits: Limits, shared: SharedMemory, activity: Activity, health: Health) -> None:
        self._replay, self._limits, self._shared = replay, limits, shared
        self._activity, self._health = activity, health
        workers = limits.workers
        self._waiting_appends = threading.BoundedSemaphore(limits.max_workers // 8)
        self._waiting = threading.BoundedSemaphore(max(1, workers["sample"] // 2))
        self._snapshots = threading.BoundedSemaphore(1)
        self._params = threading.Lock()

    def CreateTable(self, request: pb.CreateTableRequest, context: Any) -> pb.CreateTableResponse:
        signature, config = convert.signature_of(request.signature_json), convert.config_of(request.config_json)
        table = self._replay.create_table(request.name, signature, config, exist_ok=request.exist_ok)
        return pb.CreateTableResponse(table=convert.table_info(table))

    def GetTable(self, request: pb.GetTableRequest, context: Any) -> pb.GetTableResponse:
        return pb.GetTableResponse(table=convert.table_info(self._replay.engine(request.name)))

    def ListTables(self, request: pb.ListTablesRequest, context: Any) -> pb.ListTablesResponse:
        response = pb.ListTablesResponse()
        for name in self._replay.tables():
            with contextlib.suppress(NotFoundError):  # deleted meanwhile
                response.tables.append(convert.table_info(self._replay.engine(name)))
        return response

    def DeleteTable(self, request: pb.DeleteTableRequest, context: Any) -> pb.DeleteTableResponse:
        asked_by.set(caller.get().name)
        self._replay.delete_table(request.name)
        return pb.DeleteTableResponse()

    def _engine(self, request: Any) -> Table:
        """Returns the engine of the table that a request means."""
        return self._replay.engine(request.table, request.table_uuid)

    def _table(self, request: Any) -> EmbeddedTable:
        """Returns the same as its user has it: what takes long is a job then, which the caller asked for."""
        engine = self._engine(request)
        asked_by.set(caller.get().name)
        return EmbeddedTable(self._replay, engine)

    def OpenSession(self, request: pb.OpenSessionRequest, context: Any) -> pb.OpenSessionResponse:
        last = self._engine(request).open_session(
            convert.session_of(request.session_id), check_actor(request.actor), epoch=convert.epoch_of(request),
            alive=convert.alive_of(request),
        )  # fmt: skip
        return pb.OpenSessionResponse(last_sequence=last)

    def Append(self, request: pb.AppendRequest, context: Any) -> pb.AppendResponse:
        engine, session = self._engine(request), convert.session_of(request.session_id)
        left_s = context.time_remaining()
        timeout_s = _APPEND_TIMEOUT_S if left_s is None else min(_APPEND_TIMEOUT_S, left_s)
        chunks = convert.chunks_of(request)
        with _place(self._waiting_appends) as has_place:
            last = engine.append(
                session, check_actor(request.actor), chunks, urgent=request.urgent,
                timeout_s=timeout_s, wait_s=_WAIT_SLICE_S if has_place else 0.0, epoch=convert.epoch_of(request),
                alive=convert.alive_of(request),
            )  # fmt: skip
        return pb.AppendResponse(last_sequence=last)

    def Sample(self, request: pb.SampleRequest, context: Any) -> pb.SampleResponse:
        return encode_message(self._draw(request))

    def sample_frame(self, request: pb.SampleRequest, context: Any) -> bytes:
        """A raw method beside the service: see replay.proto."""
        slot = self._shared.slot(request.region, caller.get()) if request.region else None
        return encode_frame(self._draw(request, slot=slot), slot, compressed=request.compressed)

    def sample_pieces(self, request: pb.SampleRequest, context: Any) -> Iterator[bytes]:
        """The other raw method."""
        with current().admission.watch.limit(_TRANSFER_S, context.cancel):
            yield from frame_pieces(
                self._draw(request, large=self._limits.large_bytes), _PIECE_BYTES, compressed=request.compressed
            )

    def _draw(self, request: pb.SampleRequest, *, large: int | None = None, slot: Slot | None = None) -> list[BatchColumn]:
        """Returns the columns of a batch, for which memory is held; large ones in `slot`, if there is room. It is held before
        the draw: what a queue hands out is not handed out again."""
        engine, what, batches = self._engine(request), convert.window_of(request), convert.batches_of(request)
        items = batches * request.batch_size
        check_request(engine.signature, items, what, large=large)  # refuse before the work
        call, copies = current(), ANSWER_COPIES if large is None else LARGE_COPIES
        most = items * (item_bytes(engine.signature, what).most + _ITEM_BYTES)
        most = min(most, MAX_MESSAGE_BYTES if large is None else large)
        call.hold_answer(copies * most)
        wait_s, sampler = min(request.timeout_s, _WAIT_SLICE_S), request.sampler or "uniform"
        waits: list[float] = []
        noted, clock = self._activity.sampled, self._activity.clock
        began_at = clock()
        with _place(self._waiting if wait_s > 0 else None) as has_place:
            try:
                columns: list[BatchColumn] = engine.draw(
                    request.batch_size, what, sampler=sampler,
                    seed=request.seed if request.HasField("seed") else None,
                    beta=request.beta if request.HasField("beta") else None,
                    timeout_s=wait_s if has_place else min(wait_s, 0.0), batches=batches,
                    allocate=np.empty if slot is None else slot.allocate, waited=waits.append,
                )  # fmt: skip
            except NotReadyError as error:
                noted(call.peer.shown, request.table, sampler, 0, clock() - began_at, sum(waits), str(error))
                raise
        noted(call.peer.shown, request.table, sampler, items, clock() - began_at, sum(waits), batches=batches)
        size = batch_bytes(columns)
        check_bytes(size, large=large)  # in a slot, too: what is too large must not depend on where it goes
        if size > most or large is not None:  # else it is held, until what leaves is known
            call.hold_answer(copies * size)
        return columns

    def UpdatePriorities(self, request: pb.UpdatePrioritiesRequest, context: Any) -> pb.UpdatePrioritiesResponse:
        positions = convert.numbers_of("positions", request.positions, "<i8")
        priorities = convert.numbers_of("priorities", request.priorities, "<f8")
        engine = self._engine(request)
        counts = engine.update_priorities(request.sampler or "prioritized", positions, priorities)
        return pb.UpdatePrioritiesResponse(applied=counts.applied, ignored=counts.ignored)

    def SetLimiter(self, request: pb.SetLimiterRequest, context: Any) -> pb.SetLimiterResponse:
        self._engine(request).set_limiter(convert.limiter_of(request.limiter_json))
        return pb.SetLimiterResponse()

    def SetCapacity(self, request: pb.SetCapacityRequest, context: Any) -> pb.SetCapacityResponse:
        self._table(request).set_capacity(**convert.capacity_of(request))
        return pb.SetCapacityResponse()

    def DeleteEpisodes(self, request: pb.DeleteEpisodesRequest, context: Any) -> pb.DeleteEpisodesResponse:
        deleted = self._table(request).delete_episodes(convert.episode_ids_of(request), open_episodes=request.open_episodes)
        return pb.DeleteEpisodesResponse(deleted=deleted)

    def TableStats(self, request: pb.TableStatsRequest, context: Any) -> pb.TableStatsResponse:
        return pb.TableStatsResponse(stats_json=json.dumps(asdict(self._engine(request).stats())))

    def Activity(self, request: pb.ActivityRequest, context: Any) -> pb.ActivityResponse:
        current().hold_answer(ANSWER_COPIES * _ACTIVITY_BYTES)
        return pb.ActivityResponse(activity_json=convert.activity_json(self._health.activity(request.table or None)))

    def ListEpisodes(self, request: pb.ListEpisodesRequest, context: Any) -> pb.ListEpisodesResponse:
        before = request.before_id if request.HasField("before_id") else None
        actor = request.actor if request.HasField("actor") else None
        where = convert.filter_of(request)
        engine, wanted = self._engine(request), request.limit or 1000
        check_number("limit", wanted, 1, 100_000)
        current().hold_answer(ANSWER_COPIES * _PAGE_BYTES)
        response, size = pb.ListEpisodesResponse(), 0
        while len(response.episodes) < wanted and size < EPISODES_PAGE_BYTES:
            limit = min(_PAGE_EPISODES, wanted - len(response.episodes))
            records = engine.episodes(limit, before, actor, request.closed_only, where)
            for record in records:
                response.episodes.append(convert.episode_message(record))
                size += response.episodes[-1].ByteSize()
            if not records:  # fewer than asked for may be some that were removed meanwhile
                break
            before = records[-1].episode_id
        return response

    def ReadEpisode(self, request: pb.ReadEpisodeRequest, context: Any) -> Iterator[pb.ReadEpisodeResponse]:
        start = request.start if request.HasField("start") else None
        stop = request.stop if request.HasField("stop") else None
        call = current()
        call.hold_answer(ANSWER_COPIES * _PAGE_BYTES)
        with call.admission.watch.limit(_TRANSFER_S, context.cancel):
            engine = self._engine(request)
            pieces = engine.episode_chunks(request.episode_id, start, stop)
            start = engine.first_step(request.episode_id) if start is None else start
            cut = engine.cut_at(request.episode_id, stop)
            for chunks in pieces:
                call.hold_answer(ANSWER_COPIES * max(_PAGE_BYTES, sum(map(len, chunks))))
                yield pb.ReadEpisodeResponse(chunks=chunks, truncated=cut, start=start)

    def PutParams(self, requests: Iterator[pb.PutParamsRequest], context: Any) -> pb.PutParamsResponse:
        call, pieces = current(), io.BytesIO()
        with call.admission.watch.limit(_TRANSFER_S, context.cancel):
            first = next(requests, None)
            if first is None:
                raise SpecMismatchError("PutParams", "at least one message", "none")
            name, version, promised = first.name, first.version, first.size
            if not 0 <= promised <= self._limits.params_bytes:
                raise InvalidRequestError(
                    f"params: expected at most {self._limits.params_bytes} bytes (a quarter of request_bytes), found {promised}"
                )
            call.hold_request(REQUEST_COPIES * promised)
            for request in itertools.chain((first,), requests):
                pieces.write(request.piece)
                if pieces.tell() > promised:
                    break
        if pieces.tell() != promised:  # a sender that died looks like one that ended
            more = " or more" if pieces.tell() > promised else ""
            raise SpecMismatchError("PutParams.piece", f"{promised} bytes in all", f"{pieces.tell()}{more}")
        self._replay.put_params(name, pieces.getvalue(), version=version)
        return pb.PutParamsResponse()

    def OpenShared(self, request: pb.OpenSharedRequest, context: Any) -> pb.OpenSharedResponse:
        offer = self._shared.offer(current().peer, caller.get())
        if offer is None:
            return pb.OpenSharedResponse()
        return pb.OpenSharedResponse(socket=offer.socket, nonce=offer.nonce, proof=offer.proof)

    def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> pb.SnapshotResponse:
        name, folder = check_name("snapshot", request.name), self._replay.config.snapshot_dir
        if folder is None:
            raise ConfigurationError(
                "snapshot: this server has no snapshot_dir (`serve --snapshot-dir`) in its settings and makes none for clients"
            )
        path = os.path.join(folder, name)
        with _place(self._snapshots) as has_place:
            if not has_place:
                raise UnavailableError("another snapshot is being made; try again")
            if os.path.lexists(path):
                raise AlreadyExistsError(f"snapshot {name} exists already")
            asked_by.set(caller.get().name)
            self._replay.snapshot(path)
        return pb.SnapshotResponse()

    def Compact(self, request: pb.CompactRequest, context: Any) -> pb.CompactResponse:
        return pb.CompactResponse(freed_bytes=self._table(request).compact())

    def GetParams(self, request: pb.GetParamsRequest, context: Any) -> Iterator[pb.GetParamsResponse]:
        call = current()
        with self._params:  # what is read is counted once it is there, so one at a time
            found = self._replay.get_params(request.name, newer_than=request.newer_than)
            if found is not None:
                call.hold_answer(len(found.data) + ANSWER_COPIES * _PIECE_BYTES)
        if found is not None:
            with call.admission.watch.limit(_TRANSFER_S, context.cancel):
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
