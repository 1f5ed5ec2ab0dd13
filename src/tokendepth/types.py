"""What the layers of the package pass to one another.

Axis names in shapes mean the same everywhere: `batch` rows of a call, `seq` positions of a row,
`row` a flat list of (batch, seq) pairs, `dim` the residual width, `head` and `head_dim`, `vocab`,
`span` spans of a schedule, `visit` block executions in schedule order, `state` visits + 1.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Routing = Literal["soft", "hard", "hard_soft", "top_k"]
KeyValueRule = Literal["all", "kept", "carried"]
Start = Literal["hidden", "zeros", "normal", "truncated"]
Gates = Literal["update", "span"]
OnProgress = Callable[[int, int], None]
"""Told (units done, units in all) from time to time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Blocks that share one decision. A plain stack is L spans of one block."""

    blocks: tuple[int, ...]
    loop: int = 0
    """Which pass over these blocks it is, from 0."""
    routed: bool = True
    """False for a stem, prelude or coda: every token runs it."""
    inject: bool = False
    """On entry the state becomes adapter([state; embedded])."""
    normed: bool = False
    """On entry the state is brought to unit mean square: a coda behind loops of any number."""
    grad: bool = True
    """False: run without a graph, for truncated back-propagation."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Spans in order, and which of them a policy decides about.

    `start` is what a looped state begins with, at the first span that injects: the hidden state
    itself, zeros, or a keyed normal draw of standard deviation `start_std`, over all numbers or
    (`truncated`) within three standard deviations.
    """

    spans: tuple[Span, ...]
    start: Start = "hidden"
    start_std: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.spans:
            raise ValueError("spans: a schedule needs at least one span")
        for number, span in enumerate(self.spans):
            if not span.blocks or min(span.blocks) < 0:
                raise ValueError(
                    f"spans: span {number} has blocks {span.blocks}; name at least one, from 0"
                )
        visits = [(block, span.loop) for span in self.spans for block in span.blocks]
        if len(set(visits)) < len(visits):
            twice = next(visit for visit in visits if visits.count(visit) > 1)
            raise ValueError(
                f"spans: block {twice[0]} runs twice in loop {twice[1]}; give each pass over a "
                "block its own loop=, since keys and values are stored by block and loop"
            )
        if self.start not in get_args(Start):
            raise ValueError(f"start: got {self.start!r}; allowed are {', '.join(get_args(Start))}")
        if not self.start_std > 0:
            raise ValueError(f"start_std: got {self.start_std}; it must be above 0")

    @cached_property
    def visits(self) -> tuple[tuple[int, int], ...]:
        """(span index, block) of every block execution, in order."""
        return tuple(
            (index, block) for index, span in enumerate(self.spans) for block in span.blocks
        )

    @cached_property
    def first_visit(self) -> tuple[int, ...]:
        """Of each span, the number of block executions before it."""
        starts, total = [], 0
        for span in self.spans:
            starts.append(total)
            total += len(span.blocks)
        return tuple(starts)

    @cached_property
    def coda(self) -> tuple[int, ...]:
        """Indices of the unrouted spans at the end: what a read-out on the way must run."""
        first = len(self.spans)
        while first > 0 and not self.spans[first - 1].routed:
            first -= 1
        return tuple(range(first, len(self.spans)))

    @cached_property
    def exits(self) -> tuple[int, ...]:
        """Depths at which a token can stop: before a routed span, and before the coda."""
        routed = [
            first
            for index, first in enumerate(self.first_visit)
            if index not in self.coda and self.spans[index].routed
        ]
        return *routed, self.first_visit[self.coda[0]] if self.coda else len(self.visits)

    @cached_property
    def breaks(self) -> tuple[int, ...]:
        """Of each span, the next one that another loop, graph, injection or norm begins."""
        found, last = [len(self.spans)], self.spans[-1]
        for index in range(len(self.spans) - 2, -1, -1):
            span = self.spans[index]
            straight = (span.loop, span.grad) == (last.loop, last.grad)
            goes_on = straight and not last.inject and not last.normed
            found.append(found[-1] if goes_on else index + 1)
            last = span
        return tuple(reversed(found))

    @cached_property
    def core(self) -> tuple[int, ...]:
        """Indices of the spans that run the same blocks again and again; empty in a plain stack."""
        counts = Counter(span.blocks for span in self.spans)
        return tuple(at for at, span in enumerate(self.spans) if counts[span.blocks] > 1)

    @cached_property
    def num_blocks(self) -> int:
        """Blocks that a decoder must have to run it."""
        return 1 + max(block for _, block in self.visits)

    @cached_property
    def injects(self) -> bool:
        """True when some span goes through the adapter."""
        return any(span.inject for span in self.spans)

    @cached_property
    def revisits(self) -> bool:
        """True when some block runs more than once."""
        blocks = [block for _, block in self.visits]
        return len(set(blocks)) < len(blocks)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a policy says of one span. None in every field is the plain block, bit for bit."""

    keep: Bool[Tensor, "batch seq"] | None = None
    """Rows that run; the residual of the others stays as it is."""
    weight: Float[Tensor, "batch seq"] | None = None
    """Factor on the update, by the policy's `gates` on each residual add or on the whole span."""
    penalty: Mapping[str, Float[Tensor, "batch seq"]] = field(default_factory=dict)
    """Named costs per token; the objective masks, sums and divides."""
    margin: Float[Tensor, "batch seq"] | None = None
    """How far what was compared lies from its threshold, in its own units; rounding can turn a
    decision with a margin near zero. Reported, never acted on."""


