"""The routes that change something: for administrators alone, confirmed by the name of what they change, told in the log.

What may take long runs on in a thread: whoever asked waits a moment for it, and then learns the number of the job instead.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, FastAPI, Path, Request
from fastapi.responses import Response

from replaysvc.access import Identity
from replaysvc.admin.answers import json_answer
from replaysvc.admin.caller import caller_of
from replaysvc.admin.context import Admin
from replaysvc.admin.pages import API
from replaysvc.admin.parsing import checked, json_object
from replaysvc.checks import check_flag, check_ids, check_name, shown
from replaysvc.errors import AlreadyExistsError, InvalidRequestError, NotFoundError, ReplayError, UnavailableError
from replaysvc.jobs import asked_by
from replaysvc.options import Limiter
from replaysvc.table.looking import Looking

log = logging.getLogger(__name__)

MOST_IDS = 10_000  # episodes deleted at once
_PATIENCE_S = 2.0  # for what may be done quickly
_MOST_AT_ONCE = 8

TableName = Annotated[str, Path(description="name of a table", max_length=64)]
Body = Annotated[dict[str, Any], Depends(json_object)]


class Work:
    """Something that is done in a thread. Settled once: with what came of it, or why not."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: ReplayError | None = None
        self.result: Any = None

    def run(self, do: Callable[[], Any], told: str) -> None:
        """Does it, and writes the line in the log."""
        try:
            self.result = do()
            log.info("%s: done", told)
        except ReplayError as error:
            self._error = error
            log.warning("%s: refused: %s", told, error)
        except BaseException as error:
            log.exception("%s: failed", told)
            self._error = ReplayError(f"it failed ({type(error).__name__}); the log has the cause")
        finally:
            self._ended.set()

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it has ended. Raises the error that it ended with."""
        ended = self._ended.wait(timeout_s)
        if ended and self._error is not None:
            raise self._error
        return ended


class Actions:
    """Starts what is asked for, a few things at a time."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def start(
        self, caller: Identity, kind: str, table: str, told: str, do: Callable[[], Any], done: Callable[[Any], dict[str, Any]],
        check: Callable[[], object] = lambda: None,
    ) -> Response:  # fmt: skip
        """Does something in a thread. kind: of its job. told: for the log. done: what is answered if it is done quickly.
        check: raises why it must not be done, so that there is no job.

        Raises:
          UnavailableError: too much is under way. And what `check` raises, and `do` within a moment.
        """
        told = f"admin {caller.name} ({caller.role}) {told}"
        try:
            check()
        except ReplayError as error:
            log.warning("%s: refused: %s", told, error)
            raise
        if not self._slots.acquire(blocking=False):
            raise UnavailableError(f"{_MOST_AT_ONCE} such requests are under way; come again")
        work, last, context = Work(), self._last_job(), copy_context()
        context.run(asked_by.set, caller.name)

        def run() -> None:
            try:
                work.run(do, told)
            finally:
                self._slots.release()

        threading.Thread(target=context.run, args=(run,), name="replaysvc-admin-action", daemon=True).start()
        ended = work.wait(_PATIENCE_S)
        job = self._job_after(last, kind, table, caller.name)
        if ended:
            return json_answer({"job": job} | done(work.result))
        return json_answer({"job": job, "message": "it is under way; see the list of jobs"}, 202)

    def _last_job(self) -> int:
        return max((job.number for job in self._admin.replay.jobs.views()), default=0)

    def _job_after(self, last: int, kind: str, table: str, who: str) -> int | None:
        found = [
            job.number for job in self._admin.replay.jobs.views()
            if job.number > last and (job.kind, job.table, job.who) == (kind, table, who)
        ]  # fmt: skip
        return min(found, default=None)


