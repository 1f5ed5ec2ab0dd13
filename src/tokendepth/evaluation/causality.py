"""Does anything depend on later tokens? A probe that runs before any score is reported.

A prefix must keep its logits and its decisions when the tokens after it are replaced, and when
they are not there at all. The first shows what looks ahead, the second what depends on how many
tokens a call has. A row must keep them when the other rows of its batch are replaced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokendepth.depth.base import Policy, check_routing
from tokendepth.depth.execute import ExecutorName
from tokendepth.models.decoder import Decoder, DecoderOutput
from tokendepth.types import Routing

PREFIXES = (1, 3, 7, 15, 31)
NEAR = 1e-4
"""Distance from a threshold within which float32 rounding may turn a decision."""


@dataclass(frozen=True, kw_only=True)
class Causality:
    """What the probe saw under one routing."""

    routing: Routing
    declared: bool
    """What the policy says of itself under this routing."""
    moved: str | None
    """The first thing that changed with later tokens, in words; None if nothing did."""
    prefixes: tuple[int, ...]
    largest_change: float
    """Of a logit of a prefix, over the largest logit."""
    num_excused: int
    """Rows set aside because a decision within `NEAR` of its threshold turned."""

    @property
    def causal(self) -> bool:
        """Nothing moved, and the policy does not say that something may."""
        return self.declared and self.moved is None

    @property
    def label(self) -> str:
        """In a word or two, for tables."""
        if not self.declared:
            return "not causal, as declared"
        return "causal" if self.causal else "LEAKS"


@torch.no_grad()
def probe(
    decoder: Decoder,
    input_ids: Int[Tensor, "batch seq"],
    *,
    policy: Policy | None = None,
    routing: str | None = None,
    executor: ExecutorName = "dense",
    prefixes: Sequence[int] = PREFIXES,
    replacements: int = 2,
) -> Causality:
    """Compare each prefix with itself before other tokens, and alone.

    Args:
        decoder: to probe.
        input_ids: unpadded text; prefixes that are not shorter are left out.
        policy: instead of the decoder's own.
        routing: one of the policy's; its first by default.
        executor: how decisions are run.
        prefixes: lengths to probe at, besides the whole text but its last token.
        replacements: how many other continuations to try.

    Raises:
        ValueError: a text of one token, or an unknown routing.
    """
    chosen = policy or decoder.policy
    named = check_routing(chosen, routing)
    size = input_ids.shape[1]
    lengths = tuple(sorted({length for length in (*prefixes, size - 1) if 0 < length < size}))
    if not lengths:
        raise ValueError("input_ids: a text of one token has no prefix to probe; give two at least")
    keys = torch.arange(len(input_ids), device=input_ids.device)

    def run(ids: Tensor) -> DecoderOutput:
        return decoder(ids, policy=chosen, routing=named, executor=executor, row_keys=keys)

    base = run(input_ids)
    moved, largest, excused = None, 0.0, 0
    for length in lengths:
        for what, ids in _others(input_ids, length, decoder.config.vocab_size, replacements):
            same = ids.shape == input_ids.shape
            change = _compare(
                base, run(ids), length, same_shape=same, exact=same and executor == "dense"
            )
            largest, excused = max(largest, change.logits), excused + change.excused
            if moved is None and change.what is not None:
                moved = f"{change.what} of a prefix of {length} tokens changed {what}"
    if moved is None and len(input_ids) > 1:
        change = _neighbours(
            base, run, input_ids, decoder.config.vocab_size, exact=executor == "dense"
        )
        largest = max(largest, change.logits)
        moved = change.what and f"{change.what} of a row changed with the other rows of its batch"
    return Causality(
        routing=named,
        declared=chosen.causal(named),
        moved=moved,
        prefixes=lengths,
        largest_change=largest,
        num_excused=excused,
    )


def _others(ids: Tensor, length: int, vocab: int, count: int) -> list[tuple[str, Tensor]]:
    """The same prefix before other tokens (every one of them replaced), and alone."""
    generator = torch.Generator().manual_seed(length)
    others = []
    for _ in range(count):
        shift = torch.randint(1, max(vocab, 2), ids.shape, generator=generator).to(ids.device)
        after = (ids + shift)[:, length:] % vocab
        others.append(("with the tokens after it", torch.cat((ids[:, :length], after), dim=1)))
    return [*others, ("when it stood alone", ids[:, :length])]


@dataclass(frozen=True, kw_only=True)
class _Change:
    what: str | None
    logits: float
    excused: int


def _neighbours(
    base: DecoderOutput,
    run: Callable[[Tensor], DecoderOutput],
    ids: Tensor,
    vocab: int,
    *,
    exact: bool,
) -> _Change:
    """The first row in a batch whose other rows are all replaced."""
    generator = torch.Generator().manual_seed(0)
    shift = torch.randint(1, max(vocab, 2), ids.shape, generator=generator).to(ids.device)
    others = (ids + shift) % vocab
    others[0] = ids[0]
    size = ids.shape[1]
    return _compare(base, run(others), size, same_shape=True, exact=exact, rows=slice(1))


def _compare(
    base: DecoderOutput,
    other: DecoderOutput,
    length: int,
    *,
    same_shape: bool,
    exact: bool,
    rows: slice = slice(None),
) -> _Change:
    """What differs in a prefix; nothing is excused where every product has the same shape."""
    differ = (base.plan.keep[rows, :length] != other.plan.keep[rows, :length]).any(-1)
    near = (nearest_margin(base)[rows, :length] < NEAR) & (not exact)
    # What follows a decision that rounding may have turned says nothing, in that row.
    turned = (differ.cumsum(1) == 1) & differ
    excused = (turned & near).any(-1)
    counted = ~((turned & near).cumsum(1) > 0)
    scale = base.logits.abs().max()
    change = _largest(base.logits[rows, :length], other.logits[rows, :length], counted) / scale
    what, tolerance = None, _tolerance(base.logits.dtype, same_shape=same_shape)
    if bool((differ & counted).any()):
        what = "a decision"
    elif _weights_moved(base, other, (rows, slice(length)), counted, tolerance):
        what = "a weight"
    elif not float(change) <= tolerance:
        what = "a logit"
    return _Change(what=what, logits=float(change), excused=int(excused.sum()))


def _weights_moved(
    base: DecoderOutput,
    other: DecoderOutput,
    part: tuple[slice, slice],
    counted: Bool[Tensor, "batch prefix"],
    tolerance: float,
) -> bool:
    one, two = base.plan.weight, other.plan.weight
    if one is None or two is None:
        return (one is None) != (two is None)
    change = _largest(one[part], two[part], counted)
    return not float(change) <= tolerance * float(one.abs().max())


def _largest(
    one: Float[Tensor, "batch prefix last"],
    two: Float[Tensor, "batch prefix last"],
    counted: Bool[Tensor, "batch prefix"],
) -> Tensor:
    return torch.where(counted[..., None], (one - two).abs(), 0.0).max()


def _tolerance(dtype: torch.dtype, *, same_shape: bool) -> float:
    """Of the largest value: 1e-5 in float32 at equal shapes, more where digits are fewer.

    Products of another shape round differently, and thirty blocks amplify it: a prefix of SmolLM2
    alone moved by 1e-5 under random skipping. Whatever depends on the length of a call moves more.
    """
    return max(1e-5, 16 * torch.finfo(dtype).eps) * (1 if same_shape else 100)


def nearest_margin(output: DecoderOutput) -> Float[Tensor, "batch seq"]:
    """Each token's smallest distance from a threshold over all spans; infinite where none is known.

    A policy tells it by `Decision.margin`.
    """
    far = torch.full(output.record.mask.shape, torch.inf, device=output.record.mask.device)
    for decision in output.decisions:
        if decision.margin is not None:
            far = torch.minimum(far, decision.margin.detach().abs().float())
    return far
