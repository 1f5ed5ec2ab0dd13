"""What a learned policy must beat, at its own depth: draws, a constant gate, a fixed subset.

All of them run on the weights of the policy's own model, so that they tell what its choice of
tokens is worth; what the model would be without having learned it is for other runs to say.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tokendepth.depth.base import PolicyConfig
from tokendepth.depth.constant_gate import ConstantGateConfig
from tokendepth.depth.fixed_subset import FixedSubsetConfig
from tokendepth.depth.random_keep import RandomKeepConfig
from tokendepth.evaluation.loss import padded, score
from tokendepth.evaluation.passages import Passage
from tokendepth.models.decoder import Decoder
from tokendepth.models.policies import with_policy
from tokendepth.types import Routing

MOST_SUBSETS = 64
"""Up to so many are all tried; of more, spans are left out one by one."""


@torch.no_grad()
def control_configs(
    decoder: Decoder, given: Sequence[Passage], routing: Routing, *, batch: int = 8
) -> Mapping[str, PolicyConfig]:
    """Controls at the depth of the decoder's own policy, by what they are called.

    Random depths (for a policy under which a token that has left never comes back) or draws per
    span, at the rates measured on the passages; the policy's mean gates, where it has soft routing;
    and the best fixed subset of spans that is no smaller than what the policy runs, unless exits
    read out by depth. None where rows that run are weighted: a draw would have no weight for those
    that the policy would not have run.

    Args:
        decoder: with a policy that has learned.
        given: passages, on which rates are measured and the subset is chosen. That it is chosen on
            the text it may be scored on speaks for the control.
        routing: under which the policy is compared.
        batch: passages in one pass.
    """
    policy = decoder.policy
    if _weighs(decoder, given[0], routing):
        return {}
    kept = mean_decisions(decoder, given, routing, batch=batch)
    named = "random depths" if policy.sticky else "draws per span"
    made: dict[str, PolicyConfig] = {named: RandomKeepConfig(share=kept, one_draw=policy.sticky)}
    if "soft" in policy.routings:
        gates = mean_decisions(decoder, given, "soft", batch=batch)
        made["constant gate"] = ConstantGateConfig(weight=gates)
    if policy.read_out is not None:
        return made
    # The small amount keeps a sum that is whole but for rounding from asking for one span more.
    count = min(len(kept), math.ceil(sum(kept) - 1e-9))
    made["fixed subset"] = best_subset(decoder, given, count, batch=batch)
    return made


def _weighs(decoder: Decoder, passage: Passage, routing: Routing) -> bool:
    """Whether decisions under a routing have weights beside the rows that they keep."""
    ids, mask, _ = padded([passage], decoder.embedding.weight.device)
    output = decoder(ids, mask, routing=routing)
    return any(one.weight is not None for one in output.decisions)


@torch.no_grad()
def mean_decisions(
    decoder: Decoder, given: Sequence[Passage], routing: Routing, *, batch: int = 8
) -> tuple[float, ...]:
    """Of each routed span, the share of tokens that run it, each by its weight under soft routing.

    Args:
        decoder: under its own policy.
        given: passages.
        routing: of the policy.
        batch: passages in one pass.
    """
    places = [place for place, span in enumerate(decoder.schedule.spans) if span.routed]
    total, tokens = np.zeros(len(places)), 0
    for start in range(0, len(given), batch):
        some = given[start : start + batch]
        ids, mask, _ = padded(some, decoder.embedding.weight.device)
        keys = torch.arange(start, start + len(some), device=ids.device)
        output = decoder(ids, mask, routing=routing, row_keys=keys)
        for number, place in enumerate(places):
            decision = output.decisions[place]
            kept = mask if decision.keep is None else mask & decision.keep
            weight = decision.weight if routing == "soft" else None
            each = kept.double() if weight is None else weight.double().where(kept, 0.0)
            total[number] += float(each.sum())
        tokens += int(mask.sum())
    return tuple((total / max(tokens, 1)).clip(0.0, 1.0).tolist())


def best_subset(
    decoder: Decoder, given: Sequence[Passage], count: int, *, batch: int = 8
) -> FixedSubsetConfig:
    """The `count` routed spans with which the model predicts the passages best.

    Of up to `MOST_SUBSETS` subsets all are tried. Of more, the span that is missed least is left
    out, then the next, until `count` are left.
    """
    places = [place for place, span in enumerate(decoder.schedule.spans) if span.routed]

    def loss(skipped: tuple[int, ...]) -> float:
        cut = with_policy(decoder, FixedSubsetConfig(skipped=skipped))
        return float(np.mean(score(cut, given, batch=batch).nats))

    out = len(places) - count
    if math.comb(len(places), count) <= MOST_SUBSETS:
        return FixedSubsetConfig(skipped=min(itertools.combinations(places, out), key=loss))
    skipped: tuple[int, ...] = ()
    for _ in range(out):
        left = [place for place in places if place not in skipped]
        skipped = min((tuple(sorted((*skipped, one))) for one in left), key=loss)
    return FixedSubsetConfig(skipped=skipped)
