"""Who asks, and whether they may: before every page, by the name of its route."""

from starlette.requests import Request

from replaysvc.access import ANYONE, OPEN_PAGES, PAGES, Access, Identity, Refusals, bearer, check_role
from replaysvc.errors import PermissionDeniedError, UnauthenticatedError


class Door:
    """Lets requests pass whose caller is known and may make them."""

    def __init__(self, access: Access | None) -> None:
        self._access, self._refusals = access, Refusals()

    async def admit(self, request: Request) -> None:
        """Notes who asks, for `caller_of`. It stands before every route, also those that somebody forgets to put into a table.

        Raises:
          UnauthenticatedError, PermissionDeniedError: the request is refused.
        """
        name = request.scope["route"].name
        if name in OPEN_PAGES:
            return  # whoever it is
        try:
            caller = self._identify(request)
            check_role(caller, name, PAGES)
        except (UnauthenticatedError, PermissionDeniedError) as error:
            peer = request.client.host if request.client else "unknown"
            self._refusals.note(peer, f"{request.method} {request.url.path}", error)
            raise
        request.state.caller = caller

    def _identify(self, request: Request) -> Identity:
        if self._access is None:
            return ANYONE
        secret = bearer(request.headers.getlist("authorization"))
        if secret is None:
            raise UnauthenticatedError("authorization: expected a token, found none")
        return self._access.identify(secret)


def caller_of(request: Request) -> Identity:
    """Returns who makes a request that was admitted."""
    caller: Identity = request.state.caller
    return caller
