"""Token-selective attention: a small router before each routed span damps or skips its updates.

A. A. Mohammed, Token-Selective Attention, arXiv:2605.05222. With the residual stream h of a token
as it enters block l + 1 (no norm in front), and a = 1 - p:

    p = sigmoid(W2 relu(W1 h + b1) + b2)        W1: (m, d), W2: (1, m), m = max(d // 4, 16)
    h = h + a attention(norm(h)),    h = h + a feed_forward(norm(h))        the same a for both
    penalty = lambda x mean over routed blocks and tokens of a

The paper trains and scores a = 1 - p (`soft`) and runs a = [p < 0.5] (`hard`). Ours: a row with p
just at the threshold runs; `hard_soft` is the hard choice with weight 1 - p kept on the rows that
run; and `hard` in training mode is straight-through (Bengio et al., arXiv:1308.3432): the update is
taken or not, as it will be when tokens are skipped, and the gradient is that of 1 - p.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.numerics import wide
from tokendepth.types import Decision, Routing, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSelectiveConfig:
    """Of `TokenSelective`."""

    inner: int | None = None
    """Hidden features of a router; max(width // 4, 16) unless given."""
    first_bias: float = -1.0
    """What the last bias of each router starts with: p starts near sigmoid(-1) = 0.269, so that
    every token runs every block at first."""
    even_start: bool = False
    """Routers say the same of all tokens at first, so that a model that was trained without them
    starts as it was; published is torch's own start."""
    normed: bool = False
    """Routers read the residual over its root mean square, not as it is: for models whose states
    differ in size by orders of magnitude between tokens."""
    threshold: float = 0.5
    """A row with a larger p is skipped; above 0 and below 1."""
    tie: Literal["runs", "skips"] = "runs"
    """What becomes of a row with p at the threshold; the published code skips it."""

    def __post_init__(self) -> None:
        if self.inner is not None and self.inner < 1:
            raise ValueError(f"inner: got {self.inner}; it must be at least 1")
        if not 0.0 < self.threshold < 1.0:
            raise ValueError(f"threshold: got {self.threshold}; it must lie between 0 and 1")
        if self.tie not in ("runs", "skips"):
            raise ValueError(f"tie: got {self.tie!r}; allowed are runs, skips")

    def build(self, host: Host) -> "TokenSelective":
        """One router for each routed set of blocks; loops over the same blocks share theirs."""
        routed = [span.blocks for span in host.schedule.spans if span.routed]
        return TokenSelective(host.config.width, tuple(dict.fromkeys(routed)), self)


class Router(nn.Module):
    """Two layers from the residual stream to the logit of p."""

    def __init__(
        self,
        width: int,
        inner: int,
        first_bias: float,
        *,
        even_start: bool = False,
        normed: bool = False,
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.last = nn.Linear(inner, 1)
        self.normed = normed
        nn.init.constant_(self.last.bias, first_bias)
        if even_start:
            nn.init.zeros_(self.last.weight)

    def forward(self, hidden: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows"]:
        """Of each row, in float32 at least, whatever the weights and autocast say."""
        with torch.autocast(hidden.device.type, enabled=False):
            rows = wide(hidden)
            if self.normed:
                rows = functional.rms_norm(rows, rows.shape[-1:], eps=1e-6)
            inner = functional.relu(_linear(self.inner, rows))
            return _linear(self.last, inner).squeeze(-1)


class TokenSelective(Policy):
    """Routers gate the updates of the routed blocks.

    Args:
        width: of a state.
        spans: the sets of blocks that are routed, each with a router of its own.
        config: of the routers and the choice.
    """

    routings: ClassVar[tuple[Routing, ...]] = ("soft", "hard", "hard_soft")

    def __init__(
        self,
        width: int,
        spans: Sequence[tuple[int, ...]],
        config: TokenSelectiveConfig | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or TokenSelectiveConfig()
        self.threshold, self.tie = config.threshold, config.tie
        self.cut = math.log(config.threshold / (1.0 - config.threshold))
        """The threshold as a logit."""
        inner = config.inner or max(width // 4, 16)
        self.routers = nn.ModuleList(
            Router(
                width,
                inner,
                config.first_bias,
                even_start=config.even_start,
                normed=config.normed,
            )
            for _ in spans
        )
        self.places = {blocks: place for place, blocks in enumerate(spans)}
        self.flops_per_row = 2 * inner * (width + 1)

    def flops(self, *, tokens: int, spans: int) -> int:
        """Both products of a router, for each token and routed span."""
        return self.flops_per_row * tokens * spans

    def decide(
        self,
        span: Span,
        hidden: Float[Tensor, "batch seq dim"],
        state: State,
        context: Context,
    ) -> tuple[Decision, State]:
        """Weight 1 - p, or the rows whose p lies below the threshold.

        Raises:
            ValueError: a span that no router was made for.
        """
        logit = self._router(span)(hidden)
        weight = torch.sigmoid(-logit)
        keep = logit <= self.cut if self.tie == "runs" else logit < self.cut
        num_routed = sum(one.routed for one in context.schedule.spans)
        if context.routing == "soft":
            return Decision(weight=weight, penalty={"depth": weight / num_routed}), state
        margin = (weight - (1.0 - self.threshold)).detach()
        if context.routing == "hard" and self.training and weight.requires_grad:
            # The rows that are skipped are computed too: where theirs would lead is the gradient.
            weight = keep.to(weight) + (weight - weight.detach())
            penalty = {"depth": weight / num_routed}
            return Decision(weight=weight, penalty=penalty, margin=margin), state
        penalty = {"depth": weight / num_routed}
        kept = weight if context.routing == "hard_soft" else None
        return Decision(keep=keep, weight=kept, penalty=penalty, margin=margin), state

    def _router(self, span: Span) -> nn.Module:
        place = self.places.get(span.blocks)
        if place is None:
            known = ", ".join(map(str, self.places))
            raise ValueError(
                f"schedule: it routes blocks {span.blocks} together, which no router was made for "
                f"(there are {known}); give the schedule that the policy was made with"
            )
        return self.routers[place]


def token_layers_saved(alpha: float, num_blocks: int) -> float:
    """What the paper calls TLOps saved: the share of token-layers not run, the stem counted.

    Args:
        alpha: mean of 1 - p, or the kept share, over the routed blocks; 0 to 1.
        num_blocks: of the model, of which the first is the stem.
    """
    return 1.0 - (1.0 + (num_blocks - 1) * alpha) / num_blocks


def _linear(layer: nn.Linear, rows: Tensor) -> Tensor:
    """The layer in the dtype of the rows."""
    return functional.linear(rows, layer.weight.to(rows), layer.bias.to(rows))
