"""The thin client of replaysvc: numpy, zstandard, xxhash, grpcio and protobuf are all it needs.

replay = replay_client.connect("localhost:7777")
table = replay.table("cartpole")
batch = table.sample(256)
"""

from replay_client.ahead import TensorStream, tensor_batches
from replay_client.client import Client, connect
from replay_client.connection import Tls
from replay_client.table import RemoteTable
from replaysvc.config import ClientConfig, TableConfig
from replaysvc.errors import (
    AlreadyExistsError,
    CapacityError,
    ChunkCorruptError,
    ConfigurationError,
    InvalidRequestError,
    LimitedError,
    NotFoundError,
    NotReadyError,
    PermissionDeniedError,
    ReplayError,
    SequenceError,
    SpecMismatchError,
    StorageError,
    UnauthenticatedError,
    UnavailableError,
    WaitTimeoutError,
    WriterFencedError,
)  # fmt: skip
from replaysvc.interface import Replay, Table
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
from replaysvc.types import Batch, EpisodeRecord, Params, TableStats, UpdateCounts
from replaysvc.writer import Writer

__all__ = [
    "AlreadyExistsError",
    "AtEnd",
    "Batch",
    "CapacityError",
    "ChunkCorruptError",
    "Client",
    "ClientConfig",
    "ConfigurationError",
    "DenseReward",
    "EpisodeFilter",
    "EpisodeRecord",
    "EpisodeUniform",
    "Episodes",
    "FieldSpec",
    "Fifo",
    "Goal",
    "Her",
    "InvalidRequestError",
    "Lifo",
    "LimitedError",
    "Limiter",
    "LostActor",
    "NotFoundError",
    "NotReadyError",
    "Params",
    "PermissionDeniedError",
    "Precision",
    "Prioritized",
    "RaggedArray",
    "Recency",
    "RemoteTable",
    "Remover",
    "Replay",
    "ReplayError",
    "SequenceError",
    "Sequences",
    "Signature",
    "SparseReward",
    "SpecMismatchError",
    "Stack",
    "StackPadding",
    "StorageError",
    "Table",
    "TableConfig",
    "TableStats",
    "TensorStream",
    "Terminated",
    "Tls",
    "Transitions",
    "UnauthenticatedError",
    "UnavailableError",
    "Uniform",
    "UpdateCounts",
    "WaitTimeoutError",
    "WeightNorm",
    "WhenFull",
    "Writer",
    "WriterFencedError",
    "connect",
    "tensor_batches",
]  # fmt: skip
