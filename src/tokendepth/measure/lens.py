"""The logit lens: what the model would predict if it stopped after k blocks.

A state is passed through the model's own final norm, unembedding, scale and soft-cap
(nostalgebraist, "interpreting GPT: the logit lens", 2020). A depth read this way depends on the
read-out: early states may carry a prediction that the last layer's unembedding cannot read.

A lens proves itself when made: on a probe text the last state must give the model's own logits.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokendepth.adapters.recording import undisturbed
from tokendepth.adapters.view import View, probe_ids
from tokendepth.errors import NonFiniteError
from tokendepth.measure.capture import States, capture
from tokendepth.numerics import all_finite, entropy, kl_divergence, normalise, wide

_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
CHUNK_BYTES = 40 * 2**20
"""Size of one buffer over the vocabulary; about eight live at a time. Above 32 MB the usual
allocator maps each buffer on its own and gives it back at once; smaller ones were seen to split
the heap until it held two hundred of them."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What a lens reads at states 0..L of some tokens. Distances are in nats.

    `kl_previous` and `relative_change` compare a state with the one before and are NaN at state 0.
    """

    kl_last: Float[Tensor, "state token"]
    """KL(p_L || p_j), the distance still to go."""
    kl_previous: Float[Tensor, "state token"]
    """KL(p_{j-1} || p_j), the last step."""
    entropy: Float[Tensor, "state token"]
    """Entropy of p_j."""
    same_argmax: Bool[Tensor, "state token"]
    """The most likely token is the one of the last state."""
    relative_change: Float[Tensor, "state token"]
    """||s_j - s_{j-1}|| / ||s_j||."""
    top_ids: Int[Tensor, "state token rank"]
    top_probabilities: Float[Tensor, "state token rank"]

    @property
    def num_layers(self) -> int:
        """L; there are L + 1 states."""
        return self.kl_last.shape[0] - 1


class Lens:
    """A proven read-out of intermediate states.

    Args:
        view: the model. Its last state must give the model's logits.

    Raises:
        ValueError: it does not; the message names the argument to pass.
        NonFiniteError: weights or states are NaN or infinite.
    """

    def __init__(self, view: View) -> None:
        prove(view)
        self.view = view

    def read(
        self,
        states: States,
        rows: Bool[Tensor, "batch seq"],
        *,
        top_k: int = 5,
        batch: int = 0,
    ) -> Readings:
        """Read every state of the tokens that `rows` marks, in row-major order.

        The vocabulary is never held for more than a few rows at a time: memory is flat in the
        number of tokens and states, but for the readings themselves.

        Args:
            states: all states 0..L, as `capture` returns them.
            rows: which positions to read; padding is left out by not being marked.
            top_k: how many of the most likely tokens to keep.
            batch: number of this batch, for error messages.
        """
        places = rows.nonzero(as_tuple=True)
        num_tokens, vocab = len(places[0]), self._vocab(states[0][:1, 0])
        if not 0 <= top_k <= vocab:
            raise ValueError(f"top_k: got {top_k}; it must lie between 0 and {vocab}")
        step = max(1, CHUNK_BYTES // (4 * vocab))
        parts = []
        with undisturbed(self.view.model), torch.no_grad():
            for start in range(0, num_tokens, step):
                here = tuple(axis[start : start + step] for axis in places)
                chunk = [states[index][here] for index in range(self.view.num_layers + 1)]
                parts.append(self._read_chunk(chunk, top_k, batch))
        return _joined(parts)

    def _vocab(self, row: Tensor) -> int:
        with undisturbed(self.view.model), torch.no_grad():
            return self.view.read_out(row).shape[-1]

    def _read_chunk(self, chunk: list[Tensor], top_k: int, batch: int) -> Readings:
        last = self._predict(chunk, len(chunk) - 1, batch)
        best = last.log_p.topk(max(top_k, 1), dim=-1).indices[:, 0]
        before: _Prediction | None = None
        by_state = []
        for index in range(len(chunk)):
            final = index == len(chunk) - 1
            now = last if final else self._predict(chunk, index, batch)
            top = now.log_p.topk(max(top_k, 1), dim=-1)
            by_state.append(
                {
                    "kl_last": now.kl_from(last),
                    "kl_previous": _undefined(best) if before is None else now.kl_from(before),
                    "entropy": entropy(now.p, now.log_p),
                    "same_argmax": top.indices[:, 0] == best,
                    "relative_change": (
                        _undefined(best)
                        if index == 0
                        else _relative_change(chunk[index - 1], chunk[index])
                    ),
                    "top_ids": top.indices[:, :top_k],
                    "top_probabilities": top.values[:, :top_k].exp(),
                }
            )
            before = now
        return Readings(
            **{name: torch.stack([row[name] for row in by_state]).cpu() for name in by_state[0]}
        )

    def _predict(self, chunk: list[Tensor], index: int, batch: int) -> "_Prediction":
        logits = self.view.read_out(chunk[index])
        if not all_finite(logits):
            raise NonFiniteError(
                f"logits read from state {index} are NaN or infinite: dtype {self.view.dtype}, "
                f"batch {batch}; look at the weights of the read-out: {self.view.describe()}"
            )
        return _Prediction(*normalise(logits))


class _Prediction(NamedTuple):
    """A distribution over the vocabulary for each token, with its logarithm."""

    p: Tensor
    log_p: Tensor

    def kl_from(self, other: "_Prediction") -> Tensor:
        """KL(other || self)."""
        return kl_divergence(other.p, other.log_p, self.log_p)


def prove(view: View) -> None:
    """Check on a probe text that the last state gives the model's own logits.

    Raises:
        ValueError: it does not; the message names the most likely cause and the argument to pass.
        NonFiniteError: weights or states are NaN or infinite.
    """
    ids = probe_ids(view.embedding_rows, view.device)
    capture(view, ids, states=range(view.num_layers + 1))  # a damaged block is named as such
    with undisturbed(view.model), torch.no_grad():
        state, logits = view.last_state_and_logits(ids)
        expected, read = wide(logits[0]), view.read_out(state[0])
    if not bool(torch.isfinite(expected).all()):
        raise NonFiniteError(
            f"the model's logits are NaN or infinite while its last state is not: dtype "
            f"{view.dtype}; look at the weights of the read-out: {view.describe()}"
        )
    allowed = _TOLERANCE.get(view.dtype, 1e-4) * float(expected.abs().max().clamp_min(1e-30))
    gap = float((read - expected).abs().max()) if read.shape == expected.shape else torch.inf
    if not gap <= allowed:
        argument = _suspect(read, expected)
        raise ValueError(
            f"{argument}: the lens read at the last state is not the model's output (largest "
            f"difference of a logit {gap:.3g}, allowed {allowed:.3g}). The read-out used was "
            f"{view.describe()}. Pass the right one: parts=Parts({argument}=...), on the command "
            f"line --parts.{argument.replace('_', '-')}."
        )


def _suspect(read: Tensor, expected: Tensor) -> str:
    """The part of the read-out that most likely is wrong, by how the logits differ."""
    if read.shape != expected.shape:
        return "unembed"
    difference = expected - read
    small = 1e-3 * float(expected.abs().max())
    if float((difference - difference.mean(dim=0)).abs().max()) <= small:
        return "unembed"  # the same shift in every row: a bias is missing
    factor = float((read * expected).sum() / (read * read).sum())
    if float((expected - factor * read).abs().max()) <= small:
        return "logit_scale"
    if torch.equal(read.argsort(dim=-1), expected.argsort(dim=-1)):
        return "logit_softcap"  # the order is right and the size is not
    return "final_norm"


def _undefined(like: Tensor) -> Tensor:
    return torch.full(like.shape, torch.nan, device=like.device)


def _relative_change(before: Tensor, now: Tensor) -> Float[Tensor, " token"]:
    before, now = wide(before), wide(now)
    return (now - before).norm(dim=-1) / now.norm(dim=-1).clamp_min(1e-30)


def _joined(parts: list[Readings]) -> Readings:
    return Readings(
        **{
            field.name: torch.cat([getattr(part, field.name) for part in parts], dim=1)
            for field in fields(Readings)
        }
    )
