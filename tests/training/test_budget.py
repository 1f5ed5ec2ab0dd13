"""The budget of executed token-layers, the questions of tasks, and what the loop does with both."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from tokendepth.depth.random_keep import RandomKeep
from tokendepth.depth.token_selective import TokenSelectiveConfig
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.text.corpora import open_corpus
from tokendepth.text.tasks import TASKS
from tokendepth.training.budget import Budgeted, weighted_share
from tokendepth.training.data import Windows
from tokendepth.training.objective import Batch, CrossEntropy, TrainState, cross_entropy

CONFIG = DecoderConfig(
    vocab_size=11,
    width=16,
    num_blocks=4,
    num_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    inner_width=32,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def selective():
    torch.manual_seed(0)
    made = Decoder(CONFIG)
    made.policy = TokenSelectiveConfig(first_bias=0.0).build(made)
    return made.train()


def batch(valid=None):
    ids = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(0))
    there = torch.ones(4, 8, dtype=torch.bool) if valid is None else valid
    return Batch(inputs=ids[:, :-1], targets=ids[:, 1:], valid=there, row_keys=torch.arange(4))


def state(step=100, steps=100):
    generator = torch.Generator()
    return TrainState(step=step, steps=steps, micro=0, tokens=32, seed=0, generator=generator)


def test_the_budget_comes_down_by_a_straight_line():
    objective = Budgeted(share=0.6, begin=0.2, end=0.6)
    found = [objective.budget(at) for at in (0.0, 0.2, 0.4, 0.6, 1.0)]
    assert found == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.6])
    assert Budgeted(share=0.5, begin=0.3, end=0.3).budget(0.3) == 0.5


@pytest.mark.parametrize("routing", ["hard", "soft", "hard_soft"])
def test_the_hinge_by_hand(routing):
    decoder, valid = selective(), torch.ones(4, 8, dtype=torch.bool)
    valid[1, 5:] = False
    given = batch(valid)
    output = decoder(given.inputs, given.mask, routing=routing)
    total = torch.ones(4, 8)
    for decision in output.decisions[1:]:
        p = 1 - decision.weight.detach()
        total += (1 - p) if decision.keep is None else (1 - p) * decision.keep
    share = (total / 4)[valid].mean()
    for budget in (float(share) - 0.1, float(share) + 0.1):
        losses = Budgeted(share=budget, price=2.0, routing=routing)(decoder, given, state())
        expected = 2.0 * max(0.0, float(share) - budget) * int(valid.sum())
        assert float(losses.sums["budget"].detach()) == pytest.approx(expected, abs=1e-4)
        told = float(losses.statistics["executed_share"])
        assert told == pytest.approx(float(share) * int(valid.sum()), abs=1e-4)


def test_soft_gates_between_closed_and_open_are_priced_by_hand():
    decoder, given = selective(), batch()
    output = decoder(given.inputs, routing="soft")
    total = torch.zeros(4, 8)
    for decision in output.decisions[1:]:
        p = 1 - decision.weight.detach()
        total += 4 * p * (1 - p)
    losses = Budgeted(share=1.0, routing="soft", indecision=0.3)(decoder, given, state())
    found = float(losses.sums["indecision"].detach())
    assert found == pytest.approx(0.3 * float((total / 4).sum()), rel=1e-5)
    assert "indecision" not in Budgeted(share=1.0, routing="soft")(decoder, given, state()).sums


def test_above_the_budget_routers_are_pushed_and_below_they_are_not():
    decoder = selective()
    for share, pushed in ((0.3, True), (1.0, False)):
        decoder.zero_grad()
        Budgeted(share=share)(decoder, batch(), state()).sums["budget"].backward()
        slope = decoder.policy.routers[0].last.bias.grad
        assert (slope is not None and float(slope) < 0) == pushed


def test_under_hard_routing_the_share_is_of_rows_that_run():
    decoder = selective()
    told = weighted_share(decoder(batch().inputs, routing="hard")).detach()
    run = decoder.eval()(batch().inputs, routing="hard").executed.float().mean(-1)
    torch.testing.assert_close(told, run)


def test_a_policy_that_learns_nothing_is_named():
    decoder = selective()
    decoder.policy = RandomKeep(0.5)
    with pytest.raises(ValueError, match="RandomKeep carry no weight.*under hard routing"):
        Budgeted(share=0.5)(decoder, batch(), state())


def test_soft_until_then_hard():
    decoder = selective()
    objective = Budgeted(share=1.0, soft_until=0.5)
    soft = float(cross_entropy(decoder(batch().inputs, routing="soft").logits, batch()).detach())
    hard = float(cross_entropy(decoder(batch().inputs, routing="hard").logits, batch()).detach())
    for step, expected in ((0, soft), (60, hard)):
        losses = objective(decoder, batch(), state(step))
        assert float(losses.sums["cross_entropy"].detach()) == pytest.approx(expected, rel=1e-6)
    assert soft != pytest.approx(hard, rel=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("share", 0.0), ("share", 1.5), ("price", -1.0), ("begin", 0.9), ("soft_until", 2.0)],
)
def test_fields_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=f"{field}.*got {value}"):
        dataclasses.replace(Budgeted(share=0.5), **{field: value})


def test_the_question_is_read_and_not_learned():
    text = "<AB=AB><BA=BA>"
    alphabet = {one: number for number, one in enumerate("<AB=>")}
    ids = np.array([alphabet[one] for one in text], dtype=np.int32)
    windows = Windows(ids, length=7, batch=1, order="shuffled", seed=0, skip=3)
    number = next(at for at in range(2) if windows.starts(at)[0] == 0)
    given = windows.get(number)
    assert given.valid.all()
    assert given.learned.tolist() == [[False] * 3 + [True] * 4]
    logits = torch.randn(1, 7, 5)
    expected = functional.cross_entropy(logits[0, 3:], given.targets[0, 3:]) * 7
    torch.testing.assert_close(cross_entropy(logits, given), expected)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_what_they_say(name):
    task, corpus = TASKS[name], open_corpus([name])
    assert len(corpus.validation) == 1000 * task.length
    for start in range(0, 50 * task.length, task.length):
        one = corpus.validation[start : start + task.length]
        letters, answer = one[1:-1].split("=")
        assert (one[0], one[-1], len(letters)) == ("<", ">", task.letters)
        assert answer == (letters if "copy" in name else "".join(sorted(letters)))
        assert one[task.skip + 1 :] == answer + ">"
    assert corpus.train[: task.length] != corpus.validation[: task.length]
    assert corpus.fingerprint == open_corpus([name]).fingerprint


def test_a_price_on_depth_is_a_mean_over_routed_blocks():
    decoder = selective()
    objective = CrossEntropy(penalties={"depth": 0.5}, routing="soft")
    losses = objective(decoder, batch(), state())
    output = decoder(batch().inputs, routing="soft")
    alpha = torch.stack([one.weight for one in output.decisions[1:]]).mean()
    torch.testing.assert_close(losses.sums["depth"] / 32, 0.5 * alpha)
    free = CrossEntropy(penalties={"depth": 0.0}, routing="soft")
    assert float(free(decoder, batch(), state()).sums["depth"].detach()) == 0.0
