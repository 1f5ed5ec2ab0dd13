"""Early exit, mixture-of-depths and the controls: what each of them says, written out by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tokendepth.depth.constant_gate import ConstantGateConfig
from tokendepth.depth.dense import Dense
from tokendepth.depth.early_exit import EarlyExitConfig, certainty, exit_depths
from tokendepth.depth.fixed_subset import FixedSubsetConfig
from tokendepth.depth.mixture_of_depths import MixtureOfDepthsConfig, highest
from tokendepth.depth.random_keep import RandomKeepConfig
from tokendepth.depth.token_selective import TokenSelectiveConfig
from tokendepth.engine.decode import GenerateOptions, stream
from tokendepth.evaluation.causality import probe
from tokendepth.models.config import DecoderConfig
from tokendepth.models.cost import ledger
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import looped, stack
from tokendepth.types import Schedule

CONFIG = DecoderConfig(
    vocab_size=19,
    width=16,
    num_blocks=4,
    num_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    inner_width=32,
)
IDS = torch.randint(19, (3, 12), generator=torch.Generator().manual_seed(0))
KEYS = torch.arange(3)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def decoder(config, schedule=None, **fields):
    torch.manual_seed(0)
    made = Decoder(DecoderConfig(**{**vars_of(CONFIG), **fields}), schedule)
    made.policy = config.build(made)
    for name, parameter in made.named_parameters():
        gain = "norm" in name
        torch.nn.init.normal_(parameter, mean=float(gain), std=0.1 if gain else 0.3)
    return made.double().eval().requires_grad_(False)


def vars_of(config):
    return {name: getattr(config, name) for name in config.__slots__}


@pytest.mark.parametrize("rule", ["confidence", "margin", "entropy"])
def test_an_always_confident_head_uses_two_blocks(rule):
    made = decoder(EarlyExitConfig(threshold=0.5, rule=rule))
    made.head.weight.mul_(1e4)
    assert made(IDS).executed.sum(-1).unique().tolist() == [2]


def test_at_a_threshold_of_one_nobody_leaves_and_the_model_is_the_dense_one():
    made = decoder(EarlyExitConfig(threshold=1.0))
    output = made(IDS)
    assert output.executed.all()
    assert torch.equal(output.logits, made(IDS, policy=Dense()).logits)


@pytest.mark.parametrize("cap", [None, 3.0])
def test_each_token_leaves_at_its_first_certain_exit_and_is_read_out_there(cap):
    made = decoder(EarlyExitConfig(threshold=0.2), tied_head=False, logit_cap=cap)
    output = made(IDS, collect=range(5))
    first = made(IDS, policy=Dense(), collect=[2]).states[2]
    assert torch.equal(output.states[2], first)
    norms = dict(zip((2, 3), made.policy.norms, strict=True)) | {4: made.final_norm}
    depths = output.executed.sum(-1)
    assert depths.unique().tolist() == [2, 3, 4]
    for row, column in np.ndindex(*IDS.shape):
        for depth in (2, 3, 4):
            state = output.states[depth][row, column]
            logits = made.head(norms[depth](state[None]))[0]
            logits = logits if cap is None else cap * torch.tanh(logits / cap)
            if logits.softmax(0).max() > 0.2 or depth == 4:
                break
        assert int(depths[row, column]) == depth
        torch.testing.assert_close(output.logits[row, column], logits, rtol=0, atol=1e-9)


def test_certainty_by_hand():
    logits = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    best = np.sort(p, axis=1)[:, ::-1]
    expected = {
        "confidence": best[:, 0],
        "margin": best[:, 0] - best[:, 1],
        "entropy": 1 - stats.entropy(p, axis=1) / math.log(5),
    }
    for rule, values in expected.items():
        np.testing.assert_allclose(certainty(logits, rule).numpy(), values, atol=1e-12)


def test_reading_out_on_the_way_is_paid_by_those_who_are_still_there():
    made = decoder(EarlyExitConfig(threshold=0.3))
    output = made(IDS)
    there = output.executed[..., 1].sum() + output.executed[..., 2].sum()
    assert ledger(made, output).flops["check"] == int(there) * 2 * 16 * 19


def test_exits_behind_a_coda_count_its_blocks():
    assert exit_depths(stack(4, coda=1)) == (3,)
    assert exit_depths(looped(prelude=1, core=2, coda=1, loops=3)) == (4, 6)
    made = decoder(EarlyExitConfig(threshold=0.3), stack(4, coda=1))
    made.policy.norms[0].weight.neg_()  # far from the final norm
    output = made(IDS, collect=[4])
    depths = output.executed.sum(-1)
    assert depths.unique().tolist() == [3, 4]
    spans = made.schedule.spans
    short = Schedule(spans=(*spans[:2], spans[3]))  # what a token that leaves before block 2 runs
    state = made(IDS, policy=Dense(), schedule=short, collect=[3]).states[3]
    sure = made.head(made.policy.norms[0](state)).softmax(-1).amax(-1)
    assert torch.equal(depths == 3, sure > 0.3)
    normed = torch.where(
        (depths == 3)[..., None],
        made.policy.norms[0](output.states[4]),
        made.final_norm(output.states[4]),
    )
    torch.testing.assert_close(output.logits, made.head(normed), rtol=0, atol=1e-9)


def test_a_schedule_without_its_exits_is_refused():
    made = decoder(EarlyExitConfig())
    with pytest.raises(ValueError, match="schedule: it has an exit after 1 blocks.*after 2, 3"):
        made(IDS, schedule=stack(4, stem=0))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EarlyExitConfig(threshold=1.1), "threshold: got 1.1"),
        (lambda: MixtureOfDepthsConfig(capacity=0.0), "capacity: got 0.0"),
        (lambda: MixtureOfDepthsConfig(inner=0), "inner: got 0"),
        (lambda: ConstantGateConfig(weight=1.5), "weight: got 1.5"),
        (lambda: decoder(ConstantGateConfig(weight=(0.5, 0.5))), "weight: got 2 values.* 3 routed"),
        (lambda: decoder(RandomKeepConfig(share=(0.5,))), "share: got 1 values"),
        (lambda: decoder(RandomKeepConfig(share=(0.5, 2.0, 0.5))), "share: got 2.0"),
        (lambda: decoder(FixedSubsetConfig(skipped=(0,))), r"skipped: got 0.*\[1, 2, 3\]"),
        (lambda: stack(4, every=0), "every: got 0"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_the_highest_scores_by_hand():
    score = torch.tensor([[3.0, 1.0, 2.0, 2.0, 9.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]).bool()
    expected = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 1, 0, 0]]).bool()
    assert torch.equal(highest(score, mask, 0.5), expected)
    assert highest(score, mask, 0.51).sum(1).tolist() == [3, 3]
    assert torch.equal(highest(score, mask, 1.0), mask)


@pytest.mark.parametrize("weight", ["sigmoid", "linear"])
def test_a_mixture_weighs_the_whole_change_of_the_rows_it_takes(weight):
    made = decoder(MixtureOfDepthsConfig(capacity=0.5, weight=weight), stack(4, every=2))
    assert [span.routed for span in made.schedule.spans] == [False, True, False, True]
    output = made(IDS, routing="top_k", collect=[1, 2])
    before, after = output.states[1], output.states[2]
    score = (before @ made.policy.routers[0].weight[0] + made.policy.routers[0].bias).float()
    taken = output.executed[..., 1]
    assert torch.equal(taken, score >= score.topk(6, dim=1).values[:, -1:])
    full = made(IDS, policy=Dense(), collect=[2]).states[2]
    assert torch.equal(after[~taken], before[~taken])
    gate = (score.sigmoid() if weight == "sigmoid" else score).double()[..., None]
    expected = before + gate * (full - before)
    torch.testing.assert_close(after[taken], expected[taken], rtol=0, atol=1e-5)


def test_a_mixture_is_causal_by_its_predictor_alone():
    made = decoder(MixtureOfDepthsConfig(capacity=0.5))
    found = probe(made, IDS, routing="hard")
    assert found.declared
    assert found.causal
    found = probe(made, IDS, routing="top_k")
    assert not found.declared
    assert found.label == "not causal, as declared"
    assert found.moved is not None
    with pytest.raises(ValueError, match="top_k"):
        list(stream(made, [[1, 2]], GenerateOptions(routing="top_k", max_new_tokens=2)))


def test_a_predictor_learns_who_is_taken_and_moves_nothing_else():
    made = decoder(MixtureOfDepthsConfig(capacity=0.5)).requires_grad_(True)
    output = made(IDS, routing="top_k")
    loss = output.penalty["predictor"].sum()
    loss.backward()
    moved = {name for name, one in made.named_parameters() if one.grad is not None}
    assert moved
    assert all(name.startswith("policy.predictors.") for name in moved)
    wrong = 0.0
    states = made(IDS, routing="top_k", collect=[1, 2, 3]).states
    for place in range(3):
        p = made.policy.predictors[place](states[place + 1]).sigmoid().double()
        taken = output.executed[..., place + 1]
        wrong += float(-torch.where(taken, p.log(), (1 - p).log()).detach().sum()) / 3
    assert float(loss.detach()) == pytest.approx(wrong, rel=1e-5)
    assert "predictor" not in made(IDS, routing="hard").penalty


def test_a_constant_gate_is_a_router_that_says_the_same_to_all():
    made = decoder(TokenSelectiveConfig())
    for router, p in zip(made.policy.routers, (0.2, 0.5, 0.9), strict=True):
        router.last.weight.zero_()
        router.last.bias.fill_(math.log(p / (1 - p)))
    learned = made(IDS, routing="soft")
    control = ConstantGateConfig(weight=(0.8, 0.5, 0.1)).build(made)
    assert control.control
    output = made(IDS, policy=control)
    torch.testing.assert_close(output.logits, learned.logits, rtol=0, atol=1e-6)
    assert output.executed.all()


def test_draws_hit_the_rate_of_each_span():
    made = decoder(RandomKeepConfig(share=(0.2, 0.5, 0.9)))
    kept = made(torch.zeros(40, 100, dtype=torch.long), row_keys=torch.arange(40)).executed
    rates = kept.double().mean((0, 1))
    torch.testing.assert_close(
        rates, torch.tensor([1.0, 0.2, 0.5, 0.9], dtype=torch.float64), rtol=0, atol=0.03
    )
    one = made(IDS, policy=RandomKeepConfig(share=0.5).build(made), row_keys=KEYS)
    same = made(IDS, policy=RandomKeepConfig(share=(0.5, 0.5, 0.5)).build(made), row_keys=KEYS)
    assert torch.equal(one.executed, same.executed)


def test_a_fixed_subset_is_the_model_without_those_blocks():
    made = decoder(FixedSubsetConfig(skipped=(1, 3)))
    assert made.policy.control
    spans = made.schedule.spans
    short = made(IDS, policy=Dense(), schedule=Schedule(spans=(spans[0], spans[2])))
    output = made(IDS)
    torch.testing.assert_close(output.logits, short.logits, rtol=0, atol=1e-9)
    assert output.executed[0, 0].tolist() == [True, False, True, False]
