"""Two small trained nets: their weights, a text they know, and activations published with one."""

import base64
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import tokendepth

DATA = Path(os.environ.get("TOKENDEPTH_DATA", "absent"))
SORTER, PARTIALS = (
    DATA / "models" / f"gpt-nano-sort-{name}.json" for name in ("model", "t0-partials")
)
STORIES = DATA / "models" / "stories260K"
TEXT = DATA / "text" / "tinystories_5stories.txt"


def needs(*files):
    lacking = [file.name for file in files if not file.exists()]
    return pytest.mark.skipif(bool(lacking), reason=f"$TOKENDEPTH_DATA has no {lacking}")


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def arrays(file):
    found = {}
    for name, value in json.loads(file.read_text()).items():
        if name != "config":
            numbers = np.frombuffer(base64.b64decode(value["data"]), dtype="<f4").copy()
            found[name] = torch.from_numpy(numbers).reshape(value["shape"])
    return found


@needs(SORTER, PARTIALS)
@torch.no_grad()
def test_a_net_that_sorts_gives_its_published_activations():
    config = GPT2Config(
        vocab_size=3, n_embd=48, n_layer=3, n_head=3, n_positions=11, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    theirs = GPT2LMHeadModel(config).eval()
    weights = {
        name: value.t() if ".c_" in name else value  # stored as (out, in) there
        for name, value in arrays(SORTER).items()
        if not name.endswith(".attn.bias")  # the causal mask
    }
    theirs.load_state_dict(weights)
    ours = tokendepth.from_transformers(theirs)
    published = arrays(PARTIALS)
    output = ours(published["idx"].long(), collect=(0, 1, 2, 3))
    close(output.states[0], published["x"])
    for block in range(3):
        close(output.states[block + 1], published[f"block{block}"])
    close(ours.final_norm(output.states[3]), published["ln_f"])
    close(output.logits, published["lm_head"])


def stories():
    """The Llama in the file: a header of seven numbers, then weights kind by kind."""
    raw = (STORIES / "stories260K.bin").read_bytes()
    width, inner, layers, heads, stored, vocab, length = np.frombuffer(raw[:28], dtype="<i4")
    assert vocab > 0  # the head is the embedding
    config = LlamaConfig(
        vocab_size=int(vocab), hidden_size=int(width), intermediate_size=int(inner),
        num_hidden_layers=int(layers), num_attention_heads=int(heads),
        num_key_value_heads=int(stored), max_position_embeddings=int(length),
        rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    model, at = LlamaForCausalLM(config).eval(), 28
    blocks = model.model.layers

    def fill(parameter, pairs=0):
        nonlocal at
        numbers = np.frombuffer(raw, dtype="<f4", count=parameter.numel(), offset=at).copy()
        at += 4 * parameter.numel()
        value = torch.from_numpy(numbers).reshape(parameter.shape)
        if pairs:  # features that turn into each other lie side by side there
            value = torch.cat([h[half::2] for h in value.chunk(pairs) for half in (0, 1)])
        parameter.copy_(value)

    kinds = {
        "input_layernorm": 0, "self_attn.q_proj": int(heads), "self_attn.k_proj": int(stored),
        "self_attn.v_proj": 0, "self_attn.o_proj": 0, "post_attention_layernorm": 0,
        "mlp.gate_proj": 0, "mlp.down_proj": 0, "mlp.up_proj": 0,
    }  # fmt: skip
    with torch.no_grad():
        fill(model.model.embed_tokens.weight)
        for name, pairs in kinds.items():
            for block in blocks:
                fill(block.get_submodule(name).weight, pairs)
        fill(model.model.norm.weight)
    return model


def encode(text):
    """Merge the pair with the best score until none is left."""
    raw, at, scores, ids = (STORIES / "tok512.bin").read_bytes(), 4, [], {}
    while at < len(raw):
        score, length = np.frombuffer(raw, "<f4", 1, at)[0], np.frombuffer(raw, "<i4", 1, at + 4)[0]
        ids.setdefault(raw[at + 8 : at + 8 + length], len(scores))
        scores.append(score)
        at += 8 + int(length)
    pieces = [character.encode() for character in " " + text]
    while True:
        pairs = [first + second for first, second in itertools.pairwise(pieces)]
        known = [(scores[ids[pair]], -at) for at, pair in enumerate(pairs) if pair in ids]
        if not known:
            return [1, *(ids.get(piece, 3 + piece[0]) for piece in pieces)]
        best = -max(known)[1]
        pieces[best : best + 2] = [pairs[best]]


@needs(STORIES, TEXT)
@torch.no_grad()
def test_a_net_that_tells_stories_predicts_one():
    theirs = stories()
    ours = tokendepth.from_transformers(theirs)
    story = TEXT.read_text().split("<|endoftext|>")[0].strip()
    ids = torch.tensor(encode(story))[None, :300]
    logits = ours(ids).logits
    close(logits, theirs(ids).logits)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    assert loss < 1.6, loss  # 1.297 was published for the whole validation set
    back = tokendepth.to_transformers(ours)
    assert back.config.model_type == "llama"
    for name, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
