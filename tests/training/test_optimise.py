"""Against formulas by hand and torch's own scheduler; accumulation against one big batch."""

import dataclasses
import math

import pytest
import torch

from tests.training.toys import Noisy, noisy, tiny
from tokendepth import DecoderConfig, Dense, NonFiniteError, stack
from tokendepth.depth.base import Policy
from tokendepth.depth.dense import DenseConfig
from tokendepth.training.data import Windows
from tokendepth.training.initial import Initial
from tokendepth.training.loop import Hooks, Training, fit, one_step
from tokendepth.training.objective import CrossEntropy, Losses
from tokendepth.training.optimise import OptimizerConfig, clipped
from tokendepth.training.recipe import with_vocabulary
from tokendepth.training.train import _live
from tokendepth.types import Decision

CPU = torch.device("cpu")


def training(recipe, ids):
    recipe = with_vocabulary(recipe, 30)
    windows = Windows(ids, recipe.window, recipe.batch, recipe.order, recipe.seed)
    return Training(recipe=recipe, windows=windows, live=_live(recipe, CPU))


@pytest.fixture
def ids():
    generator = torch.Generator().manual_seed(3)
    return torch.randint(30, (500,), generator=generator).numpy()


def without_dropout(**changes):
    recipe = tiny(**changes)
    return dataclasses.replace(recipe, decoder=dataclasses.replace(recipe.decoder, dropout=0.0))


