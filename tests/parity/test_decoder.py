"""Our decoder against transformers' Llama family, and the map on both."""

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import tokendepth
from tokendepth.depth.fixed_exit import FixedExit

CONFIGS = {
    "grouped": {"num_key_value_heads": 2},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 6},
    "scaled": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


def llama(name):
    options = {"num_key_value_heads": 4, "tie_word_embeddings": False, **CONFIGS[name]}
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        **options,
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


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_logits_equal_transformers_with_pads_and_cache(name, side):
    theirs = llama(name)
    ours = tokendepth.from_transformers(theirs)
    ids, mask = batch(side)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    expected = theirs(ids, attention_mask=mask, position_ids=positions).logits[mask.bool()]
    assert torch.allclose(ours(ids, mask).logits[mask.bool()], expected, atol=1e-4, rtol=0)
    cache, parts = ours.cache(), []
    for part in (slice(0, 5), slice(5, 6), slice(6, 12)):
        parts.append(ours(ids[:, part], mask[:, part], cache=cache, executor="gathered").logits)
    assert torch.allclose(torch.cat(parts, 1)[mask.bool()], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["tied", "biases", "scaled"])
@torch.no_grad()
def test_saved_and_loaded_it_is_the_same(name, tmp_path):
    ours = tokendepth.from_transformers(llama(name))
    tokendepth.save_model(ours, tmp_path)
    again = tokendepth.load_model(tmp_path)
    ids, mask = batch("left")
    assert torch.equal(again(ids, mask).logits, ours(ids, mask).logits)
    assert (again.head.weight is again.embedding.weight) == (name == "tied")
    (tmp_path / "model.json").write_text(
        (tmp_path / "model.json").read_text().replace('"width"', '"wdith"')
    )
    with pytest.raises(ValueError, match="wdith"):
        tokendepth.load_model(tmp_path)


def test_weights_are_copies_and_the_model_is_untouched():
    theirs = llama("grouped")
    state = torch.get_rng_state()
    ours = tokendepth.from_transformers(theirs)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        ours.embedding.weight.zero_()
    assert theirs.model.embed_tokens.weight.abs().sum() > 0


@torch.no_grad()
def test_an_exit_is_the_truncated_model():
    theirs = llama("grouped")
    ours = tokendepth.from_transformers(theirs)
    ids, _ = batch("left")
    for depth in (1, 2, 3, 4):
        short = llama("grouped")
        short.model.layers = short.model.layers[:depth]
        for executor in ("dense", "gathered"):
            got = ours(ids, policy=FixedExit(depth), executor=executor).logits
            assert torch.allclose(got, short(ids).logits, atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="depth: got 0"):
        ours(ids, policy=FixedExit(0))


def test_an_unknown_family_names_the_known_ones_and_what_works():
    other = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=20))
    with pytest.raises(ValueError, match="'gpt2'.*llama.*Measures"):
        tokendepth.from_transformers(other)


@torch.no_grad()
def test_states_and_readings_are_those_of_transformers():
    theirs = llama("grouped")
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
