"""Batches as tensors, made in the background while the learner learns: on a GPU, or in pinned memory for one."""

import threading
import weakref
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Any, TypeAlias

from replaysvc.checks import check_number
from replaysvc.tensors import Device
from replaysvc.types import Batch

_LOOK_S = 0.2  # how often a thread that waits looks whether its stream was closed


Made: TypeAlias = "Queue[tuple[Any, BaseException | None]]"


def _make(batches: Iterator[Batch], device: Device, made: Made, closed: threading.Event) -> None:
    """Makes tensors of batches until there are no more, or `closed` is set; then ends the batches."""

    def put(what: tuple[Any, BaseException | None]) -> None:
        while not closed.is_set():
            try:
                return made.put(what, timeout=_LOOK_S)
            except Full:  # the learner is slower, which is as it should be
                continue

    try:
        for batch in batches:
            put((device.stage(batch), None))
            if closed.is_set():
                break
        put((None, StopIteration()))
    except BaseException as error:  # the learner's next call raises it
        put((None, error))
    finally:
        if (close := getattr(batches, "close", None)) is not None:
            close()


class TensorStream(Iterator[dict[str, Any]]):
    """What `tensor_batches` returns: an iterator. `close`, a with statement, or forgetting it ends it and its source."""

    def __init__(self, batches: Iterator[Batch], device: Any, ahead: int) -> None:
        made: Made = Queue(ahead)
        self._device, self._made, self._closed = Device(device), made, threading.Event()
        self._ended: BaseException | None = None
        self._thread = threading.Thread(
            target=_make, args=(iter(batches), self._device, self._made, self._closed), name="replay-tensors", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._closed.set)  # one that is forgotten ends, too: its thread knows nothing of it

    def __next__(self) -> dict[str, Any]:
        while self._ended is None:
            if self._closed.is_set():
                raise StopIteration
            try:
                staged, error = self._made.get(timeout=_LOOK_S)
            except Empty:
                continue
            if error is None:
                return self._device.move(staged)
            self._ended = error
        raise self._ended

    def close(self) -> None:
        """Ends the thread and the batches' own stream; what is ready is dropped."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> "TensorStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tensor_batches(batches: Iterator[Batch], device: Any = "cpu", *, ahead: int = 2) -> TensorStream:
    """Returns an iterator of `batch.asdict()` with every array as a torch tensor on `device`, for each of `batches`.

    A thread takes batches (of `table.stream(...)`), makes tensors of them, and copies these into pinned memory where there is
    a GPU; `next` then starts the copy to `device` on the current CUDA stream and returns at once, as `non_blocking=True` does.
    `ahead` batches are ready at most. Needs the `torch` extra.

    Raises:
      SpecMismatchError: `ahead` is not 1 to 64. ModuleNotFoundError: torch is not installed.
    """
    return TensorStream(batches, device, check_number("ahead", ahead, 1, 64))
