"""The analysis twin of halting: all tokens run all loops, and each is read where it would halt.

Under `freeze`, which is what runs, a token that has halted shows its last state to the others; here
they see it go on. The two bound each other, and in this one the rule sees what it would have seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokendepth.depth.halting import BACK, READS, VALUES, Halting
from tokendepth.evaluation.loss import padded
from tokendepth.evaluation.passages import Passage
from tokendepth.measure.loop_readings import each_loop
from tokendepth.models.decoder import Decoder
from tokendepth.numerics import normalise, wide


@dataclass(frozen=True, kw_only=True)
class ReadOutScores:
    """One entry a scored token, in the order of the text."""

    nats: Float[np.ndarray, " token"]
    loops: Int[np.ndarray, " token"]


def score_read_out(
    decoder: Decoder, given: Sequence[Passage], policy: Halting, loops: int, *, batch: int = 8
) -> ReadOutScores:
    """Score every passage with the logits of each token's halting loop.

    Raises:
        ValueError: a model without a core that runs again and again.
        NonFiniteError: logits are NaN or infinite.
    """
    nats, depths = [], []
    for start in range(0, len(given), batch):
        some = given[start : start + batch]
        ids, mask, targets = padded(some, decoder.embedding.weight.device)
        walk = _Walk(policy, targets[mask], loops)
        keys = torch.arange(start, start + len(some), device=ids.device)
        each_loop(decoder, ids, mask, loops, walk.tell, row_keys=keys)
        scored = torch.tensor([mark for passage in some for mark in passage.scored])
        nats.append(walk.nats.double().cpu()[scored].numpy())
        depths.append(walk.depth.cpu()[scored].numpy())
    return ReadOutScores(nats=np.concatenate(nats), loops=np.concatenate(depths))


class _Walk:
    """Where each token of a batch has halted so far, and what it said there."""

    def __init__(self, policy: Halting, targets: Int[Tensor, " token"], loops: int) -> None:
        self.policy, self.targets, self.loops = policy, targets, loops
        self.seen: list[Tensor] = []
        self.streak = torch.zeros_like(targets)
        self.depth = torch.zeros_like(targets)
        self.nats = torch.zeros(len(targets), device=targets.device)

    def tell(self, loop: int, states: Tensor, logits: Tensor | None) -> None:
        """After so many loops: who halts here."""
        policy, ends = self.policy, loop == self.loops
        halts = torch.full_like(self.targets, ends, dtype=torch.bool)
        if policy.looks(loop) and not ends:
            looked = logits if policy.rule in READS else states
            assert looked is not None
            self.seen.append(looked)
            del self.seen[: -BACK[policy.rule] - 1]
            if loop >= policy.least:
                value = VALUES[policy.rule](self.seen)
                self.streak, _ = policy.judge(value, self.streak, looked)
                halts = self.streak >= policy.patience
        fresh = halts & (self.depth == 0)
        if logits is None or not bool(fresh.any()):
            return
        log_p = normalise(wide(logits[fresh]))[1]
        told = -log_p.gather(1, self.targets[fresh, None]).squeeze(1)
        self.nats = self.nats.masked_scatter(fresh, told.float())
        self.depth = torch.where(fresh, loop, self.depth)
