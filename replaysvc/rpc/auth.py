"""Who calls, asked before anything else: one interceptor before all others.

A caller shows a token (metadata `authorization: Bearer SECRET`) or, under mutual TLS, a certificate whose subject alternative
names have one URI `replaysvc://role/NAME/ROLE`. A token that is sent decides; without one, the certificate does.

Refused calls cost nearly nothing: their message is not read, however large, and no other interceptor sees them. What a
certificate may do is known when its call has begun: before its message is read, since all our methods read theirs themselves
(replaysvc/rpc/calls.py).
"""

import functools
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc

from replaysvc.access import ANYONE, MAY, Access, Identity, Refusals, Role, bearer, check_role
from replaysvc.activity import REQUEST_KEY, Activity, request_id, request_id_of
from replaysvc.checks import NAME
from replaysvc.errors import PermissionDeniedError, ReplayError, UnauthenticatedError
from replaysvc.rpc.status import ERROR_KEY

OPEN = "/grpc.health.v1.Health/Check"
"""The one method that everyone may call: whether the server is up, which is all that it tells."""

_HEALTH = OPEN.removesuffix("Check")
_ROLE_URI = re.compile(rf"replaysvc://role/({NAME.pattern})/({'|'.join(Role)})")

caller: ContextVar[Identity] = ContextVar("caller", default=ANYONE)
"""Who makes the call that is being handled."""


class AuthInterceptor(grpc.ServerInterceptor):
    """Lets calls pass whose caller is known and may make them. `services` are those whose methods `access.MAY` lists.

    `certificates`: callers have shown a certificate that this server's client CA signed. `looking`: paths of methods of other
    services, for all roles that may look. `activity` counts the calls that are refused.
    """

    def __init__(
        self, access: Access, services: Sequence[str], *, certificates: bool, looking: Sequence[str] = (),
        activity: Activity | None = None,
    ) -> None:  # fmt: skip
        self._access, self._certificates = access, certificates
        self._looking = dict.fromkeys(looking, MAY["ListTables"])
        self._activity = activity or Activity()
        self._services = tuple(f"/{service}/" for service in services)
        self._refusals = Refusals()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        if details.method.startswith(_HEALTH):
            return continuation(details) if details.method == OPEN else None
        try:
            secret = _secret_in(details.invocation_metadata)
            if secret is None and self._certificates:
                return self._by_certificate(continuation(details), details.method)
            if secret is None:
                raise UnauthenticatedError("authorization: expected a token, found none")
            identity, method = self._access.identify(secret), self._short(details.method)
            if method not in MAY and continuation(details) is None:
                return None  # there is no such method, which a newer client should learn
            self._check(identity, method)
        except (UnauthenticatedError, PermissionDeniedError) as error:
            request_id.set(request_id_of(dict(details.invocation_metadata or ()).get(REQUEST_KEY)))
            return self._refusing(error, details.method)
        caller.set(identity)
        return continuation(details)

    def _short(self, method: str) -> str:
        """Returns a method's name as `MAY` has it. That of another service stays as it is, and so is nobody's to call."""
        return method.rpartition("/")[2] if method.startswith(self._services) else method

    def _check(self, identity: Identity, method: str) -> None:
        check_role(identity, method, self._looking if method in self._looking else MAY)

    def _by_certificate(self, handler: Any, method: str) -> Any:
        """Returns the handler with a look at the caller's certificate before it."""
        if handler is None:
            return None
        behaviour = handler.stream_unary or handler.unary_stream or handler.unary_unary or handler.stream_stream

        def call(request: Any, context: Any) -> Any:
            try:
                identity = _certified(context.auth_context())
                self._check(identity, self._short(method))
            except (UnauthenticatedError, PermissionDeniedError) as error:
                self._refuse(error, method, context)
            caller.set(identity)
            return behaviour(request, context)

        functools.update_wrapper(call, behaviour)  # it may say what threads run it
        return _like(handler)(
            call, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )

    def _refusing(self, error: ReplayError, method: str) -> Any:
        """Returns a handler that refuses. It takes a stream, whatever the method takes: streams are read as they are asked
        for, and it asks for nothing."""
        return grpc.stream_stream_rpc_method_handler(lambda _, context: self._refuse(error, method, context))

    def _refuse(self, error: ReplayError, method: str, context: Any) -> NoReturn:
        self._activity.refused(error.grpc_status)
        self._refusals.note(unquote(context.peer()), method, error)
        context.set_trailing_metadata(((REQUEST_KEY, request_id.get()), (ERROR_KEY, error.name)))
        context.abort(grpc.StatusCode[error.grpc_status], str(error))
        raise error  # `abort` has raised


def _secret_in(metadata: Any) -> str | None:
    """Returns the secret that a call shows, None if it shows none. Raises UnauthenticatedError."""
    return bearer([str(value) for key, value in metadata or () if key == "authorization"])


def _certified(properties: Any) -> Identity:
    """Returns whom a verified certificate names. Raises UnauthenticatedError."""
    uris = [uri.decode(errors="replace") for uri in properties.get("peer_uri", ())]
    roles = [found for uri in uris if (found := _ROLE_URI.fullmatch(uri))]
    if len(roles) != 1:
        raise UnauthenticatedError(
            f"certificate: expected one URI replaysvc://role/NAME/ROLE among its subject alternative names, found {len(roles)}"
        )
    return Identity(roles[0][1], Role(roles[0][2]))


def _like(handler: Any) -> Any:
    """Returns what makes a handler of the same kind."""
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
