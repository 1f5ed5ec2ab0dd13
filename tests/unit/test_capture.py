"""Captured states: the right ones, from any kind of block, and no trace left."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokendepth
from tokendepth.adapters.load import hash_weights

IDS = torch.tensor([[5, 9, 200, 31, 7]])


@dataclasses.dataclass
class _BlockOutput:
    attention: str
    hidden_states: Tensor


WRAPPERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tensor": (lambda x: x, lambda out: out),
    "tuple": (lambda x: (x, None), lambda out: out[0]),
    "dict": (
        lambda x: {"scores": torch.zeros(1), "hidden_states": x},
        lambda out: out["hidden_states"],
    ),
    "dataclass": (lambda x: _BlockOutput("none", x), lambda out: out.hidden_states),
    "number": (lambda x: 3, lambda out: torch.zeros(1, 5, 8)),
}


class _Block(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(8, 8), wrap

    def forward(self, hidden_states: Tensor) -> Any:
        return self.wrap(hidden_states + torch.tanh(self.linear(hidden_states)))


class _Toy(nn.Module):
    """A model of no family: blocks are called by keyword and wrap what they return."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(320, 8)
        wrap, self.unwrap = WRAPPERS[kind]
        self.stack = nn.ModuleList(_Block(wrap) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 320)
        self.config = SimpleNamespace(num_hidden_layers=3)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool) -> Any:
        hidden = self.embed(input_ids)
        for block in self.stack:
            hidden = self.unwrap(block(hidden_states=hidden))
        return SimpleNamespace(logits=self.head(self.norm(hidden)))


def _traces(model: nn.Module) -> tuple[Any, ...]:
    """Everything that must be as before."""
    hooks = [
        [list(m._forward_hooks), list(m._forward_pre_hooks), list(m._backward_hooks)]
        for m in model.modules()
    ]
    flags = [m.training for m in model.modules()]
    grads = [parameter.grad is None for parameter in model.parameters()]
    state = torch.get_rng_state().tolist()
    return hooks, flags, grads, state, hash_weights(model), torch.is_grad_enabled()


@pytest.fixture
def model(make_model: Callable[..., Any]) -> Any:
    """A Llama in a mixture of training and evaluation, for the test alone."""
    made = make_model("Llama", attention_dropout=0.5).train()
    made.model.layers[2].eval()
    return made


@pytest.fixture
def untouched(model: Any) -> Iterator[None]:
    """Fails when the model or the random state is not left as it was."""
    before = _traces(model)
    yield
    assert _traces(model) == before


def _inputs_of_blocks(model: Any, ids: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    handles = [
        block.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
        for block in model.model.layers
    ]
    with torch.no_grad():
        model(input_ids=ids)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.usefixtures("untouched")
def test_state_k_is_the_input_of_block_k(model: Any) -> None:
    states = tokendepth.capture(tokendepth.find_view(model), IDS)
    assert sorted(states) == [0, 1, 2, 3, 4]
    flags = [module.training for module in model.modules()]
    seen = _inputs_of_blocks(model.eval(), IDS)
    for module, flag in zip(model.modules(), flags, strict=True):
        module.training = flag
    for index, expected in enumerate(seen):
        assert torch.equal(states[index], expected)
    assert torch.equal(states[0], model.model.embed_tokens(IDS))
    assert not torch.equal(states[4], model.model.norm(states[4])), "before the final norm"
    assert not any(state.requires_grad for state in states.values())


def test_blocks_after_the_last_wanted_state_do_not_run(model: Any) -> None:
    view = tokendepth.find_view(model)
    ran: Counter[str] = Counter()
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda m, a, name=name: ran.update([name]))
    states = tokendepth.capture(view, IDS, states=[2])
    assert list(states) == [2]
    blocks = {name for name in ran if name.startswith("model.layers.") and name.count(".") == 2}
    assert blocks == {"model.layers.0", "model.layers.1"}
    assert ran["model.norm"] == ran["lm_head"] == 0
    ran.clear()
    tokendepth.capture(view, IDS, states=[0])
    inside = [name for name in ran if name.startswith("model.layers.0.")]
    assert not inside, "block 0 is reached, not run"


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "dataclass"])
def test_blocks_may_wrap_what_they_return(kind: str) -> None:
    toy = _Toy(kind).eval()
    view = tokendepth.find_view(toy)
    tokendepth.Lens(view)
    states = tokendepth.capture(view, IDS)
    hidden = toy.embed(IDS)
    for index, block in enumerate(toy.stack):
        assert torch.equal(states[index], hidden)
        hidden = toy.unwrap(block(hidden_states=hidden))
    assert torch.equal(states[3], hidden)


