"""A retrofit moves the policy alone, is taught by the dense model, and is a run like any other."""

import dataclasses
import json

import pytest
import torch

import tokendepth
from tests.training.toys import TEXT
from tokendepth.depth.dense import Dense
from tokendepth.depth.random_keep import RandomKeep
from tokendepth.depth.token_selective import TokenSelectiveConfig
from tokendepth.models.convert import from_transformers
from tokendepth.training.base import on_base
from tokendepth.training.budget import Budgeted
from tokendepth.training.distil import Distilled, divergences
from tokendepth.training.objective import Batch, TrainState
from tokendepth.training.retrofit import RetrofitOptions, retrofit, retrofit_recipe
from tokendepth.training.run import open_run
from tokendepth.training.train import TrainOptions, resume, train

SMALL = {
    "steps": 6, "window": 16, "batch": 2, "evaluate_tokens": 60, "checkpoint_every": 3,
    "policy.first_bias": 0.0,
}  # fmt: skip
OPTIONS = RetrofitOptions(share=0.7, changes=SMALL)


@pytest.fixture(params=["Llama", "GPT2"])
def folder(request, make_model, save_folder):
    return save_folder(make_model(request.param), request.param.lower())


@dataclasses.dataclass(frozen=True)
class HalfConfig:
    def build(self, host):
        return RandomKeep(0.5)


def stop_after(steps):
    asked = iter(range(1000))
    return TrainOptions(should_stop=lambda: next(asked) >= steps)


def weights(run):
    return {name: value.clone() for name, value in open_run(run).decoder.state_dict().items()}


def test_the_base_stays_bit_for_bit_and_the_routers_move(folder, text, tmp_path):
    done = retrofit(str(folder), text, tmp_path / "run", retrofit_options=OPTIONS)
    assert (done.finished, done.steps) == (True, 6)
    assert set(done.validation) > {"validation_loss", "validation_loss_soft"}
    base = from_transformers(tokendepth.load(folder).model).state_dict()
    made = weights(tmp_path / "run")
    assert all(torch.equal(made[name], value) for name, value in base.items())
    moved = {name for name in made if name not in base}
    assert moved
    assert all(name.startswith("policy.routers.") for name in moved)
    again = retrofit(str(folder), text, tmp_path / "start", retrofit_options=OPTIONS,
                     options=stop_after(0))  # fmt: skip
    assert not again.finished
    start = weights(tmp_path / "start")
    assert all(not torch.equal(start[name], made[name]) for name in moved if "weight" in name)


def test_it_goes_on_as_if_it_had_not_been_stopped(folder, text, tmp_path):
    whole = retrofit(str(folder), text, tmp_path / "whole", retrofit_options=OPTIONS)
    broken = retrofit(str(folder), text, tmp_path / "broken", retrofit_options=OPTIONS,
                      options=stop_after(2))  # fmt: skip
    assert not broken.finished
    folder.rename(folder.parent / "gone")  # the run holds all that it needs
    assert resume(tmp_path / "broken").loss == whole.loss
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_the_run_evaluates_generates_and_benchmarks(folder, text, tmp_path):
    run = tmp_path / "run"
    retrofit(str(folder), text, run, retrofit_options=OPTIONS)
    found = tokendepth.evaluate(TEXT[:200], run)
    assert found.summary()["causal"]
    assert {row.routing for row in found.rows} == {"soft", "hard", "hard_soft"}
    written = tokendepth.generate("The question", run, max_new_tokens=4)
    assert json.loads(written.to_json())
    both = tokendepth.compare([str(run), str(folder)], TEXT[:200], seconds=0.01, timed_length=16)
    assert [row.policy for row in both.rows] == ["TokenSelective", "Dense"]


def test_it_starts_as_the_model_was(folder):
    loaded = tokendepth.load(folder)
    recipe = retrofit_recipe(loaded, RetrofitOptions(), name="tiny")
    made = on_base(recipe, loaded).eval()
    ids = torch.arange(20)[None]
    dense = loaded.decoder(ids).logits
    assert torch.equal(made(ids, routing="hard").logits, dense)
    assert (recipe.base, recipe.recipe) == ("tiny", "retrofit_tiny_token_selective")


def selective():
    torch.manual_seed(0)
    decoder = tokendepth.Decoder(tokendepth.DecoderConfig(
        vocab_size=11, width=16, num_blocks=3, num_heads=2, num_key_value_heads=1, head_dim=8,
        inner_width=32,
    ))  # fmt: skip
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    decoder.policy = TokenSelectiveConfig(first_bias=0.0).build(decoder)
    return decoder.train()


def batch():
    ids = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(0))
    valid = torch.ones(4, 8, dtype=torch.bool)
    valid[1, 5:] = False
    return Batch(inputs=ids[:, :-1], targets=ids[:, 1:], valid=valid, row_keys=torch.arange(4))


STATE = TrainState(step=9, steps=10, micro=0, tokens=29, seed=0, generator=torch.Generator())


def test_the_divergence_by_hand():
    decoder, given = selective(), batch()
    losses = Distilled(budget=Budgeted(share=0.5, price=2.0))(decoder, given, STATE)
    dense = decoder(given.inputs, given.mask, policy=Dense()).logits.detach()
    output = decoder(given.inputs, given.mask, routing="hard")
    p, q = dense.double().softmax(-1), output.logits.detach().double().softmax(-1)
    expected = (p * (p.log() - q.log())).sum(-1)[given.valid].sum()
    assert float(losses.sums["divergence"].detach()) == pytest.approx(float(expected), rel=1e-4)
    plain = Budgeted(share=0.5, price=2.0)(decoder, given, STATE)
    assert torch.equal(losses.sums["budget"], plain.sums["budget"])
    torch.stack(list(losses.sums.values())).sum().backward()
    assert float(decoder.policy.routers[0].inner.weight.grad.abs().max()) > 0
    assert not divergences(dense, dense).any()


def test_what_cannot_be_trained_so_is_refused(folder, text, tmp_path, make_model, save_folder):
    with pytest.raises(ValueError, match="policy: RandomKeep has no weights"):
        retrofit(str(folder), text, tmp_path / "a", retrofit_options=RetrofitOptions(
            policy="tests.training.test_retrofit:HalfConfig"))  # fmt: skip
    with pytest.raises(ValueError, match="policy: got 'token_selectiv'.*did you mean"):
        retrofit(str(folder), text, tmp_path / "b",
                 retrofit_options=RetrofitOptions(policy="token_selectiv"))  # fmt: skip
    with pytest.raises(ValueError, match="objective.routing: decisions of UpdateGate carry no"):
        retrofit(str(folder), text, tmp_path / "c", retrofit_options=RetrofitOptions(
            policy="tests.training.toys:GateConfig", changes={"window": 16}))  # fmt: skip
    recipe = retrofit_recipe(tokendepth.load(folder), OPTIONS, name=str(folder))
    other = save_folder(make_model("Qwen3"), "other")
    with pytest.raises(ValueError, match="base: other has another config"):
        train(recipe, text, tmp_path / "d", base=tokendepth.load(other))
    assert not any(tmp_path.glob("[abd]"))
