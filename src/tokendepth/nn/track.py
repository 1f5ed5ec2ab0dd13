"""Which token each slot of a store belongs to, and what a query may see of them.

A track is never changed: extending, cropping or reordering it gives another. Stores with the same
history share one, so what follows from it is worked out once a call and not once a layer.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

EMPTY = -1
"""Position of a slot that holds nothing."""


@dataclass(frozen=True)
class Newest:
    """Of each position, the slot of the latest loop up to one."""

    slots: Int[Tensor, "batch position"]
    """0 where there is none."""
    there: Bool[Tensor, "batch position"]
    whole: bool
    """Every row has one for every position: masks can be spared."""

    def visible(
        self, queries: Int[Tensor, "batch query"], window: int | None
    ) -> Bool[Tensor, "batch query position"]:
        """Positions up to each query's own, and within its window."""
        at = torch.arange(self.slots.shape[1], device=self.slots.device)
        seen = self.there[:, None, :] & (at <= queries[:, :, None])
        return seen if window is None else seen & (at > queries[:, :, None] - window)


@dataclass(frozen=True, eq=False)
class Track:
    """Position and loop of every slot."""

    positions: Int[Tensor, "batch slot"] | None = None
    """None before anything is stored."""
    loops: tuple[int, ...] = ()
    """Which pass over the block computed each slot, the same for all rows."""
    in_order: bool = True
    """True only if slot i holds position i in every row, all of one loop: masks can be spared."""
    _made: dict[str, tuple[object, ...]] = field(default_factory=dict, repr=False)
    """The newest result of each method, with the arguments it was made from."""

    def __len__(self) -> int:
        return len(self.loops)

    def extended(
        self, positions: Int[Tensor, "batch new"], loop: int, *, in_order: bool = False
    ) -> "Track":
        """With new slots behind.

        Args:
            positions: of the new slots; -1 for empty ones.
            loop: that computed them.
            in_order: the caller knows that the new slots hold, in every row, the positions that
                follow the number of slots so far.
        """
        known = self._made.get("extended")
        if known is not None and known[0] is positions and known[1:3] == (loop, in_order):
            return known[3]  # pyright: ignore[reportReturnType]
        before, new = self.positions, (loop,) * positions.shape[1]
        made = Track(
            positions if before is None else torch.cat((before, positions), dim=1),
            self.loops + new,
            in_order and self.in_order and self.loops[-1:] in ((), (loop,)),
        )
        self._made["extended"] = (positions, loop, in_order, made)
        return made

    def visible(
        self,
        queries: Int[Tensor, "batch query"],
        *,
        window: int | None = None,
    ) -> Bool[Tensor, "batch query slot"]:
        """Slots at or before each query's position, and within its window."""
        known = self._made.get("visible")
        if known is not None and known[0] is queries and known[1] == window:
            return known[2]  # pyright: ignore[reportReturnType]
        assert self.positions is not None
        there = self.positions != EMPTY
        seen = there[:, None, :] & (self.positions[:, None, :] <= queries[:, :, None])
        if window is not None:
            seen = seen & (self.positions[:, None, :] > queries[:, :, None] - window)
        self._made["visible"] = (queries, window, seen)
        return seen

    def newest(self, loop: int) -> Newest:
        """Of each position from 0 to the last, the slot of the latest loop up to this one."""
        known = self._made.get("newest")
        if known is not None and known[0] == loop:
            return known[1]  # pyright: ignore[reportReturnType]
        assert self.positions is not None
        seen = (self._loops() <= loop) & (self.positions != EMPTY)
        # Loops of a position are stored one after the other, so the newest is the last slot.
        slots = torch.arange(len(self), device=self.positions.device)
        slots = torch.where(seen, slots, EMPTY)
        places = self.positions.clamp_min(0)
        table = slots.new_full((slots.shape[0], self.num_positions), EMPTY)
        table = table.scatter_reduce(1, places, slots, reduce="amax")
        there = table != EMPTY
        made = Newest(table.clamp_min(0), there, bool(there.all()))
        self._made["newest"] = (loop, made)
        return made

    @property
    def num_positions(self) -> int:
        """From 0 to the last that any row holds; at least 1."""
        known = self._made.get("num_positions")
        if known is None:
            assert self.positions is not None
            most = int(self.positions.max()) + 1 if len(self) else 1
            known = self._made["num_positions"] = (max(most, 1),)
        return known[0]  # pyright: ignore[reportReturnType]

    def num_visible(
        self,
        queries: Int[Tensor, "batch query"],
        asking: Bool[Tensor, "batch query"],
        loop: int,
        *,
        newest: bool,
        window: int | None,
    ) -> int:
        """Pairs of an asking query and a slot it sees, without the table of all pairs."""
        assert self.positions is not None
        there = self.positions != EMPTY
        if newest:
            there = there & (self._loops() <= loop)
        last = max(int(self.positions.max()) if len(self) else 0, int(queries.max()))
        table = queries.new_zeros((len(queries), last + 2))
        table = table.scatter_add(1, self.positions + 1, there.long())
        if newest:
            table = table.clamp_max(1)
        up_to = table.cumsum(1)
        seen = up_to.gather(1, queries + 1)
        if window is not None:
            seen = seen - up_to.gather(1, (queries + 1 - window).clamp_min(0))
        return int(seen[asking].sum())

    def cropped(self, seen: Int[Tensor, " batch"], uniform: int | None) -> "Track":
        """Without positions from `seen` on (the same in all rows, if `uniform` is given)."""
        if self.positions is None:
            return self
        if self.in_order and uniform is not None:
            size = min(uniform, len(self))
            return Track(self.positions[:, :size], self.loops[:size], in_order=True)
        kept = torch.where(self.positions < seen[:, None], self.positions, EMPTY)
        there = (kept != EMPTY).any(dim=0).nonzero()
        size = int(there[-1]) + 1 if len(there) else 0
        return Track(kept[:, :size], self.loops[:size], in_order=False)

    def without_stale(self, oldest: Int[Tensor, " batch"]) -> "Track":
        """Without the slots at the front that are empty, or older than their row's `oldest`."""
        known = self._made.get("without_stale")
        if known is not None and known[0] is oldest:
            return known[1]  # pyright: ignore[reportReturnType]
        made = self
        if self.positions is not None:
            needed = (self.positions >= oldest[:, None]).any(dim=0).nonzero()
            count = int(needed[0]) if len(needed) else len(self)
            if count:
                made = Track(self.positions[:, count:], self.loops[count:], in_order=False)
        self._made["without_stale"] = (oldest, made)
        return made

    def same_as(self, other: "Track") -> bool:
        """Whether both hold the same slots."""
        if self.positions is None or other.positions is None:
            return self.positions is other.positions
        same = (self.loops, self.in_order) == (other.loops, other.in_order)
        return same and torch.equal(self.positions, other.positions)

    def reordered(self, rows: Int[Tensor, " row"]) -> "Track":
        """Of these rows of the batch; a row may come twice or not at all."""
        known = self._made.get("reordered")
        if known is not None and known[0] is rows:
            return known[1]  # pyright: ignore[reportReturnType]
        taken = None if self.positions is None else self.positions[rows]
        made = Track(taken, self.loops, self.in_order)
        self._made["reordered"] = (rows, made)
        return made

    def _loops(self) -> Int[Tensor, "batch slot"]:
        assert self.positions is not None
        loops = torch.tensor(self.loops, dtype=torch.long, device=self.positions.device)
        return loops.expand(self.positions.shape)
