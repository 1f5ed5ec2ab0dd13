"""Exits and states of our decoder against transformers' Llama, and the map on both."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tokendepth
from tokendepth.depth.fixed_exit import FixedExit


def llama():
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        num_key_value_heads=2,
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, mean=float(parameter.ndim == 1))
    return model


def batch(side):
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(61, (3, 12), generator=generator)
    mask = torch.ones_like(ids)
    for row, pads in enumerate((9, 0, 4)):
        mask[row, slice(0, pads) if side == "left" else slice(12 - pads, 12)] = 0
    return ids, mask


def test_a_config_with_a_slip_of_the_pen_names_it(tmp_path):
    tokendepth.save_model(tokendepth.from_transformers(llama()), tmp_path)
    (tmp_path / "model.json").write_text(
        (tmp_path / "model.json").read_text().replace('"width"', '"wdith"')
    )
    with pytest.raises(ValueError, match="wdith"):
        tokendepth.load_model(tmp_path)


@torch.no_grad()
def test_an_exit_is_the_truncated_model():
    theirs = llama()
    ours = tokendepth.from_transformers(theirs)
    ids, _ = batch("left")
    for depth in (1, 2, 3, 4):
        short = llama()
        short.model.layers = short.model.layers[:depth]
        for executor in ("dense", "gathered"):
            got = ours(ids, policy=FixedExit(depth), executor=executor).logits
            assert torch.allclose(got, short(ids).logits, atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="depth: got 0"):
        ours(ids, policy=FixedExit(0))


@torch.no_grad()
def test_states_and_readings_are_those_of_transformers():
    theirs = llama()
    view = tokendepth.find_view(theirs)
    ours = tokendepth.from_transformers(theirs)
    ids, mask = batch("right")
    from tokendepth.adapters.decoder import DecoderView

    expected = tokendepth.capture(view, ids, mask)
    found = tokendepth.capture(DecoderView(model=ours), ids, mask)
    assert found.keys() == expected.keys()
    for state, value in expected.items():
        assert torch.allclose(found[state][mask.bool()], value[mask.bool()], atol=1e-4)
    assert tokendepth.capture(DecoderView(model=ours), ids, mask, states=[2]).keys() == {2}


@pytest.mark.real
def test_the_map_on_the_decoder_is_the_map_on_the_model(smollm2):
    text = "To be, or not to be, that is the question."
    expected = tokendepth.map(text, smollm2)
    found = tokendepth.map(text, smollm2.on_decoder())
    assert (abs(found.kl - expected.kl) < 1e-3).all()
    assert (found.depth == expected.depth).all()
    loops = tokendepth.looped(prelude=28, core=2, coda=0, loops=3, inject=False)
    more = tokendepth.map(text, smollm2.on_decoder(loops))
    assert more.num_layers == 34
    assert more.kl.shape == (len(found.kl), 35)


@pytest.mark.real
@torch.no_grad()
def test_smollm2_equals_transformers(smollm2):
    ids = smollm2.tokenizer(["To be, or not to be"], return_tensors="pt").input_ids
    ours = smollm2.decoder(ids).logits
    assert torch.allclose(ours, smollm2.model(ids).logits, atol=1e-4, rtol=0)
    assert replace(smollm2, model=smollm2.decoder).decoder is smollm2.decoder
