"""Pages that everyone may load: the dashboard's files, and whether the service is up.

None of them waits for a look at the store, so they answer however busy the others are.
"""

from typing import Annotated

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response

from replaysvc.admin.answers import json_answer
from replaysvc.admin.assets import Assets
from replaysvc.admin.context import Admin

INDEX = "index.html"


def add_open_pages(app: FastAPI, admin: Admin, assets: Assets) -> None:
    """Adds the routes."""

    @app.get("/", name="index", summary="The dashboard", tags=["open"])
    async def index(request: Request) -> Response:
        return assets.answer(request, INDEX)

    @app.get("/static/{name:path}", name="static", summary="Files of the dashboard", tags=["open"])
    async def static(request: Request, name: Annotated[str, Path(description="name of a file")]) -> Response:
        return assets.answer(request, name)

    @app.get("/livez", name="livez", summary="Whether the process lives, and need not be started again", tags=["open"])
    async def livez() -> Response:
        return _probe(not _fault(admin))

    @app.get("/readyz", name="readyz", summary="Whether calls are served", tags=["open"])
    async def readyz() -> Response:
        return _probe(admin.status() == "serving" and not _fault(admin))


def _fault(admin: Admin) -> bool:
    """Returns whether the store takes no appends until it is opened anew; takes no lock."""
    return bool(admin.replay.fault)


def _probe(fine: bool) -> Response:
    return json_answer({"status": "ok" if fine else "unavailable"}, 200 if fine else 503)


