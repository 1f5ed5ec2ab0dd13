"""A depth given from outside: for all tokens, each row or each token."""

from bisect import bisect_right
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.types import PLAIN, Decision, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedExitConfig:
    """Of `FixedExit` with one depth for all tokens."""

    depth: int

    def build(self, host: Host) -> "FixedExit":
        """The policy."""
        del host
        return FixedExit(self.depth)


class FixedExit(Policy):
    """Stop after a given number of blocks; the coda, where there is one, runs for all.

    With the same depth for all tokens of a stack this is the model truncated to that many blocks.

    Args:
        depth: block executions up to the exit, the coda's not counted: one number, one a row
            (batch) or one a token (batch, seq). It must end a span: a stem or a prelude cannot be
            cut, nor can a loop be left half-way. Depths a token belong to the columns of one call,
            padding included: with a cache, give each call its own.
    """

    sticky = True
    blind = True
    control = True

    def __init__(self, depth: int | Int[Tensor, " batch"] | Int[Tensor, "batch seq"]) -> None:
        super().__init__()
        given = torch.as_tensor(depth)
        if given.ndim > 2 or given.is_floating_point():
            raise ValueError(
                f"depth: got a tensor of shape {tuple(given.shape)} and dtype {given.dtype}; it "
                "must be whole numbers of shape (), (batch) or (batch, seq)"
            )
        self.register_buffer("depth", given)
        self.config = FixedExitConfig(depth=int(given)) if given.ndim == 0 else None

    def start(self, hidden: Tensor, context: Context) -> State:
        """The decisions of all spans; those between two depths share one.

        Raises:
            ValueError: a depth at which no span ends.
        """
        del hidden
        depth = self.get_buffer("depth").to(context.positions.device)
        depth = depth[:, None] if depth.ndim == 1 else depth
        schedule, given = context.schedule, set(depth.flatten().tolist())
        wrong = sorted(given.difference(schedule.exits))
        if wrong:
            raise ValueError(
                f"depth: got {wrong[0]}; spans of this schedule end at {sorted(schedule.exits)}"
            )
        if depth.ndim == 2 and any(
            have not in (1, want)
            for have, want in zip(depth.shape, context.positions.shape, strict=True)
        ):
            raise ValueError(
                f"depth: got shape {tuple(depth.shape)} for a call of {tuple(context.mask.shape)}"
            )
        known, bounds, depth = {0: PLAIN}, sorted(given), depth.expand(context.positions.shape)
        for first in schedule.first_visit:
            passed = bisect_right(bounds, first)
            if passed not in known:
                known[passed] = Decision(keep=depth > first)
        return [known[bisect_right(bounds, first)] for first in schedule.first_visit]

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """Rows run while fewer blocks than their depth have run."""
        del span, hidden
        return state[context.span_index], state
