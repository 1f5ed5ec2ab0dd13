"""Halting rules against their definitions, on models whose states are known in closed form."""

import dataclasses
import math

import pytest
import torch

from tokendepth import DecoderConfig
from tokendepth.depth.dense import Dense
from tokendepth.depth.halting import HALTING_RULES, READS, VALUES, Halting, HaltingConfig
from tokendepth.evaluation.causality import probe
from tokendepth.models.cost import ledger
from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import ModelConfig, load_model, save_model
from tokendepth.models.schedule import looped, with_loops
from tokendepth.numerics import keyed_normal, small_kl

CONFIG = DecoderConfig(
    vocab_size=31, width=16, num_blocks=4, num_heads=2, num_key_value_heads=1, head_dim=8,
    inner_width=24, bare_post_norms=(1, 2), adapter=True, key_value_rule="carried",
)  # fmt: skip
ORDER = looped(prelude=1, core=2, coda=1, loops=8, start="truncated", normed_coda=True)
IDS = torch.randint(31, (3, 12), generator=torch.Generator().manual_seed(0))
KEYS = torch.arange(3)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def decoder():
    """A third of its state comes from the one before: it settles, each token in its time."""
    torch.manual_seed(0)
    made = Decoder(CONFIG, ORDER).double().eval().requires_grad_(False)
    for block in made.blocks:
        for module in block.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.mul_(2.0)
    made.adapter.weight[:, :16] = torch.eye(16) / 3
    made.adapter.weight[:, 16:] = 3 * torch.eye(16)
    return made


def halting(rule="kl", threshold=None, **more):
    return Halting(HaltingConfig(rule=rule, threshold=threshold, **more))


def loops_of(output):
    return (output.executed.sum(-1) - 2) // 2


def states_and_logits(decoder, loops):
    """By uniform runs: s_k and the logits of each k from 0 on."""
    states = [keyed_normal(0, 16, KEYS[:, None], torch.arange(12), within=3.0)]
    logits = [None]
    for k in range(1, loops + 1):
        output = decoder(
            IDS, policy=Dense(), schedule=with_loops(ORDER, k), row_keys=KEYS, collect=[1 + 2 * k]
        )
        states.append(output.states[1 + 2 * k])
        logits.append(output.logits)
    return states, logits


def by_definition(rule, k, states, logits, every=1):
    p = [None if one is None else one.softmax(-1) for one in logits]
    top = None if p[k] is None else p[k].topk(2, -1).values
    if rule == "kl":
        return (p[k - every] * (p[k - every].log() - p[k].log())).sum(-1)
    if rule == "entropy":
        return -(p[k] * p[k].log()).sum(-1)
    if rule == "margin":
        return 1 - (top[..., 0] - top[..., 1])
    if rule == "argmax_stable":
        return (p[k].argmax(-1) != p[k - every].argmax(-1)).double()
    change = states[k] - states[k - every]
    if rule == "acceleration":
        change = change - (states[k - every] - states[k - 2 * every])
    return change.norm(dim=-1) / states[k].norm(dim=-1)


@pytest.mark.parametrize("rule", HALTING_RULES)
@pytest.mark.parametrize(("every", "least"), [(1, 2), (2, 5)])
def test_the_first_check_is_the_definition(decoder, rule, every, least):
    """At `least` nobody has halted yet, so that uniform runs tell what each token sees."""
    states, logits = states_and_logits(decoder, least)
    value = by_definition(rule, least, states, logits, every)
    threshold = None if rule == "argmax_stable" else float(value.median()) * (1 + 1e-9)
    policy = halting(rule, threshold, every=every, least=least)
    loops = loops_of(decoder(IDS, policy=policy, row_keys=KEYS))
    expected = value < (0.5 if threshold is None else threshold)
    assert expected.sum() > 0
    assert expected.sum() < expected.numel() or rule == "argmax_stable"
    assert torch.equal(loops == least, expected)
    assert (loops >= least).all()
    later = {least + every * step for step in range(9)} | {8}
    assert set(loops.unique().tolist()) <= later


@pytest.mark.parametrize("executor", ["dense", "gathered"])
@pytest.mark.parametrize("rule", [rule for rule in HALTING_RULES if rule != "argmax_stable"])
def test_no_threshold_runs_all_and_an_endless_one_none(decoder, rule, executor):
    for threshold, loops in ((0.0, 8), (math.inf, 2)):
        policy = halting(rule, threshold)
        mine = decoder(IDS, policy=policy, row_keys=KEYS, executor=executor)
        order = with_loops(ORDER, loops)
        uniform = decoder(IDS, policy=Dense(), schedule=order, row_keys=KEYS, executor=executor)
        assert (loops_of(mine) == loops).all()
        torch.testing.assert_close(mine.logits, uniform.logits, rtol=0, atol=1e-12)
        if threshold == 0.0:
            assert torch.equal(mine.logits, uniform.logits)


