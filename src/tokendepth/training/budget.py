"""Cross-entropy under a budget of executed token-layers: a hinge that acts above it alone.

The price of the budget is paid only while the mean share of a micro-batch lies above it, so that no
weight has to be searched for a wanted share. The budget comes down from 1 by a straight line.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tokendepth.models.decoder import Decoder, DecoderOutput
from tokendepth.numerics import wide
from tokendepth.training.objective import Batch, Losses, TrainState, cross_entropy
from tokendepth.types import Decision, Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgeted:
    """Mean cross-entropy, and a hinge on the executed share of each micro-batch.

    A policy whose decisions carry weights is needed: gradients reach it through these.
    """

    share: float
    """Of all token-layers, unrouted ones included; above 0, at most 1."""
    price: float = 1.0
    """Nats a token for each unit of share above the budget."""
    begin: float = 0.125
    """Progress of training, 0 to 1, at which the budget begins to come down from 1."""
    end: float = 0.375
    """Progress at which it has reached `share`."""
    routing: Routing = "hard"
    """Under which the model learns; `hard` is straight-through where the policy offers it."""
    soft_until: float = 0.0
    """Progress up to which routing is soft."""
    indecision: float = 0.0
    """Nats a token for weights w that lie between 0 and 1, as the mean of 4 w (1 - w) over layers:
    soft gates that are priced so come to lie near one of the two."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share: got {self.share}; it must be above 0 and at most 1")
        if not self.price >= 0.0:
            raise ValueError(f"price: got {self.price}; it must be at least 0")
        if not self.indecision >= 0.0:
            raise ValueError(f"indecision: got {self.indecision}; it must be at least 0")
        if not 0.0 <= self.begin <= self.end <= 1.0:
            raise ValueError(
                f"begin, end: got {self.begin} and {self.end}; they are progress of training, from "
                "0 to 1 in this order"
            )
        if not 0.0 <= self.soft_until <= 1.0:
            raise ValueError(f"soft_until: got {self.soft_until}; it must lie between 0 and 1")

    def __call__(self, decoder: Decoder, batch: Batch, state: TrainState) -> Losses:
        """The losses. The hinge is one of a micro-batch: it is not linear in tokens.

        Raises:
            ValueError: a policy whose decisions carry no gradient under this routing.
        """
        output = self.routed(decoder, batch, state)
        hinge, share = self.hinge(decoder, output, batch, state)
        sums = {"cross_entropy": cross_entropy(output.logits, batch), "budget": hinge}
        if self.indecision:
            between = weighted_share(output, lambda weight: 4.0 * weight * (1.0 - weight))
            sums["indecision"] = self.indecision * between.masked_fill(~batch.valid, 0.0).sum()
        return Losses(sums=sums, statistics={"executed_share": share})

    def routed(self, decoder: Decoder, batch: Batch, state: TrainState) -> DecoderOutput:
        """A pass under the routing of this point of training."""
        routing = self._routing(state)
        return decoder(batch.inputs, batch.mask, routing=routing, row_keys=batch.row_keys)

    def hinge(
        self, decoder: Decoder, output: DecoderOutput, batch: Batch, state: TrainState
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """What is paid for the share above the budget, and the share; sums over tokens.

        Raises:
            ValueError: a policy whose decisions carry no gradient under this routing.
        """
        tokens = batch.valid.sum()
        share = weighted_share(output).masked_fill(~batch.valid, 0.0).sum()
        if torch.is_grad_enabled() and not share.requires_grad:
            raise ValueError(
                f"objective.routing: decisions of {type(decoder.policy).__name__} carry no weight "
                f"with a gradient under {self._routing(state)} routing, so that a budget cannot "
                "move them; take soft or hard_soft routing, or another policy"
            )
        above = (share / tokens - self.budget(state.progress)).clamp_min(0.0)
        return self.price * above * tokens, share.detach()

    def _routing(self, state: TrainState) -> Routing:
        return "soft" if state.progress < self.soft_until else self.routing

    def budget(self, progress: float) -> float:
        """The share that is free at this point of training."""
        if progress >= self.end:
            return self.share
        done = max(0.0, progress - self.begin) / (self.end - self.begin)
        return 1.0 + (self.share - 1.0) * done


def weighted_share(
    output: DecoderOutput, counted: Callable[[Tensor], Tensor] = lambda weight: weight
) -> Float[Tensor, "batch seq"]:
    """Of each token, the share of its layers, each counted by the weight of its update.

    It is in the graph of the weights; where a decision has none, rows that run have 1.

    Args:
        output: of a pass.
        counted: from the weights of a layer to what each counts for.
    """
    spans = output.record.schedule.spans
    total = torch.zeros(output.record.mask.shape, device=output.record.mask.device)
    for span, decision in zip(spans, output.decisions, strict=True):
        total = total + len(span.blocks) * counted(_weight(decision).to(total.device))
    return total / len(output.record.schedule.visits)


def _weight(decision: Decision) -> Tensor:
    if decision.weight is None:
        return torch.ones(()) if decision.keep is None else decision.keep.float()
    weight = wide(decision.weight)
    return weight if decision.keep is None else weight.where(decision.keep, 0.0)
