"""The routes that look: each takes its parameters, asks one of the modules beside it, and answers with JSON or an image.

Answers are shared for a second by all who ask the same. Handlers are plain functions, which run on the server's few threads.
"""

from collections.abc import Callable, Hashable
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response

from replaysvc.access import PAGES, Role
from replaysvc.admin import episodes, frames, housekeeping, tables
from replaysvc.admin.answers import encoded, json_answer
from replaysvc.admin.caller import caller_of
from replaysvc.admin.context import Admin
from replaysvc.admin.overview import overview_of
from replaysvc.admin.participants import actors_of, learners_of
from replaysvc.errors import NotFoundError
from replaysvc.requests import EpisodeFilter

API = "/api/v1"
_COLUMNS_S = 60.0  # how long the bytes of columns are good, which are read from the disk
_MOST_COLUMNS = 500
_MOST_ID = (1 << 63) - 1

TableName = Annotated[str, Path(description="name of a table", max_length=64)]
EpisodeId = Annotated[int, Path(description="id of an episode", ge=0, le=_MOST_ID)]
Start = Annotated[int | None, Query(description="first step; the first that is stored, if left out", ge=0, le=1 << 62)]
Stop = Annotated[int | None, Query(description="step before which to end; a page on, if left out", ge=0, le=1 << 62)]
ImageColumn = Annotated[str, Query(description="column that holds images", max_length=1000)]
Plane = Annotated[int, Query(description="which image of a stack", ge=0, le=63)]
Lengths = Annotated[int | None, Query(description="steps", ge=0, le=_MOST_ID)]
Return = Annotated[float | None, Query(description="sum of rewards")]
Version = Annotated[int | None, Query(description="version of the policy", ge=-1, le=_MOST_ID)]


class Looks:
    """What several pages share, each part made once a second at most."""

    def __init__(self, admin: Admin) -> None:
        self.admin, self.started_at_s, self.cached = admin, admin.wall(), admin.health.cached

    def answer(self, key: Hashable, make: Callable[[], Any], good_s: float = 1.0) -> Response:
        """Returns what `make` gives as an answer."""
        body = self.cached.get(("answer", key), lambda: encoded(make()), good_s)
        return Response(body, media_type="application/json")

    def tables(self) -> list[tables.Told]:
        """Returns all tables."""
        return self.cached.get("tables", lambda: tables.told_tables(self.admin))

    def columns(self, table: str) -> list[dict[str, Any]]:
        """Returns the bytes of a table's columns. Raises NotFoundError."""
        return self.cached.get(("columns", table), lambda: tables.columns_of(self.admin, table), _COLUMNS_S)

    def overview(self) -> dict[str, Any]:
        """Returns how all is."""
        told, columns = self.tables(), []
        for table in told:
            try:
                columns += self.columns(table.stats.name)
            except NotFoundError:  # deleted meanwhile
                continue
            if len(columns) >= _MOST_COLUMNS:
                break
        return overview_of(self.admin, self.started_at_s, told, columns[:_MOST_COLUMNS])


