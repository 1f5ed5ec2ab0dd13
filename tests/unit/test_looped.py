"""Looped models: weights do not depend on loops, states start as named, the coda sees one size."""

import pytest
import torch
from safetensors.torch import load_file

from tokendepth import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import ModelConfig, load_model, save_model
from tokendepth.models.schedule import looped, stack, with_loops
from tokendepth.numerics import keyed_normal
from tokendepth.recipes.depth_recurrent import recurrent_135m, recurrent_small

CONFIG = DecoderConfig(
    vocab_size=31, width=16, num_blocks=4, num_heads=2, num_key_value_heads=1, head_dim=8,
    inner_width=24, bare_post_norms=(1, 2), adapter=True, key_value_rule="carried",
)  # fmt: skip
ORDER = looped(
    prelude=1, core=2, coda=1, loops=3, start="truncated", start_std=0.6, normed_coda=True
)
IDS = torch.arange(14).view(2, 7)


@pytest.fixture
def decoder():
    torch.manual_seed(0)
    return Decoder(CONFIG, ORDER).eval().requires_grad_(False)


def test_the_published_geometry():
    recipe = recurrent_135m()
    with torch.device("meta"):
        decoder = recipe.model.build()
    assert sum(one.numel() for one in decoder.parameters()) == 57_296_448
    block = sum(one.numel() for one in decoder.blocks[3].parameters())
    assert (block, decoder.adapter.weight.numel()) == (3_540_096, 663_552)
    assert recipe.batch * recipe.accumulate * recipe.window == 262_144
    assert len(recipe.schedule.visits) == 36


