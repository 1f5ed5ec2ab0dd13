"""Arms are timed in turn, profiles add up, and the projection is the ledger's."""

import json
import time

import numpy as np
import pytest
import torch

import tokendepth
from tests.contract import toys
from tokendepth.engine.bench_result import WORTH, _break_even, verdict
from tokendepth.engine.benchmark import benchmark, synthetic
from tokendepth.engine.breakdown import PARTS, profiled
from tokendepth.engine.phases import DENSE, Decisions, given_plan, work
from tokendepth.engine.timing import WARM_UP, Arm, Spread, paired
from tokendepth.models.cost import dense_twin, ledger

CPU = torch.device("cpu")
OPTIONS = {"batch": (2,), "length": 8, "seconds": 0.01}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def quiet_profiler(monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")


@pytest.fixture
def tiny():
    decoder = synthetic(width=16, layers=3, vocab_size=31, seed=0).requires_grad_(True)
    return tokendepth.Loaded(title="tiny", model=decoder, tokenizer=None)


def test_each_round_runs_every_arm_once_in_shuffled_order():
    order = []
    arms = {name: Arm(lambda _, name=name: order.append(name)) for name in "abc"}
    seconds = paired(arms, CPU, budget=1e-9)
    rounds = [tuple(order[at : at + 3]) for at in range(3 * WARM_UP, len(order), 3)]
    assert len(rounds) == 7 == len(seconds["a"])
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 1


def test_preparation_is_not_timed():
    def slow():
        time.sleep(0.02)
        return 5

    got = []
    seconds = paired({"a": Arm(got.append, slow)}, CPU, budget=1e-9)
    assert set(got) == {5}
    assert np.median(seconds["a"]) < 0.01


def test_spread_is_median_and_quartiles():
    spread = Spread.of(np.array([5.0, 1.0, 2.0, 3.0, 4.0]))
    assert (spread.low, spread.median, spread.high) == (2.0, 3.0, 4.0)


def test_peak_memory_is_counted_by_hand():
    """Two blocks of 1 MB at once, then one more after a release: never three."""

    def run(_):
        one, two = torch.zeros(2**18), torch.zeros(2**18)
        del one
        three = torch.zeros(2**18)
        return two, three

    config = synthetic(width=16, layers=1, vocab_size=31, seed=0).config
    assert profiled(Arm(run), config, CPU).peak_bytes == 2 * 2**20


def test_parts_are_told_apart_and_add_up():
    decoder = synthetic(width=64, layers=2, vocab_size=31, seed=0)
    ids = torch.zeros(4, 64, dtype=torch.long)
    found = profiled(work("prefill", decoder, ids, DENSE).arm, decoder.config, CPU)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert set(found.shares) == set(PARTS)
    assert min(found.shares[part] for part in ("products", "attention", "head")) > 0


def test_given_decisions_are_those_of_the_random_control(tiny):
    decoder = tiny.decoder
    ids = torch.arange(12).view(2, 6)
    control = tokendepth.RandomKeep(0.5, seed=4)
    recorded = decoder(ids, policy=control, row_keys=torch.arange(2)).plan
    assert torch.equal(given_plan(decoder, 2, 6, 0.5, seed=4).keep, recorded.keep)


@pytest.mark.parametrize("phase", ["prefill", "decode", "train"])
def test_the_projection_is_the_ledgers_and_the_model_stays_as_it_was(tiny, phase):
    before = {name: value.clone() for name, value in tiny.model.state_dict().items()}
    result = benchmark(tiny, phase=(phase,), alpha=(0.5,), **OPTIONS)
    assert [row.executor for row in result.rows] == [
        "dense", "gathered", "feed_forward", "auto",
    ]  # fmt: skip
    assert all(torch.equal(before[name], now) for name, now in tiny.model.state_dict().items())
    assert not tiny.model.training
    control, gathered, *_ = result.rows
    assert (control.flops_speedup, control.executed_share, control.control) == (1, 1, True)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(31, (2, 8), generator=generator)
    plan = given_plan(tiny.decoder, 2, 8, 0.5, 0)
    options = {**Decisions(plan=plan).options("gathered"), "row_keys": torch.arange(2)}
    if phase == "decode":
        whole = tiny.decoder(ids, **options)
        share = float(whole.executed[:, -1].float().mean())
    else:
        output = tiny.decoder(ids, **options)
        mine, full = ledger(tiny.decoder, output), ledger(tiny.decoder, dense_twin(output.record))
        assert gathered.flops_speedup == full.total_flops / mine.total_flops
        share = mine.executed_share
    assert gathered.executed_share == pytest.approx(share)
    assert gathered.peak_bytes > 0
    for row in result.rows:
        assert sum(part.seconds for part in row.parts) == pytest.approx(row.seconds.median)
        lost = [part.lost_to_padding + part.lost_otherwise for part in row.parts]
        projected = [part.projected_seconds for part in row.parts]
        assert sum(lost) + sum(projected) == pytest.approx(row.seconds.median)


def test_routers_run_before_given_decisions_and_cost_what_they_cost(tiny):
    result = benchmark(tiny, phase=("prefill", "decode"), alpha=(0.5,), routers=(False, True),
                       executor=("dense", "gathered"), **OPTIONS)  # fmt: skip
    rows = {(row.phase, row.executor, row.routers): row for row in result.rows if not row.control}
    assert len(rows) == 8
    for phase in ("prefill", "decode"):
        without, with_them = (rows[phase, "gathered", routers] for routers in (False, True))
        assert with_them.executed_share == without.executed_share < 1
        assert with_them.flops_speedup < without.flops_speedup
        dense = rows[phase, "dense", True]
        assert dense.flops_speedup < 1
        assert not dense.verdict.startswith("noise")


def test_a_policy_of_its_own_decides(tiny):
    torch.manual_seed(0)
    tiny.decoder.policy = toys.UpdateGate(16)
    result = benchmark(tiny, phase=("prefill", "train"), **OPTIONS)
    assert {row.alpha for row in result.rows} == {None}
    assert result.policy == "UpdateGate"
    shares = {row.executed_share for row in result.rows if not row.control}
    assert all(1 / 3 < share < 1 for share in shares)


def test_the_json_has_both_kinds_of_number_side_by_side(tiny):
    result = benchmark(tiny, phase=("prefill",), alpha=(0.2, 0.9), **OPTIONS)
    read = json.loads(result.to_json())
    wanted = {
        "phase", "batch", "executor", "seconds", "dense_seconds", "speedup", "flops_speedup",
        "executed_share", "peak_bytes", "verdict", "parts",
    }  # fmt: skip
    assert all(wanted <= set(row) for row in read["rows"])
    assert {one["executor"] for one in read["break_even"]} == {
        "gathered", "feed_forward", "auto",
    }  # fmt: skip

    assert result.page().count("<table") == 4
    assert result.table().row_count == 8


def test_verdicts():
    fast, same, slow = (Spread(median=m, low=m - 0.01, high=m + 0.01) for m in (1.2, 1.03, 0.8))
    quiet, loud = (Spread(median=m, low=m, high=m) for m in (1.0, 1.05))
    assert verdict(False, fast, 1.5, quiet, ()) == "gain"
    assert verdict(False, same, 1.5, quiet, ()) == "gain"
    assert verdict(False, same, 1.5, loud, ()).startswith("no gain")
    assert "nothing to save" in verdict(False, slow, WORTH - 0.01, quiet, ())
    assert verdict(True, same, 1.0, quiet, ()).startswith("noise")


def test_break_even_by_a_straight_line(tiny):
    (row,) = benchmark(
        tiny, phase=("prefill",), executor=("gathered",), alpha=(0.5,), **OPTIONS
    ).rows[1:]

    def at(share, speedup):
        import dataclasses

        spread = Spread(median=speedup, low=speedup, high=speedup)
        return dataclasses.replace(row, executed_share=share, speedup=spread)

    crossing = _break_even("prefill", 2, "gathered", False, [at(0.8, 0.9), at(0.4, 1.3)])
    assert crossing.executed_share == pytest.approx(0.7)
    never = _break_even("prefill", 2, "gathered", False, [at(0.4, 0.9), at(0.8, 0.8)])
    always = _break_even("prefill", 2, "gathered", False, [at(0.4, 1.4), at(0.8, 1.1)])
    assert (never.executed_share, always.executed_share) == (None, None)
    assert never.words.startswith("never faster")
    assert always.words.startswith("faster at all shares")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": ()}, "batch: got none"),
        ({"batch": (0,)}, "a batch is at least 1"),
        ({"length": 1}, "a length at least 2"),
        ({"alpha": (1.5,)}, "alpha: got 1.5"),
        ({"seconds": 0.0}, "seconds: got 0.0"),
    ],
)
def test_options_out_of_range_are_named(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        benchmark(tiny, **options)


def test_a_length_beyond_the_positions_is_named(llama):
    with pytest.raises(ValueError, match="length: got 65; the model has 64 positions"):
        benchmark(llama, length=65)
