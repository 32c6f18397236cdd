"""Batches as torch tensors: the only module of the package that imports torch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from replaysvc.ragged import RaggedArray


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError("tensors need torch: pip install 'replaysvc[torch]'", name="torch") from None
    return torch


def to_torch(value: Any, device: str) -> Any:
    """Returns `value`, an array or a dict or tuple of them, as tensors on `device`. Read-only arrays are copied.

    A RaggedArray becomes a dict of `values` and `offsets` (int64 [N+1]), as `torch.nested.nested_tensor_from_jagged` and
    `torch.nn.functional.embedding_bag` take them.

    Raises:
      ModuleNotFoundError: torch is not installed; says how to.
    """
    from_numpy = _torch().from_numpy

    def tensor(array: Any) -> Any:
        array = np.ascontiguousarray(array)
        return from_numpy(array if array.flags.writeable else array.copy()).to(device)

    return _mapped(tensor, value)


def _mapped(make: Callable[[Any], Any], value: Any) -> Any:
    """Returns `value` with `make` of each array, or tensor, in it."""
    if isinstance(value, RaggedArray):
        value = {"values": value.values, "offsets": value.offsets}
    if isinstance(value, Mapping):
        return {key: _mapped(make, child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(make, child) for child in value)
    return make(value)


class Device:
    """Where tensors are wanted, reached in two steps: one for a thread in the background, one for the learner's own."""

    def __init__(self, name: Any) -> None:
        """`name`: a torch device or what makes one."""
        torch = _torch()
        self._device = torch.device(name)
        self._pins = torch.cuda.is_available()
        self._torch = torch

    def stage(self, batch: Any) -> dict[str, Any]:
        """Returns a Batch as tensors of the processor, in pinned memory where there is a GPU."""
        tensors = {name: to_torch(value, "cpu") for name, value in batch.asdict().items()}
        return dict(_mapped(lambda tensor: tensor.pin_memory(), tensors)) if self._pins else tensors

    def move(self, staged: dict[str, Any]) -> dict[str, Any]:
        """Returns staged tensors on the device; the copy is under way on the current stream."""
        if self._device.type == "cpu":
            return staged
        return dict(_mapped(lambda tensor: tensor.to(self._device, non_blocking=True), staged))