def test_a_block_that_returns_no_states_is_said_so() -> None:
    view = tokendepth.find_view(_Toy("number"))
    with pytest.raises(ValueError, match="^blocks: a block returned int"):
        tokendepth.capture(view, IDS)


def test_the_graph_is_kept_when_asked_for(model: Any) -> None:
    view = tokendepth.find_view(model)
    states = tokendepth.capture(view, IDS, states=[1, 4], grad=True)
    (gradient,) = torch.autograd.grad(states[4].sum(), states[1], retain_graph=True)
    assert gradient.abs().sum() > 0
    states[4].square().sum().backward()
    assert model.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
    assert model.lm_head.weight.grad is None


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("stage", ["capture", "lens"])
def test_nothing_is_left_after_an_exception(model: Any, error: type, stage: str) -> None:
    view = tokendepth.find_view(model)

    def fail(module: nn.Module, args: tuple) -> None:
        torch.rand(3)
        raise error("stop")

    handle = model.model.layers[2].register_forward_pre_hook(fail)
    with pytest.raises(error, match="stop"):
        tokendepth.capture(view, IDS) if stage == "capture" else tokendepth.Lens(view)
    handle.remove()


@pytest.mark.usefixtures("untouched")
def test_nothing_is_left_after_a_proof_and_a_reading(model: Any) -> None:
    view = tokendepth.find_view(model)
    lens = tokendepth.Lens(view)
    lens.read(tokendepth.capture(view, IDS), torch.ones(1, 5, dtype=torch.bool))


def test_dropout_is_off_and_repeats_are_equal(model: Any) -> None:
    view = tokendepth.find_view(model)
    first, second = (tokendepth.capture(view, IDS)[4] for _ in range(2))
    assert torch.equal(first, second)


def test_the_users_own_hooks_still_fire(model: Any) -> None:
    view = tokendepth.find_view(model)
    fired: list[int] = []
    handles = [
        block.register_forward_hook(lambda m, a, out, at=at: fired.append(at))
        for at, block in enumerate(view.blocks)
    ]
    tokendepth.capture(view, IDS)
    assert fired == [0, 1, 2, 3]
    model(input_ids=IDS)
    assert fired == [0, 1, 2, 3] * 2, "and still do afterwards, once each"
    pairs = zip(handles, view.blocks, strict=True)
    assert all(handle.id in block._forward_hooks for handle, block in pairs)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(
    family: str, side: str, shared_model: Callable[[str], Any], pad: Callable[..., Any]
) -> None:
    view = tokendepth.find_view(shared_model(family))
    singles = [[5, 9, 200, 31, 7, 8, 90], [17, 44, 3]]
    ids, mask, _ = pad(singles, side)
    other = torch.where(mask.bool(), ids, 123)
    first, second = (tokendepth.capture(view, given, mask) for given in (ids, other))
    more = [nn.functional.pad(one, (4, 0) if side == "left" else (0, 4)) for one in (ids, mask)]
    third = tokendepth.capture(view, *more)
    alone = [tokendepth.capture(view, torch.tensor([single])) for single in singles]
    for k in range(5):
        assert torch.equal(first[k][mask.bool()], second[k][mask.bool()]), "ids under a mask of 0"
        expected = torch.cat([states[k][0] for states in alone])
        allowed = {"rtol": 0, "atol": 1e-5 * float(expected.abs().max())}
        torch.testing.assert_close(first[k][mask.bool()], expected, **allowed)
        torch.testing.assert_close(third[k][more[1].bool()], expected, **allowed)


@pytest.mark.parametrize("wanted", [[5], [-1], [0, 9], []])
def test_a_state_out_of_range(wanted: list[int], shared_model: Callable[[str], Any]) -> None:
    view = tokendepth.find_view(shared_model("Llama"))
    with pytest.raises(ValueError, match="^states: got"):
        tokendepth.capture(view, IDS, states=wanted)
