"""A random number of loops in each step, so that a looped model is good at any of them.

J. Geiping et al., Scaling up Test-Time Compute with Latent Reasoning, arXiv:2502.05171 (Huginn).
With m the mean number of loops and s the spread:

    rate ~ LogNormal(log(m - 1) - s^2 / 2, s),      loops = 1 + Poisson(rate), at most `most`

One draw a step, shared by its micro-batches. The last `learned` loops carry gradients; those before
them run without, but what is injected into the later ones still leads back into the prelude.
"""

import math
from dataclasses import dataclass

import torch

from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import with_loops
from tokendepth.training.objective import Batch, Losses, TrainState, cross_entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomLoops:
    """Mean cross-entropy after a random number of loops."""

    mean: float = 8.0
    """Loops, before they are cut off at `most`; above 1."""
    spread: float = 0.5
    """Standard deviation of the logarithm of the rate."""
    most: int = 32
    """The largest number of loops."""
    learned: int | None = 8
    """How many of the last loops carry gradients; all, if None."""

    def __post_init__(self) -> None:
        if not 1.0 < self.mean < math.inf:
            raise ValueError(f"mean: got {self.mean}; it must be above 1")
        if not 0.0 <= self.spread < math.inf:
            raise ValueError(f"spread: got {self.spread}; it must be at least 0")
        for name in ("most", "learned"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}; it must be at least 1")

    def __call__(self, decoder: Decoder, batch: Batch, state: TrainState) -> Losses:
        """The losses, under the decoder's own policy.

        Raises:
            ValueError: a schedule without a core that runs again and again.
        """
        loops = self.draw(state.shared())
        order = with_loops(decoder.schedule, loops, learned=self.learned)
        output = decoder(batch.inputs, batch.mask, schedule=order, row_keys=batch.row_keys)
        told = torch.tensor(float(loops)) * batch.valid.sum().cpu()
        return Losses(
            sums={"cross_entropy": cross_entropy(output.logits, batch)}, statistics={"loops": told}
        )

    def draw(self, generator: torch.Generator) -> int:
        """How many loops, 1 to `most`."""
        shift = self.spread * torch.randn((), generator=generator, dtype=torch.float64)
        rate = torch.exp(math.log(self.mean - 1.0) - self.spread**2 / 2 + shift)
        return min(1 + int(torch.poisson(rate, generator=generator)), self.most)
