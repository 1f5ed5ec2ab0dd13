"""Weights as they start: normal draws; what writes to the residual stream is scaled down.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019: 1 / sqrt(2 x blocks).
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import ModelConfig
from tokendepth.nn.attention import Attention
from tokendepth.nn.feed_forward import FeedForward
from tokendepth.numerics import derived_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Initial:
    """Standard deviations of the decoder's weights; a policy starts as it says itself."""

    embeddings: float = 0.02
    matrices: float | None = 0.02
    """None for torch's own default, uniform by the number of inputs."""
    residual: float = 0.02
    """Of what writes to the residual stream, before it is divided by sqrt(2 x blocks)."""

    def __post_init__(self) -> None:
        for name in ("embeddings", "matrices", "residual"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}: got {value}; a standard deviation is above 0")

    def build(self, config: ModelConfig, seed: int) -> Decoder:
        """A decoder with weights that are a function of the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, "modules"))
            decoder = config.build()
            # Of its own, so that a policy with weights leaves the decoder's as they are without it.
            torch.manual_seed(derived_seed(seed, "weights"))
            _draw(decoder, self)
        return decoder


@torch.no_grad()
def _draw(decoder: Decoder, initial: Initial) -> None:
    own = [child for name, child in decoder.named_children() if name != "policy"]
    modules = [module for child in own for module in child.modules()]
    ends = {id(one.output) for one in modules if isinstance(one, Attention)}
    ends |= {id(one.down) for one in modules if isinstance(one, FeedForward)}
    scaled = initial.residual / math.sqrt(2 * len(decoder.blocks))
    for module in modules:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=initial.embeddings)
        if not isinstance(module, nn.Linear):
            continue
        if module is decoder.head:
            nn.init.normal_(module.weight, std=initial.embeddings)
        elif id(module) in ends:
            nn.init.normal_(module.weight, std=scaled)
        elif initial.matrices is not None:
            nn.init.normal_(module.weight, std=initial.matrices)
        if module.bias is not None and initial.matrices is not None:
            nn.init.zeros_(module.bias)
