"""Mixture-of-depths: the rows of a sequence with the highest scores run, the others pass by.

D. Raposo et al., Mixture-of-Depths, arXiv:2404.02258. With the residual stream h of a token as it
enters a routed span f, its score s = w h + b, and k = capacity x length of its sequence:

    h = h + g f(h) - g h  where s is among the k highest, else h = h        g = sigmoid(s), or s

The choice looks at later tokens, so that a model cannot write with it: `top_k` routing is the
published behaviour, for training, and says that it is not causal. At inference (`hard`) a small
network that has learned from the token alone whether it would be chosen decides: the paper's
auxiliary predictor, trained by the penalty `predictor` (binary cross-entropy) without a gradient
into the model. Ours: g is a sigmoid unless `weight="linear"` asks for the published score itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.depth.token_selective import Router
from tokendepth.numerics import wide
from tokendepth.types import Decision, Gates, Routing, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfDepthsConfig:
    """Of `MixtureOfDepths`."""

    capacity: float = 0.125
    """Share of the tokens of a sequence that run a routed span; above 0, at most 1."""
    weight: Literal["sigmoid", "linear"] = "sigmoid"
    """Of the change that a routed span makes; the published one is the score itself."""
    inner: int | None = None
    """Hidden features of a predictor; max(width // 4, 16) unless given."""

    def __post_init__(self) -> None:
        if not 0.0 < self.capacity <= 1.0:
            raise ValueError(f"capacity: got {self.capacity}; it must be above 0 and at most 1")
        if self.weight not in ("sigmoid", "linear"):
            raise ValueError(f"weight: got {self.weight!r}; allowed are sigmoid, linear")
        if self.inner is not None and self.inner < 1:
            raise ValueError(f"inner: got {self.inner}; it must be at least 1")

    def build(self, host: Host) -> "MixtureOfDepths":
        """A router and a predictor for each routed set of blocks; loops share theirs."""
        routed = [span.blocks for span in host.schedule.spans if span.routed]
        return MixtureOfDepths(host.config.width, tuple(dict.fromkeys(routed)), self)


class MixtureOfDepths(Policy):
    """The highest scores run, or those that are predicted to be the highest.

    Args:
        width: of a state.
        spans: the sets of blocks that are routed, each with a router of its own.
        config: of the choice.
    """

    gates: ClassVar[Gates] = "span"
    routings: ClassVar[tuple[Routing, ...]] = ("hard", "top_k")

    def __init__(
        self,
        width: int,
        spans: Sequence[tuple[int, ...]],
        config: MixtureOfDepthsConfig | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or MixtureOfDepthsConfig()
        self.capacity, self.linear = config.capacity, config.weight == "linear"
        inner = config.inner or max(width // 4, 16)
        self.routers = nn.ModuleList(nn.Linear(width, 1) for _ in spans)
        self.predictors = nn.ModuleList(Router(width, inner, 0.0) for _ in spans)
        self.places = {blocks: place for place, blocks in enumerate(spans)}
        self.flops_per_row = 2 * width + 2 * inner * (width + 1)

    def causal(self, routing: Routing) -> bool:
        """The highest scores of a sequence are known at its end alone."""
        return routing != "top_k"

    def flops(self, *, tokens: int, spans: int) -> int:
        """Score and predictor, for each token and routed span."""
        return self.flops_per_row * tokens * spans

    def decide(
        self,
        span: Span,
        hidden: Float[Tensor, "batch seq dim"],
        state: State,
        context: Context,
    ) -> tuple[Decision, State]:
        """The rows that run, and the weight of the change they get.

        Raises:
            ValueError: a span that no router was made for.
        """
        place = self._place(span)
        score = self._score(place, hidden)
        weight = score if self.linear else torch.sigmoid(score)
        predicted = self.predictors[place](hidden.detach())
        if context.routing == "hard":
            return Decision(keep=predicted > 0.0, weight=weight, margin=predicted.detach()), state
        keep = highest(score, context.mask, self.capacity)
        wrong = functional.binary_cross_entropy_with_logits(
            predicted, keep.to(predicted), reduction="none"
        )
        routed = sum(one.routed for one in context.schedule.spans)
        return Decision(keep=keep, weight=weight, penalty={"predictor": wrong / routed}), state

    def _score(self, place: int, hidden: Tensor) -> Float[Tensor, "batch seq"]:
        """In float32 at least, whatever the weights and autocast say."""
        router = self.routers[place]
        assert isinstance(router, nn.Linear)
        with torch.autocast(hidden.device.type, enabled=False):
            rows = wide(hidden)
            return functional.linear(rows, router.weight.to(rows), router.bias.to(rows)).squeeze(-1)

    def _place(self, span: Span) -> int:
        place = self.places.get(span.blocks)
        if place is None:
            known = ", ".join(map(str, self.places))
            raise ValueError(
                f"schedule: it routes blocks {span.blocks} together, which no router was made for "
                f"(there are {known}); give the schedule that the policy was made with"
            )
        return place


def highest(
    score: Float[Tensor, "batch seq"], mask: Bool[Tensor, "batch seq"], capacity: float
) -> Bool[Tensor, "batch seq"]:
    """The tokens with the highest scores of each row: capacity x its tokens, rounded up.

    Padding is never among them; of equal scores the earlier ones are.
    """
    order = (
        score.detach().masked_fill(~mask, -math.inf).argsort(dim=1, descending=True, stable=True)
    )
    rank = order.argsort(dim=1)
    return (rank < torch.ceil(capacity * mask.sum(1, keepdim=True))) & mask
