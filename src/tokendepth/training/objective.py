"""What is trained: from a decoder and a batch to named losses, summed over tokens.

The seam of training. An objective is a frozen dataclass that can be called; the loop divides its
sums by all tokens of the step, over all micro-batches, so that accumulation changes nothing. A
loss that is not linear in tokens (a target for a batch mean) multiplies its mean by the tokens of
its micro-batch, and says that it is per micro-batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from tokendepth.configs import nearest
from tokendepth.depth.execute import ExecutorName
from tokendepth.models.decoder import Decoder, DecoderOutput
from tokendepth.numerics import wide
from tokendepth.types import Routing


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Windows of text: the model reads `inputs` and predicts `targets`."""

    inputs: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]
    valid: Bool[Tensor, "batch seq"]
    """False past the end of a window that is shorter than the others."""
    learned: Bool[Tensor, "batch seq"] | None = None
    """Targets that losses count, where these are not all valid ones."""
    row_keys: Int[Tensor, " batch"]
    """Number of each window in the order of training, for keyed draws."""

    @property
    def mask(self) -> Bool[Tensor, "batch seq"] | None:
        """For the decoder; None where nothing is padding."""
        return None if bool(self.valid.all()) else self.valid

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        return Batch(
            inputs=self.inputs.to(device),
            targets=self.targets.to(device),
            valid=self.valid.to(device),
            learned=None if self.learned is None else self.learned.to(device),
            row_keys=self.row_keys.to(device),
        )


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Where training is, for warm-ups, temperatures and draws."""

    step: int
    """From 0."""
    steps: int
    """In all."""
    micro: int
    """Which micro-batch of the step, from 0."""
    tokens: int
    """Of the whole step: what sums are divided by."""
    seed: int
    generator: torch.Generator
    """For draws of a micro-batch; a stream of training alone, kept in checkpoints."""

    @property
    def progress(self) -> float:
        """0 at the first step, 1 after the last."""
        return self.step / self.steps

    def shared(self) -> torch.Generator:
        """For draws that all micro-batches of a step share, such as a random depth."""
        mixed = (self.seed * 1_000_003 + self.step) % 2**63
        return torch.Generator().manual_seed(mixed)


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sums over the tokens of a micro-batch."""

    sums: Mapping[str, Float[Tensor, ""]]
    """In the graph; together they are what is minimised."""
    statistics: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)
    """Only told, such as the share of layers that ran; sums over tokens too."""


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass named in `training/registry.py`, or a user's own by dotted path."""

    def __call__(self, decoder: Decoder, batch: Batch, state: TrainState) -> Losses:
        """The losses of a micro-batch; the decoder is in training mode."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy:
    """Mean cross-entropy of the next token, and the policy's penalties by weight."""

    penalties: Mapping[str, float] = field(default_factory=dict)
    """Weight of each penalty that the policy's decisions name; each is a sum over spans."""
    routing: Routing | None = None
    """The policy's first unless given."""
    executor: ExecutorName = "dense"

    def __call__(self, decoder: Decoder, batch: Batch, state: TrainState) -> Losses:
        """The losses.

        Raises:
            ValueError: a penalty without a weight, or a weight without a penalty.
        """
        del state
        output = decoder(
            batch.inputs,
            batch.mask,
            routing=self.routing,
            executor=self.executor,
            row_keys=batch.row_keys,
        )
        sums = {"cross_entropy": cross_entropy(output.logits, batch)}
        sums |= weighted_penalties(output, batch, self.penalties)
        share = output.executed.float().mean(-1).sum()
        return Losses(sums=sums, statistics={"executed_share": share.detach()})


def cross_entropy(logits: Float[Tensor, "batch seq vocab"], batch: Batch) -> Float[Tensor, ""]:
    """Of the valid targets, summed, in float32 at least.

    Where only some of them are learned, their mean stands for all, so that a price on anything else
    weighs as much whatever the task's question is.
    """
    flat = wide(logits.flatten(0, 1))
    learned = batch.valid if batch.learned is None else batch.learned
    targets = batch.targets.masked_fill(~learned, -100).flatten()
    total = functional.cross_entropy(flat, targets, reduction="sum", ignore_index=-100)
    if batch.learned is None:
        return total
    return total * batch.valid.sum() / learned.sum().clamp_min(1)


def weighted_penalties(
    output: DecoderOutput, batch: Batch, weights: Mapping[str, float]
) -> dict[str, Float[Tensor, ""]]:
    """Each penalty of the decisions times its weight, summed over valid tokens.

    Raises:
        ValueError: a penalty without a weight, or a weight without a penalty.
    """
    given = output.penalty
    for name in sorted(set(given) ^ set(weights)):
        known = ", ".join(given) or "none"
        raise ValueError(
            f"objective.penalties: the policy has the penalties {known} and weights are given for "
            f"{', '.join(weights) or 'none'}: {name} is in one of the two alone"
            f"{nearest(name, given if name in weights else weights)}; a weight of 0 switches a "
            "penalty off"
        )
    return {
        name: weights[name] * wide(value).masked_fill(~batch.valid, 0.0).sum()
        for name, value in given.items()
    }
