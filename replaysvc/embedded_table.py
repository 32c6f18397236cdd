"""A table of an embedded store, as its user has it."""

import time
from collections.abc import Generator, Iterator
from typing import Any, Literal, Protocol, overload

from replaysvc.batch import assemble, episode_columns, split
from replaysvc.checks import check_actor, check_epoch_number, check_flag, check_ids, check_number, shown
from replaysvc.codec import ChunkDecoder
from replaysvc.config import MAX_UPDATES, TableConfig
from replaysvc.embedded_sink import EmbeddedSink
from replaysvc.errors import InvalidRequestError, NotReadyError, SpecMismatchError
from replaysvc.extent import extent_of
from replaysvc.jobs import Jobs
from replaysvc.options import Limiter
from replaysvc.requests import EpisodeFilter, Transitions, Window
from replaysvc.table import Table
from replaysvc.types import Batch, BatchStream, EpisodeRecord, TableStats, UpdateCounts
from replaysvc.writer import DEFAULT_LIMIT_TIMEOUT_S, Writer

NO_PICKLE = "an embedded store and its tables cannot be pickled: serve the store, and use replay_client.connect in each process"


class Owner(Protocol):
    """The store of a table."""

    jobs: Jobs

    def make_sink(self, engine: Table, actor: str, epoch: int | None) -> EmbeddedSink:
        """Returns a sink that appends to `engine` as a new session."""

    def check_process(self) -> None:
        """Raises UnavailableError in a process that was forked off the one that opened the store."""


