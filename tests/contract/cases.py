"""Every policy, on a stack and on a looped schedule, under each rule for keys and values.

Each of these runs on one kind of block, chosen so that all pairs are met: every kind of block with
every policy and routing, and with every schedule and rule. The rest of the product is `slow`.
"""

import itertools
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from tests.contract import toys
from tokendepth.depth.constant_gate import ConstantGateConfig
from tokendepth.depth.early_exit import EarlyExitConfig
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.depth.fixed_subset import FixedSubsetConfig
from tokendepth.depth.halting import Halting, HaltingConfig
from tokendepth.depth.mixture_of_depths import MixtureOfDepthsConfig
from tokendepth.depth.random_keep import RandomKeep
from tokendepth.depth.token_selective import TokenSelectiveConfig
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import looped, stack

WIDTH, VOCAB = 16, 23
CONFIG = DecoderConfig(
    vocab_size=VOCAB,
    width=WIDTH,
    num_blocks=4,
    num_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    inner_width=24,
    tied_head=False,
    adapter=True,
)
_LAYERED = {
    "norm": "layer",
    "gated": False,
    "activation": "gelu",
    "attention_bias": True,
    "output_bias": True,
    "feed_forward_bias": True,
}
BLOCKS = {
    "plain": {},
    "learned": {**_LAYERED, "positions": "learned", "max_positions": 48, "activation": "gelu_tanh"},
    "parallel": {**_LAYERED, "parallel": True, "rotary_width": 2, "num_key_value_heads": 4},
    "one-norm": {
        **_LAYERED,
        "attention_bias": False,
        "parallel": True,
        "shared_norm": True,
        "rotary_width": 2,
        "head_bias": True,
    },
    "window": {"windows": (3, 5, 3, 2), "tied_head": True, "bare_post_norms": (1, 3)},
    "sandwich": {
        "post_norms": True,
        "gains_from_one": True,
        "query_key_norm": True,
        "activation": "gelu_tanh",
        "attention_cap": 2.0,
        "logit_cap": 5.0,
        "attention_scale": 0.4,
        "embedding_scale": 4.0,
        "windows": (4, None, 4, None),
        "window_rotary_base": 100.0,
    },
}
SCHEDULES = {
    "stack": stack(4),
    "stack-coda": stack(4, stem=1, coda=1),
    "looped": looped(prelude=1, core=2, coda=1, loops=3),
    "looped-normal": looped(
        prelude=1, core=1, coda=1, loops=4, start="truncated", start_std=0.6, normed_coda=True
    ),
}
LENGTHS = (1, 3, 12, 7, 1, 2, 1)


@dataclass(frozen=True)
class Case:
    policy: str
    schedule: str
    rule: str
    routing: str | None = None
    block: str = "plain"

    def __str__(self):
        parts = (self.policy, self.routing, self.schedule, self.rule, self.block)
        return "-".join(filter(None, parts))

    @property
    def pairs(self):
        """What meets in this case, by pairs that each have to be met somewhere."""
        return {
            (self.block, self.policy, self.routing),
            (self.block, self.schedule, self.rule),
        }


def _routings(policy):
    if policy in ("update", "span", "token_selective"):
        return ("soft", "hard", "hard_soft")
    return {"mixture": ("hard", "top_k"), "constant": ("soft",)}.get(policy, (None,))


def _spread(cases):
    """Each case with the kind of block that meets most for the first time, of these the rarest."""
    spread, met, uses = [], set(), dict.fromkeys(BLOCKS, 0)
    for case in cases:
        choices = (replace(case, block=block) for block in BLOCKS)
        chosen = max(choices, key=lambda one: (len(one.pairs - met), -uses[one.block]))
        met |= chosen.pairs
        uses[chosen.block] += 1
        spread.append(chosen)
    return spread


POLICIES = (
    "update", "span", "exit", "halt", "upfront", "tired", "topk", "fixed", "random",
    "token_selective", "early_exit", "mixture", "constant", "subset",
    "halting_state", "halting_entropy",
)  # fmt: skip
PRODUCT = [
    Case(policy, schedule, rule, routing)
    for policy in POLICIES
    for routing in _routings(policy)
    for schedule in SCHEDULES
    for rule in ("all", "kept", "carried")
    if rule != "carried" or schedule.startswith("looped")
    if policy != "halt" or schedule.startswith("looped")
]
CASES = _spread(PRODUCT)
SKIPPING = [case for case in CASES if case.routing != "soft"]
# Pairwise: every case meets every executor and every way of cutting, not all pairs of the two.
EXECUTORS = ("dense", "gathered", "feed_forward")
CUTS = {"once": (12,), "chunks": (5, 1, 6), "tokens": (1,) * 12}


def rotated(cases, *axes):
    """Every case with one of each axis: a Latin square of them, the rest of the product `slow`."""
    every = []
    for number, case in enumerate(cases):
        for steps in itertools.product(*(range(len(axis)) for axis in axes)):
            rest = zip(steps[1:], axes[1:], strict=True)
            chosen = all(step == (number + steps[0]) % len(axis) for step, axis in rest)
            values = (case, *(axis[step] for step, axis in zip(steps, axes, strict=True)))
            every.append(pytest.param(*values, marks=() if chosen else pytest.mark.slow))
    return every


CAUSAL = [case for case in CASES if case.policy != "topk" and case.routing != "top_k"]