@pytest.mark.parametrize("rule", HALTING_RULES)
def test_higher_thresholds_halt_earlier_on_average(decoder, rule):
    if rule == "argmax_stable":
        return
    means = [
        float(loops_of(decoder(IDS, policy=halting(rule, tau), row_keys=KEYS)).double().mean())
        for tau in (0.0, 1e-8, 1e-6, 1e-4, 1e-2, 0.3, 3.0)
    ]
    assert means == sorted(means, reverse=True)
    assert means[0] == 8.0


@pytest.mark.parametrize(("rule", "threshold"), [("kl", 1e-4), ("state", 0.03)])
@pytest.mark.parametrize("every", [1, 2])
def test_frozen_tokens_are_the_same_in_any_cut(decoder, rule, threshold, every):
    """Prefill, chunks and token by token; batch and singles; ragged; causal."""
    policy = halting(rule, threshold, every=every, least=3)
    whole = decoder(IDS, policy=policy, row_keys=KEYS)
    assert len(loops_of(whole).unique()) > 1
    for sizes in ((12,), (5, 1, 6), (1,) * 12):
        cache, start, logits, ran = decoder.cache(), 0, [], []
        for size in sizes:
            output = decoder(
                IDS[:, start : start + size], policy=policy, cache=cache, row_keys=KEYS,
                executor="gathered",
            )  # fmt: skip
            logits.append(output.logits)
            ran.append(loops_of(output))
            start += size
        assert torch.equal(torch.cat(ran, 1), loops_of(whole))
        torch.testing.assert_close(torch.cat(logits, 1), whole.logits, rtol=0, atol=1e-10)
    single = decoder(IDS[1:2], policy=policy, row_keys=KEYS[1:2], executor="gathered")
    torch.testing.assert_close(single.logits, whole.logits[1:2], rtol=0, atol=1e-10)
    found = probe(decoder, IDS, policy=policy)
    assert found.causal
    assert probe(decoder, IDS, policy=policy, executor="gathered").causal


def test_the_cache_holds_the_loops_that_ran_and_no_more(decoder):
    cache = decoder.cache()
    output = decoder(
        IDS, policy=halting("state", 0.03), row_keys=KEYS, cache=cache, executor="gathered"
    )
    rows = sum(int((track.positions >= 0).sum()) for track in cache.tracks.values())
    assert rows == int(output.executed.sum())
    uniform = decoder.cache()
    decoder(IDS, policy=Dense(), row_keys=KEYS, cache=uniform)
    share = int(output.executed.sum()) / (IDS.numel() * len(ORDER.visits))
    assert cache.nbytes <= (share + 0.25) * uniform.nbytes  # rectangles of twelve tokens


def contractive(rate):
    """The core does nothing: s_k = rate s_{k-1} + e."""
    torch.manual_seed(0)
    made = Decoder(CONFIG, ORDER).double().eval().requires_grad_(False)
    for index in (1, 2):
        made.blocks[index].attention.output.weight.zero_()
        made.blocks[index].feed_forward.down.weight.zero_()
    made.adapter.weight.copy_(torch.cat((rate * torch.eye(16), torch.eye(16)), 1))
    return made


@pytest.mark.parametrize("rate", [0.3, 0.5])
def test_a_contraction_halts_when_its_rate_says(rate):
    decoder = contractive(rate)
    order = with_loops(ORDER, 30)
    states, _ = states_and_logits(decoder, 12)
    values = [by_definition("state", k, states, [None] * 13) for k in range(2, 13)]
    ratios = torch.stack([b / a for a, b in zip(values[3:], values[4:], strict=False)])
    torch.testing.assert_close(ratios, torch.full_like(ratios, rate), rtol=0.04, atol=0)
    for tau in (1e-2, 1e-4):
        policy = halting("state", tau)
        loops = loops_of(decoder(IDS, policy=policy, schedule=order, row_keys=KEYS))
        expected = torch.stack([(one >= tau) for one in values]).long().sum(0) + 2
        assert torch.equal(loops.clamp_max(12), expected.clamp_max(12))
        assert (loops < 30).all()
    ends = []
    for seed in (0, 1):
        other = dataclasses.replace(order, seed=seed)
        ends.append(decoder(IDS, policy=halting("kl", 1e-12), schedule=other, row_keys=KEYS))
    assert not torch.equal(loops_of(ends[0]), loops_of(ends[1]))
    one, other = (end.logits.softmax(-1) for end in ends)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def streaks(policy, values):
    """The streak of one token after each value."""
    streak, seen = torch.tensor([0]), []
    for value in values:
        streak, _ = policy.judge(torch.tensor([value]), streak, torch.zeros(1, 3))
        seen.append(int(streak))
    return seen


