"""Decoding by the kernels for few rows against the same calls by ordinary operators."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tokendepth.depth import few
from tokendepth.depth.dense import Dense
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.depth.random_keep import RandomKeep
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import looped

CONFIG = DecoderConfig(
    vocab_size=26, width=16, num_blocks=4, num_heads=4, num_key_value_heads=2, head_dim=8,
    inner_width=24,
)  # fmt: skip
LENGTHS = (9, 4, 1, 7)
KEYS = torch.tensor([3, 0, 8, 5])


def decoder(rule="all", schedule=None, **fields) -> Decoder:
    torch.manual_seed(0)
    values = {name: getattr(CONFIG, name) for name in CONFIG.__slots__}
    made = Decoder(DecoderConfig(**{**values, "key_value_rule": rule, **fields}), schedule)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1))
    return made.eval()


def decoded(model: Decoder, policy, executor: str, *, padded: bool = True, steps=(1, 1, 3, 1)):
    """Logits of some calls after a prompt, and what the stores hold in the end."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(len(LENGTHS), max(LENGTHS))
    if padded:
        mask = (torch.arange(max(LENGTHS)) >= max(LENGTHS) - torch.tensor(LENGTHS)[:, None]).long()
    cache, logits = model.cache(), []
    with torch.no_grad():
        for size in (max(LENGTHS), *steps):
            ids = torch.randint(26, (len(LENGTHS), size), generator=generator)
            output = model(
                ids, mask if size == max(LENGTHS) else None, cache=cache, policy=policy,
                executor=executor, row_keys=KEYS,
            )  # fmt: skip
            logits.append(output.logits)
    stores = [(store.keys, store.values, store.track.positions) for store in cache.stores.values()]
    return torch.cat(logits[1:], dim=1), stores


@pytest.fixture
def taken(monkeypatch):
    """Counts the spans that went the way of few rows."""
    count, run = [], few.run

    def counted(*arguments):
        count.append(1)
        return run(*arguments)

    monkeypatch.setattr(few, "run", counted)
    return count


POLICIES = {
    "dense": Dense(),
    "half": FixedExit(2),
    "rows": FixedExit(torch.tensor([1, 4, 2, 3])),
    "random": RandomKeep(0.5),
}


@pytest.mark.parametrize("padded", [True, False], ids=["ragged", "full"])
@pytest.mark.parametrize("rule", ["all", "kept"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("executor", ["dense", "gathered"])
def test_the_same_logits_and_stores(policy, executor, rule, padded, taken, monkeypatch):
    model = decoder(rule)
    ours, held = decoded(model, POLICIES[policy], executor, padded=padded)
    assert len(taken) >= 4
    monkeypatch.setattr(few, "MOST_ROWS", 0)
    plain, stored = decoded(model, POLICIES[policy], executor, padded=padded)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))
    for mine, theirs in zip(held, stored, strict=True):
        _same_slots(mine, theirs)


def _same_slots(mine, theirs):
    """Equal where a slot is filled; one way may leave out slots that are empty in every row."""
    for keep, (keys, values, positions) in enumerate((mine, theirs)):
        del keep
        assert torch.isfinite(keys[positions >= 0]).all()
        assert torch.isfinite(values).all()
    for part in (0, 1):
        torch.testing.assert_close(
            mine[part][mine[2] >= 0], theirs[part][theirs[2] >= 0], rtol=0, atol=1e-4
        )


@pytest.mark.parametrize("rule", ["all", "kept"])
def test_blocks_of_one_span_that_hold_different_tokens(rule, taken, monkeypatch):
    model, ids = (
        decoder(rule),
        torch.randint(26, (2, 9), generator=torch.Generator().manual_seed(4)),
    )

    def stepped():
        cache, logits = model.cache(), []
        with torch.no_grad():
            for part, policy in zip(ids.split([4, 3, 1, 1], dim=1), APART, strict=True):
                logits.append(model(part, cache=cache, policy=policy, executor="gathered").logits)
        return torch.cat(logits, dim=1), {len(store.track) for store in cache.stores.values()}

    ours, lengths = stepped()
    assert taken
    assert len(lengths) == (1 if rule == "all" else 2)
    monkeypatch.setattr(few, "MOST_ROWS", 0)
    torch.testing.assert_close(ours, stepped()[0], rtol=0, atol=1e-4)


APART = (Dense(), FixedExit(2), Dense(), Dense())
"""The last two calls run all blocks as one span; the second stored its tokens in two of them."""