class EmbeddedTable:
    """A table of a store in this process."""

    def __init__(self, owner: Owner, engine: Table) -> None:
        self._owner, self._table = owner, engine
        self.name, self.signature, self.uuid = engine.name, engine.signature, engine.uuid

    @property
    def _engine(self) -> Table:
        self._owner.check_process()  # before a lock that another thread may have held at the fork
        return self._table

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(NO_PICKLE)

    @property
    def config(self) -> TableConfig:
        """Returns the table's configuration, with the limiter and the capacity that hold now."""
        return self._engine.config

    def writer(
        self, actor: str = "", *, epoch: int | None = None, limit_timeout_s: float = DEFAULT_LIMIT_TIMEOUT_S
    ) -> Writer:
        """Returns a writer of episodes; `actor` names who writes, up to 128 characters.

        epoch: a number that rises with each life of the actor (0 to 2^62; a restart count, or seconds since 1970): earlier
          writers of the actor, should they still live, are refused from now on, and their open episodes ended as truncated.
          None: others may write as the same actor.
        limit_timeout_s: longest that an `append` of it waits for the table's limiter.

        Raises:
          WriterFencedError: a writer of a larger epoch was there already.
        """
        actor, epoch = check_actor(actor), check_epoch_number(epoch)
        sink = self._owner.make_sink(self._engine, actor, epoch)
        return Writer(self.signature, self.config, sink, clock=time.monotonic, limit_timeout_s=limit_timeout_s)

    def sample(
        self, batch_size: int, what: Window = Transitions(), *, sampler: str = "uniform", seed: int | None = None,
        beta: float | None = None, timeout_s: float = 0.0,
    ) -> Batch:  # fmt: skip
        """Returns a batch of `batch_size` items: transitions, sequences or episodes, as `what` says.

        The same seed, table state and request give the same batch. `timeout_s` waits for a table that is not ready, or whose
        limiter lets nobody sample now.

        sampler: the name of one in the table's configuration. seed: 0 to 2^64 - 1; none for a queue.
        beta: exponent of the importance weights, 0 to 4; None: that of the sampler.

        Raises:
          NotReadyError: nothing can be drawn; says why, and how many of how many.
        """
        columns = self._engine.draw(batch_size, what, sampler=sampler, seed=seed, beta=beta, timeout_s=timeout_s)
        return assemble(self.signature, what, {column.name: column for column in columns})

    def stream(
        self, batch_size: int, what: Window = Transitions(), *, sampler: str = "uniform", beta: float | None = None,
        prefetch: int = 4, timeout_s: float = 60.0,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yields batches without end, each as `sample` gives it. Up to `prefetch` small ones are drawn at once, ahead of their
        use, but none where that would count: from a queue, in a table whose limiter holds a ratio, and of whole episodes."""
        prefetch = check_number("prefetch", prefetch, 1, 64)
        return BatchStream(self._stream(batch_size, what, sampler, beta, prefetch, timeout_s))

    def _stream(
        self, batch_size: int, what: Window, sampler: str, beta: float | None, prefetch: int, timeout_s: float
    ) -> Generator[Batch, None, None]:
        known = False
        while True:
            count = 1
            if known and not self.config.counts_each_batch(sampler):  # which `set_limiter` may change
                count = extent_of(self.signature, what, batch_size).together(prefetch)
            if count > 1:
                try:
                    columns = self._engine.draw(
                        batch_size, what, sampler=sampler, seed=None, beta=beta, timeout_s=0.0, batches=count
                    )
                except (NotReadyError, InvalidRequestError):  # of so many; of one, it may be another matter
                    pass
                else:
                    parts = split(assemble(self.signature, what, {column.name: column for column in columns}), count)
                    del columns
                    parts.reverse()
                    while parts:  # each is forgotten here, for its memory may be that of the next
                        yield parts.pop()
                    continue
            yield self.sample(batch_size, what, sampler=sampler, beta=beta, timeout_s=timeout_s)
            known = True  # and checked, the arguments

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
        those that are not in the table (any more), or come again later. `wait=False` returns None: it means something where
        there is a service to wait for, and here all is done on return anyway.

        Raises:
          InvalidRequestError: lengths that differ, or a priority out of range. ConfigurationError: `sampler` has none.
        """
        wait = check_flag("wait", wait)
        counts = self._engine.update_priorities(sampler, positions, priorities)
        return counts if wait else None

    def set_limiter(self, limiter: Limiter) -> None:
        """Puts `limiter` in the place of the table's, durably; who waits is asked anew.

        Raises:
          InvalidRequestError: it asks for more steps than the table may keep, or lets no chunk in.
        """
        if not isinstance(limiter, Limiter):
            raise SpecMismatchError("limiter", "a Limiter", shown(limiter))
        self._engine.set_limiter(limiter)

    def set_capacity(
        self, *, capacity_steps: int | None = None, capacity_bytes: int | None = None, capacity_episodes: int | None = None
    ) -> None:
        """Puts these bounds in the place of the table's, durably, and removes what is over them at once; None: no bound.

        Raises:
          InvalidRequestError: a bound out of range, or of fewer steps than the limiter asks for; nothing is changed.
        """
        engine = self._engine
        with self._owner.jobs.running("set_capacity", self.name):
            engine.set_capacity(
                capacity_steps=capacity_steps, capacity_bytes=capacity_bytes, capacity_episodes=capacity_episodes
            )

    def compact(self) -> int:
        """Gives back the disk space of removed and deleted steps as far as it can; returns the bytes that the disk got back."""
        engine = self._engine
        with self._owner.jobs.running("compact", self.name) as job:
            freed = engine.compact()
            job.message = f"the disk got {freed} bytes back"
        return freed

    def delete_episodes(self, episode_ids: Any, *, open_episodes: bool = False) -> int:
        """Deletes episodes, durably, and returns how many of them were there. All or none.

        open_episodes: also those that have no end (yet): of writers that are gone. One that goes on is refused from then on.

        Raises:
          InvalidRequestError: an episode is open, and `open_episodes` is not set; nothing is deleted.
        """
        open_episodes = check_flag("open_episodes", open_episodes)
        engine, ids = self._engine, check_ids("episode_ids", episode_ids, MAX_UPDATES)
        with self._owner.jobs.running("delete_episodes", self.name) as job:
            deleted = engine.delete_episodes(ids, open_episodes=open_episodes)
            job.message = f"{deleted} episodes of {len(ids)} were there, and are deleted"
        return deleted

    def stats(self) -> TableStats:
        """Returns the table's counters."""
        return self._engine.stats()

    def episodes(
        self, *, limit: int = 100, before_id: int | None = None, actor: str | None = None, closed_only: bool = False,
        where: EpisodeFilter | None = None,
    ) -> list[EpisodeRecord]:  # fmt: skip
        """Returns records of stored episodes, the newest first: `limit` of those below `before_id` that meet all else."""
        actor = None if actor is None else check_actor(actor)
        return self._engine.episodes(limit, before_id, actor, check_flag("closed_only", closed_only), where)

    def read_episode(self, episode_id: int, start: int | None = None, stop: int | None = None) -> dict[str, Any]:
        """Returns steps [start, stop) of an episode by column name; observations have one row more.

        None: from the first step that capacity has not removed, `first_step` of the episode's record; to the last one.

        Raises:
          NotFoundError: no such episode. InvalidRequestError: a range outside the stored steps.
          ChunkCorruptError: stored bytes are damaged; names the steps that can be read.
        """
        pieces = self._engine.episode_chunks(episode_id, start, stop)
        start = self._engine.first_step(episode_id) if start is None else start
        decoder = ChunkDecoder(self.signature)
        decoded = [chunk for piece in pieces for chunk in decoder.decode(piece)]
        info = decoded[-1].header.info
        cut = self._engine.cut_at(episode_id, stop)
        stop = info.first_step + info.n_steps if stop is None else stop
        return episode_columns(self.signature, decoded, start, stop, cut=cut)