PLAIN = Decision()
"""The decision that changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The decisions of a run, detached, so that they can be replayed elsewhere.

    Replayed by (row key, stored position, span): on another executor, another batch, in chunks.
    """

    spans: tuple[Span, ...]
    """Of the schedule it was recorded on."""
    gates: Gates
    """What its weights scale."""
    row_keys: Int[Tensor, " batch"]
    positions: Int[Tensor, "batch seq"]
    valid: Bool[Tensor, "batch seq"]
    keep: Bool[Tensor, "batch seq span"]
    weight: Float[Tensor, "batch seq span"] | None

    def aligned(
        self,
        schedule: "Schedule",
        row_keys: Int[Tensor, " batch"],
        positions: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch seq"],
    ) -> "Plan":
        """The recorded decisions for other rows and positions, in their order.

        Raises:
            ValueError: another schedule, a position that the plan does not hold, or one that it
                holds twice with different decisions.
        """
        if schedule.spans != self.spans:
            raise ValueError(
                f"plan: it was recorded on another schedule ({len(self.spans)} spans, now "
                f"{len(schedule.spans)}); replay it with schedule= the one it was recorded on"
            )
        mine = self._on(positions.device)
        same = (mine.row_keys, row_keys), (mine.positions, positions), (mine.valid, valid)
        if all(torch.equal(one, other) for one, other in same):
            return mine
        at = mine._find(row_keys, positions, valid)
        return replace(
            mine,
            row_keys=row_keys,
            positions=positions,
            valid=valid,
            keep=mine.keep.flatten(0, 1)[at],
            weight=None if mine.weight is None else mine.weight.flatten(0, 1)[at],
        )

    def _on(self, device: torch.device) -> "Plan":
        return replace(
            self,
            row_keys=self.row_keys.to(device),
            positions=self.positions.to(device),
            valid=self.valid.to(device),
            keep=self.keep.to(device),
            weight=None if self.weight is None else self.weight.to(device),
        )

    def decision(self, span: int) -> Decision:
        """What was decided of one span."""
        keep = self.keep[..., span]
        return Decision(
            keep=None if bool((keep | ~self.valid).all()) else keep,
            weight=None if self.weight is None else self.weight[..., span],
        )

    def _find(self, row_keys: Tensor, positions: Tensor, valid: Tensor) -> Tensor:
        """For each wanted token, its place among the recorded ones."""
        _, number = torch.unique(torch.cat((self.row_keys, row_keys)), return_inverse=True)
        base = 1 + max(int(self.positions.max()), int(positions.max()))
        recorded = (number[: len(self.row_keys), None] * base + self.positions).flatten()
        recorded = torch.where(self.valid.flatten(), recorded, -1)
        order = recorded.argsort(stable=True)
        ordered = recorded[order]
        self._check_single(ordered, order)
        wanted = torch.where(valid, number[len(self.row_keys) :, None] * base + positions, -1)
        at = order[torch.searchsorted(ordered, wanted).clamp_max(len(order) - 1)]
        missing = valid & (recorded[at] != wanted)
        if bool(missing.any()):
            row, column = (int(value) for value in missing.nonzero()[0])
            raise ValueError(
                f"plan: it holds no decision for row key {int(row_keys[row])}, position "
                f"{int(positions[row, column])}; replay a plan on text it was recorded on, with "
                "the same row_keys"
            )
        return at

    def _check_single(self, ordered: Tensor, order: Tensor) -> None:
        twice = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
        keep = self.keep.flatten(0, 1)[order]
        differ = (keep[1:] != keep[:-1]).any(dim=-1)
        if self.weight is not None:
            weight = self.weight.flatten(0, 1)[order]
            differ = differ | (weight[1:] != weight[:-1]).any(dim=-1)
        if bool((twice & differ).any()):
            raise ValueError(
                "plan: it holds two decisions for the same row key and position; record it with "
                "distinct row_keys, such as row_keys=torch.arange(batch)"
            )
