"""A table of a service, with the methods of an embedded one."""

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from replay_client.batches import Batches
from replay_client.priorities import send_priorities
from replay_client.windows import request_of
from replaysvc.batch import episode_columns
from replaysvc.checks import check_actor, check_epoch_number, check_flag, check_ids, check_number, check_text, shown
from replaysvc.codec import ChunkDecoder
from replaysvc.config import EPISODES_PAGE_BYTES, MAX_UPDATES, TableConfig
from replaysvc.errors import NotFoundError, SpecMismatchError
from replaysvc.options import Limiter, check_prioritized
from replaysvc.requests import EpisodeFilter, Episodes, Transitions, Window
from replaysvc.selectors import check_priorities
from replaysvc.spec import Signature
from replaysvc.types import Array, Batch, BatchStream, EpisodeRecord, TableStats, UpdateCounts
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.writer import DEFAULT_LIMIT_TIMEOUT_S, Writer

if TYPE_CHECKING:
    from replay_client.client import Client

_MAX_BATCH = 1 << 20
_MOST_KINDS = 256
_LONG_TIMEOUT_S = 3600.0  # of what may remove, or write anew, much of what is stored
_FILTERED_EPISODES = 1000  # in a page of a service that does not filter itself


class RemoteTable:
    """A table behind a client. Thread-safe and picklable.

    Once the table was deleted, every call raises NotFoundError, also where another of its name was made since. A store that
    was restored from an older snapshot has the same tables as before, with fewer steps: what was drawn before may have come
    after it, and positions of it be those of other steps by now.
    """

    def __init__(self, client: "Client", name: str, signature: Signature, config: TableConfig, uuid: str) -> None:
        self._client, self._uuid = client, uuid
        self._which: dict[str, Any] = {"table": name, "table_uuid": uuid}  # in every request
        self.name, self.signature, self.config = name, signature, config
        self._specs = {spec.name: spec for spec in signature.columns if spec.cast}
        self._specs |= {f"next_{name}": spec for name, spec in self._specs.items()}
        self._kinds: dict[Any, Batches] = {}  # what was asked for

    def __reduce__(self) -> tuple[Any, ...]:
        return (RemoteTable, (self._client, self.name, self.signature, self.config, self._uuid))

    def writer(
        self, actor: str = "", *, epoch: int | None = None, limit_timeout_s: float = DEFAULT_LIMIT_TIMEOUT_S
    ) -> Writer:
        """Returns a writer of episodes; `actor` names who writes, up to 128 characters. Writers of one actor share a sender.

        epoch: a number that rises with each life of the actor (0 to 2^62; a restart count, or seconds since 1970): earlier
          writers of the actor, should they still live, are refused from now on, and their open episodes ended as truncated.
          None: others may write as the same actor. The service is told at once, in the background, or as soon as it answers;
          `flush` and `close` wait for that. A newer writer that was there already is told by a later call.
        limit_timeout_s: longest that an `append` of it waits for the table's limiter.
        """
        actor, epoch = check_actor(actor), check_epoch_number(epoch)
        sender = self._client.sender(self.name, self._uuid, actor, epoch, self.config.lease_s)
        return Writer(self.signature, self.config, sender, clock=time.monotonic, limit_timeout_s=limit_timeout_s)

    def sample(
        self, batch_size: int, what: Window = Transitions(), *, sampler: str = "uniform", seed: int | None = None,
        beta: float | None = None, timeout_s: float = 0.0,
    ) -> Batch:  # fmt: skip
        """Returns a batch of `batch_size` items: transitions, sequences or episodes, as `what` says.

        The same seed, table state and request give the same batch. `timeout_s` waits for a table that is not ready, or whose
        limiter lets nobody sample now. What a queue handed out in an answer that was lost on its way is lost. A batch of
        transitions or sequences may have 64 MiB, one of episodes a quarter of the server's `answer_bytes`: 512 MiB, unless that
        is set otherwise, and 1 GiB at most.

        sampler: the name of one in the table's configuration. seed: 0 to 2^64 - 1; none for a queue.
        beta: exponent of the importance weights, 0 to 4; None: that of the sampler.

        Raises:
          NotReadyError: nothing can be drawn; says why, and how many of how many.
        """
        if seed is not None:
            seed = check_number("seed", seed, 0, (1 << 64) - 1)
        batches = self._batches(batch_size, what, sampler, beta, timeout_s)
        return batches.sample(time.monotonic() + timeout_s, seed=seed)

    def stream(
        self, batch_size: int, what: Window = Transitions(), *, sampler: str = "uniform", beta: float | None = None,
        prefetch: int = 4, timeout_s: float = 60.0,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yields batches without end, each as `sample` gives it, with `prefetch` of them under way; fewer large ones, and small
        ones several at a time.

        Nothing is under way beyond the batch that is asked for where it would count: from a queue, in a table whose limiter
        holds a ratio, and of whole episodes.
        """
        prefetch = check_number("prefetch", prefetch, 1, 64)
        batches = self._batches(batch_size, what, sampler, beta, timeout_s)
        if isinstance(what, Episodes) or self.config.counts_each_batch(sampler):
            return BatchStream(batches.sample(time.monotonic() + timeout_s) for _ in itertools.count())
        return BatchStream(batches.stream(prefetch, timeout_s))

    def _batches(self, batch_size: int, what: Window, sampler: str, beta: float | None, timeout_s: float) -> Batches:
        batch_size = check_number("batch_size", batch_size, 1, _MAX_BATCH)
        check_number("timeout_s", timeout_s, 0, 86_400, whole=False)
        if beta is not None:
            beta = check_number("beta", beta, 0, 4, whole=False)
        kind = batch_size, what, check_text("sampler", sampler), beta
        with contextlib.suppress(TypeError):  # of a reward function without a hash
            if (known := self._kinds.get(kind)) is not None:
                return known
        connection = self._client.connection
        compressed = connection.config.compressed
        request = request_of(what, **self._which, batch_size=batch_size, sampler=sampler, beta=beta, compressed=compressed)
        made = Batches(connection, self.signature, self._specs, request, what)
        with contextlib.suppress(TypeError):
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            self._kinds[kind] = made
        return made

    @overload
    def update_priorities(
        self, positions: Any, priorities: Any, *, sampler: str = ..., wait: Literal[True] = ...
    ) -> UpdateCounts: ...

    @overload
    def update_priorities(self, positions: Any, priorities: Any, *, sampler: str = ..., wait: bool) -> UpdateCounts | None: ...

    def update_priorities(
        self, positions: Any, priorities: Any, *, sampler: str = "prioritized", wait: bool = True
    ) -> UpdateCounts | None:
        """Gives the items named by `positions` (of batches) new priorities, 0 to 1e30; 0 is never drawn. All or none.

        A repeated position has its last priority. Returns how many positions had one set, and how many of them were ignored:
        those that are not in the table (any more), or come again later. The update is sent again if its answer is lost, which
        changes nothing, unless another has set the same ones meanwhile.

        wait: False returns None as soon as the update is checked and copied. It is sent in the background, in order, within
          some milliseconds and with others that came meanwhile; batches drawn until then know nothing of it. It waits after
          all while 65,536 items are not answered for. An update with `wait=True`, be it of nothing, first waits for all earlier
          ones of this table in this process; so do `close` of the client and the interpreter's exit, for a while. One that
          fails for good is logged and left out, later ones are sent all the same, and the next `update_priorities` of this
          table in this process, or `close` if there is none, raises its error, once, and does nothing else.

        Raises:
          InvalidRequestError: lengths that differ, or a priority out of range. ConfigurationError: `sampler` has none. Both
            at once, `wait` or not. Any error of an earlier update that did not wait.
        """
        where = _numbers("positions", positions, "iu", "<i8")
        values = _numbers("priorities", priorities, "fiu", "<f8")
        if len(where) != len(values):
            raise SpecMismatchError("priorities", f"one for each of {len(where)} positions", str(len(values)))
        if len(where) > MAX_UPDATES:
            raise SpecMismatchError("positions", f"at most {MAX_UPDATES}", str(len(where)))
        check_text("sampler", sampler)
        sender = self._client.priorities(self.name, self._uuid)
        if check_flag("wait", wait):
            sender.drain()
            return send_priorities(self._client.connection, self.name, self._uuid, sampler, where, values)
        check_prioritized(self.config.samplers, sampler)  # what else the service would say
        sender.put(sampler, where, check_priorities(values, len(where)))
        return None

    def set_limiter(self, limiter: Limiter) -> None:
        """Puts `limiter` in the place of the table's, durably; who waits is asked anew.

        Raises:
          InvalidRequestError: it asks for more steps than the table may keep.
        """
        if not isinstance(limiter, Limiter):
            raise SpecMismatchError("limiter", "a Limiter", shown(limiter))
        config = self.config.limited(limiter)
        self._call("SetLimiter", pb.SetLimiterRequest(**self._which, limiter_json=json.dumps(limiter.to_json())))
        self.config = config

    def set_capacity(
        self, *, capacity_steps: int | None = None, capacity_bytes: int | None = None, capacity_episodes: int | None = None
    ) -> None:
        """Puts these bounds in the place of the table's, durably, and removes what is over them at once; None: no bound.

        Raises:
          InvalidRequestError: a bound out of range, or of fewer steps than the limiter asks for; nothing is changed.
        """
        config = replace(
            self.config, capacity_steps=capacity_steps, capacity_bytes=capacity_bytes, capacity_episodes=capacity_episodes
        )
        request = pb.SetCapacityRequest(
            **self._which, capacity_steps=config.capacity_steps, capacity_bytes=config.capacity_bytes,
            capacity_episodes=config.capacity_episodes,
        )  # fmt: skip
        connection = self._client.connection
        connection.retrying(lambda: connection.call("SetCapacity", request, timeout_s=_LONG_TIMEOUT_S))
        self.config = config

    def compact(self) -> int:
        """Gives back the disk space of removed and deleted steps as far as it can; returns the bytes that the disk got back.

        If an answer was lost, the number counts only what the last attempt gave back.
        """
        connection, request = self._client.connection, pb.CompactRequest(**self._which)
        freed: int = connection.retrying(lambda: connection.call("Compact", request, timeout_s=_LONG_TIMEOUT_S)).freed_bytes
        return freed

    def delete_episodes(self, episode_ids: Any, *, open_episodes: bool = False) -> int:
        """Deletes episodes, durably, and returns how many of them were there. All or none.

        open_episodes: also those that have no end (yet): of writers that are gone. One that goes on is refused from then on.

        If an answer was lost, the episodes are deleted all the same, and the number counts only those that the last attempt
        found.

        Raises:
          InvalidRequestError: an episode is open, and `open_episodes` is not set; nothing is deleted.
        """
        numbers = check_ids("episode_ids", episode_ids, MAX_UPDATES)
        open_episodes = check_flag("open_episodes", open_episodes)
        deleted: int = self._call(
            "DeleteEpisodes", pb.DeleteEpisodesRequest(**self._which, episode_ids=numbers, open_episodes=open_episodes)
        ).deleted
        return deleted

    def stats(self) -> TableStats:
        """Returns the table's counters."""
        response = self._call("TableStats", pb.TableStatsRequest(**self._which))
        known = TableStats.__dataclass_fields__
        return TableStats(**{name: value for name, value in json.loads(response.stats_json).items() if name in known})

    def episodes(
        self, *, limit: int = 100, before_id: int | None = None, actor: str | None = None, closed_only: bool = False,
        where: EpisodeFilter | None = None,
    ) -> list[EpisodeRecord]:  # fmt: skip
        """Returns records of stored episodes, the newest first: `limit` of those below `before_id` that meet all else."""
        limit = check_number("limit", limit, 1, 100_000)
        if before_id is not None:
            before_id = check_number("before_id", before_id, 0, (1 << 63) - 1)
        actor = None if actor is None else check_actor(actor)
        closed_only = check_flag("closed_only", closed_only)
        if where is not None and not isinstance(where, EpisodeFilter):
            raise SpecMismatchError("where", "an EpisodeFilter or None", shown(where))
        asked = {name: value for name, value in asdict(where or EpisodeFilter()).items() if value is not None}
        records: list[EpisodeRecord] = []
        least = 1
        while True:
            wanted = max(least, limit - len(records))
            request = pb.ListEpisodesRequest(
                **self._which, limit=wanted, before_id=before_id, actor=actor, closed_only=closed_only, **asked
            )
            page = self._call("ListEpisodes", request)
            found = [_record(message) for message in page.episodes]
            meeting = [record for record in found if where is None or _meets(record, where)]
            records += meeting
            if len(records) >= limit or (len(found) < wanted and page.ByteSize() < EPISODES_PAGE_BYTES):
                return records[:limit]
            before_id = found[-1].episode_id
            if len(meeting) < len(found):
                least = _FILTERED_EPISODES  # an older service, which passes `where` over

    def read_episode(self, episode_id: int, start: int | None = None, stop: int | None = None) -> dict[str, Any]:
        """Returns steps [start, stop) of an episode by column name; observations have one row more.

        None: from the first step that capacity has not removed, `first_step` of the episode's record; to the last one.

        Raises:
          NotFoundError: no such episode. InvalidRequestError: a range outside the stored steps.
          ChunkCorruptError: the bytes are damaged, on the disk (then it names the steps that can be read) or on their way.
        """
        episode_id = check_number("episode_id", episode_id, 0, (1 << 63) - 1)
        if start is not None:
            start = check_number("start", start, 0, 1 << 62)
        if stop is not None:
            stop = check_number("stop", stop, 0, 1 << 62)
        request = pb.ReadEpisodeRequest(**self._which, episode_id=episode_id, start=start, stop=stop)
        connection = self._client.connection
        pieces = connection.retrying(lambda: connection.call_stream("ReadEpisode", request))
        decoded = ChunkDecoder(self.signature).decode([chunk for piece in pieces for chunk in piece.chunks])
        if not decoded:
            raise NotFoundError(f"episode {episode_id} is not in table {self.name}")
        info = decoded[-1].header.info
        start = pieces[0].start if start is None else start
        stop = info.first_step + info.n_steps if stop is None else stop
        return episode_columns(self.signature, decoded, start, stop, cut=pieces[-1].truncated)

    def _call(self, method: str, request: Any) -> Any:
        connection = self._client.connection
        return connection.retrying(lambda: connection.call(method, request))


def table_of(client: "Client", info: pb.TableInfo) -> RemoteTable:
    """Returns the table that a message describes."""
    signature = Signature.from_json(json.loads(info.signature_json))
    return RemoteTable(client, info.name, signature, TableConfig.from_json(json.loads(info.config_json)), info.uuid)


def _numbers(field: str, values: Any, kinds: str, dtype: str) -> Array:
    """Returns numbers as they travel. Raises SpecMismatchError."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        array = np.empty((), object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        raise SpecMismatchError(field, f"{np.dtype(dtype).name}[n]", f"{array.dtype}{list(array.shape)}")
    return array.astype(dtype)


def _meets(record: EpisodeRecord, where: EpisodeFilter) -> bool:
    bounds = (
        (record.length, where.min_length, where.max_length), (record.return_, where.min_return, where.max_return),
        (record.policy_version, where.min_policy_version, where.max_policy_version),
    )  # fmt: skip
    within = all((low is None or low <= value) and (high is None or value <= high) for value, low, high in bounds)
    return within and where.end in (None, record.end)


def _record(message: pb.Episode) -> EpisodeRecord:
    return EpisodeRecord(
        episode_id=message.episode_id, actor=message.actor, length=message.length, first_step=message.first_step,
        return_=getattr(message, "return"), terminated=message.terminated, truncated=message.truncated, closed=message.closed,
        policy_version=message.policy_version, started_at_s=message.started_at_s,
        metadata=json.loads(message.metadata_json or "{}"), end_reason=message.end_reason,
    )  # fmt: skip
