"""Every known family against transformers, and back to it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BloomConfig, BloomForCausalLM
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

import tokendepth
from tests.parity.families import CASES, LENGTH, VOCAB, batch, build, expected
from tokendepth.models.families import FAMILIES
from tokendepth.nn.norm import rms_norm

every = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def close(ours, theirs):
    assert torch.isfinite(theirs).all()
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_every_family_has_a_case():
    assert {family for family, _ in CASES.values()} == set(FAMILIES)


@every
@torch.no_grad()
def test_logits_are_those_of_transformers_whatever_the_padding(name):
    theirs = build(name)
    ours = tokendepth.from_transformers(theirs)
    for side in ("left", "right"):
        ids, mask = batch(side)
        wanted = expected(theirs, ids, mask)[mask.bool()]
        assert wanted.std() > 0.3
        for executor in ("dense", "gathered"):
            close(ours(ids, mask, executor=executor).logits[mask.bool()], wanted)
    ids, _ = batch("left")
    close(ours(ids).logits, theirs(ids).logits)


@every
@torch.no_grad()
def test_a_cache_goes_on_where_it_was(name):
    theirs = build(name)
    ours = tokendepth.from_transformers(theirs)
    for side, sizes in (("left", (1,) * LENGTH), ("right", (5, 1, 6))):
        ids, mask = batch(side)
        cache, parts, start = ours.cache(), [], 0
        for size in sizes:
            part = slice(start, start + size)
            parts.append(ours(ids[:, part], mask[:, part], cache=cache).logits)
            start += size
        wanted = expected(theirs, ids, mask)[mask.bool()]
        close(torch.cat(parts, 1)[mask.bool()], wanted)


@every
@torch.no_grad()
def test_saved_and_loaded_it_goes_back_bit_by_bit(name, tmp_path):
    theirs = build(name)
    ours = tokendepth.from_transformers(theirs)
    fresh = tokendepth.Decoder(ours.config)  # frequencies follow from the config alone
    for buffer, value in fresh.named_buffers():
        torch.testing.assert_close(value, ours.get_buffer(buffer), rtol=1e-6, atol=0)
    tokendepth.save_model(ours, tmp_path / "ours")
    again = tokendepth.load_model(tmp_path / "ours")
    assert again.config == ours.config
    assert (again.head.weight is again.embedding.weight) == theirs.config.tie_word_embeddings
    back = tokendepth.to_transformers(again, eos_token_id=3)
    assert type(back) is type(theirs)
    assert back.config.eos_token_id == 3
    assert not back.training
    original, returned = theirs.state_dict(), back.state_dict()
    assert original.keys() == returned.keys()
    for key, value in original.items():
        if key == "model.decoder.embed_positions.weight":  # no token reads the first two rows
            value, returned[key] = value[2:], returned[key][2:]
        assert torch.equal(value, returned[key]), key
    output, embedding = back.get_output_embeddings(), back.get_input_embeddings()
    assert (output.weight is embedding.weight) == theirs.config.tie_word_embeddings
    ids, mask = batch("left")
    wanted = expected(theirs, ids, mask)[mask.bool()]
    close(expected(back, ids, mask)[mask.bool()], wanted)
    back.save_pretrained(tmp_path / "theirs")
    reread = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    close(expected(reread, ids, mask)[mask.bool()], wanted)


def test_weights_are_copies_both_ways():
    theirs = build("gpt2")
    ours = tokendepth.from_transformers(theirs)
    back = tokendepth.to_transformers(ours)
    state = torch.get_rng_state()
    tokendepth.to_transformers(ours)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    for model in (theirs, back):
        assert all(bool(parameter.abs().sum() > 0) for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gains_from_one_are_gemmas_in_half_precision_too(dtype):
    theirs, ours = Gemma2RMSNorm(32, eps=1e-6), rms_norm(32, 1e-6, from_one=True)
    rows = torch.randn(7, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        theirs.weight.copy_(torch.linspace(-0.01, 0.01, 32))
        ours.load_state_dict(theirs.state_dict())
        found, wanted = ours.to(dtype)(rows), theirs.to(dtype)(rows)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@torch.no_grad()
def test_half_precision_comes_along():
    theirs = build("gemma2").to(torch.bfloat16)
    ours = tokendepth.from_transformers(theirs)
    whole = tokendepth.from_transformers(build("gemma2")).rotary.frequencies
    assert torch.equal(ours.rotary.frequencies, whole)  # those of theirs were rounded
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.bfloat16}
    assert tokendepth.to_transformers(ours).dtype == torch.bfloat16
    ids, mask = batch("left")
    gap = ours(ids, mask).logits[mask.bool()] - expected(theirs, ids, mask)[mask.bool()]
    assert gap.float().pow(2).mean().sqrt() < 0.05


def test_an_unknown_family_names_the_known_ones_and_what_works():
    other = BloomForCausalLM(BloomConfig(n_layer=1, n_head=2, hidden_size=8, vocab_size=20))
    with pytest.raises(ValueError, match="'bloom'.*llama.*gptj.*Measures"):
        tokendepth.from_transformers(other)
    with pytest.raises(ValueError, match="Linear"):
        tokendepth.from_transformers(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="family: the family 'gpt5'"):
        tokendepth.to_transformers(tokendepth.from_transformers(build("gpt2")), "gpt5")


_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before=False"),
        ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim=16 with hidden_size=32"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm=True"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm=True"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"activation_function": "tanh"}, "activation 'tanh'.*gelu_new"),
        ("llama", {"rope_parameters": _DYNAMIC}, "rotary type 'dynamic'.*llama3"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ],
)
def test_what_the_decoder_lacks_is_refused_by_name(name, changes, message):
    with pytest.raises(ValueError, match=message):
        tokendepth.from_transformers(build(name, **changes))


def test_weights_that_were_added_are_not_lost_in_silence():
    theirs = build("llama")
    theirs.model.layers[0].extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="layers.0.extra.weight"):
        tokendepth.from_transformers(theirs)


def test_a_decoder_of_no_family_goes_to_the_first_that_can_say_it():
    facts = {
        "vocab_size": VOCAB, "width": 32, "num_blocks": 2, "num_heads": 4,
        "num_key_value_heads": 4, "head_dim": 8, "inner_width": 40,
    }  # fmt: skip
    layered = {**facts, "norm": "layer", "gated": False, "feed_forward_bias": True}
    biased = {"attention_bias": True, "output_bias": True}
    for more, family in (
        (facts, "llama"),
        ({**facts, "windows": (4, 4)}, "mistral"),
        ({**facts, "attention_bias": True, "windows": (4, None)}, "qwen2"),
        ({**facts, "query_key_norm": True}, "qwen3"),
        ({**layered, **biased, "positions": "learned", "max_positions": 16}, "gpt2"),
        ({**layered, "parallel": True, "rotary_width": 2}, "gpt_neox"),
    ):
        ours = tokendepth.Decoder(tokendepth.DecoderConfig(**more)).eval()
        back = tokendepth.to_transformers(ours)
        assert back.config.model_type == family
        ids = torch.arange(9)[None] % VOCAB
        with torch.no_grad():
            close(back(ids).logits, ours(ids).logits)


def test_what_a_family_cannot_say_is_refused_by_name():
    ours = tokendepth.from_transformers(build("qwen3-windows"))
    with pytest.raises(ValueError, match=r"llama cannot say query_key_norm=True, windows=\(5"):
        tokendepth.to_transformers(ours, "llama")
    with pytest.raises(ValueError, match="qwen3 cannot say activation='silu'"):
        tokendepth.to_transformers(ours, hidden_act="relu")
    with pytest.raises(ValueError, match="qwen3 refuses them: .*num_hidden_layers"):
        tokendepth.to_transformers(ours, num_hidden_layers=2)
    odd = tokendepth.Decoder(replace(ours.config, family=None, adapter=True))
    with pytest.raises(ValueError, match="llama cannot say .*gpt2 cannot say .*adapter=True"):
        tokendepth.to_transformers(odd)
    ours.schedule = tokendepth.looped(prelude=1, core=1, coda=1, loops=2, inject=False)
    with pytest.raises(ValueError, match="schedule: .*once, in order"):
        tokendepth.to_transformers(ours)


@torch.no_grad()
def test_yarn_comes_in_with_its_frequencies_but_does_not_go_back():
    yarn = {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    theirs = build("llama", rope_parameters=yarn)
    ours = tokendepth.from_transformers(theirs)
    ids, mask = batch("left")
    close(ours(ids, mask).logits[mask.bool()], expected(theirs, ids, mask)[mask.bool()])
    with pytest.raises(ValueError, match="rotary_scaling="):
        tokendepth.to_transformers(ours)
    ours.config = replace(ours.config, rotary_scaling=1.0)
    with pytest.raises(ValueError, match="frequencies do not follow"):
        tokendepth.to_transformers(ours)
