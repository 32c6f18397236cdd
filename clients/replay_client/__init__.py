"""The thin client of replaysvc: numpy, zstandard, xxhash, grpcio and protobuf are all it needs.

replay = replay_client.connect("localhost:7777")
table = replay.table("cartpole")
batch = table.sample(256)
"""

from replay_client.client import Client, connect
from replay_client.connection import Tls
from replay_client.table import RemoteTable
from replaysvc.config import ClientConfig, TableConfig
from replaysvc.errors import (
    AlreadyExistsError,
    CapacityError,
    ChunkCorruptError,
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    ReplayError,
    SpecMismatchError,
    StorageError,
    UnavailableError,
    WaitTimeoutError,
)  # fmt: skip
from replaysvc.interface import Replay, Table
from replaysvc.spec import FieldSpec, Precision, Signature
from replaysvc.types import Batch, EpisodeRecord, Params, TableStats, Transitions
from replaysvc.writer import Writer

__all__ = [
    "AlreadyExistsError", "Batch", "CapacityError", "ChunkCorruptError", "Client", "ClientConfig", "EpisodeRecord",
    "FieldSpec", "InvalidRequestError", "NotFoundError", "NotReadyError", "Params", "Precision", "RemoteTable",
    "Replay", "ReplayError", "Signature", "SpecMismatchError", "StorageError", "Table", "TableConfig", "TableStats",
    "Tls", "Transitions", "UnavailableError", "WaitTimeoutError", "Writer", "connect",
]  # fmt: skip
