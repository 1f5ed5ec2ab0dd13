"""What is timed: a prefill, one decoded token, a training step; dense or under decisions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from tokendepth.depth.base import Policy
from tokendepth.depth.dense import Dense
from tokendepth.depth.execute import ExecutorName
from tokendepth.engine.timing import Arm
from tokendepth.models.cost import Ledger, dense_twin, ledger
from tokendepth.models.decoder import Decoder, DecoderOutput
from tokendepth.nn.cache import Cache, Key
from tokendepth.nn.track import Track
from tokendepth.numerics import keyed_uniform
from tokendepth.types import Plan

Phase = Literal["prefill", "decode", "train"]
PHASES: tuple[Phase, ...] = Phase.__args__


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Where decisions come from: a plan that is replayed, or the policy itself."""

    plan: Plan | None = None
    routing: str | None = None
    policy: Policy | None = None
    """Instead of the decoder's own."""

    def options(self, executor: ExecutorName) -> dict[str, Any]:
        """For `Decoder.forward`."""
        return {
            "plan": self.plan,
            "routing": self.routing,
            "policy": self.policy,
            "executor": executor,
        }


DENSE: dict[str, Any] = {"policy": Dense(), "executor": "dense"}
"""Options of the dense arm: every row runs, nothing is decided."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One phase under some options: what to time, and what it costs by the ledger."""

    arm: Arm
    cost: Callable[[bool], Ledger]
    """Whether padding and masked pairs count -> ledger."""


def given_plan(decoder: Decoder, batch: int, length: int, alpha: float, seed: int) -> Plan:
    """Decisions by keyed draws: each token runs each routed span with chance alpha."""
    device = decoder.embedding.weight.device
    spans = decoder.schedule.spans
    keys = torch.arange(batch, device=device)
    positions = torch.arange(length, device=device).expand(batch, length)
    numbers = torch.arange(len(spans), device=device)
    draw = keyed_uniform(seed, keys[:, None, None], numbers, positions[..., None])
    routed = torch.tensor([span.routed for span in spans], device=device)
    return Plan(
        spans=spans,
        gates=decoder.policy.gates,
        row_keys=keys,
        positions=positions,
        valid=torch.ones_like(positions, dtype=torch.bool),
        keep=(draw < alpha) | ~routed,
        weight=None,
    )


def work(
    phase: Phase, decoder: Decoder, ids: Int[Tensor, "batch seq"], options: Mapping[str, Any]
) -> Work:
    """A phase on a batch of `seq` tokens; decoding reads the last one after all others.

    Args:
        phase: which.
        decoder: for `train` a copy that may be changed.
        ids: unpadded text.
        options: for `Decoder.forward`.
    """
    keyed = {**options, "row_keys": torch.arange(len(ids), device=ids.device)}
    if phase == "prefill":
        run = _no_grad(lambda cache: decoder(ids, cache=cache, **keyed))
        return Work(arm=Arm(run, decoder.cache), cost=_cost(decoder, lambda: run(None)))
    if phase == "decode":
        return _decode(decoder, ids, keyed)
    return _train(decoder, ids, keyed)


def _decode(decoder: Decoder, ids: Tensor, options: Mapping[str, Any]) -> Work:
    size = ids.shape[1]
    filled = decoder.cache(room=size, rewind=1)
    with torch.no_grad():
        decoder(ids[:, :-1], cache=filled, **options)
    before = filled.tracks

    def prepare() -> Cache:
        filled.crop(size - 1)
        return filled

    run = _no_grad(lambda cache: decoder(ids[:, -1:], cache=cache, **options))
    return Work(arm=Arm(run, prepare), cost=_cost(decoder, lambda: run(prepare()), before))


def _train(decoder: Decoder, ids: Tensor, options: Mapping[str, Any]) -> Work:
    # A rate of zero does all the work of a step and leaves decisions and weights as they are.
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.0, weight_decay=0.0)

    def step(given: None) -> None:
        del given
        output = decoder(ids, **options)
        logits, targets = output.logits[:, :-1], ids[:, 1:]
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        for penalty in output.penalty.values():
            loss = loss + penalty.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    run = _no_grad(lambda given: decoder(ids, **options))
    return Work(arm=Arm(step), cost=_cost(decoder, lambda: run(None)))


def _no_grad(run: Callable[[Any], DecoderOutput]) -> Callable[[Any], DecoderOutput]:
    return torch.no_grad()(run)


def _cost(
    decoder: Decoder,
    run: Callable[[], DecoderOutput],
    before: Mapping[Key, Track] | None = None,
) -> Callable[[bool], Ledger]:
    record = run().record
    if isinstance(record.policy, Dense):
        record = dense_twin(record)

    def cost(computed: bool) -> Ledger:
        counting = "computed" if computed else "visible"
        return ledger(decoder, record, before=before, counting=counting)

    return cost
