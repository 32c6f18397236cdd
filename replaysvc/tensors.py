"""Batches as torch tensors: the only module of the package that imports torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def to_torch(value: Any, device: str) -> Any:
    """Returns `value`, an array or a dict or tuple of them, as tensors on `device`. Read-only arrays are copied.

    Raises:
      ModuleNotFoundError: torch is not installed; says how to.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError("tensors need torch: pip install 'replaysvc[torch]'", name="torch") from None
    if isinstance(value, Mapping):
        return {key: to_torch(child, device) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(to_torch(child, device) for child in value)
    array = np.ascontiguousarray(value)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array).to(device)
