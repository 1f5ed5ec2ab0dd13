"""Which slots the stores of a cache hold, without keys and values: enough to count pairs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokendepth.nn.cache import EMPTY, Cache, Purpose

Key = tuple[Purpose, int, int]


@dataclass(frozen=True)
class Slots:
    """Positions and loops of one store; a new one is made for every extension."""

    positions: Int[Tensor, "batch slot"]
    loops: Int[Tensor, " slot"]

    def extended(self, positions: Int[Tensor, "batch new"], loop: int) -> "Slots":
        """With the slots of one more execution of the block."""
        new = positions.new_full((positions.shape[1],), loop)
        return Slots(torch.cat((self.positions, positions), 1), torch.cat((self.loops, new)))

    def num_visible(
        self,
        queries: Int[Tensor, "batch query"],
        asking: Bool[Tensor, "batch query"],
        loop: int,
        *,
        newest: bool,
        window: int | None,
    ) -> int:
        """Pairs of an asking query and a slot it sees: at or before its position, in its window.

        With `newest`, a position counts once, if some loop up to this one has stored it.
        """
        there = self.positions != EMPTY
        if newest:
            there = there & (self.loops <= loop)
        last = max(int(self.positions.max()) if self.positions.numel() else 0, int(queries.max()))
        table = queries.new_zeros((len(queries), last + 2))
        table = table.scatter_add(1, self.positions + 1, there.long())
        if newest:
            table = table.clamp_max(1)
        up_to = table.cumsum(1)
        seen = up_to.gather(1, queries + 1)
        if window is not None:
            seen = seen - up_to.gather(1, (queries + 1 - window).clamp_min(0))
        return int(seen[asking].sum())


def no_slots(batch: int, device: torch.device) -> Slots:
    """An empty store."""
    positions = torch.zeros((batch, 0), dtype=torch.long, device=device)
    return Slots(positions, positions.new_zeros(0))


def slots_of(cache: Cache) -> Mapping[Key, Slots]:
    """What a cache holds now; later calls that extend it do not change this."""
    return {
        key: Slots(
            store.positions.clone(),
            torch.tensor(store.loops, dtype=torch.long, device=store.positions.device),
        )
        for key, store in cache.stores.items()
        if store.positions is not None
    }