def add_pages(app: FastAPI, looks: Looks) -> None:
    """Adds the routes of the service as a whole, and those of tables."""
    admin, watch = looks.admin, looks.admin.health.watch

    @app.get(f"{API}/session", name="session", summary="Who I am, and what I may do", tags=["service"])
    async def session(request: Request) -> Response:
        caller = caller_of(request)
        may = {"act": caller.role is Role.ADMIN, "log": caller.role in PAGES["log"]}
        told = {"name": caller.name, "role": caller.role.value, "tokens": admin.access is not None, "may": may}
        return json_answer(told | {"version": admin.version, "api": "v1"})

    @app.get(f"{API}/openapi.json", name="openapi", summary="This description", tags=["service"])
    def openapi() -> Response:
        return json_answer(app.openapi())

    @app.get(f"{API}/overview", name="overview", summary="How all is, and what is to be done", tags=["service"])
    def overview() -> Response:
        return looks.answer("overview", looks.overview)

    @app.get(f"{API}/history", name="history", summary="Rates of the last minutes, hours or day", tags=["service"])
    def history(
        table: Annotated[str | None, Query(description="of one table; of all, if left out", max_length=64)] = None,
        window: Annotated[float, Query(description="seconds", ge=60, le=86_400)] = 600,
    ) -> Response:
        if table is not None:
            admin.replay.engine(table)  # or it does not exist
        return looks.answer(("history", table, window), lambda: watch.points(table, window))

    @app.get(f"{API}/tables", name="tables", summary="All tables", tags=["tables"])
    def all_tables() -> Response:
        return looks.answer("tables", lambda: {"tables": [told.row for told in looks.tables()]})

    @app.get(f"{API}/tables/{{table}}", name="table", summary="All that a table tells of itself", tags=["tables"])
    def one_table(table: TableName) -> Response:
        return looks.answer(("table", table), lambda: tables.table_of(admin, table))

    @app.get(f"{API}/tables/{{table}}/ages", name="ages", summary="Ages of stored and sampled steps", tags=["tables"])
    def ages(table: TableName) -> Response:
        return looks.answer(("ages", table), lambda: tables.ages_of(admin, table))

    @app.get(f"{API}/tables/{{table}}/columns", name="columns", summary="Bytes of each column", tags=["tables"])
    def columns(table: TableName) -> Response:
        return looks.answer(("columns", table), lambda: {"columns": looks.columns(table)})

    @app.get(
        f"{API}/tables/{{table}}/samplers/{{sampler}}", name="sampler", summary="Priorities, and what would be drawn",
        tags=["tables"],
    )  # fmt: skip
    def sampler(table: TableName, sampler: Annotated[str, Path(description="name of a sampler", max_length=64)]) -> Response:
        return looks.answer(("sampler", table, sampler), lambda: tables.sampler_of(admin, table, sampler))

    @app.get(f"{API}/actors", name="actors", summary="Who writes", tags=["participants"])
    def actors() -> Response:
        return looks.answer("actors", lambda: actors_of(admin))

    @app.get(f"{API}/learners", name="learners", summary="Who samples", tags=["participants"])
    def learners() -> Response:
        return looks.answer("learners", lambda: learners_of(admin))

    @app.get(f"{API}/storage", name="storage", summary="How the store lies on disk", tags=["service"])
    def storage() -> Response:
        return looks.answer("storage", lambda: housekeeping.storage_of(admin), 5.0)

    @app.get(f"{API}/jobs", name="jobs", summary="Long pieces of work", tags=["service"])
    def jobs() -> Response:
        return json_answer(housekeeping.jobs_of(admin))

    @app.get(f"{API}/configuration", name="configuration", summary="How the service was started", tags=["service"])
    def configuration() -> Response:
        return looks.answer("configuration", lambda: housekeeping.configuration_of(admin))

    @app.get(f"{API}/log", name="log", summary="The last lines of the log", tags=["service"])
    def log() -> Response:
        return looks.answer("log", lambda: housekeeping.log_of(admin))

    @app.get("/metrics", name="metrics", summary="Metrics in Prometheus's text format", tags=["service"])
    def metrics() -> Response:
        body, content_type = looks.cached.get("metrics", admin.metrics.render)
        return Response(body, headers={"content-type": content_type})


