from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StackPadding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STACK_PADDING_UNSPECIFIED: _ClassVar[StackPadding]
    STACK_PADDING_REPEAT: _ClassVar[StackPadding]
    STACK_PADDING_ZERO: _ClassVar[StackPadding]

class AtEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AT_END_UNSPECIFIED: _ClassVar[AtEnd]
    AT_END_PAD: _ClassVar[AtEnd]
    AT_END_SHIFT: _ClassVar[AtEnd]
    AT_END_DROP: _ClassVar[AtEnd]

class Goal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GOAL_UNSPECIFIED: _ClassVar[Goal]
    GOAL_FUTURE: _ClassVar[Goal]
    GOAL_FINAL: _ClassVar[Goal]
    GOAL_EPISODE: _ClassVar[Goal]

class Terminated(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TERMINATED_UNSPECIFIED: _ClassVar[Terminated]
    TERMINATED_SUCCESS: _ClassVar[Terminated]
    TERMINATED_STORED: _ClassVar[Terminated]
STACK_PADDING_UNSPECIFIED: StackPadding
STACK_PADDING_REPEAT: StackPadding
STACK_PADDING_ZERO: StackPadding
AT_END_UNSPECIFIED: AtEnd
AT_END_PAD: AtEnd
AT_END_SHIFT: AtEnd
AT_END_DROP: AtEnd
GOAL_UNSPECIFIED: Goal
GOAL_FUTURE: Goal
GOAL_FINAL: Goal
GOAL_EPISODE: Goal
TERMINATED_UNSPECIFIED: Terminated
TERMINATED_SUCCESS: Terminated
TERMINATED_STORED: Terminated

class CreateTableRequest(_message.Message):
    __slots__ = ("name", "signature_json", "config_json", "exist_ok")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_JSON_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    EXIST_OK_FIELD_NUMBER: _ClassVar[int]
    name: str
    signature_json: str
    config_json: str
    exist_ok: bool
    def __init__(self, name: _Optional[str] = ..., signature_json: _Optional[str] = ..., config_json: _Optional[str] = ..., exist_ok: bool = ...) -> None: ...

class TableInfo(_message.Message):
    __slots__ = ("name", "signature_json", "config_json", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_JSON_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    signature_json: str
    config_json: str
    uuid: str
    def __init__(self, name: _Optional[str] = ..., signature_json: _Optional[str] = ..., config_json: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...

class CreateTableResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: TableInfo
    def __init__(self, table: _Optional[_Union[TableInfo, _Mapping]] = ...) -> None: ...

class GetTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetTableResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: TableInfo
    def __init__(self, table: _Optional[_Union[TableInfo, _Mapping]] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableInfo]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableInfo, _Mapping]]] = ...) -> None: ...

class DeleteTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("table", "session_id", "actor", "epoch", "open_episodes", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPISODES_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    session_id: bytes
    actor: str
    epoch: int
    open_episodes: _containers.RepeatedScalarFieldContainer[int]
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., session_id: _Optional[bytes] = ..., actor: _Optional[str] = ..., epoch: _Optional[int] = ..., open_episodes: _Optional[_Iterable[int]] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("last_sequence",)
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    last_sequence: int
    def __init__(self, last_sequence: _Optional[int] = ...) -> None: ...

class AppendChunk(_message.Message):
    __slots__ = ("sequence", "chunk")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    chunk: bytes
    def __init__(self, sequence: _Optional[int] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("table", "session_id", "actor", "chunks", "urgent", "epoch", "open_episodes", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPISODES_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    session_id: bytes
    actor: str
    chunks: _containers.RepeatedCompositeFieldContainer[AppendChunk]
    urgent: bool
    epoch: int
    open_episodes: _containers.RepeatedScalarFieldContainer[int]
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., session_id: _Optional[bytes] = ..., actor: _Optional[str] = ..., chunks: _Optional[_Iterable[_Union[AppendChunk, _Mapping]]] = ..., urgent: bool = ..., epoch: _Optional[int] = ..., open_episodes: _Optional[_Iterable[int]] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("last_sequence",)
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    last_sequence: int
    def __init__(self, last_sequence: _Optional[int] = ...) -> None: ...

class Stack(_message.Message):
    __slots__ = ("frames", "padding", "columns")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    frames: int
    padding: StackPadding
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, frames: _Optional[int] = ..., padding: _Optional[_Union[StackPadding, str]] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class SparseReward(_message.Message):
    __slots__ = ("threshold", "success", "failure")
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    threshold: float
    success: float
    failure: float
    def __init__(self, threshold: _Optional[float] = ..., success: _Optional[float] = ..., failure: _Optional[float] = ...) -> None: ...

class DenseReward(_message.Message):
    __slots__ = ("scale", "threshold")
    SCALE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    scale: float
    threshold: float
    def __init__(self, scale: _Optional[float] = ..., threshold: _Optional[float] = ...) -> None: ...

class Her(_message.Message):
    __slots__ = ("goal", "ratio", "sparse", "dense", "terminated", "achieved", "desired", "open_episodes")
    GOAL_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    ACHIEVED_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPISODES_FIELD_NUMBER: _ClassVar[int]
    goal: Goal
    ratio: float
    sparse: SparseReward
    dense: DenseReward
    terminated: Terminated
    achieved: str
    desired: str
    open_episodes: bool
    def __init__(self, goal: _Optional[_Union[Goal, str]] = ..., ratio: _Optional[float] = ..., sparse: _Optional[_Union[SparseReward, _Mapping]] = ..., dense: _Optional[_Union[DenseReward, _Mapping]] = ..., terminated: _Optional[_Union[Terminated, str]] = ..., achieved: _Optional[str] = ..., desired: _Optional[str] = ..., open_episodes: bool = ...) -> None: ...

class Transitions(_message.Message):
    __slots__ = ("n_step", "gamma", "stack", "her")
    N_STEP_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    HER_FIELD_NUMBER: _ClassVar[int]
    n_step: int
    gamma: float
    stack: Stack
    her: Her
    def __init__(self, n_step: _Optional[int] = ..., gamma: _Optional[float] = ..., stack: _Optional[_Union[Stack, _Mapping]] = ..., her: _Optional[_Union[Her, _Mapping]] = ...) -> None: ...

class Sequences(_message.Message):
    __slots__ = ("length", "burn_in", "period", "at_end", "n_step", "gamma", "stack", "state", "her")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    BURN_IN_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    N_STEP_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HER_FIELD_NUMBER: _ClassVar[int]
    length: int
    burn_in: int
    period: int
    at_end: AtEnd
    n_step: int
    gamma: float
    stack: Stack
    state: _containers.RepeatedScalarFieldContainer[str]
    her: Her
    def __init__(self, length: _Optional[int] = ..., burn_in: _Optional[int] = ..., period: _Optional[int] = ..., at_end: _Optional[_Union[AtEnd, str]] = ..., n_step: _Optional[int] = ..., gamma: _Optional[float] = ..., stack: _Optional[_Union[Stack, _Mapping]] = ..., state: _Optional[_Iterable[str]] = ..., her: _Optional[_Union[Her, _Mapping]] = ...) -> None: ...

class Episodes(_message.Message):
    __slots__ = ("max_steps", "gamma", "open_episodes", "stack", "her")
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPISODES_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    HER_FIELD_NUMBER: _ClassVar[int]
    max_steps: int
    gamma: float
    open_episodes: bool
    stack: Stack
    her: Her
    def __init__(self, max_steps: _Optional[int] = ..., gamma: _Optional[float] = ..., open_episodes: bool = ..., stack: _Optional[_Union[Stack, _Mapping]] = ..., her: _Optional[_Union[Her, _Mapping]] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("table", "batch_size", "sampler", "seed", "timeout_s", "transitions", "sequences", "episodes", "beta", "batches", "region", "compressed", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    batch_size: int
    sampler: str
    seed: int
    timeout_s: float
    transitions: Transitions
    sequences: Sequences
    episodes: Episodes
    beta: float
    batches: int
    region: bytes
    compressed: bool
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., batch_size: _Optional[int] = ..., sampler: _Optional[str] = ..., seed: _Optional[int] = ..., timeout_s: _Optional[float] = ..., transitions: _Optional[_Union[Transitions, _Mapping]] = ..., sequences: _Optional[_Union[Sequences, _Mapping]] = ..., episodes: _Optional[_Union[Episodes, _Mapping]] = ..., beta: _Optional[float] = ..., batches: _Optional[int] = ..., region: _Optional[bytes] = ..., compressed: bool = ..., table_uuid: _Optional[str] = ...) -> None: ...

class ColumnHeader(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset", "offset_count", "offset_rows_at", "offset_values_at", "shared", "compressed_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_ROWS_AT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_VALUES_AT_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    offset_count: int
    offset_rows_at: int
    offset_values_at: int
    shared: bool
    compressed_bytes: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., offset_count: _Optional[int] = ..., offset_rows_at: _Optional[int] = ..., offset_values_at: _Optional[int] = ..., shared: bool = ..., compressed_bytes: _Optional[int] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("columns", "room")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[ColumnHeader]
    room: int
    def __init__(self, columns: _Optional[_Iterable[_Union[ColumnHeader, _Mapping]]] = ..., room: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("header", "values", "offset_rows", "offset_values")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_ROWS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_VALUES_FIELD_NUMBER: _ClassVar[int]
    header: ColumnHeader
    values: bytes
    offset_rows: bytes
    offset_values: bytes
    def __init__(self, header: _Optional[_Union[ColumnHeader, _Mapping]] = ..., values: _Optional[bytes] = ..., offset_rows: _Optional[bytes] = ..., offset_values: _Optional[bytes] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class UpdatePrioritiesRequest(_message.Message):
    __slots__ = ("table", "sampler", "positions", "priorities", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    sampler: str
    positions: bytes
    priorities: bytes
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., sampler: _Optional[str] = ..., positions: _Optional[bytes] = ..., priorities: _Optional[bytes] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class UpdatePrioritiesResponse(_message.Message):
    __slots__ = ("applied", "ignored")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    applied: int
    ignored: int
    def __init__(self, applied: _Optional[int] = ..., ignored: _Optional[int] = ...) -> None: ...

class SetLimiterRequest(_message.Message):
    __slots__ = ("table", "limiter_json", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LIMITER_JSON_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    limiter_json: str
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., limiter_json: _Optional[str] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class SetLimiterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetCapacityRequest(_message.Message):
    __slots__ = ("table", "capacity_steps", "capacity_bytes", "capacity_episodes", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_STEPS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_EPISODES_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    capacity_steps: int
    capacity_bytes: int
    capacity_episodes: int
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., capacity_steps: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., capacity_episodes: _Optional[int] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class SetCapacityResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteEpisodesRequest(_message.Message):
    __slots__ = ("table", "episode_ids", "open_episodes", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPISODES_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    episode_ids: _containers.RepeatedScalarFieldContainer[int]
    open_episodes: bool
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., episode_ids: _Optional[_Iterable[int]] = ..., open_episodes: bool = ..., table_uuid: _Optional[str] = ...) -> None: ...

class DeleteEpisodesResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class TableStatsRequest(_message.Message):
    __slots__ = ("table", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class TableStatsResponse(_message.Message):
    __slots__ = ("stats_json",)
    STATS_JSON_FIELD_NUMBER: _ClassVar[int]
    stats_json: str
    def __init__(self, stats_json: _Optional[str] = ...) -> None: ...

class ActivityRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class ActivityResponse(_message.Message):
    __slots__ = ("activity_json",)
    ACTIVITY_JSON_FIELD_NUMBER: _ClassVar[int]
    activity_json: str
    def __init__(self, activity_json: _Optional[str] = ...) -> None: ...

class ListEpisodesRequest(_message.Message):
    __slots__ = ("table", "limit", "before_id", "actor", "closed_only", "end", "min_length", "max_length", "min_return", "max_return", "min_policy_version", "max_policy_version", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    CLOSED_ONLY_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MIN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MIN_RETURN_FIELD_NUMBER: _ClassVar[int]
    MAX_RETURN_FIELD_NUMBER: _ClassVar[int]
    MIN_POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    limit: int
    before_id: int
    actor: str
    closed_only: bool
    end: str
    min_length: int
    max_length: int
    min_return: float
    max_return: float
    min_policy_version: int
    max_policy_version: int
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., limit: _Optional[int] = ..., before_id: _Optional[int] = ..., actor: _Optional[str] = ..., closed_only: bool = ..., end: _Optional[str] = ..., min_length: _Optional[int] = ..., max_length: _Optional[int] = ..., min_return: _Optional[float] = ..., max_return: _Optional[float] = ..., min_policy_version: _Optional[int] = ..., max_policy_version: _Optional[int] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("episode_id", "actor", "length", "first_step", "terminated", "truncated", "closed", "policy_version", "started_at_s", "metadata_json", "end_reason")
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    RETURN_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    episode_id: int
    actor: str
    length: int
    first_step: int
    terminated: bool
    truncated: bool
    closed: bool
    policy_version: int
    started_at_s: float
    metadata_json: str
    end_reason: str
    def __init__(self, episode_id: _Optional[int] = ..., actor: _Optional[str] = ..., length: _Optional[int] = ..., first_step: _Optional[int] = ..., terminated: bool = ..., truncated: bool = ..., closed: bool = ..., policy_version: _Optional[int] = ..., started_at_s: _Optional[float] = ..., metadata_json: _Optional[str] = ..., end_reason: _Optional[str] = ..., **kwargs) -> None: ...

class ListEpisodesResponse(_message.Message):
    __slots__ = ("episodes",)
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    def __init__(self, episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ...) -> None: ...

class ReadEpisodeRequest(_message.Message):
    __slots__ = ("table", "episode_id", "start", "stop", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    episode_id: int
    start: int
    stop: int
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., episode_id: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class ReadEpisodeResponse(_message.Message):
    __slots__ = ("chunks", "truncated", "start")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedScalarFieldContainer[bytes]
    truncated: bool
    start: int
    def __init__(self, chunks: _Optional[_Iterable[bytes]] = ..., truncated: bool = ..., start: _Optional[int] = ...) -> None: ...

class PutParamsRequest(_message.Message):
    __slots__ = ("name", "version", "piece", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    piece: bytes
    size: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., piece: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class PutParamsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetParamsRequest(_message.Message):
    __slots__ = ("name", "newer_than")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEWER_THAN_FIELD_NUMBER: _ClassVar[int]
    name: str
    newer_than: int
    def __init__(self, name: _Optional[str] = ..., newer_than: _Optional[int] = ...) -> None: ...

class GetParamsResponse(_message.Message):
    __slots__ = ("version", "piece")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    version: int
    piece: bytes
    def __init__(self, version: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class OpenSharedRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenSharedResponse(_message.Message):
    __slots__ = ("socket", "nonce", "proof")
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    socket: bytes
    nonce: bytes
    proof: bytes
    def __init__(self, socket: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompactRequest(_message.Message):
    __slots__ = ("table", "table_uuid")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_uuid: str
    def __init__(self, table: _Optional[str] = ..., table_uuid: _Optional[str] = ...) -> None: ...

class CompactResponse(_message.Message):
    __slots__ = ("freed_bytes",)
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    freed_bytes: int
    def __init__(self, freed_bytes: _Optional[int] = ...) -> None: ...
