"""The HTTP application: routes, what comes of errors, and the guard before all of it."""

import logging
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from replaysvc.activity import request_id
from replaysvc.admin.actions import add_actions
from replaysvc.admin.answers import of_error, refusal
from replaysvc.admin.assets import Assets
from replaysvc.admin.caller import Door
from replaysvc.admin.context import Admin
from replaysvc.admin.guard import Guard
from replaysvc.admin.pages import Looks, add_episode_pages, add_pages
from replaysvc.admin.probes import add_open_pages
from replaysvc.checks import shown
from replaysvc.errors import ReplayError

log = logging.getLogger(__name__)

_NAMES = {400: "InvalidRequestError", 404: "NotFoundError", 405: "InvalidRequestError", 413: "InvalidRequestError"}
_EXPECTED = {
    "missing": "a value", "int_parsing": "a whole number", "float_parsing": "a number", "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}", "string_too_long": "at most {max_length} characters",
}  # fmt: skip
"""Of each kind of error that parameters can have."""
_SENTENCES = {404: "there is no such page", 405: "method: expected another one for this page"}


def make_app(admin: Admin, assets: Assets | None = None) -> FastAPI:
    """Returns the application without its guard, all of its routes in it."""
    app = FastAPI(
        title="replaysvc", version=admin.version, docs_url=None, redoc_url=None, openapi_url=None,
        description="Tables, episodes, actors and learners of a replay buffer. Show a token as `Authorization: Bearer TOKEN`. "
        "HEAD is answered wherever GET is.",
        redirect_slashes=False, dependencies=[Depends(Door(admin.access).admit)],
    )  # fmt: skip
    add_open_pages(app, admin, assets or Assets())
    looks = Looks(admin)
    add_pages(app, looks)
    add_episode_pages(app, looks)
    add_actions(app, admin)
    app.add_exception_handler(ReplayError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_wrong_parameter)
    app.add_exception_handler(Exception, _on_failure)
    return app


def guarded(app: FastAPI, admin: Admin) -> ASGIApp:
    """Returns the application as it is served."""
    return Guard(app, admin.names, tokens=admin.access is not None)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ReplayError)
    if error.http_status >= 500 and error.http_status not in (503, 504, 507):
        log.error("%s %.200s: %s", request.method, request.url.path, error)
    return of_error(error)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    sentence = _SENTENCES.get(status, str(error.detail))
    headers = {key.lower().replace("-", "_"): value for key, value in (error.headers or {}).items()}
    if headers.get("allow") == "GET":
        headers["allow"] = "GET, HEAD"
    return refusal(status, _NAMES.get(status, "ReplayError"), sentence, **headers)


async def _on_wrong_parameter(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:])[:100]
    expected = _EXPECTED.get(first["type"], "another value").format(**first.get("ctx", {}))
    found = "none" if first["type"] == "missing" else shown(first["input"])
    return refusal(400, "InvalidRequestError", f"{name}: expected {expected}, found {found}")


async def _on_failure(_: Request, error: Exception) -> Response:
    """Answers what nobody foresaw; the guard logs it."""
    sentence = f"the service failed ({type(error).__name__}); its log has the cause, at request {request_id.get()}"
    return refusal(500, "ReplayError", sentence, connection="close")
