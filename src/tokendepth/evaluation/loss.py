"""One full pass over fixed passages under one routing: what each token cost, in nats and layers.

A token's loss does not depend on the batch it is in, beyond the rounding of products of another
shape; sums run in float64, in the order of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokendepth.depth.base import Policy
from tokendepth.depth.execute import ExecutorName
from tokendepth.errors import NonFiniteError
from tokendepth.evaluation.causality import nearest_margin
from tokendepth.evaluation.gates import GateSums, gate_sums, mean_gate
from tokendepth.evaluation.passages import Passage
from tokendepth.models.cost import Ledger, dense_twin, ledger
from tokendepth.models.decoder import Decoder, DecoderOutput
from tokendepth.numerics import all_finite, normalise, wide
from tokendepth.types import OnProgress, Schedule


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """One entry a scored token, in the order of the text."""

    passage: Int[np.ndarray, " token"]
    index: Int[np.ndarray, " token"]
    """Of the predicted token, in its document."""
    position: Int[np.ndarray, " token"]
    """How many tokens of the passage the prediction had to go by, less one."""
    nats: Float[np.ndarray, " token"]
    correct: Bool[np.ndarray, " token"]
    """Whether the likeliest token was the right one."""
    gate: Float[np.ndarray, " token"]
    """Mean weight of its updates; NaN where decisions have none."""
    executed: Int[np.ndarray, " token"]
    """Block executions of the token that was read, on the way to the prediction."""
    margin: Float[np.ndarray, " token"]
    """Smallest distance of its decisions from their thresholds; infinite where none is told."""
    gates: GateSums
    cost: Ledger
    dense_cost: Ledger
    """Of the same tokens with nothing skipped."""


@torch.no_grad()
def score(
    decoder: Decoder,
    given: Sequence[Passage],
    *,
    routing: str | None = None,
    batch: int = 8,
    executor: ExecutorName = "dense",
    policy: Policy | None = None,
    schedule: Schedule | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> TokenScores:
    """Predict every scored token of the passages once.

    Policy and schedule are the decoder's own unless given.
    The number of a passage is its row key, so that keyed draws are the same in any batch.

    Raises:
        ValueError: a batch below 1.
        NonFiniteError: a logit is NaN or infinite.
    """
    if batch < 1:
        raise ValueError(f"batch: got {batch}; it must be at least 1")
    total = sum(len(passage.ids) - 1 for passage in given)
    parts: list[dict[str, np.ndarray]] = []
    costs: list[tuple[Ledger, Ledger]] = []
    gates = GateSums()
    done = 0
    for start in range(0, len(given), batch):
        some = given[start : start + batch]
        ids, mask, targets = padded(some, decoder.embedding.weight.device)
        keys = torch.arange(start, start + len(some), device=ids.device)
        output = decoder(
            ids, None if bool(mask.all()) else mask, routing=routing, executor=executor,
            row_keys=keys, policy=policy, schedule=schedule,
        )  # fmt: skip
        if not all_finite(output.logits[mask]):
            raise NonFiniteError(
                f"the logits of passages {start} to {start + len(some) - 1} are not finite "
                f"({output.logits.dtype}); evaluate in a wider --dtype"
            )
        parts.append(_columns(output, some, mask, targets, start))
        gates += gate_sums(output)
        gathered = ledger(decoder, output, executor="gathered")
        costs.append((gathered, ledger(decoder, dense_twin(output.record))))
        done += int(mask.sum())
        on_progress(done, total)
    return TokenScores(
        **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
        gates=gates,
        cost=reduce(Ledger.__add__, [cost for cost, _ in costs]),
        dense_cost=reduce(Ledger.__add__, [dense for _, dense in costs]),
    )


def padded(some: Sequence[Passage], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, their mask and targets, padded on the right."""
    width = max(len(passage.ids) for passage in some) - 1
    ids = torch.zeros(len(some), width, dtype=torch.long)
    mask = torch.zeros(len(some), width, dtype=torch.bool)
    targets = torch.zeros_like(ids)
    for row, passage in enumerate(some):
        length = len(passage.ids) - 1
        ids[row, :length] = torch.tensor(passage.ids[:-1])
        targets[row, :length] = torch.tensor(passage.ids[1:])
        mask[row, :length] = True
    return ids.to(device), mask.to(device), targets.to(device)


def _columns(
    output: DecoderOutput,
    some: Sequence[Passage],
    mask: Bool[Tensor, "batch seq"],
    targets: Int[Tensor, "batch seq"],
    start: int,
) -> dict[str, np.ndarray]:
    executed = output.executed.sum(-1)
    margin, gate = nearest_margin(output), mean_gate(output)
    rows = []
    for row, passage in enumerate(some):  # a row at a time: a vocabulary of floats is large
        there = mask[row]
        _, log_p = normalise(wide(output.logits[row][there]))
        correct = log_p.argmax(dim=-1) == targets[row][there]
        nats = -log_p.gather(1, targets[row][there, None]).squeeze(1)
        scored = np.array(passage.scored)
        position = np.arange(len(scored))
        rows.append(
            {
                "passage": np.full(len(scored), start + row)[scored],
                "index": (passage.first - passage.num_repeated + 1 + position)[scored],
                "position": position[scored],
                "nats": nats.double().cpu().numpy()[scored],
                "correct": correct.cpu().numpy()[scored],
                "gate": gate[row][there.to(gate.device)].cpu().numpy()[scored],
                "executed": executed[row][there].cpu().numpy()[scored],
                "margin": margin[row][there].cpu().numpy()[scored],
            }
        )
    return {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}