def add_actions(app: FastAPI, admin: Admin) -> None:
    """Adds the routes."""
    replay, actions, at = admin.replay, Actions(admin), f"{API}/tables/{{table}}"

    @app.post(f"{at}/delete", name="delete-table", summary="Delete a table and all its data", **_body({}))
    def delete_table(request: Request, table: TableName, body: Body) -> Response:
        checked(body, "confirm", must={"confirm": table})
        replay.engine(table)
        done = lambda _: {"message": f"table {table} was deleted"}  # noqa: E731
        return actions.start(
            caller_of(request), "delete_table", table, f"delete table {table}", lambda: replay.delete_table(table), done
        )

    @app.post(
        f"{at}/delete-episodes", name="delete-episodes", summary=f"Delete up to {MOST_IDS:,} episodes",
        **_body({"episode_ids": {"type": "array", "items": {"type": "integer"}}, "open_episodes": {"type": "boolean"}}),
    )  # fmt: skip
    def delete_episodes(request: Request, table: TableName, body: Body) -> Response:
        checked(body, "episode_ids", "open_episodes", "confirm", must={"confirm": table})
        ids = check_ids("episode_ids", [_id(value) for value in _list(body.get("episode_ids"))], MOST_IDS)
        open_episodes = check_flag("open_episodes", body.get("open_episodes", False))
        stored = replay.table(table)
        there: list[int] = []

        def check() -> None:
            there[:] = _there(replay.engine(table).looking, table, ids, open_episodes)

        def done(count: int) -> dict[str, Any]:
            absent = sorted(set(ids).difference(there))
            return {"deleted": count, "absent": absent, "message": f"{count} episodes were deleted{_absent(absent)}"}

        told = f"delete {len(ids)} episodes of table {table}, ids {_some(ids)}"
        return actions.start(
            caller_of(request), "delete_episodes", table, told,
            lambda: stored.delete_episodes(ids, open_episodes=open_episodes), done, check,
        )  # fmt: skip

    @app.post(
        f"{at}/limiter", name="limiter", summary="Give a table another limiter", **_body({"limiter": {"type": "object"}})
    )
    def set_limiter(request: Request, table: TableName, body: Body) -> Response:
        checked(body, "limiter", "confirm", must={"confirm": table})
        limiter = Limiter.from_json(body.get("limiter"))
        stored = replay.table(table)
        return actions.start(
            caller_of(request), "set_limiter", table, f"set the limiter of table {table} to {limiter}",
            lambda: stored.set_limiter(limiter), lambda _: {"message": f"table {table} has another limiter"},
            lambda: stored.config.limited(limiter),
        )  # fmt: skip

    bound = {"type": ["integer", "null"]}
    names = ("capacity_steps", "capacity_bytes", "capacity_episodes")

    @app.post(
        f"{at}/capacity", name="capacity", summary="Give a table other bounds; steps beyond them go at once",
        **_body(dict.fromkeys(names, bound)),
    )  # fmt: skip
    def set_capacity(request: Request, table: TableName, body: Body) -> Response:
        checked(body, *names, "confirm", must={"confirm": table})
        if absent := [name for name in names if name not in body]:
            raise InvalidRequestError(f"{absent[0]}: expected a number or null, found nothing")
        bounds = {name: body[name] for name in names}
        stored = replay.table(table)
        return actions.start(
            caller_of(request), "set_capacity", table, f"set the capacity of table {table} to {shown(bounds)}",
            lambda: stored.set_capacity(**bounds), lambda _: {"message": f"table {table} has other bounds"},
            lambda: replace(stored.config, **bounds),
        )  # fmt: skip

    @app.post(f"{at}/compact", name="compact", summary="Give back the disk space of what is gone", **_body({}))
    def compact(request: Request, table: TableName, body: Body) -> Response:
        checked(body, "confirm", must={"confirm": table})
        stored = replay.table(table)
        done = lambda freed: {"message": f"{freed:,} bytes were given back", "freed_bytes": freed}  # noqa: E731
        return actions.start(caller_of(request), "compact", table, f"compact table {table}", stored.compact, done)

    @app.post(f"{API}/snapshots", name="snapshot", summary="Make a snapshot", **_body({"name": {"type": "string"}}))
    def snapshot(request: Request, body: Body) -> Response:
        name = check_name("name", body.get("name", ""))
        checked(body, "name", "confirm", must={"confirm": name})
        folder = replay.config.snapshot_dir
        if folder is None:
            raise InvalidRequestError("this service makes no snapshots: it was started without snapshot_dir")
        path = os.path.join(folder, name)
        if os.path.lexists(path):
            raise AlreadyExistsError(f"snapshot {name} exists already")
        return actions.start(
            caller_of(request), "snapshot", "", f"make snapshot {name}", lambda: replay.snapshot(path),
            lambda _: {"message": f"snapshot {name} is complete"},
        )  # fmt: skip

    @app.post(f"{API}/scrub", name="scrub", summary="Read all again from the start, to find damage", **_body({}))
    def scrub(request: Request, body: Body) -> Response:
        checked(body, "confirm", must={"confirm": "scrub"})
        return actions.start(
            caller_of(request), "scrub", "", "start a scrub", replay.start_scrub, lambda _: {"message": "a round has begun"}
        )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(f"episode_ids: expected a list of ids, found {shown(value)}")
    return value


def _there(looking: Looking, table: str, ids: list[int], open_episodes: bool) -> list[int]:
    """Returns which episodes are there. The gRPC method only counts them: it is sent again when its answer was lost.

    Raises:
      NotFoundError: none of them. InvalidRequestError: one is open, and that was not asked for.
    """
    there, closed = looking.episodes_there(np.array(ids, np.int64))
    if not there.size:
        raise NotFoundError(f"episode_ids: expected episodes of table {table}, found none of {_some(ids)}")
    if not closed.all() and not open_episodes:
        found = _some(there[~closed].tolist())
        raise InvalidRequestError(f"episode_ids: expected closed ones unless open_episodes is true, found {found}, still open")
    return list(there.tolist())


def _absent(ids: list[int]) -> str:
    return f"; {len(ids)} were not there: {_some(ids)}" if ids else ""


def _some(ids: list[int]) -> str:
    """Returns the first ids, for a sentence."""
    return f"{', '.join(map(str, ids[:5]))}{', ...' * (len(ids) > 5)}"


def _id(value: Any) -> Any:
    """Returns an id, which is text where it is beyond what browsers count to."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else value


def _body(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a route tells of its body in OpenAPI."""
    confirm = {"confirm": {"type": "string", "description": "the name of what is changed"}}
    schema = {"type": "object", "properties": dict(properties) | confirm, "required": [*properties, "confirm"]}
    described = {"required": True, "content": {"application/json": {"schema": schema}}}
    responses = {202: {"description": "under way; the number of its job"}, 400: {"description": "refused, and nothing changed"}}
    return {"tags": ["actions"], "openapi_extra": {"requestBody": described}, "responses": responses}