def add_episode_pages(app: FastAPI, looks: Looks) -> None:
    """Adds the routes of episodes."""
    admin, at = looks.admin, f"{API}/tables/{{table}}"

    @app.get(f"{at}/episodes", name="episodes", summary="Episodes, the newest first", tags=["episodes"])
    def some_episodes(
        table: TableName,
        limit: Annotated[int, Query(description="how many", ge=1, le=episodes.MOST_EPISODES)] = 50,
        before_id: Annotated[int | None, Query(description="only older ones than this", ge=0, le=_MOST_ID)] = None,
        actor: Annotated[str | None, Query(description="only of this actor", max_length=128)] = None,
        end: Annotated[str | None, Query(description="terminated, truncated, lost_actor or open")] = None,
        min_length: Lengths = None, max_length: Lengths = None, min_return: Return = None, max_return: Return = None,
        min_policy_version: Version = None, max_policy_version: Version = None,
    ) -> Response:  # fmt: skip
        where = EpisodeFilter(
            end=end, min_length=min_length, max_length=max_length, min_return=min_return, max_return=max_return,
            min_policy_version=min_policy_version, max_policy_version=max_policy_version,
        )  # fmt: skip
        key = ("episodes", table, limit, before_id, actor, where)
        return looks.answer(key, lambda: episodes.episodes_of(admin, table, limit, before_id, actor, where))

    @app.get(f"{at}/episode-points", name="episode-points", summary="Lengths and returns, to plot", tags=["episodes"])
    def episode_points(
        table: TableName, limit: Annotated[int, Query(description="how many, the newest", ge=1, le=5000)] = 2000
    ) -> Response:
        return looks.answer(("points", table, limit), lambda: episodes.points_of(admin, table, limit))

    @app.get(f"{at}/episodes/{{episode_id}}", name="episode", summary="One episode and its columns", tags=["episodes"])
    def one_episode(table: TableName, episode_id: EpisodeId) -> Response:
        return looks.answer(("episode", table, episode_id), lambda: episodes.episode_of(admin, table, episode_id))

    @app.get(f"{at}/episodes/{{episode_id}}/steps", name="steps", summary="Values of steps", tags=["episodes"])
    def steps(
        table: TableName, episode_id: EpisodeId,
        column: Annotated[list[str], Query(description="columns by path; no images", max_length=256)],
        start: Start = None, stop: Stop = None,
    ) -> Response:  # fmt: skip
        key = ("steps", table, episode_id, tuple(column), start, stop)
        return looks.answer(key, lambda: episodes.steps_of(admin, table, episode_id, column, start, stop))

    @app.get(f"{at}/episodes/{{episode_id}}/priorities", name="priorities", summary="Priorities of steps", tags=["episodes"])
    def priorities(table: TableName, episode_id: EpisodeId, start: Start = None, stop: Stop = None) -> Response:
        key = ("priorities", table, episode_id, start, stop)
        return looks.answer(key, lambda: episodes.priorities_of(admin, table, episode_id, start, stop))

    @app.get(f"{at}/episodes/{{episode_id}}/image", name="image", summary="An image of a step, as PNG", tags=["episodes"])
    def image(
        table: TableName, episode_id: EpisodeId, column: ImageColumn,
        t: Annotated[int, Query(description="the step", ge=0, le=1 << 62)], plane: Plane = 0,
    ) -> Response:  # fmt: skip
        key = ("image", table, episode_id, column, t, plane)
        return _picture(*looks.cached.get(key, lambda: frames.image_of(admin, table, episode_id, column, t, plane)))

    @app.get(f"{at}/episodes/{{episode_id}}/strip", name="strip", summary="Images side by side, as PNG", tags=["episodes"])
    def strip(
        table: TableName, episode_id: EpisodeId, column: ImageColumn, start: Start = None,
        count: Annotated[int, Query(description="how many", ge=1, le=frames.MOST_FRAMES)] = 16,
        width: Annotated[int, Query(description="pixels of each", ge=8, le=frames.MOST_WIDTH)] = 64, plane: Plane = 0,
    ) -> Response:  # fmt: skip
        key = ("strip", table, episode_id, column, start, count, width, plane)
        make = lambda: frames.strip_of(admin, table, episode_id, column, start, count, width, plane)  # noqa: E731
        return _picture(*looks.cached.get(key, make, 10.0))


def _picture(body: bytes, planes: int) -> Response:
    return Response(body, media_type="image/png", headers={"x-replaysvc-planes": str(planes)})
