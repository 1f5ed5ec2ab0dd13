"""How a lens reads: in chunks, in any dtype, and never past a number that is none."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tokendepth
from tokendepth.adapters.huggingface import HuggingFaceView as View

IDS = torch.tensor([[5, 9, 200, 31, 7], [17, 44, 3, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def _read(view: View, top_k: int = 5) -> Any:
    states = tokendepth.capture(view, IDS, MASK)
    return tokendepth.Lens(view).read(states, MASK.bool(), top_k=top_k)


def test_the_vocabulary_is_held_for_a_few_rows_at_a_time(
    shared_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = tokendepth.find_view(shared_model("Llama"))
    whole = _read(view)
    monkeypatch.setattr("tokendepth.measure.lens.CHUNK_BYTES", 3 * 4 * 320)
    lens, states, rows = tokendepth.Lens(view), tokendepth.capture(view, IDS, MASK), []
    read_out = View.read_out
    monkeypatch.setattr(
        View, "read_out", lambda self, given: (rows.append(len(given)), read_out(self, given))[1]
    )
    chunked = lens.read(states, MASK.bool())
    assert max(rows) <= 3
    assert sum(rows) >= 5 * 8
    for field in dataclasses.fields(whole):
        one, other = getattr(whole, field.name), getattr(chunked, field.name)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5, equal_nan=True)


def test_top_tokens_are_those_of_the_model(shared_model: Callable[[str], Any]) -> None:
    model = shared_model("Llama")
    readings = _read(tokendepth.find_view(model), top_k=4)
    with torch.no_grad():
        expected = model(IDS[:1]).logits[0].softmax(-1).topk(4)
    assert torch.equal(readings.top_ids[-1, :5], expected.indices)
    torch.testing.assert_close(readings.top_probabilities[-1, :5], expected.values)
    assert readings.top_ids.shape == (5, 8, 4)
    assert _read(tokendepth.find_view(model), top_k=0).top_ids.shape == (5, 8, 0)


@pytest.mark.parametrize("top_k", [-1, 321])
def test_top_k_must_fit_the_vocabulary(top_k: int, shared_model: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match=f"^top_k: got {top_k}; .*between 0 and 320"):
        _read(tokendepth.find_view(shared_model("Llama")), top_k=top_k)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_prove_themselves_and_agree(
    dtype: torch.dtype, make_model: Callable[..., Any]
) -> None:
    narrow = _read(tokendepth.find_view(make_model("Llama").to(dtype)))
    full = _read(tokendepth.find_view(make_model("Llama")))
    allowed = 1e-4 if dtype == torch.float64 else 0.1
    torch.testing.assert_close(narrow.kl_last.float(), full.kl_last, rtol=0, atol=allowed)
    torch.testing.assert_close(narrow.entropy.float(), full.entropy, rtol=0, atol=allowed)
    assert narrow.entropy.dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_a_bad_weight_names_block_and_weight(
    bad: float, layer: int, make_model: Callable[..., Any]
) -> None:
    model = make_model("Llama")
    model.model.layers[layer].mlp.down_proj.weight.data[3, 4] = bad
    view = tokendepth.find_view(model)
    for act in (
        lambda: tokendepth.capture(view, IDS, MASK, batch=6),
        lambda: tokendepth.Lens(view),
    ):
        with pytest.raises(tokendepth.NonFiniteError) as caught:
            act()
        message = str(caught.value)
        assert f"state {layer + 1}, out of block {layer} (model.layers.{layer})" in message
        assert "mlp.down_proj.weight" in message
        assert "float32" in message
    with pytest.raises(tokendepth.NonFiniteError, match="batch 6, row 0, position 0"):
        tokendepth.capture(view, IDS, MASK, batch=6)


def test_a_bad_embedding_is_named(make_model: Callable[..., Any]) -> None:
    model = make_model("Llama")
    model.model.embed_tokens.weight.data[44] = float("nan")
    view = tokendepth.find_view(model)
    with pytest.raises(
        tokendepth.NonFiniteError, match=r"^state 0, .*embedding.*row 1, position 1"
    ):
        tokendepth.capture(view, IDS, MASK)


def test_a_bad_row_under_the_mask_does_not_matter(make_model: Callable[..., Any]) -> None:
    model = make_model("Llama")
    model.model.embed_tokens.weight.data[123] = float("nan")
    view = tokendepth.find_view(model)
    ids = torch.where(MASK.bool(), IDS, 123)
    states = tokendepth.capture(view, ids, MASK, states=[0])
    assert states[0][MASK.bool()].isfinite().all()


@pytest.mark.parametrize("path", ["model.norm", "lm_head"])
def test_a_bad_read_out_is_named(path: str, make_model: Callable[..., Any]) -> None:
    model = make_model("Llama", tie_word_embeddings=False)
    model.get_submodule(path).weight.data[0] = float("nan")
    with pytest.raises(tokendepth.NonFiniteError, match=f"logits are NaN.*{path}"):
        tokendepth.Lens(tokendepth.find_view(model))
