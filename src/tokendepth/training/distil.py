"""A policy taught by the model it is put into: the dense model's predictions under a budget.

G. Hinton et al., Distilling the Knowledge in a Neural Network, arXiv:1503.02531, with the model as
its own teacher: KL(dense || routed) of each token's prediction, and the budget's hinge.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tokendepth.depth.dense import Dense
from tokendepth.models.decoder import Decoder
from tokendepth.numerics import wide
from tokendepth.training.budget import Budgeted
from tokendepth.training.objective import Batch, Losses, TrainState


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """Mean divergence from the dense model's predictions, and a hinge on the executed share.

    The text is read, but its next tokens are not learned. The dense pass runs without a graph.
    """

    budget: Budgeted = field(default_factory=lambda: Budgeted(share=0.8))
    """Share, price and routing."""

    def __call__(self, decoder: Decoder, batch: Batch, state: TrainState) -> Losses:
        """The losses.

        Raises:
            ValueError: a policy whose decisions carry no gradient under this routing.
        """
        with torch.no_grad():
            dense = decoder(batch.inputs, batch.mask, policy=Dense(), row_keys=batch.row_keys)
        output = self.budget.routed(decoder, batch, state)
        hinge, share = self.budget.hinge(decoder, output, batch, state)
        divergence = divergences(dense.logits, output.logits)
        learned = batch.valid if batch.learned is None else batch.learned
        total = divergence.masked_fill(~learned, 0.0).sum()
        scale = batch.valid.sum() / learned.sum().clamp_min(1)
        return Losses(
            sums={"divergence": total * scale, "budget": hinge},
            statistics={"executed_share": share},
        )


def divergences(
    wanted: Float[Tensor, "batch seq vocab"], given: Float[Tensor, "batch seq vocab"]
) -> Float[Tensor, "batch seq"]:
    """KL(wanted || given) of each token's prediction in nats, in float32 at least."""
    log_p, log_q = (wide(one).log_softmax(dim=-1) for one in (wanted, given))
    return functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=-1)
