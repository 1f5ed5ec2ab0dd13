"""How open the gates of a policy are: what the weights of its decisions say."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokendepth.models.decoder import DecoderOutput

BINS = 10
"""Of the histogram, of equal width from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Over all tokens and spans whose update had a weight."""

    alpha: float
    """Mean weight: 1 - p, as token-selective attention calls it."""
    share_above_half: float
    """Share with p = 1 - weight above one half: what hard routing at that threshold skips."""
    histogram: tuple[float, ...]
    """Share of weights in each tenth from 0 to 1."""
    token_layers_saved: float
    """1 - mean weight over all layers, unrouted ones with 1: what papers call TLOps saved."""


@dataclass(frozen=True, kw_only=True)
class GateSums:
    """Sums to make `Gates` of, over several calls."""

    total: float = 0.0
    count: int = 0
    above: int = 0
    histogram: Int[np.ndarray, " bin"] | None = None
    layers: int = 0
    """Token-layers, unrouted ones included."""
    weighted: float = 0.0
    """The same, each by its weight."""

    def __add__(self, other: "GateSums") -> "GateSums":
        """Two calls."""
        both = [one.histogram for one in (self, other) if one.histogram is not None]
        return GateSums(
            total=self.total + other.total,
            count=self.count + other.count,
            above=self.above + other.above,
            histogram=sum(both[1:], both[0]) if both else None,
            layers=self.layers + other.layers,
            weighted=self.weighted + other.weighted,
        )

    def gates(self) -> Gates | None:
        """None where no decision had a weight."""
        if self.count == 0 or self.histogram is None:
            return None
        return Gates(
            alpha=self.total / self.count,
            share_above_half=self.above / self.count,
            histogram=tuple((self.histogram / self.count).tolist()),
            token_layers_saved=1.0 - self.weighted / self.layers,
        )


def gate_sums(output: DecoderOutput) -> GateSums:
    """Of one call, padding left out."""
    mask, spans = output.record.mask, output.record.schedule.spans
    tokens, made = int(mask.sum()), GateSums()
    for span, decision in zip(spans, output.decisions, strict=True):
        size = len(span.blocks)
        if decision.weight is None:
            ran = mask if decision.keep is None else mask & decision.keep
            made += GateSums(layers=size * tokens, weighted=float(size * ran.sum()))
            continue
        weight = decision.weight.detach()[mask].double()
        ran = weight if decision.keep is None else weight.where(decision.keep[mask], 0.0)
        made += GateSums(
            total=float(weight.sum()),
            count=tokens,
            above=int((weight < 0.5).sum()),
            histogram=torch.histc(weight.cpu(), BINS, 0.0, 1.0).long().numpy(),
            layers=size * tokens,
            weighted=size * float(ran.sum()),
        )
    return made


def mean_gate(output: DecoderOutput) -> Float[Tensor, "batch seq"]:
    """Of each token, the mean weight over the spans that have one; NaN where none has."""
    weights = [one.weight.detach().float() for one in output.decisions if one.weight is not None]
    if not weights:
        return torch.full(output.record.mask.shape, torch.nan)
    return torch.stack(weights).mean(0)