def test_loops_are_applications_of_one_core(decoder):
    """By hand: embed, prelude, three times adapter and core, norm, coda."""
    output = decoder(IDS, collect=range(len(ORDER.visits) + 1))
    state = 0.6 * keyed_normal(0, 16, torch.zeros(2, 1).long(), torch.arange(7), within=3.0)
    embedded = output.states[1]
    for loop in range(3):
        entry = decoder.adapter(torch.cat((state.float(), embedded), -1))
        state = _blocks(decoder, entry, (1, 2))
        torch.testing.assert_close(output.states[3 + 2 * loop], state)
    normed = state / (state.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    last = _blocks(decoder, normed, (3,))
    torch.testing.assert_close(output.states[8], last)
    torch.testing.assert_close(output.logits, decoder.read_out(last.flatten(0, 1)).view(2, 7, 31))
    assert with_loops(ORDER, 1).core == ()


def _blocks(decoder, state, indices):
    """Blocks on full causal attention, from their modules alone."""
    turn = decoder.rotary.turn(torch.arange(7).expand(2, 7), state.dtype)
    for index in indices:
        block = decoder.blocks[index]
        normed = block.attention_norm(state)
        queries = block.attention.queries(normed, turn)
        mixed = block.attention.attend(queries, *block.attention.keys_values(normed, turn), None)
        state = state + block.attention_update(mixed)
        state = state + block.feed_forward_update(state)
    return state


def test_more_loops_need_no_more_weights(decoder, tmp_path):
    sizes, stored = set(), set()
    for loops in (2, 8, 32):
        order = with_loops(ORDER, loops)
        assert [span.loop for span in order.spans] == [0, *range(loops), 0]
        assert decoder(IDS, schedule=order).executed.shape[-1] == 2 + 2 * loops
        config = ModelConfig(decoder=CONFIG, schedule=order, policy=decoder.policy.config)
        made = config.build()
        sizes.add(sum(one.numel() for one in (*made.parameters(), *made.buffers())))
        save_model(made, tmp_path / str(loops))
        (file,) = (tmp_path / str(loops)).glob("*.safetensors")
        stored.add(sum(one.numel() for one in load_file(file).values()))
        again = load_model(tmp_path / str(loops))
        assert again.schedule == order
        assert torch.equal(again(IDS).logits, made.eval()(IDS).logits)
    assert sizes == stored
    assert len(sizes) == 1


def test_norms_without_gains_have_no_weights(decoder):
    names = [name for name, _ in decoder.named_parameters() if "post_norm" in name]
    assert names == []
    assert decoder.blocks[1].attention_post_norm is not None
    assert decoder.blocks[0].attention_post_norm is None


def test_starts(decoder):
    seen = {}
    for start in ("hidden", "zeros", "normal", "truncated"):
        order = looped(prelude=1, core=2, coda=1, loops=3, start=start, start_std=0.5)
        seen[start] = decoder(IDS, schedule=order, row_keys=torch.arange(2)).logits
    assert all(
        not torch.allclose(one, other)
        for name, one in seen.items()
        for another, other in seen.items()
        if name < another
    )
    draws = keyed_normal(3, 4000, torch.arange(5), within=3.0)
    assert draws.abs().max() <= 3.0
    assert float(draws.abs().max()) > 2.9
    assert abs(float(draws.std()) - 0.9866) < 0.02  # of the normal cut off at three deviations
    with pytest.raises(ValueError, match="start_std: got 0"):
        looped(prelude=1, core=2, coda=1, loops=3, start="normal", start_std=0.0)


def test_gradients_stop_before_the_learned_loops(decoder):
    order = with_loops(ORDER, 5, learned=2)
    assert [span.grad for span in order.spans] == [True, False, False, False, True, True, True]
    decoder.requires_grad_(True)
    gradients = []
    for schedule in (order, with_loops(ORDER, 5)):
        decoder.zero_grad()
        decoder(IDS, schedule=schedule).logits.square().sum().backward()
        gradients.append(decoder.blocks[1].attention.query.weight.grad.clone())
        assert decoder.blocks[0].attention.query.weight.grad.abs().max() > 0
    assert not torch.allclose(*gradients)
    # By hand: the state after three loops is a constant, and the last two loops start from it.
    decoder.zero_grad()
    with torch.no_grad():
        state = decoder(IDS, schedule=with_loops(ORDER, 3), collect=[7]).states[7]
    embedded = _blocks(decoder, decoder.embed(IDS, torch.arange(7).expand(2, 7)), (0,))
    for _ in range(2):
        state = _blocks(decoder, decoder.adapter(torch.cat((state, embedded), -1)), (1, 2))
    last = _blocks(decoder, torch.nn.functional.rms_norm(state, (16,), eps=1e-5), (3,))
    decoder.read_out(last.flatten(0, 1)).square().sum().backward()
    torch.testing.assert_close(decoder.blocks[1].attention.query.weight.grad, gradients[0])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: with_loops(stack(3), 4), "schedule: it has no core"),
        (lambda: with_loops(ORDER, 0), "loops, learned: got 0 and None"),
        (lambda: with_loops(ORDER, 3, learned=0), "got 3 and 0"),
        (
            lambda: looped(prelude=1, core=1, coda=0, loops=2, normed_coda=True),
            "normed_coda: there",
        ),
    ],
)
def test_wrong_schedules_are_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_blocks_that_are_not_there_have_no_norms():
    import dataclasses

    with pytest.raises(ValueError, match="bare_post_norms: got block 4; there are blocks 0 to 3"):
        dataclasses.replace(CONFIG, bare_post_norms=(1, 4))


def test_the_small_recipe_has_the_size_it_tells():
    decoder = recurrent_small().model.build()
    count = sum(one.numel() for one in decoder.parameters())
    assert f"{count:,} weights" in recurrent_small.__doc__


def test_where_a_token_can_stop_and_where_spans_begin_anew():
    plain = stack(4)
    assert plain.exits == (1, 2, 3, 4)
    assert plain.breaks == (4, 4, 4, 4)
    around = looped(prelude=1, core=2, coda=1, loops=3, normed_coda=True)
    spans = [(span.loop, span.inject, span.normed) for span in around.spans]
    assert [after for after in sorted(set(around.breaks)) if after < len(spans)] == [
        index for index in range(1, len(spans))
        if spans[index][0] != spans[index - 1][0] or spans[index][1] or spans[index][2]
    ]  # fmt: skip
    assert around.exits[-1] == 7
