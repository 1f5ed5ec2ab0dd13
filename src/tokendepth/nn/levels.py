"""Weights that 8 bits hold exactly, as in a file of that quantisation: a quarter to read."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

GROUP = 32
"""Neighbouring inputs that share a scale, as GGUF's Q8_0 has it."""
_AT_ONCE = 4096
"""Outputs that are looked at together, so that little memory is held beside the weights."""


@dataclass(frozen=True)
class Levels:
    """A matrix as whole numbers times the scale of their group, equal to it bit by bit."""

    levels: Int8[np.ndarray, "out inner"]
    scales: Float[np.ndarray, "out group"]


def levels_of(weight: Float[Tensor, "out inner"]) -> Levels | None:
    """The levels of a float32 matrix; None where 8 bits do not hold it exactly.

    The scale is sought where rounding to the largest of 127 levels puts it, so that a matrix of
    other levels counts as one without.
    """
    outputs, inner = weight.shape
    if inner % GROUP:
        return None
    levels = np.empty((outputs, inner), np.int8)
    scales = np.empty((outputs, inner // GROUP), np.float32)
    for first in range(0, outputs, _AT_ONCE):
        rows = slice(first, first + _AT_ONCE)
        groups = weight[rows].detach().unflatten(1, (-1, GROUP))
        scale = (groups.abs().amax(dim=-1, keepdim=True) / 127).half().float()
        found = torch.where(scale > 0, groups / scale, 0.0).round_()
        if not torch.equal(found * scale, groups):
            return None
        levels[rows] = found.flatten(1).to(torch.int8).numpy()
        scales[rows] = scale.squeeze(-1).numpy()
    return Levels(levels, scales)
