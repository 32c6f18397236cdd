"""Batches as torch tensors: the only module of the package that imports torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from replaysvc.ragged import RaggedArray


def to_torch(value: Any, device: str) -> Any:
    """Returns `value`, an array or a dict or tuple of them, as tensors on `device`. Read-only arrays are copied.

    A RaggedArray becomes a dict of `values` and `offsets` (int64 [N+1]), as `torch.nested.nested_tensor_from_jagged` and
    `torch.nn.functional.embedding_bag` take them.

    Raises:
      ModuleNotFoundError: torch is not installed; says how to.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError("tensors need torch: pip install 'replaysvc[torch]'", name="torch") from None
    if isinstance(value, RaggedArray):
        value = {"values": value.values, "offsets": value.offsets}
    if isinstance(value, Mapping):
        return {key: to_torch(child, device) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(to_torch(child, device) for child in value)
    array = np.ascontiguousarray(value)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array).to(device)
