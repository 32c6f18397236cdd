"""replaysvc: full episodes on disk, compressed, served to learners as batches.

The engine is imported on first use of `open`, so that the base install (the thin client) needs none of its packages.
"""

from typing import TYPE_CHECKING, Any

from replaysvc.config import ClientConfig, StoreConfig, TableConfig
from replaysvc.options import (
    EpisodeUniform,
    Fifo,
    Lifo,
    Limiter,
    LostActor,
    Prioritized,
    Recency,
    Remover,
    Uniform,
    WeightNorm,
    WhenFull,
)  # fmt: skip
from replaysvc.ragged import RaggedArray
from replaysvc.requests import (
    AtEnd,
    DenseReward,
    EpisodeFilter,
    Episodes,
    Goal,
    Her,
    Sequences,
    SparseReward,
    Stack,
    StackPadding,
    Terminated,
    Transitions,
)
from replaysvc.spec import FieldSpec, Precision, Signature
from replaysvc.types import Batch, EpisodeRecord, TableStats, UpdateCounts

if TYPE_CHECKING:
    from replaysvc.replay import Replay

__version__ = "0.1.0"

__all__ = [
    "AtEnd", "Batch", "ClientConfig", "DenseReward", "EpisodeFilter", "EpisodeRecord", "EpisodeUniform", "Episodes",
    "FieldSpec", "Fifo", "Goal", "Her", "Lifo", "Limiter", "LostActor", "Precision", "Prioritized", "RaggedArray",
    "Recency", "Remover", "Sequences", "Signature", "SparseReward", "Stack", "StackPadding", "StoreConfig", "TableConfig",
    "TableStats", "Terminated", "Transitions", "Uniform", "UpdateCounts", "WeightNorm", "WhenFull", "open",
]  # fmt: skip


def open(path: str, config: StoreConfig | None = None, **options: Any) -> "Replay":
    """Returns the store at `path`, made if absent, as an object in this process; see `replaysvc.replay.Replay`.

    Raises:
      ModuleNotFoundError: the engine's packages are not installed; says how to.
    """
    try:
        from replaysvc.replay import Replay
    except ModuleNotFoundError as error:
        if error.name != "lmdb":
            raise
        raise ModuleNotFoundError("an embedded store needs lmdb: pip install 'replaysvc[server]'", name="lmdb") from None
    return Replay(path, config, **options)
