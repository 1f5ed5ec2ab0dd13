"""The lens against a version written out by hand on transformers' own models."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

import tokendepth
from tokendepth.adapters.huggingface import HuggingFaceView as View
from tokendepth.measure.lens import Readings
from tokendepth.measure.settling import DEFAULT_THRESHOLDS, RULES, rule_holds, settle

NEAR = 1e-4
# Names of each class, on purpose not found by structure: blocks, final norm, head.
BY_HAND: dict[str, Callable[[Any], tuple[Any, Any, Callable[[Tensor], Tensor]]]] = {
    "GPT2": lambda m: (m.transformer.h, m.transformer.ln_f, m.lm_head),
    "GPTNeoX": lambda m: (m.gpt_neox.layers, m.gpt_neox.final_layer_norm, m.lm_head),
    "OPT": lambda m: (m.model.decoder.layers, m.model.decoder.final_layer_norm, m.lm_head),
    "Llama": lambda m: (m.model.layers, m.model.norm, m.lm_head),
    "Qwen3": lambda m: (m.model.layers, m.model.norm, m.lm_head),
    "Phi": lambda m: (m.model.layers, m.model.final_layernorm, m.lm_head),
    "Gemma2": lambda m: (m.model.layers, m.model.norm, lambda x: _capped(m.lm_head(x), 30.0)),
    "Cohere": lambda m: (m.model.layers, m.model.norm, lambda x: m.lm_head(x) * m.logit_scale),
    "Granite": lambda m: (m.model.layers, m.model.norm, lambda x: m.lm_head(x) / 4.0),
}


def _capped(logits: Tensor, cap: float) -> Tensor:
    return torch.tanh(logits / cap) * cap


@torch.no_grad()
def _states_by_hand(model: Any, blocks: Any, ids: Tensor, mask: Tensor) -> list[Tensor]:
    """Residual states of all tokens in a row: clones, so that nothing can change them later."""
    seen: list[Tensor] = []
    shape = (*ids.shape, model.config.hidden_size)

    def keep(value: Any) -> None:
        hidden = value[0] if isinstance(value, tuple) else value
        seen.append(hidden.reshape(shape)[mask.bool()].clone())

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
        keep(args[0] if args else kwargs["hidden_states"])

    handles = [blocks[0].register_forward_pre_hook(enter, with_kwargs=True)]
    handles += [block.register_forward_hook(lambda m, a, out: keep(out)) for block in blocks]
    if bool((mask == 1).all()):
        model(input_ids=ids)
    else:
        positions = torch.stack([(row.cumsum(0) - 1).clamp(min=0) for row in mask])
        model(input_ids=ids, attention_mask=mask, position_ids=positions)
    for handle in handles:
        handle.remove()
    return seen


@torch.no_grad()
def _by_hand(model: Any, family: str, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    blocks, norm, head = BY_HAND[family](model)
    states = _states_by_hand(model, blocks, ids, torch.ones_like(ids) if mask is None else mask)
    logits = [head(norm(state)) for state in states]
    p = [Categorical(logits=one.double()) for one in logits]  # in float32 they underflow to 0
    steps = range(1, len(states))
    change = [(states[j] - states[j - 1]).norm(dim=-1) / states[j].norm(dim=-1) for j in steps]
    top_two = torch.stack([one.topk(2, dim=-1).values for one in logits])
    return {
        "kl_last": torch.stack([kl_divergence(p[-1], one) for one in p]).float(),
        "kl_previous": torch.stack([kl_divergence(p[j - 1], p[j]) for j in steps]).float(),
        "entropy": torch.stack([one.entropy() for one in p]).float(),
        "argmax": torch.stack([one.argmax(-1) == logits[-1].argmax(-1) for one in logits]),
        "state": torch.stack(change),
        "gap": top_two[..., 0] - top_two[..., 1],
    }


def _each_alone(model: Any, family: str, singles: list[list[int]]) -> dict[str, Tensor]:
    hands = [_by_hand(model, family, torch.tensor([single])) for single in singles]
    return {name: torch.cat([one[name] for one in hands], dim=1) for name in hands[0]}


def _depth_by_hand(holds: list[bool], num_layers: int) -> tuple[int, bool]:
    """The definition: the smallest k such that the rule holds at every j from k to L."""
    for k in range(num_layers + 1):
        if all(holds[k:]):
            return k, False
    return num_layers, True


def _check_depths(readings: Readings, hand: dict[str, Tensor], rule: Any, threshold: Any) -> int:
    """Compare one rule on every token; returns how many tokens were compared."""
    depths, unsettled = settle(rule_holds(readings, rule, threshold))
    num_layers, compared = readings.num_layers, 0
    for token in range(len(depths)):
        if rule == "argmax":
            holds = hand["argmax"][:, token].tolist()
            close = bool((hand["gap"][:, token] < NEAR).any())
        else:
            values = hand[rule][:, token]
            holds = (values < threshold).tolist()
            holds = holds if rule == "kl_last" else [False, *holds]
            close = bool(((values - threshold).abs() < NEAR).any())
        if not close:
            expected = _depth_by_hand(holds, num_layers)
            assert (int(depths[token]), bool(unsettled[token])) == expected, (rule, threshold)
            compared += 1
    return compared


def _between(values: Tensor) -> float:
    """A threshold that parts the values in two and lies far from all of them."""
    ordered = values.flatten().sort().values[len(values.flatten()) // 4 :]
    ordered = ordered[: len(ordered) // 2]
    at = int(ordered.diff().argmax())
    return float(ordered[at : at + 2].mean())


def _compare(
    view: View, ids: Tensor, mask: Tensor, hand: dict[str, Tensor], relative: float = 0.0
) -> None:
    lens = tokendepth.Lens(view)
    readings = lens.read(tokendepth.capture(view, ids, mask), mask.bool(), top_k=3)
    close = {"rtol": relative, "atol": 1e-4}
    torch.testing.assert_close(readings.kl_last, hand["kl_last"], **close)
    torch.testing.assert_close(readings.kl_previous[1:], hand["kl_previous"], **close)
    torch.testing.assert_close(readings.entropy, hand["entropy"], **close)
    torch.testing.assert_close(readings.relative_change[1:], hand["state"], **close)
    assert readings.kl_previous[0].isnan().all()
    assert readings.relative_change[0].isnan().all()
    for rule in RULES:
        given = DEFAULT_THRESHOLDS[rule]
        asked = [given] if rule == "argmax" else [given, _between(hand[rule])]
        for threshold in asked:
            compared = _check_depths(readings, hand, rule, threshold)
            assert compared > 0.8 * mask.sum(), f"{rule}: nearly all tokens must be comparable"


def test_the_proof_holds(family: str, shared_model: Callable[[str], Any]) -> None:
    view = tokendepth.find_view(shared_model(family))
    assert tokendepth.Lens(view).view.num_layers == 4


@pytest.mark.parametrize("side", ["left", "right"])
def test_readings_and_depths_equal_those_by_hand(
    family: str, side: str, shared_model: Callable[[str], Any], ragged: Callable[[str], Any]
) -> None:
    model = shared_model(family)
    ids, mask, singles = ragged(side)
    _compare(tokendepth.find_view(model), ids, mask, _each_alone(model, family, singles))


def test_one_text_alone_equals_the_one_by_hand(
    family: str, shared_model: Callable[[str], Any], ragged: Callable[[str], Any]
) -> None:
    model = shared_model(family)
    view = tokendepth.find_view(model)
    for single in ragged("left")[2]:
        ids = torch.tensor([single])
        _compare(view, ids, torch.ones_like(ids), _by_hand(model, family, ids))


@pytest.mark.real
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_real_model_equals_the_one_by_hand(
    side: str, smollm2: Any, pad: Callable[..., Any]
) -> None:
    texts = ("To be, or not to be", "Water boils at 100 °C.", "The cat sat on the mat, and the dog")
    ids, mask, singles = pad([smollm2.tokenizer(text)["input_ids"] for text in texts], side)
    _compare(smollm2.view, ids, mask, _by_hand(smollm2.model, "Llama", ids, mask))
    # Alone, float32 products of other shapes round differently; a KL there is up to 200 nats.
    alone = _each_alone(smollm2.model, "Llama", singles)
    _compare(smollm2.view, ids, mask, alone, relative=1e-5)


def _without_norm(view: View) -> View:
    return dataclasses.replace(view, tail=(), tail_paths=())


def _without_bias(view: View) -> View:
    bare = nn.Linear(view.width, view.embedding_rows, bias=False)
    bare.weight = view.unembed.weight
    return dataclasses.replace(view, unembed=bare)


def test_the_proof_fails_without_the_norm(family: str, shared_model: Callable[[str], Any]) -> None:
    view = tokendepth.find_view(shared_model(family))
    with pytest.raises(ValueError, match=r"^final_norm: .*parts=Parts\(final_norm="):
        tokendepth.Lens(_without_norm(view))


def test_the_proof_fails_without_the_gain_of_the_norm(
    family: str, shared_model: Callable[[str], Any]
) -> None:
    view = tokendepth.find_view(shared_model(family))
    (norm,) = view.tail
    bare = type(norm).__new__(type(norm))
    nn.Module.__init__(bare)
    bare.__dict__.update({k: v for k, v in vars(norm).items() if k != "_parameters"})
    initial = torch.zeros_like if family == "Gemma2" else torch.ones_like  # Gemma's gain is 1 + w
    bare.weight = nn.Parameter(initial(norm.weight))
    if "bias" in norm._parameters:
        bare.bias = norm.bias
    with pytest.raises(ValueError, match="^final_norm: "):
        tokendepth.Lens(dataclasses.replace(view, tail=(bare,)))


def test_the_proof_fails_without_the_bias_of_the_head(shared_model: Callable[[str], Any]) -> None:
    view = tokendepth.find_view(shared_model("Phi"))
    with pytest.raises(ValueError, match="^unembed: "):
        tokendepth.Lens(_without_bias(view))


@pytest.mark.parametrize("family", ["Cohere", "Granite"], indirect=False)
def test_the_proof_fails_without_the_scale(family: str, shared_model: Callable[[str], Any]) -> None:
    view = tokendepth.find_view(shared_model(family))
    with pytest.raises(ValueError, match="^logit_scale: "):
        tokendepth.Lens(dataclasses.replace(view, logit_scale=1.0))


def test_the_proof_fails_without_the_cap(shared_model: Callable[[str], Any]) -> None:
    model = shared_model("Gemma2")
    view = tokendepth.find_view(model)
    with pytest.raises(ValueError, match="^logit_softcap: "):
        tokendepth.Lens(dataclasses.replace(view, logit_softcap=None))
    uncapped = dataclasses.replace(view, logit_softcap=None)
    states = tokendepth.capture(view, torch.arange(10)[None], states=[4])
    assert uncapped.read_out(states[4][0]).abs().max() > 30
