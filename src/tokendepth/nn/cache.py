"""Keys and values of earlier tokens, and what each query may see of them.

Every slot stores the position it belongs to, and the loop that computed it. What a query sees
follows from these alone, never from a count of slots: layers may hold different tokens.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokendepth.types import KeyValueRule

EMPTY = -1
"""Position of a slot that holds nothing."""

Purpose = str
"""`run` for the tokens' own pass; `check` for read-outs paid on the way."""


@dataclass
class Store:
    """Keys and values of one block visit, or of all visits of a block under `carried`."""

    keys: Tensor | None = None
    values: Tensor | None = None
    positions: Int[Tensor, "batch slot"] | None = None
    loops: tuple[int, ...] = ()
    """Loop of each slot, the same for all rows."""

    def extend(
        self, keys: Tensor, values: Tensor, positions: Int[Tensor, "batch new"], loop: int
    ) -> None:
        """Add slots. Empty ones (position -1) must hold finite numbers."""
        if self.keys is None or self.values is None or self.positions is None:
            self.keys, self.values, self.positions = keys, values, positions
        else:
            self.keys = torch.cat((self.keys, keys), dim=1)
            self.values = torch.cat((self.values, values), dim=1)
            self.positions = torch.cat((self.positions, positions), dim=1)
        self.loops += (loop,) * positions.shape[1]

    def visible(
        self,
        queries: Int[Tensor, "batch query"],
        loop: int,
        *,
        newest: bool,
        window: int | None = None,
    ) -> Bool[Tensor, "batch query slot"]:
        """Slots at or before each query's position, and within its window.

        With `newest`, of each position only the slot of the latest loop up to this one.
        """
        assert self.positions is not None
        there = self.positions != EMPTY
        if newest:
            there = there & self._is_newest(loop)
        seen = there[:, None, :] & (self.positions[:, None, :] <= queries[:, :, None])
        if window is not None:
            seen = seen & (self.positions[:, None, :] > queries[:, :, None] - window)
        return seen

    def _is_newest(self, loop: int) -> Bool[Tensor, "batch slot"]:
        assert self.positions is not None
        loops = torch.tensor(self.loops, device=self.positions.device).expand(self.positions.shape)
        seen = (loops <= loop) & (self.positions != EMPTY)
        allowed = torch.where(seen, loops, EMPTY)
        places = self.positions.clamp_min(0)
        table = allowed.new_full((allowed.shape[0], int(places.max()) + 1), EMPTY)
        table = table.scatter_reduce(1, places, allowed, reduce="amax")
        return seen & (allowed == table.gather(1, places))

    @property
    def nbytes(self) -> int:
        """Memory of keys and values."""
        return sum(part.nbytes for part in (self.keys, self.values) if part is not None)


@dataclass
class Cache:
    """All stores of a decoder, how many tokens each row has seen, and the policy's state."""

    rule: KeyValueRule
    stores: dict[tuple[Purpose, int, int], Store] = field(default_factory=dict)
    seen: Int[Tensor, " batch"] | None = None
    policy_state: Any = None

    def store(self, purpose: Purpose, block: int, loop: int) -> Store:
        """The store of a block visit; under `carried` the visits of a block share one."""
        key = (purpose, block, 0 if self.rule == "carried" else loop)
        found = self.stores.get(key)
        if found is None:
            found = self.stores[key] = Store()
        return found

    @property
    def nbytes(self) -> int:
        """Memory of all keys and values."""
        return sum(store.nbytes for store in self.stores.values())
