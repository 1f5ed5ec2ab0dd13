"""Rotary positions (Su et al., 2021), with the two halves of a head turned against each other."""

from collections.abc import Callable
from dataclasses import dataclass
from math import tau

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Turn = tuple[Tensor, Tensor]
"""Cosine and sine, each (..., turned features of a head), of some positions; the sine as the factor
of the other half of a pair, so negative for the first half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Slower turns, so that weights trained on short texts read longer ones.

    Without a band every pair turns `factor` times slower (Chen et al., 2023). With one, as Llama
    3.1 has it, pairs that turn at least `band[1]` times in `original_positions` stay as they are,
    those that turn at most `band[0]` times are slowed down, and those between are blended.
    """

    factor: float
    band: tuple[float, float] | None = None
    original_positions: int | None = None

    def __post_init__(self) -> None:
        if self.factor <= 0:
            raise ValueError(f"factor: got {self.factor}; it must be positive")
        if self.band is not None:
            if self.original_positions is None or self.original_positions < 1:
                raise ValueError("original_positions: a stretch with a band needs at least 1")
            if not 0 < self.band[0] < self.band[1]:
                raise ValueError(f"band: got {self.band}; it must be two rising positive numbers")


def frequencies(width: int, base: float, stretch: Stretch | None = None) -> Float[Tensor, " half"]:
    """Radians per position of each pair of `width` turned features."""
    turning = 1.0 / base ** (torch.arange(0, width, 2).float() / width)
    if stretch is None:
        return turning
    if stretch.band is None or stretch.original_positions is None:
        return turning / stretch.factor
    low, high = stretch.band
    rounds = turning * stretch.original_positions / tau
    kept = ((rounds - low) / (high - low)).clamp(0.0, 1.0)
    return kept * turning + (1.0 - kept) * turning / stretch.factor


class Rotary(nn.Module):
    """Angles of positions.

    Args:
        frequencies: radians per position, one for each pair of turned features.
        scaling: factor on cosine and sine, as some long-context variants use.
    """

    def __init__(self, frequencies: Float[Tensor, " half"], scaling: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", frequencies.float())
        self.scaling = scaling

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        """Move with the module, but never below float32: half precision merges positions."""
        before = self.get_buffer("frequencies")
        super()._apply(fn, recurse)
        after = self.get_buffer("frequencies")
        if after.dtype.itemsize < 4:
            self.frequencies = before.to(after.device)
        return self

    def turn(self, positions: Int[Tensor, "batch seq"], dtype: torch.dtype) -> Turn:
        """The factors at the given positions, computed in float32."""
        frequencies = self.get_buffer("frequencies")
        angles = positions[..., None].to(frequencies.dtype) * frequencies
        cosine, sine = angles.cos() * self.scaling, angles.sin() * self.scaling
        return torch.cat((cosine, cosine), -1).to(dtype), torch.cat((-sine, sine), -1).to(dtype)


def rotate(vectors: Float[Tensor, "*rows head head_dim"], turn: Turn) -> Tensor:
    """Turn each head's vector by its position; features beyond the angles stay as they are."""
    cosine, sine = turn[0].unsqueeze(-2), turn[1].unsqueeze(-2)
    turned = vectors[..., : cosine.shape[-1]]
    others = turned.roll(turned.shape[-1] // 2, dims=-1)
    turned = (turned * cosine).addcmul_(others, sine)
    if turned.shape == vectors.shape:
        return turned
    return torch.cat((turned, vectors[..., cosine.shape[-1] :]), dim=-1)
