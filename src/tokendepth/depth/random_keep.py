"""Random depth by keyed draws: the control that any learned routing must beat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.numerics import keyed_uniform
from tokendepth.types import Decision, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomKeepConfig:
    """Of `RandomKeep`."""

    share: float
    """Chance of running, 0 to 1."""
    seed: int = 0

    def build(self, host: Host) -> "RandomKeep":
        """The policy."""
        del host
        return RandomKeep(self.share, self.seed)


class RandomKeep(Policy):
    """Each token runs each routed span with the same chance, by a keyed draw: a control.

    Args:
        share: chance of running, 0 to 1.
        seed: of the draws; the same text under the same row key always draws the same.
    """

    control = True
    blind = True

    def __init__(self, share: float, seed: int = 0) -> None:
        super().__init__()
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share: got {share}; it must lie between 0 and 1")
        self.share, self.seed = share, seed
        self.config = RandomKeepConfig(share=share, seed=seed)

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """Keep the rows whose draw lies below the share."""
        del span, hidden
        at_span = torch.tensor(context.span_index, device=context.positions.device)
        draw = keyed_uniform(self.seed, context.row_keys[:, None], at_span, context.positions)
        return Decision(keep=draw < self.share), state
