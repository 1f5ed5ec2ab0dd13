"""How the next token is chosen from its logits.

Repetition penalty (Keskar et al., 2019), temperature, top-k (Fan et al., 2018) and top-p (Holtzman
et al., 2020), in this order. A draw is a function of (seed, row key, position), so a row samples
the same whoever shares its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokendepth.numerics import first_maximum, keyed_uniform, wide


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Greedy unless a temperature is given."""

    temperature: float = 0.0
    """0 takes the most likely token; 1 draws from the model's own distribution."""
    top_k: int | None = None
    """Draw from the k most likely tokens alone."""
    top_p: float | None = None
    """Draw from the fewest most likely tokens that together reach this probability."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that the row holds already become less likely: a positive logit is divided
    by it, a negative one multiplied."""
    seed: int = 0
    """Of the draws."""

    def check(self) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature: got {self.temperature}; it must be 0 or more, finite")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: got {self.top_k}; it must be at least 1")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p: got {self.top_p}; it must lie above 0 and be at most 1")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ValueError(
                f"repetition_penalty: got {self.repetition_penalty}; it must be above 0, 1 for none"
            )
        if self.temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise ValueError(
                "temperature: 0 takes the most likely token, so top_k and top_p would do nothing; "
                "give a temperature above 0"
            )


def penalised(
    scores: Float[Tensor, "row vocab"], held: Sequence[Sequence[int]], penalty: float
) -> Float[Tensor, "row vocab"]:
    """Scores with the tokens that each row holds made less likely."""
    if penalty == 1.0:
        return scores
    scores = scores.clone()
    for row, tokens in enumerate(held):
        at = torch.tensor(sorted(set(tokens)), dtype=torch.long, device=scores.device)
        own = scores[row, at]
        scores[row, at] = torch.where(own > 0, own / penalty, own * penalty)
    return scores


def warped(scores: Float[Tensor, "row vocab"], sampling: Sampling) -> Float[Tensor, "row vocab"]:
    """Scores after temperature, top-k and top-p; -inf for tokens that are out."""
    scores = scores / sampling.temperature
    if sampling.top_k is not None:
        least = scores.topk(min(sampling.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered, order = scores.sort(dim=-1, descending=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        out = torch.zeros_like(scores, dtype=torch.bool)
        out.scatter_(1, order, before >= sampling.top_p)
        scores = scores.masked_fill(out, -torch.inf)
    return scores


def choose(
    logits: Float[Tensor, "row vocab"],
    held: Sequence[Sequence[int]],
    row_keys: Int[Tensor, " row"],
    positions: Int[Tensor, " row"],
    sampling: Sampling,
) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
    """The next token of each row, and the probability that the model itself gives it.

    Args:
        logits: of the model.
        held: the tokens of each row so far, for the repetition penalty.
        row_keys: of the draws.
        positions: of the tokens that are chosen, likewise.
        sampling: how.
    """
    scores = wide(logits)
    confidence = scores.softmax(dim=-1)
    scores = penalised(scores, held, sampling.repetition_penalty)
    if sampling.temperature == 0:
        chosen = first_maximum(scores)
    else:
        reached = warped(scores, sampling).double().softmax(dim=-1).cumsum(dim=-1)
        draw = keyed_uniform(sampling.seed, row_keys, positions)[:, None] * reached[:, -1:]
        chosen = torch.searchsorted(reached, draw, right=True).squeeze(1)
        chosen = chosen.clamp_max(scores.shape[-1] - 1)
    return chosen, confidence.gather(1, chosen[:, None]).squeeze(1)
