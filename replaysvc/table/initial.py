"""Priorities that a writer gives: extras that samplers take new steps' priorities from."""

from collections.abc import Sequence

import numpy as np

from replaysvc.chunk_steps import choose_chunk_steps
from replaysvc.codec import DecodedChunk
from replaysvc.config import TableConfig
from replaysvc.errors import SpecMismatchError
from replaysvc.limiter import check_chunk
from replaysvc.options import Prioritized
from replaysvc.selectors import check_priorities
from replaysvc.spec import FieldSpec, Signature
from replaysvc.types import Array


class InitialPriorities:
    """Where in a table's chunks the initial priorities of its samplers are."""

    def __init__(self, signature: Signature, config: TableConfig) -> None:
        at = {spec.name: i for i, spec in enumerate(signature.columns)}
        self._columns = {
            name: at[sampler.initial_priority]
            for name, sampler in config.samplers.items()
            if isinstance(sampler, Prioritized) and sampler.initial_priority is not None
        }

    def check(self, chunks: Sequence[DecodedChunk]) -> None:
        """Raises SpecMismatchError if a chunk holds a priority that is NaN, negative or too large."""
        for i in set(self._columns.values()):
            for chunk in chunks:
                check_priorities(chunk.columns[i].values, chunk.header.info.n_steps)

    def of(self, chunks: Sequence[DecodedChunk]) -> dict[str, Array]:
        """Returns the priorities of the chunks' steps, float64, by sampler."""
        return {
            name: np.concatenate([chunk.columns[i].values for chunk in chunks]).astype(np.float64)
            for name, i in self._columns.items()
        }


def check_table(signature: Signature, config: TableConfig) -> None:
    """Checks what a table's configuration asks of its signature.

    Raises:
      InvalidRequestError: initial priorities from an extra that there is not, or a limiter that lets no chunk in.
    """
    for name, sampler in config.samplers.items():
        if isinstance(sampler, Prioritized) and sampler.initial_priority is not None:
            tree = signature.extras.get(sampler.initial_priority)
            if not isinstance(tree, FieldSpec) or tree.shape or tree.dtype.kind != "f":
                floats = [
                    extra for extra, leaf in signature.extras.items() if isinstance(leaf, FieldSpec) and leaf.dtype.kind == "f"
                ]
                raise SpecMismatchError(
                    f"samplers.{name}.initial_priority",
                    f"a scalar float extra, such as {floats}",
                    repr(sampler.initial_priority),
                )
    check_chunk(config.limiter, choose_chunk_steps(signature, config))
