"""What a commit is about to add to a table: checks requests against the table's state and gives out ids.

Runs on the committer thread alone, the only one that changes sessions and open episodes; so it needs no lock, and a
commit that fails is forgotten by dropping the Staged object. A request is taken whole or refused whole.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from replaysvc.codec import DecodedChunk
from replaysvc.errors import InvalidRequestError, ReplayError, SequenceError, WriterFencedError
from replaysvc.index.table_index import TERMINATED, TRUNCATED
from replaysvc.storage import INDEX_DTYPE, EpisodeEntry, LoadedTable
from replaysvc.types import Array

EpisodeName = tuple[bytes, int]  # session id and the writer's episode_key


@dataclass(frozen=True, slots=True)
class OpenEpisode:
    """An episode that may get more steps."""

    episode_id: int
    length: int
    return_: float


@dataclass(slots=True)
class AppendRequest:
    """Chunks of one session that wait for their commit; `done` gets the session's last durable sequence number."""

    session_id: bytes
    actor: str
    sequences: Sequence[int]
    chunks: Sequence[bytes]
    decoded: Sequence[DecodedChunk]
    urgent: bool
    epoch: int | None = None
    alive: Sequence[int] = ()  # keys of the session's open episodes that its writers go on with
    admitted: int = 0  # steps that the limiter was told of
    done: "Future[int]" = field(default_factory=Future)


class Written(NamedTuple):
    """What a session of an actor adds: steps, and the episodes that end with one of them. policy_version: the newest."""

    session_id: bytes
    actor: str
    steps: int
    terminated: int
    truncated: int
    policy_version: int


@dataclass(slots=True)
class Staged:
    """Accepted chunks in commit order, with all that the store and the index need to know of them."""

    next_chunk_id: int
    next_position: int
    next_episode_id: int
    committed_at_s: float
    requests: list[AppendRequest] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    decoded: list[DecodedChunk] = field(default_factory=list)
    episode_ids: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    entries: list[EpisodeEntry] = field(default_factory=list)
    sessions: dict[bytes, int] = field(default_factory=dict)
    open: dict[EpisodeName, OpenEpisode | None] = field(default_factory=dict)  # None: closed by this commit
    written: list[Written] = field(default_factory=list)
    duplicates: int = 0

    def index(self) -> Array:
        """Returns the index records, INDEX_DTYPE [chunks]."""
        records = np.zeros(len(self.chunks), INDEX_DTYPE)
        infos = [chunk.header.info for chunk in self.decoded]
        steps = np.array([info.n_steps for info in infos], np.int64)
        records["chunk_id"] = self.next_chunk_id + np.arange(len(infos))
        records["position"] = self.next_position + np.cumsum(steps) - steps
        records["episode_id"] = self.episode_ids
        records["first_step"] = [info.first_step for info in infos]
        records["n_steps"] = steps
        records["flags"] = [TERMINATED * info.terminated + TRUNCATED * info.truncated for info in infos]
        records["policy_version"] = [info.policy_version for info in infos]
        records["return_after"] = self.returns
        records["committed_at_s"] = self.committed_at_s
        records["stored_bytes"] = [len(chunk) for chunk in self.chunks]
        records["fallbacks"] = [chunk.header.fallbacks for chunk in self.decoded]
        records["checksum"] = [chunk.header.checksum for chunk in self.decoded]
        return records


def epoch_mark(actor: str) -> bytes:
    """Returns what stands for an actor among the sessions: its mark is the largest epoch that wrote as this actor."""
    return hashlib.blake2b(actor.encode(errors="surrogatepass"), digest_size=16, person=b"replaysvc epoch").digest()


def check_epoch(actor: str, epoch: int | None, *sessions: Mapping[bytes, int]) -> None:
    """Raises WriterFencedError if a writer of a larger epoch writes as this actor now, by any of these marks."""
    if epoch is None:
        return
    mark = epoch_mark(actor)
    if (newest := max(known.get(mark, -1) for known in sessions)) > epoch:
        expected = f"expected epoch {newest} or a larger one, found {epoch}"
        raise WriterFencedError(
            f"writer of actor {actor!r}: {expected}; a newer writer took over, and only a new writer of such an epoch may go on"
        )