def build(case, dtype=torch.float64):
    """The decoder of a case, of the first seed under which the case really skips."""
    return _build(case, fitting_seed(case)).to(dtype)


@cache
def fitting_seed(case):
    """Soft routing skips nothing, so any seed fits; else the first under which `skips` holds."""
    if case.routing == "soft":
        return 0
    return next((seed for seed in range(100) if skips(case, _build(case, seed))), None)


def skips(case, decoder):
    """Each routed span has kept and skipped rows; some sequence runs a span whole, some not at all.

    A policy whose sets are nested may run its first span for all.
    """
    ids, mask = ragged()
    with torch.no_grad():
        output = decoder(ids, mask, routing=case.routing, row_keys=KEYS)
    routed = [span.routed for span in SCHEDULES[case.schedule].spans]
    kept = output.plan.keep[..., routed]
    share = kept[mask.bool()].double().mean(0)
    nested = case.policy in (
        "exit", "early_exit", "halt", "fixed", "upfront", "halting_state", "halting_entropy",
    )  # fmt: skip
    counts, lengths = kept.sum(1), mask.sum(1)[:, None]
    if case.policy == "subset":  # whole spans, by its nature
        return bool((share == 0).any() and (share == 1).any())
    return bool(
        (share[1:] < 1).all()
        and (share[0] < 1 or nested)
        and (share > 0).all()
        and ((counts == 0).any() or case.routing == "top_k")  # its shortest rows keep a token
        and (counts == lengths).any()
    )


def _build(case, seed):
    torch.manual_seed(seed)
    order = SCHEDULES[case.schedule]
    config = replace(CONFIG, key_value_rule=case.rule, **BLOCKS[case.block])
    decoder = Decoder(config, order)
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.35)
        else:
            gain = "norm" in name and not name.endswith("bias") and not config.gains_from_one
            torch.nn.init.normal_(parameter, mean=float(gain), std=0.2)
    decoder.policy = _policy(case, decoder, len(order.spans))
    return decoder.double().eval()


def _policy(case, decoder, spans):
    return _POLICIES[case.policy](case, decoder, spans)


def _routed(policy):
    torch.nn.init.normal_(policy.router.weight, std=1.0)
    return policy


def _exits(decoder):
    read_out = toys.ExitNorms(decoder.head, WIDTH, depths=12)
    return toys.StickyExit(read_out, confidence=0.3)


def _selective(decoder):
    policy = TokenSelectiveConfig(first_bias=0.0).build(decoder)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    return policy


def _early(decoder):
    policy = EarlyExitConfig(threshold=0.3).build(decoder)
    for parameter in policy.norms.parameters():
        torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    return policy


def _mixture(decoder):
    policy = MixtureOfDepthsConfig(capacity=0.5).build(decoder)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    return policy


def _routed_spans(decoder):
    return [place for place, span in enumerate(decoder.schedule.spans) if span.routed]


_POLICIES = {
    "early_exit": lambda case, decoder, spans: _early(decoder),
    "mixture": lambda case, decoder, spans: _mixture(decoder),
    "constant": lambda case, decoder, spans: ConstantGateConfig(weight=0.7).build(decoder),
    "subset": lambda case, decoder, spans: FixedSubsetConfig(
        skipped=(_routed_spans(decoder)[1],)
    ).build(decoder),
    "update": lambda case, decoder, spans: _routed(toys.UpdateGate(WIDTH)),
    "tired": lambda case, decoder, spans: _routed(toys.Tired(WIDTH)),
    "span": lambda case, decoder, spans: _routed(toys.SpanGate(WIDTH)),
    "exit": lambda case, decoder, spans: _exits(decoder),
    "halt": lambda case, decoder, spans: toys.HaltByReadOut(threshold=1.0),
    "upfront": lambda case, decoder, spans: _routed(toys.UpFront(WIDTH, spans)),
    "topk": lambda case, decoder, spans: _routed(toys.BatchTopK(WIDTH, share=0.5)),
    "fixed": lambda case, decoder, spans: FixedExit(_depths(SCHEDULES[case.schedule])),
    "random": lambda case, decoder, spans: RandomKeep(0.5, seed=1),
    "token_selective": lambda case, decoder, spans: _selective(decoder),
    "halting_state": lambda case, decoder, spans: _halting(
        "state", 1.0 if case.schedule.startswith("looped") else 0.6
    ),
    "halting_entropy": lambda case, decoder, spans: _halting("entropy", 2.4),
}


def _halting(rule, threshold):
    return Halting(HaltingConfig(rule=rule, threshold=threshold, least=1))


def _depths(order):
    """A depth for each row of the batch, all of those at which a routed span begins or ends."""
    ends = [
        first for first, span in zip(order.first_visit, order.spans, strict=True) if span.routed
    ]
    ends.append(order.first_visit[order.coda[0]] if order.coda else len(order.visits))
    return torch.tensor([ends[row % len(ends)] for row in range(len(LENGTHS))])


def ragged(side="right", seed=0, extra=2):
    """Ids and mask of rows of different lengths, with junk under the padding."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(VOCAB, (length,), generator=generator) for length in LENGTHS]
    width = max(LENGTHS) + extra
    junk = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (len(rows), width), generator=junk)
    mask = torch.zeros_like(ids)
    for row, values in enumerate(rows):
        at = slice(0, len(values)) if side == "right" else slice(width - len(values), width)
        ids[row, at], mask[row, at] = values, 1
    return ids, mask


KEYS = torch.arange(len(LENGTHS)) + 5