def test_patience_and_hysteresis():
    values = (0.5, 0.9, 1.2, 0.8, 2.0, 0.1, 1.0)
    plain = halting("state", 1.0, patience=3)
    assert streaks(plain, values) == [1, 2, 0, 1, 0, 1, 0]
    patient = halting("state", 1.0, patience=3, hysteresis=1.5)
    assert streaks(patient, values) == [1, 2, 2, 3, 0, 1, 1]


def test_patience_waits_for_checks_in_a_row(decoder):
    once = loops_of(decoder(IDS, policy=halting("state", 0.05), row_keys=KEYS))
    for rule in (("state", 0.05), ("argmax_stable", None)):
        one, three = (
            loops_of(decoder(IDS, policy=halting(*rule, patience=n), row_keys=KEYS)) for n in (1, 3)
        )
        assert (three >= (one + 2).clamp_max(8)).all() or rule[0] == "state"
        assert three.double().mean() > one.double().mean()
    assert once.min() >= 2


def test_margins_tell_how_near_a_check_was(decoder):
    states, logits = states_and_logits(decoder, 2)
    value = by_definition("kl", 2, states, logits)
    tau = float(value.median())
    output = decoder(IDS, policy=halting("kl", tau), row_keys=KEYS)
    first = output.decisions[3].margin
    torch.testing.assert_close(first, (2 * value).sqrt() - math.sqrt(2 * tau))
    assert first.abs().min() < 1e-9
    assert output.decisions[1].margin is None
    later = output.decisions[4].margin
    assert torch.equal(torch.isfinite(later), loops_of(output) > 2)


@pytest.mark.parametrize("rule", HALTING_RULES)
def test_the_price_of_checks_is_in_the_ledger(decoder, rule):
    threshold = None if rule == "argmax_stable" else 0.02
    output = decoder(IDS, policy=halting(rule, threshold), row_keys=KEYS)
    spent = ledger(decoder, output, executor="gathered").flops
    if rule not in READS:
        assert spent["check"] == 0
        return
    head = 2 * 16 * 31
    block = 2 * sum(
        one.weight.numel()
        for one in decoder.blocks[3].modules()
        if isinstance(one, torch.nn.Linear)
    )
    rows = int(output.checked.sum())
    first = 1 if rule in ("kl", "argmax_stable") else 2
    assert output.checked.shape[-1] == 8 - first
    assert rows == sum(int((loops_of(output) >= k).sum()) for k in range(first, 8))
    attention = spent["check"] - rows * (head + block)
    assert 0 < attention < 4 * 16 * rows * 12


def test_small_kl_is_the_exact_one():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 65, generator=generator, dtype=torch.float64) * 3
    for size in (1e-4, 1e-2, 1.0, 20.0):
        moved = logits + size * torch.randn(200, 65, generator=generator, dtype=torch.float64)
        p, q = (one.log_softmax(-1) for one in (logits, moved))
        exact = (p.exp() * (p - q)).sum(-1)
        given = (one for pair in ((p.exp(), p), (q.exp(), q)) for one in pair)
        torch.testing.assert_close(small_kl(*(one.float() for one in given)).double(), exact,
                                   rtol=3e-2 if size < 1e-3 else 1e-3, atol=1e-13)  # fmt: skip


@pytest.mark.parametrize("rule", HALTING_RULES)
def test_values_are_float32_in_half_precision(rule):
    seen = [torch.randn(5, 16).bfloat16() for _ in range(3)]
    value = VALUES[rule](seen)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, VALUES[rule]([one.float() for one in seen]))


def test_it_is_saved_with_the_model(tmp_path):
    policy = HaltingConfig(
        rule="state", threshold=0.1, patience=2, hysteresis=1.5, every=2, least=4
    )
    made = ModelConfig(decoder=CONFIG, schedule=ORDER, policy=policy).build()
    save_model(made, tmp_path / "model")
    assert load_model(tmp_path / "model").policy.config == policy


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"threshold": None}, "threshold: got None; the rule 'kl' needs one"),
        ({"rule": "argmax_stable", "threshold": 0.1}, "'argmax_stable' has none"),
        ({"threshold": -1.0}, "threshold: got -1.0"),
        ({"threshold": math.nan}, "threshold: got nan"),
        ({"hysteresis": 0.9}, "hysteresis: got 0.9"),
        ({"patience": 0}, "patience: got 0"),
        ({"every": 0}, "every: got 0"),
        ({"least": 1}, "least: got 1; 'kl' with a check every 1 loops can first tell after 2"),
        ({"rule": "acceleration", "every": 2, "least": 3}, "can first tell after 4"),
    ],
)
def test_wrong_settings_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        HaltingConfig(**({"threshold": 0.1} | wrong))
