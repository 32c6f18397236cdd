"""The gRPC server around a store."""

import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.internal import api_implementation
from grpc_health.v1 import health_pb2, health_pb2_grpc

from replaysvc.access import Access
from replaysvc.activity import Activity
from replaysvc.config import MAX_MESSAGE_BYTES
from replaysvc.errors import ConfigurationError, UnavailableError
from replaysvc.health import Health
from replaysvc.replay import Replay
from replaysvc.rpc.admission import Admission
from replaysvc.rpc.auth import AuthInterceptor
from replaysvc.rpc.calls import CallInterceptor
from replaysvc.rpc.limits import MESSAGE_BYTES, PENDING_CALLS, Limits, connections_for, raise_descriptors, regions_for
from replaysvc.rpc.reflection import REFLECTION, Reflection
from replaysvc.rpc.servicer import ReplayServicer
from replaysvc.rpc.shared import SharedMemory
from replaysvc.rpc.tls import TlsFiles
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc

SERVICE = "replaysvc.v1.ReplayService"
FRAMES = "replaysvc.v1.ReplayFrames"
HEALTH = "grpc.health.v1.Health"
OPTIONS = (
    ("grpc.so_reuseport", 0),  # else two servers would share a port in silence, and split the data
    ("grpc.max_receive_message_length", MESSAGE_BYTES),  # told by a message's first bytes, so more is never read
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 32),  # of one connection: what is more waits at the client
    ("grpc.http2.bdp_probe", 0),  # it lets up to 4 MiB of a request come that nobody asked for yet; 64 KiB without
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 1_800_000),  # clients connect again, and gRPC tells their users on stderr: so not often
    ("grpc.max_connection_age_ms", 43_200_000),
    ("grpc.max_connection_age_grace_ms", 600_000),  # longer than most calls take
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


class Server:
    """Serves a store. An append holds a worker thread until its commit, some tens of milliseconds; so there are more workers
    than cores, and many more calls may be in the server before it answers RESOURCE_EXHAUSTED."""

    def __init__(
        self, replay: Replay, address: str, *, access: Access | None = None, tls: TlsFiles | None = None,
        limits: Limits | None = None, activity: Activity | None = None, health: Health | None = None,
        reflection: bool = False,
    ) -> None:  # fmt: skip
        """Binds `address` (host:port, port 0 for any free one).

        `access` knows the tokens of callers; without it, and without a client CA in `tls`, everyone may do everything.
        `activity` counts the calls. `health` is told to who asks; without one the server makes its own, of the same `activity`.
        `reflection`: tells tools what methods there are; with tokens, those who may look.

        Raises:
          UnavailableError: the address is in use or not of this machine. InvalidRequestError: `tls` names unusable files.
        """
        check_protobuf()
        limits, activity = limits or Limits(), activity or Activity()
        descriptors = raise_descriptors()
        self.connections = connections_for(descriptors)
        self._shared = SharedMemory(limits.shared_bytes, regions_for(descriptors))
        self._admission = Admission(limits)
        self._calls = CallInterceptor(self._admission, activity)
        interceptors: list[Any] = [self._calls]
        certificates = tls is not None and tls.client_ca is not None
        if access is not None or certificates:
            auth = AuthInterceptor(
                access or Access(), (SERVICE, FRAMES), certificates=certificates, looking=(REFLECTION,), activity=activity
            )
            interceptors.insert(0, auth)
        self._spare = ThreadPoolExecutor(4, thread_name_prefix="replaysvc-rpc")  # for what needs no worker: refusals
        options = (*OPTIONS, ("grpc.max_allowed_incoming_connections", self.connections))
        self._server = grpc.server(
            self._spare, interceptors=interceptors, options=options, maximum_concurrent_rpcs=PENDING_CALLS
        )
        self._health, self._looks = health or Health(replay, activity), health is None
        self._health.status = lambda: self._status
        servicer = ReplayServicer(replay, limits, self._shared, activity, self._health)
        replay_pb2_grpc.add_ReplayServiceServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]  # generated
        read = pb.SampleRequest.FromString
        frame: Any = grpc.unary_unary_rpc_method_handler(servicer.sample_frame, request_deserializer=read)
        pieces: Any = grpc.unary_stream_rpc_method_handler(servicer.sample_pieces, request_deserializer=read)
        frames = {"Sample": frame, "SampleLarge": pieces}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(FRAMES, frames),))
        self._reflection = Reflection((SERVICE, HEALTH), self._admission.watch, activity) if reflection else None
        if self._reflection is not None:
            self._server.add_generic_rpc_handlers((self._reflection.handlers,))
        self._probed = HealthService(lambda: replay.fault)
        health_pb2_grpc.add_HealthServicer_to_server(self._probed, self._server)
        self.port = 0
        with contextlib.suppress(RuntimeError):  # how grpc says that it cannot bind
            self.port = (
                self._server.add_insecure_port(address)
                if tls is None
                else self._server.add_secure_port(address, tls.credentials())
            )
        if not self.port:
            raise UnavailableError(f"address {address}: cannot be bound; is another server running there?")
        self._host = address.rpartition(":")[0]
        self._status = "starting"

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

    @property
    def status(self) -> str:
        """Returns "starting", "serving", or "draining" from the moment it is to stop."""
        return self._status

    def load(self) -> tuple[dict[str, int], int]:
        """Returns how many calls are handled now, by kind of worker, and the bytes held for requests and answers."""
        held = self._admission.requests.held + self._admission.answers.held
        return {kind.value: workers.held for kind, workers in self._admission.workers.items()}, held

    def start(self) -> None:
        """Begins to serve."""
        if self._looks:
            self._health.watch.start()
        self._server.start()
        self._status = "serving"
        self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_s: float = 10.0) -> None:
        """Refuses new calls, lets running ones end for up to `grace_s`, and stops. The store stays open."""
        self._status = "draining"
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._server.stop(grace_s).wait()
        if self._looks:
            self._health.watch.stop(grace_s)
        self._shared.close()
        self._admission.watch.close()
        self._calls.close()
        if self._reflection is not None:
            self._reflection.close()
        self._spare.shutdown(wait=False)

    def _set_health(self, status: Any) -> None:
        self._probed.status = status


def check_protobuf() -> None:
    """Refuses to serve with protobuf in pure Python, which a nested message can drive into its recursion limit or the ground.

    Raises:
      ConfigurationError: that is what this process has.
    """
    kind = api_implementation.Type()
    if kind == "python":
        raise ConfigurationError(
            f"protobuf: expected its compiled implementation (upb), found {kind!r}"
        )


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the library has no types
    """The standard health service, without `Watch`.

    The library's own servicer can deadlock its server when a watcher leaves while the status changes, which is what happens
    at every stop. Clients take UNIMPLEMENTED as "no health to watch", and probes call `Check`.

    A store that takes no appends until it is opened anew is not healthy, so that whoever runs the service starts it again.
    """

    def __init__(self, fault: Callable[[], str]) -> None:
        self.status: Any = health_pb2.HealthCheckResponse.NOT_SERVING
        self._fault = fault

    def Check(self, request: Any, context: Any) -> Any:
        if request.service not in ("", SERVICE):
            context.abort(grpc.StatusCode.NOT_FOUND, f"service {request.service!r} is not known")
        status = health_pb2.HealthCheckResponse.NOT_SERVING if self._fault() else self.status
        return health_pb2.HealthCheckResponse(status=status)
