"""The methods of the service: each converts, calls the store, converts back. No decisions here."""

import contextlib
import json
import math
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from replaysvc.batch import BatchColumn
from replaysvc.checks import check_number
from replaysvc.config import EPISODES_PAGE_BYTES, MAX_MESSAGE_BYTES
from replaysvc.errors import InvalidRequestError, NotFoundError, SpecMismatchError, UnavailableError
from replaysvc.replay import Replay
from replaysvc.requests import Transitions
from replaysvc.rpc import convert
from replaysvc.rpc.frames import batch_bytes, encode_frame, encode_message
from replaysvc.spec import Signature
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc

_APPEND_TIMEOUT_S = 300.0  # longest a call waits for its commit; the client gives up much earlier
_WAIT_SLICE_S = 1.0  # longest a sample call waits for data; the client asks again, so no worker is held for long
_PIECE_BYTES = 4 << 20
_MAX_PARAMS_BYTES = 2 << 30
_HEADROOM = 1 << 20  # for headers and padding within a message
_MAX_WINDOW_STEPS = 1 << 24  # batch_size * n_step: what a batch of long windows takes while it is made, some GB at most
_PAGE_EPISODES = 256  # records are read in pages of so many
_UPLOADS = 4  # parameter sets that may arrive at once
_TRANSFER_S = 300.0  # longest that one streamed call may take: a peer that stops reading or sending must not keep its worker


class ReplayServicer(replay_pb2_grpc.ReplayServiceServicer):
    """Serves one store. `max_waiting` bounds how many sample calls may wait for data at once, and `max_transfers` how many
    streamed calls may be under way, so that appends, which bring the data, always find a worker."""

    def __init__(self, replay: Replay, *, max_waiting: int, max_transfers: int) -> None:
        self._replay = replay
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
        last = engine.append(
            session, convert.actor_of(request.actor), convert.chunks_of(request), urgent=request.urgent, timeout_s=timeout_s
        )
        return pb.AppendResponse(last_sequence=last)

    def Sample(self, request: pb.SampleRequest, context: Any) -> pb.SampleResponse:
        return encode_message(self._draw(request))

    def sample_frame(self, request: pb.SampleRequest, context: Any) -> bytes:
        """The raw method beside the service: see replay.proto."""
        return encode_frame(self._draw(request))

    def _draw(self, request: pb.SampleRequest) -> list[BatchColumn]:
        engine, what = self._replay.engine(request.table), convert.window_of(request)
        least = _least_item_bytes(engine.signature) * request.batch_size
        if least > MAX_MESSAGE_BYTES - _HEADROOM:  # refuse before the work
            raise _too_large(least)
        if request.batch_size * what.n_step > _MAX_WINDOW_STEPS:
            raise InvalidRequestError(
                f"n_step: expected batch_size * n_step of at most {_MAX_WINDOW_STEPS}, found {request.batch_size * what.n_step}"
            )
        timeout_s = request.timeout_s
        if timeout_s > 0 and self._waiting.acquire(blocking=False):
            try:
                columns = self._draw_within(engine, request, what, min(timeout_s, _WAIT_SLICE_S))
            finally:
                self._waiting.release()
        else:
            columns = self._draw_within(engine, request, what, min(timeout_s, 0.0))
        if batch_bytes(columns) > MAX_MESSAGE_BYTES - _HEADROOM:
            raise _too_large(batch_bytes(columns))
        return columns

    @staticmethod
    def _draw_within(engine: Any, request: pb.SampleRequest, what: Transitions, timeout_s: float) -> list[BatchColumn]:
        columns: list[BatchColumn] = engine.draw(
            request.batch_size, what, sampler=request.sampler or "uniform",
            seed=request.seed if request.HasField("seed") else None, timeout_s=timeout_s,
        )  # fmt: skip
        return columns

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

    def GetParams(self, request: pb.GetParamsRequest, context: Any) -> Iterator[pb.GetParamsResponse]:
        with _limited(self._transfers, context):
            found = self._replay.get_params(request.name, newer_than=request.newer_than)
            if found is not None:
                for start in range(0, max(1, len(found.data)), _PIECE_BYTES):
                    yield pb.GetParamsResponse(version=found.version, piece=found.data[start : start + _PIECE_BYTES])


@contextlib.contextmanager
def _limited(calls: threading.BoundedSemaphore, context: Any) -> Iterator[None]:
    """Holds one of so many streamed calls, and cancels it when it takes too long."""
    if not calls.acquire(blocking=False):
        raise UnavailableError("too many parameter sets or episodes are being transferred; try again")
    watch = threading.Timer(_TRANSFER_S, context.cancel)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        calls.release()


def _least_item_bytes(signature: Signature) -> int:
    """Returns the bytes that one item of a batch takes at least on the wire."""
    stored = [spec.stored_dtype.itemsize * math.prod(spec.shape) for spec in signature.columns]
    return sum(stored) + sum(stored[: signature.observation_columns])


def _too_large(size: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"batch_size: expected a batch within one message of {MAX_MESSAGE_BYTES} bytes, found about {size}; ask for less"
    )
