"""Finding the parts of a model by structure, and naming them by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tokendepth
from tokendepth import Parts


def test_parts_of_each_family(family: str, shared_model: Callable[[str], Any]) -> None:
    view = tokendepth.find_view(shared_model(family))
    assert view.num_layers == 4
    assert view.embedding_rows == 320
    assert view.width == 32
    assert view.max_positions == 64
    assert len(view.tail_paths) == 1
    assert view.unembed is view.model.get_output_embeddings()
    assert view.logit_softcap == (30.0 if family == "Gemma2" else None)
    assert view.logit_scale == {"Cohere": 0.7, "Granite": 0.25}.get(family, 1.0)


def test_finding_leaves_no_hook_and_no_flag_changed(make_model: Callable[..., Any]) -> None:
    model = make_model("Llama").train()
    model.model.layers[1].eval()
    state = torch.get_rng_state()
    tokendepth.find_view(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.training
    assert not model.model.layers[1].training


def test_blocks_that_cannot_be_found_list_what_there_is(make_model: Callable[..., Any]) -> None:
    model = make_model("Llama")
    model.config.num_hidden_layers = 7
    with pytest.raises(ValueError, match=r"^blocks: 0 module lists .*\(7\)") as caught:
        tokendepth.find_view(model)
    assert "model.layers (4)" in str(caught.value)
    assert "--parts.blocks" in str(caught.value)


def test_two_stacks_of_the_same_size_are_not_guessed(make_model: Callable[..., Any]) -> None:
    model = make_model("Llama")
    model.other = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(4))
    with pytest.raises(ValueError, match="^blocks: 2 module lists") as caught:
        tokendepth.find_view(model)
    assert "other (4)" in str(caught.value)
    view = tokendepth.find_view(model, Parts(blocks="model.layers"))
    assert view.blocks == tuple(model.model.layers)


def test_a_list_inside_the_blocks_is_no_stack(make_model: Callable[..., Any]) -> None:
    model = make_model("Llama")
    model.model.layers[0].experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(4))
    assert tokendepth.find_view(model).block_path == "model.layers"


def test_parts_by_hand_replace_what_is_found(make_model: Callable[..., Any]) -> None:
    model = make_model("Llama")
    model.config.num_hidden_layers = 7
    model.get_output_embeddings = lambda: None
    by_hand = Parts(blocks="model.layers", final_norm="model.norm", unembed="lm_head")
    view = tokendepth.find_view(model, by_hand)
    assert (view.block_path, view.tail_paths, view.unembed_path) == (
        "model.layers",
        ("model.norm",),
        "lm_head",
    )
    tokendepth.Lens(view)


def test_scale_and_cap_by_hand_are_proved_too(shared_model: Callable[[str], Any]) -> None:
    model = shared_model("Llama")
    view = tokendepth.find_view(model, Parts(logit_scale=2.0, logit_softcap=30.0))
    assert (view.logit_scale, view.logit_softcap) == (2.0, 30.0)
    with pytest.raises(ValueError, match="logit_s"):
        tokendepth.Lens(view)


def test_a_norm_by_hand_that_is_the_wrong_one_is_caught(shared_model: Callable[[str], Any]) -> None:
    view = tokendepth.find_view(
        shared_model("Llama"), Parts(final_norm="model.layers.0.input_layernorm")
    )
    with pytest.raises(ValueError, match="^final_norm: "):
        tokendepth.Lens(view)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (Parts(blocks="model.blocks"), r"^blocks: .*no module 'model.blocks'.*model, lm_head"),
        (Parts(blocks="model.norm"), "^blocks: 'model.norm' is a LlamaRMSNorm; .*ModuleList"),
        (Parts(final_norm="norm"), "^final_norm: .*no module 'norm'"),
        (Parts(unembed="head"), "^unembed: .*no module 'head'"),
    ],
)
def test_a_path_that_is_not_there(
    parts: Parts, message: str, shared_model: Callable[[str], Any]
) -> None:
    with pytest.raises(ValueError, match=message):
        tokendepth.find_view(shared_model("Llama"), parts)


def test_a_model_without_a_named_head(make_model: Callable[..., Any]) -> None:
    model = make_model("Llama")
    model.get_output_embeddings = lambda: None
    with pytest.raises(ValueError, match=r"^unembed: .*lm_head.*--parts.unembed"):
        tokendepth.find_view(model)


@pytest.mark.parametrize("bad", [320, 5000, -1])
def test_a_token_id_without_a_row(bad: int, shared_model: Callable[[str], Any]) -> None:
    view = tokendepth.find_view(shared_model("Llama"))
    with pytest.raises(ValueError, match=f"^input_ids: got the token id {bad}; .*rows 0 to 319"):
        tokendepth.capture(view, torch.tensor([[1, bad, 2]]))
