"""Random depth by keyed draws: the control that any learned routing must beat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.depth.shares import Shares, check_each, each_here, each_routed
from tokendepth.numerics import keyed_uniform
from tokendepth.types import Decision, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomKeepConfig:
    """Of `RandomKeep`."""

    share: Shares
    """Chance of running, 0 to 1; one for all routed spans, or one for each."""
    seed: int = 0
    one_draw: bool = False
    """One draw a token for all spans: where shares fall from span to span it leaves once, at a
    random depth, and never comes back."""

    def build(self, host: Host) -> "RandomKeep":
        """The policy."""
        each_routed("share", self.share, sum(span.routed for span in host.schedule.spans))
        return RandomKeep(self.share, self.seed, one_draw=self.one_draw)


class RandomKeep(Policy):
    """Every token runs a routed span with the same chance, by a keyed draw: a control.

    Args:
        share: chance of running, 0 to 1; one for all routed spans, or one for each, such as the
            rates at which a learned policy runs them.
        seed: of the draws; the same text under the same row key always draws the same.
        one_draw: one draw a token for all spans instead of one for each.
    """

    control = True
    blind = True

    def __init__(self, share: Shares, seed: int = 0, *, one_draw: bool = False) -> None:
        super().__init__()
        check_each("share", share)
        self.share, self.seed, self.one_draw = share, seed, one_draw
        self.config = RandomKeepConfig(share=share, seed=seed, one_draw=one_draw)

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """Keep the rows whose draw lies below the share."""
        del span, hidden
        at = 0 if self.one_draw else context.span_index
        at_span = torch.tensor(at, device=context.positions.device)
        draw = keyed_uniform(self.seed, context.row_keys[:, None], at_span, context.positions)
        return Decision(keep=draw < each_here("share", self.share, context)), state
