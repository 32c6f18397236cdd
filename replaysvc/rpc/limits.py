"""What a server takes of its machine at most: memory, workers, connections, file descriptors."""

import logging
import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from replaysvc.checks import check_number
from replaysvc.codec.header import MAX_RAW_BYTES
from replaysvc.config import MAX_LARGE_BYTES, MAX_MESSAGE_BYTES, StoreConfig

log = logging.getLogger(__name__)

MiB = 1 << 20
PIECE_BYTES = MiB  # larger requests come as several messages, so that the size of each bounds what one client can send
MESSAGE_BYTES = PIECE_BYTES + (64 << 10)  # one message to the server
REQUEST_COPIES = 2  # of a request while it is handled: as it came, and as a message
ANSWER_COPIES = 3  # of a batch while it is made: columns, frame, gRPC's
SENT_COPIES = 2  # and until it has left
LARGE_COPIES = 2  # of one that leaves in pieces: columns, and what it takes to make them
PENDING_CALLS = 1024  # in the server at once; beyond it, gRPC refuses
_MOST_CONNECTIONS = 1024
_CONNECTION_BYTES = 64 << 10  # its buffers and tables; 14 KiB while it is idle
_CALL_BYTES = 96 << 10  # of one that waits: what has come of it (64 KiB at most), its headers and state
_THREAD_BYTES = 256 << 10
_THREADS = 40  # besides the workers: gRPC's, the committer, the keeper
_MOST_REGIONS = 1024  # of shared memory; each takes a descriptor
_READS_BYTES = 4 * 2 * 16 * MiB  # four batches at once may wait for chunks from the disk, 16 MiB of each, stored and decoded
_BASE_BYTES = 96 * MiB  # the interpreter and its libraries
_ADMIN_BYTES = 160 * MiB  # of the admin door: libraries 24, bodies 20, answers remembered 32, not taken yet 64, spare 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the calls of one server may take.

    request_bytes: memory for requests under way. answer_bytes: memory for answers until they have left. shared_bytes: memory
    that clients on this host share, for their batches; 0: they share none. One connection gets at most half of each.
    max_workers: calls that are handled at once, beside appends, which hardly do more than wait.
    """

    request_bytes: int = 512 * MiB
    answer_bytes: int = 2048 * MiB
    shared_bytes: int = 1024 * MiB
    max_workers: int = 64

    def __post_init__(self) -> None:
        least = {
            "request_bytes": 2 * REQUEST_COPIES * MAX_MESSAGE_BYTES,  # one connection has half, and may send one full message
            "answer_bytes": 2 * ANSWER_COPIES * MAX_MESSAGE_BYTES,
            "shared_bytes": 0,
        }
        for name, low in least.items():
            object.__setattr__(self, name, check_number(name, getattr(self, name), low, 1 << 44))
        object.__setattr__(self, "max_workers", check_number("max_workers", self.max_workers, 1, 1024))

    @property
    def workers(self) -> Mapping[str, int]:
        """Returns the workers of each kind of calls."""
        most = self.max_workers
        return {"append": 3 * most, "sample": most, "transfer": -(-most // 4), "control": -(-most // 4)}

    @property
    def large_bytes(self) -> int:
        """Returns the size of the largest batch that is sent in pieces."""
        return min(MAX_LARGE_BYTES, self.answer_bytes // 2 // LARGE_COPIES)

    @property
    def params_bytes(self) -> int:
        """Returns the size of the largest parameter set."""
        return self.request_bytes // 2 // REQUEST_COPIES


@dataclass(frozen=True, slots=True)
class Memory:
    """Most bytes that a server takes, by what takes them; what tables remember of their chunks and steps is not among it."""

    caches: int
    queue: int
    requests: int
    answers: int
    shared: int
    reads: int
    fixed: int

    @property
    def total(self) -> int:
        """Returns the sum."""
        return self.caches + self.queue + self.requests + self.answers + self.shared + self.reads + self.fixed

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {-(-size // MiB)}" for name, size in asdict(self).items())
        return f"memory: at most {-(-self.total // MiB)} MiB = {terms}; and about 110 bytes for each stored chunk"


def most_memory(store: StoreConfig, limits: Limits, connections: int, *, admin: bool = False) -> Memory:
    """Returns the most memory that a server of these settings takes, with an admin door beside it or without.

    queue: what waits for a commit, where one request of the largest kind goes alone whatever the setting; and a commit's pages.
    requests: those admitted, and the one message that each worker may be reading, for which nothing vouches but its limit.
    """
    largest = MAX_MESSAGE_BYTES + MAX_RAW_BYTES
    workers = sum(limits.workers.values())
    return Memory(
        caches=store.recent_cache_bytes + store.faulted_cache_bytes,
        queue=max(store.queue_bytes, largest) + store.commit_bytes + MAX_MESSAGE_BYTES,
        requests=limits.request_bytes + (workers + ANSWER_COPIES) * MESSAGE_BYTES,
        answers=limits.answer_bytes + limits.params_bytes,  # a parameter set is read before it is counted, one at a time
        shared=limits.shared_bytes,
        reads=_READS_BYTES,
        fixed=_BASE_BYTES
        + (workers + _THREADS) * _THREAD_BYTES
        + connections * _CONNECTION_BYTES
        + PENDING_CALLS * _CALL_BYTES
        + admin * _ADMIN_BYTES,
    )  # fmt: skip


def allowed_memory(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Returns the bytes of memory that this process's container may take, None if nothing limits it."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroup 2, and of 1
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def report_memory(memory: Memory, allowed: int | None) -> None:
    """Logs what a server takes at most, and warns if that is more than the container has."""
    log.info("%s", memory)
    if allowed is not None and memory.total > allowed:
        log.warning(
            "memory: this container has %d MiB, less than the server may take (%d MiB): lower recent_cache_bytes, answer_bytes "
            "or request_bytes, or it may be killed under load", allowed // MiB, -(-memory.total // MiB),
        )  # fmt: skip


def connections_for(descriptors: int) -> int:
    """Returns how many connections may be open, given how many files may be: half of these are kept for the store."""
    return max(1, min(_MOST_CONNECTIONS, descriptors // 2))


def regions_for(descriptors: int) -> int:
    """Returns how many regions of shared memory there may be, given how many files may be open."""
    return max(1, min(_MOST_REGIONS, descriptors // 8))


def raise_descriptors() -> int:
    """Lets this process have as many files open as the system allows, and returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # some systems refuse "unlimited"
            log.warning("RLIMIT_NOFILE stays at %d: %s", soft, error)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20
