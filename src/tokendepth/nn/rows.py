"""Some rows of a batch as one flat list: gathered once, flat in linear layers, padded in attention.

Attention needs a rectangle again, batch by the largest number of rows in any sequence; how many
slots of it are padding is counted, since it is work that the gathering did not save.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The rows marked by a mask, in row-major order."""

    mask: Bool[Tensor, "batch seq"]

    @cached_property
    def batch(self) -> Int[Tensor, " row"]:
        """Sequence of each row."""
        return self._places[0]

    @cached_property
    def seq(self) -> Int[Tensor, " row"]:
        """Column of each row."""
        return self._places[1]

    @cached_property
    def slot(self) -> Int[Tensor, " row"]:
        """Place of each row among the marked rows of its sequence, from 0."""
        return (self.mask.cumsum(dim=1) - 1)[self._places]

    @cached_property
    def width(self) -> int:
        """The largest number of marked rows in a sequence."""
        return int(self.mask.sum(dim=1).max())

    @cached_property
    def count(self) -> int:
        """Number of marked rows."""
        return len(self.batch)

    @cached_property
    def num_padded(self) -> int:
        """Slots of the padded form that hold no row."""
        return self.mask.shape[0] * self.width - self.count

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        batch, seq = self.mask.nonzero(as_tuple=True)
        return batch, seq

    def gather(self, values: Tensor) -> Tensor:
        """(batch, seq, ...) to (row, ...)."""
        return values[self._places]

    def scatter(self, into: Tensor, values: Tensor) -> Tensor:
        """A copy of `into` (batch, seq, ...) with the marked rows replaced, the rest as it was."""
        return into.index_put(self._places, values.to(into.dtype))

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """(row, ...) to (batch, width, ...)."""
        shape = (self.mask.shape[0], self.width, *values.shape[1:])
        empty = torch.full(shape, fill, dtype=values.dtype, device=values.device)
        return empty.index_put((self.batch, self.slot), values)

    def unpad(self, values: Tensor) -> Tensor:
        """(batch, width, ...) to (row, ...)."""
        return values[self.batch, self.slot]
