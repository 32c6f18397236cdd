"""The gRPC server around a store."""

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from replaysvc.config import MAX_MESSAGE_BYTES
from replaysvc.errors import UnavailableError
from replaysvc.replay import Replay
from replaysvc.rpc.servicer import ReplayServicer
from replaysvc.rpc.status import ErrorInterceptor
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc

SERVICE = "replaysvc.v1.ReplayService"
FRAMES = "replaysvc.v1.ReplayFrames"
OPTIONS = (
    ("grpc.so_reuseport", 0),  # else two servers would share a port in silence, and split the data
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


class Server:
    """Serves a store. An append holds a worker thread until its commit, some tens of milliseconds; so there are more workers
    than cores, and twice as many calls may be in the server before it answers RESOURCE_EXHAUSTED."""

    def __init__(self, replay: Replay, address: str, *, max_workers: int = 64) -> None:
        """Binds `address` (host:port, port 0 for any free one).

        Raises:
          UnavailableError: the address is in use or not of this machine.
        """
        pool = ThreadPoolExecutor(max_workers, thread_name_prefix="replaysvc-rpc")
        self._server = grpc.server(
            pool, interceptors=[ErrorInterceptor()], options=OPTIONS, maximum_concurrent_rpcs=2 * max_workers
        )
        servicer = ReplayServicer(
            replay, max_waiting=max(1, max_workers // 2), max_waiting_appends=max_workers // 8,
            max_transfers=max(1, max_workers // 4),
        )  # fmt: skip
        replay_pb2_grpc.add_ReplayServiceServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]  # generated
        read = pb.SampleRequest.FromString
        frame: Any = grpc.unary_unary_rpc_method_handler(servicer.sample_frame, request_deserializer=read)
        pieces: Any = grpc.unary_stream_rpc_method_handler(servicer.sample_pieces, request_deserializer=read)
        frames = {"Sample": frame, "SampleLarge": pieces}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(FRAMES, frames),))
        self._health = Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = 0
        with contextlib.suppress(RuntimeError):  # how grpc says that it cannot bind
            self.port = self._server.add_insecure_port(address)
        if not self.port:
            raise UnavailableError(f"address {address}: cannot be bound; is another server running there?")
        self._host = address.rpartition(":")[0]

    @staticmethod
    def probe(address: str) -> None:
        """Raises UnavailableError if `address` cannot be bound now; binds nothing."""
        host, _, port = address.rpartition(":")
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(where)
        except OSError as error:
            raise UnavailableError(f"address {address}: cannot be bound: {error.strerror or error}") from error

    @property
    def address(self) -> str:
        """Returns host:port as bound."""
        return f"{self._host}:{self.port}"

    def start(self) -> None:
        """Begins to serve."""
        self._server.start()
        self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_s: float = 10.0) -> None:
        """Refuses new calls, lets running ones end for up to `grace_s`, and stops. The store stays open."""
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._server.stop(grace_s).wait()

    def _set_health(self, status: Any) -> None:
        self._health.status = status


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the library has no types
    """The standard health service, without `Watch`.

    The library's own servicer can deadlock its server when a watcher leaves while the status changes, which is what happens
    at every stop. Clients take UNIMPLEMENTED as "no health to watch", and probes call `Check`.
    """

    def __init__(self) -> None:
        self.status: Any = health_pb2.HealthCheckResponse.NOT_SERVING

    def Check(self, request: Any, context: Any) -> Any:
        if request.service not in ("", SERVICE):
            context.abort(grpc.StatusCode.NOT_FOUND, f"service {request.service!r} is not known")
        return health_pb2.HealthCheckResponse(status=self.status)
