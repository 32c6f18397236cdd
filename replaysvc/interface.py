"""What both doors offer: the embedded store and the client are a `Replay`, their tables a `Table`. Code that takes these
runs on either. The classes themselves (`replaysvc.replay`, `replay_client`) document the methods.
"""

from collections.abc import Iterator
from typing import Any, Literal, Protocol, overload

from replaysvc.config import TableConfig
from replaysvc.options import Limiter
from replaysvc.requests import EpisodeFilter, Transitions, Window
from replaysvc.spec import Signature
from replaysvc.types import Batch, EpisodeRecord, Params, TableStats, UpdateCounts
from replaysvc.views import ActivityView
from replaysvc.writer import Writer


class Table(Protocol):
    """A table of a store, wherever the store is."""

    name: str
    signature: Signature

    @property
    def config(self) -> TableConfig: ...

    def writer(self, actor: str = "", *, epoch: int | None = None, limit_timeout_s: float = 600.0) -> Writer: ...

    def sample(
        self, batch_size: int, what: Window = Transitions(), *, sampler: str = "uniform", seed: int | None = None,
        beta: float | None = None, timeout_s: float = 0.0,
    ) -> Batch: ...  # fmt: skip

    def stream(
        self, batch_size: int, what: Window = Transitions(), *, sampler: str = "uniform", beta: float | None = None,
        prefetch: int = 4, timeout_s: float = 60.0,
    ) -> Iterator[Batch]: ...  # fmt: skip

    @overload
    def update_priorities(
        self, positions: Any, priorities: Any, *, sampler: str = ..., wait: Literal[True] = ...
    ) -> UpdateCounts: ...

    @overload
    def update_priorities(self, positions: Any, priorities: Any, *, sampler: str = ..., wait: bool) -> UpdateCounts | None: ...

    def set_limiter(self, limiter: Limiter) -> None: ...

    def set_capacity(
        self, *, capacity_steps: int | None = None, capacity_bytes: int | None = None, capacity_episodes: int | None = None
    ) -> None: ...

    def stats(self) -> TableStats: ...

    def episodes(
        self, *, limit: int = 100, before_id: int | None = None, actor: str | None = None, closed_only: bool = False,
        where: EpisodeFilter | None = None,
    ) -> list[EpisodeRecord]: ...  # fmt: skip

    def read_episode(self, episode_id: int, start: int | None = None, stop: int | None = None) -> dict[str, Any]: ...

    def delete_episodes(self, episode_ids: Any, *, open_episodes: bool = False) -> int: ...

    def compact(self) -> int: ...


class Replay(Protocol):
    """A store, in this process or behind a connection."""

    def create_table(
        self, name: str, signature: Signature, config: TableConfig | None = None, *, exist_ok: bool = False
    ) -> Table: ...

    def table(self, name: str) -> Table: ...

    def tables(self) -> list[str]: ...

    def delete_table(self, name: str) -> None: ...

    def put_params(self, name: str, data: bytes, *, version: int) -> None: ...

    def get_params(self, name: str, *, newer_than: int = -1) -> Params | None: ...

    def activity(self, table: str | None = None) -> ActivityView: ...

    def snapshot(self, path: str) -> None: ...

    def close(self) -> None: ...