def test_the_rate_is_torchs_cosine_after_a_linear_warm_up():
    config = OptimizerConfig(learning_rate=3e-4, final_learning_rate=3e-5)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=3e-5)
    for step in range(50):
        assert config.rate(step, 50) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        scheduler.step()
    warm = dataclasses.replace(config, warmup_steps=4)
    rates = [warm.rate(step, 50) / 3e-4 for step in range(5)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert warm.rate(50, 50) == pytest.approx(3e-5)
    short = dataclasses.replace(config, decay_steps=10)
    assert short.rate(5, 50) == pytest.approx((3e-4 + 3e-5) / 2)
    assert short.rate(30, 50) == pytest.approx(3e-5)


@pytest.mark.parametrize(
    ("decayed", "spared_tables"), [("matrices", False), ("matrices but embeddings", True)]
)
def test_what_decays(decayed, spared_tables):
    recipe = with_vocabulary(noisy(), 30)
    decoder = Initial().build(recipe.model, 0)
    optimizer = OptimizerConfig(decayed=decayed, weight_decay=0.3).build(decoder)
    names = {id(one): name for name, one in decoder.named_parameters()}
    groups = {
        group["weight_decay"]: {names[id(one)] for one in group["params"]}
        for group in optimizer.param_groups
    }
    assert groups[0.3] | groups[0.0] == set(names.values())
    assert all(name.endswith("weight") and "norm" not in name for name in groups[0.3])
    assert ("embedding.weight" in groups[0.0]) == spared_tables
    assert {"policy.router.weight", "blocks.2.attention.query.weight"} <= groups[0.3]
    assert {"policy.router.bias", "final_norm.weight"} <= groups[0.0]


def test_a_step_is_adamw_by_hand(ids):
    recipe = without_dropout(steps=1, order="random")
    one = training(recipe, ids)
    before = {name: value.detach().clone() for name, value in one.live.decoder.named_parameters()}
    decoder = Initial().build(one.recipe.model, 0)
    decoder.load_state_dict(before, strict=False)
    batch = one.windows.get(0)
    logits = decoder(batch.inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    loss.backward()
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in decoder.parameters()))
    step = one_step(one)
    assert step.losses["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert step.gradient_norm == pytest.approx(norm, rel=1e-4)
    rate = recipe.optimizer.rate(0, 1)
    tables = {id(decoder.embedding.weight)}
    for name, parameter in decoder.named_parameters():
        gradient = parameter.grad * min(1.0, 1.0 / norm)
        decay = 0.1 if parameter.ndim > 1 and id(parameter) not in tables else 0.0
        # The first step of Adam: both moments, without their bias, are the gradient itself.
        change = gradient / (gradient.abs() + 1e-8)
        expected = before[name] * (1 - rate * decay) - rate * change
        found = dict(one.live.decoder.named_parameters())[name]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_accumulation_is_one_big_batch(ids, order):
    """Also where windows are ragged: sums over all tokens of the step, not means of means."""
    whole = training(without_dropout(batch=8, order=order), ids)
    parts = training(without_dropout(batch=2, accumulate=4, order=order), ids)
    if order == "random":  # draws are by batch, so give both the same windows
        starts = [whole.windows.starts(number) for number in range(2)]
        flat = [int(one) for some in starts for one in some]
        parts.windows.starts = lambda number: torch.tensor(
            flat[2 * number : 2 * number + 2]
        ).numpy()
    else:
        assert whole.windows.num_windows == 32
        parts.windows.ids = whole.windows.ids = ids[:490]  # the last window has 10 - 1 targets
        parts.windows.num_windows = whole.windows.num_windows = 31
    for _ in range(2 if order == "random" else 8):
        first, second = one_step(whole), one_step(parts)
        assert first.tokens == second.tokens
        assert first.losses["loss"] == pytest.approx(second.losses["loss"], rel=1e-5)
        assert first.gradient_norm == pytest.approx(second.gradient_norm, rel=1e-3)


class Penalised(Policy):
    def decide(self, span, hidden, state, context):
        return Decision(penalty={"depth": torch.ones_like(hidden[..., 0])}), state


def test_penalties_are_weighted_means_over_valid_tokens(ids):
    recipe = without_dropout(objective=CrossEntropy(penalties={"depth": 0.25}))
    one = training(recipe, ids[:40])
    one.live.decoder.policy = Penalised()
    for _ in range(2):
        step = one_step(one)
        assert step.losses["depth"] == pytest.approx(0.25 * 2)  # two routed spans
        parts = step.losses["cross_entropy"] + step.losses["depth"]
        assert step.losses["loss"] == pytest.approx(parts)
    assert step.tokens < 4 * 16  # padding is in the batch


@pytest.mark.parametrize(
    ("policy", "weights", "said"),
    [
        (Penalised, {}, "depth is in one of the two alone"),
        (Penalised, {"depht": 1.0}, "did you mean depth"),
        (Dense, {"depth": 1.0}, "the policy has the penalties none"),
    ],
)
def test_a_penalty_and_its_weight_go_together(ids, policy, weights, said):
    one = training(without_dropout(objective=CrossEntropy(penalties=weights)), ids)
    one.live.decoder.policy = policy()
    with pytest.raises(ValueError, match=said):
        one_step(one)


@dataclasses.dataclass(frozen=True)
class Diverges:
    """Gives a NaN in the second micro-batch of the fourth step."""

    def __call__(self, decoder, batch, state):
        losses = CrossEntropy()(decoder, batch, state)
        bad = torch.tensor(float("nan") if (state.step, state.micro) == (3, 1) else 1.0)
        return Losses(sums={name: value * bad for name, value in losses.sums.items()})


def test_a_loss_that_is_not_finite_names_step_and_batch(ids):
    one = training(tiny(objective=Diverges(), accumulate=2), ids)
    for _ in range(3):
        one_step(one)
    before = {name: value.detach().clone() for name, value in one.live.decoder.named_parameters()}
    with pytest.raises(NonFiniteError, match=r"step 4, batch 7 \(windows at tokens \d+, .*nan"):
        one_step(one)
    assert all(torch.equal(p, before[name]) for name, p in one.live.decoder.named_parameters())
    assert all(one.grad is None for one in one.live.decoder.parameters())


def test_a_gradient_that_is_not_finite_changes_nothing(ids, monkeypatch):
    one = training(tiny(), ids)
    weight = one.live.decoder.final_norm.weight
    weight.register_hook(lambda gradient: gradient * float("inf"))
    before = weight.detach().clone()
    with pytest.raises(NonFiniteError, match="step 1: the gradient is not finite"):
        one_step(one)
    assert torch.equal(weight, before)


def test_clipping_scales_to_the_limit(ids):
    one = training(tiny(), ids)
    for parameter in one.live.decoder.parameters():
        parameter.grad = torch.ones_like(parameter)
    norm = clipped(one.live.decoder, 0.5)
    numel = sum(parameter.numel() for parameter in one.live.decoder.parameters())
    assert float(norm) == pytest.approx(math.sqrt(numel), rel=1e-5)
    after = math.sqrt(sum(float((p.grad**2).sum()) for p in one.live.decoder.parameters()))
    assert after == pytest.approx(0.5, rel=1e-3)
    clipped(one.live.decoder, None)
    assert math.sqrt(sum(float((p.grad**2).sum()) for p in one.live.decoder.parameters())) == after


def test_what_is_due_is_done_between_steps(ids):
    done = []
    one = training(tiny(steps=7, checkpoint_every=3, evaluate_every=2), ids)
    one.hooks = Hooks(
        on_step=lambda step: done.append(step.number),
        checkpoint=lambda: done.append("saved"),
        evaluate=lambda: done.append("evaluated"),
    )
    assert fit(one)
    assert done == [
        1, 2, "evaluated", 3, "saved", 4, "evaluated", 5, 6, "evaluated", "saved",
        7, "evaluated", "saved",
    ]  # fmt: skip


def test_draws_of_a_step_are_shared_by_its_micro_batches_and_the_stream_is_not(ids):
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Watches:
        def __call__(self, decoder, batch, state):
            shared = torch.rand(1, generator=state.shared()).item()
            seen.append((shared, torch.rand(1, generator=state.generator).item(), state.progress))
            return CrossEntropy()(decoder, batch, state)

    one = training(tiny(objective=Watches(), accumulate=2, steps=4), ids)
    fit(one)
    shared = [shared for shared, _, _ in seen]
    assert shared[0::2] == shared[1::2]
    assert len(set(shared)) == 4
    assert len({own for _, own, _ in seen}) == 8
    assert [progress for _, _, progress in seen[::2]] == [0, 0.25, 0.5, 0.75]


@torch.no_grad()
def test_weights_start_with_the_published_deviations():
    config = DecoderConfig(
        vocab_size=500, width=128, num_blocks=8, num_heads=4, num_key_value_heads=4, head_dim=32,
        inner_width=512, norm="layer", positions="learned", max_positions=400, gated=False,
        feed_forward_bias=True,
    )  # fmt: skip
    recipe = tiny(decoder=config, schedule=stack(8), window=16)
    state = torch.get_rng_state()
    decoder = Initial().build(recipe.model, 5)
    assert torch.equal(torch.get_rng_state(), state)
    block = decoder.blocks[3]
    assert decoder.embedding.weight.std() == pytest.approx(0.02, rel=0.03)
    assert decoder.position_embedding.weight.std() == pytest.approx(0.02, rel=0.03)
    assert block.attention.query.weight.std() == pytest.approx(0.02, rel=0.03)
    for end in (block.attention.output, block.feed_forward.down):
        assert end.weight.std() == pytest.approx(0.02 / 4, rel=0.03)
    assert not block.feed_forward.up.bias.any()
    assert (decoder.final_norm.weight == 1).all()
    default = Initial(matrices=None).build(recipe.model, 5)
    limit = 1 / math.sqrt(128)
    assert default.blocks[3].attention.query.weight.abs().max() == pytest.approx(limit, rel=0.01)
    assert default.blocks[3].attention.output.weight.std() == pytest.approx(0.005, rel=0.03)
    again = Initial().build(recipe.model, 5)
    assert torch.equal(again.blocks[3].attention.query.weight, block.attention.query.weight)


def test_bfloat16_keeps_weights_and_loss_in_float32(ids):
    one = training(tiny(precision="bfloat16"), ids)
    plain = training(tiny(), ids)
    first, second = one_step(one), one_step(plain)
    assert first.losses["loss"] != second.losses["loss"]
    assert first.losses["loss"] == pytest.approx(second.losses["loss"], rel=0.05)
    assert {p.dtype for p in one.live.decoder.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("learning_rate", 0.0, "learning_rate: got 0.0; it must be above 0"),
        ("final_learning_rate", -1.0, "final_learning_rate: got -1.0"),
        ("final_learning_rate", 1.0, "final_learning_rate: got 1.0, above the learning_rate"),
        ("decay_steps", 0, "decay_steps: got 0; it must be at least 1"),
        ("warmup_steps", -1, "warmup_steps: got -1"),
        ("clip", 0.0, "clip: got 0.0; it must be above 0"),
        ("betas", (0.9, 1.0), "betas: got"),
    ],
)
def test_an_optimizer_setting_out_of_range_is_named(field, value, said):
    with pytest.raises(ValueError, match=said):
        OptimizerConfig(**{field: value})


def test_the_objective_is_the_recipes_own(ids):
    assert isinstance(noisy().objective, Noisy)


def test_a_policy_with_weights_leaves_the_decoders_as_they_are_without_it():
    plain, gated = noisy(), noisy()
    plain = dataclasses.replace(plain, policy=DenseConfig(), objective=CrossEntropy())
    one, two = (made.initial.build(made.model, 5) for made in (plain, gated))
    assert sum(1 for _ in two.policy.parameters()) > 0
    theirs = dict(two.named_parameters())
    for name, weight in one.named_parameters():
        assert torch.equal(weight, theirs[name]), name
    assert not torch.equal(
        one.embedding.weight, plain.initial.build(plain.model, 6).embedding.weight
    )