def test_weights_that_do_not_fit_are_told_by_the_ordinary_way(taken):
    model, cache, ids = decoder(), None, torch.randint(26, (1, 3))
    cache = model.cache()
    with torch.no_grad():
        model(ids, cache=cache)
        model.blocks[2].feed_forward.up.weight = nn.Parameter(torch.randn(22, 16))
        with pytest.raises(RuntimeError, match="size of tensor|must match"):
            model(ids[:, :1], cache=cache)
    assert not taken


def test_the_cache_of_another_model_is_refused():
    cache, ids = decoder().cache(), torch.randint(26, (1, 3))
    with torch.no_grad():
        decoder()(ids, cache=cache)
        with pytest.raises(ValueError, match="2 heads of 8, the decoder has 4 of 4"):
            decoder(num_key_value_heads=4, head_dim=4)(ids, cache=cache)


def test_loops_and_single_rows(taken, monkeypatch):
    model = decoder(schedule=looped(prelude=1, core=2, coda=1, loops=3), adapter=True)
    whole = torch.randint(26, (1, 12), generator=torch.Generator().manual_seed(2))

    def stepped():
        cache, logits = model.cache(), []
        with torch.no_grad():
            for part in whole.split([5, 1, 1, 5], dim=1):
                logits.append(model(part, cache=cache).logits)
        return torch.cat(logits, dim=1)

    ours = stepped()
    assert len(taken) == 3 * 5
    monkeypatch.setattr(few, "MOST_ROWS", 0)
    torch.testing.assert_close(ours, stepped(), rtol=0, atol=1e-4)


VARIANTS = {
    "odd width": {"width": 15},
    "biases": {"attention_bias": True},
    "query-key norm": {"query_key_norm": True},
    "window": {"windows": (3,) * 4},
    "parallel": {"parallel": True},
    "gelu": {"activation": "gelu"},
    "cap": {"attention_cap": 5.0},
    "sandwich": {"post_norms": True},
    "partial rotary": {"rotary_width": 4},
    "learned": {"positions": "learned", "max_positions": 32},
    "layer norm": {"norm": "layer"},
    "carried": {
        "rule": "carried",
        "schedule": looped(prelude=1, core=2, coda=1, loops=3),
        "adapter": True,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_blocks_go_the_ordinary_way(variant, taken):
    decoded(decoder(**VARIANTS[variant]), Dense(), "gathered")
    assert not taken


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows):
        return 2 * self.inner(rows)


CHANGES = {
    "a hook": lambda block: block.feed_forward.up.register_forward_hook(
        lambda module, given, made: 2 * made
    ),
    "a wrapper": lambda block: setattr(block.attention, "value", Wrapped(block.attention.value)),
    "another parameter": lambda block: setattr(
        block.attention.query, "weight", nn.Parameter(2 * block.attention.query.weight)
    ),
    "another storage": lambda block: setattr(
        block.feed_forward.gate.weight, "data", 2 * block.feed_forward.gate.weight.data
    ),
    "in place": lambda block: block.feed_forward.gate.weight.data.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_modules_is_seen_in_the_next_call(change, monkeypatch):
    ids = torch.randint(26, (2, 6), generator=torch.Generator().manual_seed(3))

    def changed_on_the_way():
        model, cache = decoder(), None
        cache, logits = model.cache(), []
        with torch.no_grad():
            for at, part in enumerate(ids.split([3, 1, 1, 1], dim=1)):
                if at == 2:
                    CHANGES[change](model.blocks[1])
                logits.append(model(part, cache=cache).logits)
        return logits

    ours = changed_on_the_way()
    monkeypatch.setattr(few, "MOST_ROWS", 0)
    for mine, plain in zip(ours, changed_on_the_way(), strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-4)


def test_who_differentiates_or_counts_gets_the_ordinary_operators(taken):
    model, ids = decoder(), torch.randint(26, (2, 6))
    cache = model.cache()
    model(ids[:, :5], cache=cache)
    model(ids[:, 5:], cache=cache).logits.sum().backward()
    assert model.blocks[0].attention.query.weight.grad is not None
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids[:, 5:], cache=cache)
    assert counter.get_total_flops() > 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(ids[:, 5:], cache=cache)
    assert not taken
    with torch.no_grad():
        model(ids[:, 5:], cache=cache)
    assert taken


def test_the_kernels_leave_the_number_of_threads_as_it_is():
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from tokendepth.depth import few\n"
        "layer = torch.nn.Linear(8, 4, bias=False)\n"
        "with torch.no_grad(): few.product(torch.ones(1, 8), layer)\n"
        "assert torch.get_num_threads() == 1, torch.get_num_threads()\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
