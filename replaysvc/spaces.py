"""Gymnasium spaces as field specs, told apart by class name, so that gymnasium itself is not needed to read a signature."""

from typing import Any

import numpy as np

from replaysvc.errors import SpecMismatchError
from replaysvc.spec import FieldSpec, Tree


def tree_of_space(space: Any, path: str, *, keep_float64: bool) -> Tree:
    """Returns the spec tree of `space`: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them.

    Raises:
      SpecMismatchError: any other space; names the place in the nesting.
    """
    kinds = {cls.__name__ for cls in type(space).__mro__}
    if "Dict" in kinds:
        return {
            str(key): tree_of_space(child, f"{path}/{key}", keep_float64=keep_float64) for key, child in space.spaces.items()
        }
    if "Tuple" in kinds:
        return tuple(tree_of_space(child, f"{path}/{i}", keep_float64=keep_float64) for i, child in enumerate(space.spaces))
    if kinds & {"Box", "Discrete", "MultiDiscrete", "MultiBinary"}:
        dtype = np.dtype(space.dtype)
        if dtype == np.float64 and not keep_float64:
            dtype = np.dtype(np.float32)
        return FieldSpec(path, tuple(int(n) for n in space.shape), dtype)
    raise SpecMismatchError(path, "a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space", type(space).__name__)
