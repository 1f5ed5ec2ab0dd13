"""Some rows of a batch as one flat list: gathered once, flat in linear layers, padded in attention.

Attention needs a rectangle again. Either the rows of each sequence move together (`pad`), batch by
the largest number of rows in any sequence, or each goes back to its own place (`spread`). How many
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
    def flat(self) -> Int[Tensor, " row"]:
        """Place of each row in the flattened batch."""
        return self.mask.flatten().nonzero().squeeze(1)

    @cached_property
    def batch(self) -> Int[Tensor, " row"]:
        """Sequence of each row."""
        return self.flat // self.mask.shape[1]

    @cached_property
    def seq(self) -> Int[Tensor, " row"]:
        """Column of each row."""
        return self.flat % self.mask.shape[1]

    @cached_property
    def slot(self) -> Int[Tensor, " row"]:
        """Place of each row among the marked rows of its sequence, from 0."""
        return (self.mask.cumsum(dim=1) - 1).flatten()[self.flat]

    @cached_property
    def width(self) -> int:
        """The largest number of marked rows in a sequence."""
        return int(self.mask.sum(dim=1).max())

    @cached_property
    def count(self) -> int:
        """Number of marked rows."""
        return len(self.flat)

    @cached_property
    def num_padded(self) -> int:
        """Slots of the padded form that hold no row."""
        return self.mask.shape[0] * self.width - self.count

    @cached_property
    def _padded(self) -> Int[Tensor, " row"]:
        """Place of each row in the flattened padded form."""
        return self.batch * self.width + self.slot

    def gather(self, values: Tensor) -> Tensor:
        """(batch, seq, ...) to (row, ...)."""
        return values.flatten(0, 1).index_select(0, self.flat)

    def scatter(self, into: Tensor, values: Tensor) -> Tensor:
        """A copy of `into` (batch, seq, ...) with the marked rows replaced, the rest as it was."""
        made = into.flatten(0, 1).index_copy(0, self.flat, values.to(into.dtype))
        return made.view(into.shape)

    def spread(self, values: Tensor) -> Tensor:
        """(row, ...) to (batch, seq, ...), zeros elsewhere."""
        return self.scatter(values.new_zeros((*self.mask.shape, *values.shape[1:])), values)

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """(row, ...) to (batch, width, ...)."""
        shape = (self.mask.shape[0], self.width, *values.shape[1:])
        empty = torch.full(shape, fill, dtype=values.dtype, device=values.device)
        return empty.flatten(0, 1).index_copy(0, self._padded, values).view(shape)

    def unpad(self, values: Tensor) -> Tensor:
        """(batch, width, ...) to (row, ...)."""
        return values.flatten(0, 1).index_select(0, self._padded)
