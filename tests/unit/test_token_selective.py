"""Token-selective attention: published counts and constants, limits of the gates, gradients."""

import dataclasses

import pytest
import torch

from tokendepth.depth.dense import Dense
from tokendepth.depth.token_selective import TokenSelectiveConfig, token_layers_saved
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import ModelConfig
from tokendepth.models.schedule import looped, stack
from tokendepth.training.initial import Initial

CONFIG = DecoderConfig(
    vocab_size=19,
    width=16,
    num_blocks=4,
    num_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    inner_width=32,
)
IDS = torch.randint(19, (3, 10), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def selective(schedule=None, **fields):
    torch.manual_seed(0)
    made = Decoder(CONFIG, schedule)
    made.policy = TokenSelectiveConfig(**fields).build(made)
    return made.eval()


def shut(decoder, logit):
    """Routers that give the same logit to every token, or a steep one by the first feature."""
    with torch.no_grad():
        for router in decoder.policy.routers:
            router.last.weight.zero_()
            router.last.bias.fill_(logit)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def published(width, vocab, max_positions, heads):
    return DecoderConfig(
        vocab_size=vocab, width=width, num_blocks=6, num_heads=heads, num_key_value_heads=heads,
        head_dim=width // heads, inner_width=4 * width, norm="layer", positions="learned",
        gated=False, activation="gelu", feed_forward_bias=True, max_positions=max_positions,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "plain", "with_routers"),
    [
        ((256, 65, 128, 8), 4_782_336, 4_864_901),
        ((256, 6064, 256, 8), 6_350_848, 6_433_413),
    ],
)
def test_published_numbers_of_weights(sizes, plain, with_routers):
    made = Decoder(published(*sizes))
    assert count(made) == plain
    made.policy = TokenSelectiveConfig().build(made)
    assert count(made) == with_routers
    width, inner = sizes[0], max(sizes[0] // 4, 16)
    assert count(made.policy) == 5 * (width * inner + 2 * inner + 1)


def test_routers_of_toy_tasks():
    """The totals depend on a vocabulary that is not published; the difference does not."""
    made = Decoder(published(128, 24, 64, 4))
    assert count(TokenSelectiveConfig().build(made)) == 1_219_909 - 1_199_104


def test_narrow_models_have_routers_of_sixteen():
    assert selective().policy.routers[0].inner.out_features == 16


def test_the_start_is_the_published_one():
    model = ModelConfig(decoder=CONFIG, schedule=stack(4), policy=TokenSelectiveConfig())
    decoder = Initial(matrices=None).build(model, 0)
    for router in decoder.policy.routers:
        assert router.last.bias.tolist() == [-1.0]
        bound = router.inner.in_features**-0.5
        assert 0.5 * bound < router.inner.weight.abs().max() <= bound
    gates = decoder.eval()(IDS, routing="soft").decisions[1].weight.detach()
    assert abs(float(gates.mean()) - (1 - 0.269)) < 0.05
    assert Initial().build(model, 0).policy.routers[0].inner.weight.abs().max() > 0


def test_an_even_start_is_the_dense_model_when_hard_and_reads_directions_where_normed():
    decoder = selective(even_start=True, normed=True)
    output = decoder(IDS, routing="hard")
    assert torch.equal(output.logits, decoder(IDS, policy=Dense()).logits)
    weights = decoder(IDS, routing="soft").decisions[1].weight
    torch.testing.assert_close(weights, torch.full(IDS.shape, 1 - 0.26894142))
    router = decoder.policy.routers[0]
    torch.nn.init.normal_(router.last.weight)
    rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    unit = rows / rows.square().mean(-1, keepdim=True).sqrt()
    by_hand = router.last(router.inner(unit).relu()).squeeze(-1)
    torch.testing.assert_close(router(rows), by_hand)
    torch.testing.assert_close(router(1000 * rows), by_hand)
    assert not torch.allclose(selective().policy.routers[0](1000 * rows), by_hand)


@pytest.mark.parametrize("routing", ["soft", "hard_soft", "hard"])
def test_open_gates_are_the_plain_block_and_shut_ones_the_identity(routing):
    decoder = selective()
    shut(decoder, -200.0)
    dense = decoder(IDS, policy=Dense()).logits
    assert torch.equal(decoder(IDS, routing=routing).logits, dense)
    shut(decoder, 200.0)
    output = decoder(IDS, routing=routing, collect=[1, 4])
    assert torch.equal(output.states[1], output.states[4])


def test_the_attention_half_is_linear_in_p():
    decoder = selective(stack(4, stem=1, coda=2))
    decoder.blocks[1].feed_forward.down.weight.data.zero_()
    moved = []
    for p in (0.0, 0.25, 0.75, 1.0):
        shut(decoder, torch.logit(torch.tensor(p)).clamp(-200, 200))
        states = decoder(IDS, routing="soft", collect=[1, 2]).states
        moved.append((states[2] - states[1]).detach())
    torch.testing.assert_close(moved[1], 0.75 * moved[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(moved[2], 0.25 * moved[0], rtol=0, atol=1e-6)
    assert not moved[3].any()


@pytest.mark.parametrize("executor", ["dense", "gathered", "feed_forward"])
def test_gates_of_zero_and_one_are_the_same_soft_and_hard(executor):
    decoder = selective()
    with torch.no_grad():
        for number, router in enumerate(decoder.policy.routers):
            router.inner.weight.zero_()
            router.inner.weight[0, number] = 1e6
            router.inner.weight[1, number] = -1e6
            router.last.weight.zero_()
            router.last.weight[0, :2] = torch.tensor([1.0, -1.0])
            router.last.bias.zero_()
        decoder.policy.routers[1].last.weight.zero_()
        decoder.policy.routers[1].last.bias.fill_(200.0)
    soft = decoder(IDS, routing="soft")
    hard = decoder(IDS, routing="hard", executor=executor)
    atol = 1e-6 * float(soft.logits.detach().abs().max())
    torch.testing.assert_close(hard.logits, soft.logits, rtol=0, atol=atol)
    assert not hard.executed[..., 2].any()
    assert 0 < int(hard.executed[..., 1].sum()) < IDS.numel()


@pytest.mark.parametrize(("tie", "runs"), [("runs", True), ("skips", False)])
def test_what_becomes_of_a_tie(tie, runs):
    decoder = selective(tie=tie)
    shut(decoder, 0.0)
    output = decoder(IDS, routing="hard")
    assert bool(output.executed[..., 1:].all()) == runs
    assert bool(output.executed[..., 1:].any()) == runs
    assert float(output.decisions[1].margin.abs().max()) == 0.0


def test_the_threshold_is_one_of_p():
    decoder = selective(threshold=0.8)
    shut(decoder, float(torch.logit(torch.tensor(0.79))))
    output = decoder(IDS, routing="hard")
    assert output.executed.all()
    torch.testing.assert_close(
        output.decisions[1].margin, torch.full(IDS.shape, 0.01), rtol=0, atol=1e-6
    )
    shut(decoder, float(torch.logit(torch.tensor(0.81))))
    assert not decoder(IDS, routing="hard").executed[..., 1:].any()


def gradients(decoder, routing, loss):
    decoder.zero_grad()
    loss(decoder(IDS, routing=routing)).backward()
    return [router.last.bias.grad for router in decoder.policy.routers]


@pytest.mark.parametrize("routing", ["soft", "hard"])
def test_text_alone_teaches_the_routers(routing):
    decoder = selective().train()
    found = gradients(decoder, routing, lambda output: output.logits.square().mean())
    assert all(float(one.abs()) > 0 for one in found)


@pytest.mark.parametrize("routing", ["soft", "hard"])
def test_the_penalty_raises_p(routing):
    decoder = selective().train()
    found = gradients(decoder, routing, lambda output: output.penalty["depth"].mean())
    assert all(float(one) < 0 for one in found)


def test_straight_through_is_hard_forward_and_soft_backward():
    """Skipped rows reach the router too: their gradient is that of a soft gate of zero."""
    decoder = selective(first_bias=0.0).train()
    hard = decoder(IDS, routing="hard")
    weight = hard.decisions[1].weight
    assert set(weight.unique().tolist()) <= {0.0, 1.0}
    assert 0 < int(weight.count_nonzero()) < IDS.numel()
    with torch.no_grad():
        run = decoder.eval()(IDS, routing="hard")
    torch.testing.assert_close(hard.logits, run.logits, rtol=0, atol=1e-6)
    (first,) = torch.autograd.grad(hard.logits.square().sum(), weight, retain_graph=True)
    assert (first[weight == 0].abs() > 0).all()
    logit = decoder.policy.routers[0](decoder(IDS, collect=[1]).states[1])
    slope = torch.autograd.grad(weight.sum(), decoder.policy.routers[0].last.bias)[0]
    p = torch.sigmoid(logit.detach())
    torch.testing.assert_close(float(slope), float(-(p * (1 - p)).sum()), rtol=1e-5, atol=0)


def test_gates_are_float32_under_autocast():
    decoder = selective()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weight = decoder(IDS, routing="soft").decisions[1].weight
    assert weight.dtype == torch.float32
    half = selective().bfloat16()
    assert half(IDS, routing="soft").decisions[1].weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("alpha", "saved"),
    [
        (0.341, 0.5492),
        (0.730, 0.2250),
        (0.726, 0.2283),
        (0.833, 0.1392),
        (0.395, 0.5042),
        (0.036, 0.8033),
    ],
)
def test_saved_token_layers_of_the_paper(alpha, saved):
    assert round(token_layers_saved(alpha, 6), 4) == saved


def test_loops_over_the_same_blocks_share_a_router():
    order = looped(prelude=1, core=2, coda=1, loops=3, inject=False)
    assert len(selective(order).policy.routers) == 1


def test_another_schedule_is_refused():
    with pytest.raises(ValueError, match=r"blocks \(0,\).*no router"):
        selective()(IDS, schedule=stack(4, stem=0))


@pytest.mark.parametrize(("field", "value"), [("inner", 0), ("threshold", 1.0), ("threshold", 0.0)])
def test_fields_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=f"{field}: got {value!r}"):
        dataclasses.replace(TokenSelectiveConfig(), **{field: value})