def stage(
    staged: Staged,
    request: AppendRequest,
    sessions: Mapping[bytes, int],
    open_episodes: Mapping[EpisodeName, OpenEpisode],
    lost: Mapping[EpisodeName, int],
) -> None:
    """Adds `request` to `staged`, or raises and leaves `staged` as it was.

    A chunk whose sequence number is stored already is skipped: that is what makes sending it again harmless. `lost`: ids of
    episodes that were ended since nothing was heard of their writers, by name.

    Raises:
      WriterFencedError: a newer writer of the actor took over, or the episode was ended.
      SequenceError: a gap in the session's sequence numbers.
      InvalidRequestError: a chunk does not continue its episode.
    """
    session = request.session_id
    check_epoch(request.actor, request.epoch, sessions, staged.sessions)
    last = staged.sessions.get(session, sessions.get(session, -1))
    episodes: dict[int, OpenEpisode | None] = {}
    taken: list[int] = []
    ids: list[int] = []
    returns: list[float] = []
    entries: list[EpisodeEntry] = []
    duplicates = 0
    next_episode_id = staged.next_episode_id + len(staged.entries)
    for place, (sequence, chunk) in enumerate(zip(request.sequences, request.decoded, strict=True)):
        if sequence <= last:
            duplicates += 1
            continue
        if sequence != last + 1:
            raise SequenceError(f"sequence: expected {last + 1}, found {sequence}")
        last = sequence
        info = chunk.header.info
        name = (session, info.episode_key)
        episode = episodes.get(info.episode_key, staged.open.get(name, open_episodes.get(name)))
        if episode is None and name in lost:
            reason = "since its writer was gone: nothing was heard of it for the length of its lease, or a newer one took over"
            raise WriterFencedError(
                f"episode {lost[name]} was ended as truncated, {reason}; make a new writer and begin a new episode"
            )
        if info.first_step == 0 and episode is None and info.episode_key not in episodes:
            episode = OpenEpisode(next_episode_id + len(entries), 0, 0.0)
            entries.append(
                EpisodeEntry(
                    episode_id=episode.episode_id, session_id=session, episode_key=info.episode_key, actor=request.actor,
                    started_at_s=staged.committed_at_s, metadata=info.metadata,
                )
            )  # fmt: skip
        if episode is None:
            raise InvalidRequestError(
                f"chunk: expected a step of an open episode, found step {info.first_step} of an unknown or closed one"
                " (as of one that was deleted); make a new writer"
            )
        if episode.length != info.first_step:
            raise InvalidRequestError(f"chunk: expected step {episode.length} of its episode, found step {info.first_step}")
        episode = replace(
            episode,
            length=episode.length + info.n_steps,
            return_=episode.return_ + info.reward_sum,
        )
        episodes[info.episode_key] = None if info.terminated or info.truncated else episode
        taken.append(place)
        ids.append(episode.episode_id)
        returns.append(episode.return_)
    staged.requests.append(request)
    staged.chunks += [request.chunks[i] for i in taken]
    staged.decoded += [request.decoded[i] for i in taken]
    staged.episode_ids += ids
    staged.returns += returns
    staged.entries += entries
    if taken:
        staged.written.append(_written(request, taken))
        staged.sessions[session] = last
        if request.epoch is not None:
            staged.sessions[epoch_mark(request.actor)] = request.epoch
    staged.open.update({(session, key): episode for key, episode in episodes.items()})
    staged.duplicates += duplicates


def _written(request: AppendRequest, taken: Sequence[int]) -> Written:
    infos = [request.decoded[place].header.info for place in taken]
    return Written(
        request.session_id, request.actor, sum(info.n_steps for info in infos), sum(info.terminated for info in infos),
        sum(info.truncated and not info.terminated for info in infos), max(info.policy_version for info in infos),
    )  # fmt: skip


def stage_all(
    staged: Staged,
    requests: Sequence[AppendRequest],
    sessions: Mapping[bytes, int],
    open_episodes: Mapping[EpisodeName, OpenEpisode],
    lost: Mapping[EpisodeName, int],
) -> None:
    """Stages each request; one that is refused gets its error and does not hinder the others."""
    for request in requests:
        try:
            stage(staged, request, sessions, open_episodes, lost)
        except ReplayError as error:
            request.done.set_exception(error)


def refuse(requests: Sequence[AppendRequest], error: ReplayError) -> None:
    """Gives each request that is not settled yet its error."""
    for request in requests:
        if not request.done.done():
            request.done.set_exception(error)


def open_episodes_of(loaded: LoadedTable, lost: Mapping[int, int]) -> dict[EpisodeName, OpenEpisode]:
    """Returns the episodes that had no end when the table was last written, and are not `lost`; their writers may come back."""
    index = loaded.index
    order = np.lexsort((index["first_step"], index["episode_id"]))
    ids = index["episode_id"][order]
    last = order[np.flatnonzero(np.concatenate((ids[1:] != ids[:-1], [True])))] if len(ids) else order
    newest = {int(index["episode_id"][i]): i for i in last if not index["flags"][i] & (TERMINATED | TRUNCATED)}
    return {
        (entry.session_id, entry.episode_key): OpenEpisode(
            entry.episode_id, int(index["first_step"][at] + index["n_steps"][at]), float(index["return_after"][at]),
        )
        for entry in loaded.episodes
        if (at := newest.get(entry.episode_id)) is not None and entry.episode_id not in lost
    }  # fmt: skip
