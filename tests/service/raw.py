"""The methods of the service called by hand, and chunks to call them with."""

import threading

import grpc

from replay_client.connection import error_of
from replaysvc import TableConfig
from replaysvc.config import MAX_MESSAGE_BYTES
from replaysvc.rpc.limits import PIECE_BYTES
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc
from replaysvc.writer import Writer
from tests.builders import SCALARS, write_episode

SESSION = bytes(range(16))


class Sink:
    """Keeps a writer's chunks."""

    def __init__(self):
        self.chunks = []
        self._episodes = 0

    def put(self, chunk, *, wait, limit_timeout_s):
        self.chunks.append(chunk)

    def flush(self, timeout_s):
        pass

    def next_episode_key(self):
        self._episodes += 1
        return self._episodes - 1

    def make_lock(self):
        return threading.Lock()

    def attach(self, writer):
        pass

    def detach(self, writer):
        pass


def chunks_of(length, *, signature=SCALARS, chunk_steps=2, write=write_episode, **options):
    """Returns the chunks of one episode."""
    sink = Sink()
    with Writer(signature, TableConfig(chunk_steps=chunk_steps), sink, clock=lambda: 0.0) as writer:
        write(writer, length, **options)
    return sink.chunks


class Raw:
    """The methods of the service, called by hand."""

    def __init__(self, address):
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
        self.stub = replay_pb2_grpc.ReplayServiceStub(self._channel)

    def append(self, chunks, first=0, *, session=SESSION, actor="", table="t"):
        pairs = [pb.AppendChunk(sequence=first + i, chunk=chunk) for i, chunk in enumerate(chunks)]
        return self.call("Append", pb.AppendRequest(table=table, session_id=session, actor=actor, chunks=pairs, urgent=True))

    def call(self, method, request):
        call = getattr(self.stub, method)
        if method in ("Append", "UpdatePriorities", "DeleteEpisodes") and request.ByteSize() > PIECE_BYTES:
            data = request.SerializeToString()
            request = (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))
            call = self._channel.stream_unary(f"/replaysvc.v1.ReplayService/{method}")
        try:
            return call(request, timeout=60)
        except grpc.RpcError as error:
            raise error_of(error, "the server") from error

    def close(self):
        self._channel.close()
