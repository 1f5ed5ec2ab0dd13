"""The losses of exits are those of truncated models; the loop trains what baselines are made of."""

import dataclasses

import pytest
import torch
from torch.nn import functional

from tests.training.toys import tiny
from tokendepth.depth.early_exit import EarlyExitConfig
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.depth.mixture_of_depths import MixtureOfDepthsConfig
from tokendepth.models.schedule import stack
from tokendepth.training.exits import ExitLosses
from tokendepth.training.objective import Batch, CrossEntropy, TrainState
from tokendepth.training.run import open_run
from tokendepth.training.track import read_metrics
from tokendepth.training.train import train


def made(schedule=None, policy=None):
    recipe = tiny(policy=policy or EarlyExitConfig(), schedule=schedule or stack(3))
    config = dataclasses.replace(recipe.decoder, vocab_size=11, dropout=0.0)
    decoder = recipe.initial.build(dataclasses.replace(recipe, decoder=config).model, 0)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    return decoder.train()


def batch():
    ids = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(0))
    valid = torch.ones(4, 8, dtype=torch.bool)
    valid[1, 5:] = False
    return Batch(inputs=ids[:, :-1], targets=ids[:, 1:], valid=valid, row_keys=torch.arange(4))


STATE = TrainState(step=0, steps=1, micro=0, tokens=29, seed=0, generator=torch.Generator())


@pytest.mark.parametrize("weights", [(), (3.0, 1.0)])
def test_each_exit_is_a_truncated_model_with_a_norm_of_its_own(weights):
    decoder, given = made(), batch()
    losses = ExitLosses(weights=weights)(decoder, given, STATE)
    assert list(losses.sums) == ["exit_2", "exit_3"]
    shares = {2: 0.75, 3: 0.25} if weights else {2: 0.5, 3: 0.5}
    norms = {2: decoder.policy.norms[0], 3: decoder.final_norm}
    for depth, share in shares.items():
        state = decoder(given.inputs, given.mask, policy=FixedExit(depth), collect=[3]).states[3]
        logits = decoder.head(norms[depth](state))
        expected = functional.cross_entropy(
            logits[given.valid], given.targets[given.valid], reduction="sum"
        )
        torch.testing.assert_close(losses.sums[f"exit_{depth}"], share * expected)
    torch.stack(list(losses.sums.values())).sum().backward()
    assert all(one.grad is not None for one in decoder.parameters())


def test_what_has_no_exits_or_hides_them_is_refused():
    with pytest.raises(ValueError, match="exit_losses needs the policy early_exit, not Dense"):
        ExitLosses()(made(policy=tiny().policy), batch(), STATE)
    with pytest.raises(ValueError, match="schedule: exit_losses reads the states"):
        ExitLosses()(made(stack(3, coda=1)), batch(), STATE)
    with pytest.raises(ValueError, match="weights: got 3; the model has 2 exits"):
        ExitLosses(weights=(1.0, 1.0, 1.0))(made(), batch(), STATE)
    with pytest.raises(ValueError, match="weights: got"):
        ExitLosses(weights=(0.0, 0.0))


@pytest.mark.parametrize(
    ("policy", "objective", "told"),
    [
        (EarlyExitConfig(threshold=0.2), ExitLosses(), {"exit_2", "exit_3", "cross_entropy"}),
        (
            MixtureOfDepthsConfig(capacity=0.5),
            CrossEntropy(penalties={"predictor": 0.1}, routing="top_k"),
            {"cross_entropy", "predictor", "executed_share"},
        ),
    ],
    ids=["exits", "mixture"],
)
def test_the_loop_trains_all_their_weights(policy, objective, told, text, tmp_path):
    recipe = tiny(policy=policy, objective=objective, steps=3, checkpoint_every=1)
    run = tmp_path / "run"
    done = train(recipe, text, run)
    assert done.finished
    assert told <= set(read_metrics(run)[0])
    start = recipe.initial.build(open_run(run).recipe.model, 0).state_dict()
    for name, value in open_run(run).decoder.state_dict().items():
        assert not torch.equal(value, start[name]) or "rotary" in name, name
    others = {f"validation_loss_{name}" for name in ("top_k",) if told & {"predictor"}}
    assert others <= set(done.validation)
