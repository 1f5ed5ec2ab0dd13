"""Halting on text: calibration, the analysis twin, and what the command ends with."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import tokendepth
from tests.cli.commands import last
from tests.unit.test_convergence import TEXT, _with_vocabulary, run_folder
from tests.unit.test_halting import IDS, KEYS, ORDER, decoder, halting, loops_of, one_thread
from tokendepth.cli.main import main
from tokendepth.depth.dense import Dense
from tokendepth.depth.halting import Halting, HaltingConfig
from tokendepth.evaluation.calibrate import SLACK, calibrated
from tokendepth.evaluation.halt_options import HaltOptions
from tokendepth.evaluation.halting import evaluate_halting
from tokendepth.evaluation.loss import score
from tokendepth.evaluation.passages import passages
from tokendepth.evaluation.readout import score_read_out
from tokendepth.measure.loop_readings import read_loops
from tokendepth.models.schedule import with_loops
from tokendepth.text.documents import Document

__all__ = ["decoder", "one_thread", "run_folder"]


def given_passages(length=12):
    ids = tuple(IDS.flatten().tolist())
    document = Document(name="ids", ids=ids, is_special=(False,) * len(ids))
    return list(passages([document], length))


@pytest.mark.parametrize(
    ("rule", "threshold", "patience"),
    [("kl", 1e-3, 1), ("state", 0.02, 1), ("acceleration", 0.1, 2), ("argmax_stable", None, 2)],
)
def test_readout_takes_each_token_where_the_rule_first_held(decoder, rule, threshold, patience):
    given = given_passages()
    policy = halting(rule, threshold, patience=patience)
    mine = score_read_out(decoder, given, policy, 8, batch=2)
    again = score_read_out(decoder, given, policy, 8, batch=9)
    assert np.array_equal(mine.loops, again.loops)
    name = {"argmax_stable": "turned", "state": "change"}.get(rule, rule)
    at = 0
    for number, passage in enumerate(given):
        ids = torch.tensor(passage.ids)[None]
        mask = torch.ones(1, len(passage.ids) - 1, dtype=torch.bool)
        read = read_loops(decoder, ids[:, :-1], mask, ids[:, 1:], 8, torch.tensor([number]))
        values = getattr(read, name)
        limit = 0.5 if threshold is None else threshold
        for token in range(len(passage.ids) - 1):
            holds = [False, False, *(bool(values[k - 1, token] < limit) for k in range(2, 8))]
            runs = [k for k in range(1 + patience, 8) if all(holds[k - patience + 1 : k + 1])]
            expected = runs[0] if runs else 8
            assert mine.loops[at] == expected
            assert mine.nats[at] == pytest.approx(float(read.loss[expected - 1, token]), abs=1e-6)
            at += 1
    assert at == len(mine.loops)


def test_a_tokens_depth_falls_with_the_threshold_when_the_others_go_on(decoder):
    given = given_passages()
    before = None
    for threshold in (0.0, 1e-6, 1e-4, 1e-2, 1.0):
        loops = score_read_out(decoder, given, halting("kl", threshold), 8).loops
        assert before is None or (loops <= before).all()
        before = loops
    assert (before == 2).all()


def test_nobody_halted_is_the_same_in_both(decoder):
    given, policy = given_passages(), halting("kl", 0.0)
    freeze = score(decoder, given, policy=policy, executor="gathered")
    read = score_read_out(decoder, given, policy, 8)
    dense = score(decoder, given, policy=Dense(), schedule=with_loops(ORDER, 8))
    np.testing.assert_allclose(freeze.nats, dense.nats, atol=1e-12)
    np.testing.assert_allclose(read.nats, dense.nats, atol=1e-6)
    assert (read.loops == 8).all()


def run_of(rate):
    """Loss 1 + t^rate at thresholds t up to 1; loops fall with its logarithm."""

    def run(policy):
        threshold = min(policy.threshold, 1.0)
        return 1.0 + threshold**rate, float(8.0 - 0.5 * (9 + np.log10(max(threshold, 1e-9))))

    return run


def test_auto_is_the_fewest_loops_within_the_slack():
    config = HaltingConfig(rule="state", threshold=0.0)
    chosen, trials = calibrated(config, "auto", 1.0, 8, run_of(1.0))
    assert len(trials) == 12
    assert chosen.threshold == pytest.approx(SLACK - 1.0, rel=0.02)
    assert chosen.threshold <= SLACK - 1.0
    best = min((one for one in trials if one.loss <= SLACK), key=lambda one: one.average_loops)
    assert chosen == best.config


def test_a_number_is_met_as_nearly_as_can_be():
    config = HaltingConfig(rule="kl", threshold=0.0, patience=2)
    chosen, trials = calibrated(config, 5.0, 1.0, 8, run_of(1.0))
    assert chosen.patience == 2
    _, average = run_of(1.0)(Halting(chosen))
    assert average == pytest.approx(5.0, abs=0.01)
    assert trials


def test_where_nothing_is_good_enough_all_loops_run():
    config = HaltingConfig(rule="kl", threshold=0.0)
    chosen, _ = calibrated(config, "auto", 0.5, 8, run_of(1.0))
    assert chosen.threshold == 0.0
    config = HaltingConfig(rule="argmax_stable")
    chosen, _ = calibrated(config, "auto", 0.5, 8, lambda policy: (1.0, 4.0))
    assert chosen.patience == 9
    chosen, trials = calibrated(
        config,
        "auto",
        1.0,
        8,
        lambda policy: (1.003 - policy.patience / 1000, float(policy.patience)),
    )
    assert (chosen.patience, len(trials)) == (2, 6)


def loaded_of(decoder, llama):
    return tokendepth.Loaded(
        title="toy", model=_with_vocabulary(decoder), tokenizer=llama.tokenizer, window=24
    )


def test_the_report_is_of_text_that_calibration_has_not_seen(decoder, llama):
    loaded = loaded_of(decoder, llama)
    halt = HaltOptions(halt="kl", target_depth="5", timing_seconds=0.0)
    first = evaluate_halting(TEXT * 2, loaded, halt)
    changed = TEXT + TEXT[::-1]
    second = evaluate_halting(
        changed, loaded, halt, limit=len(loaded.tokenizer(TEXT * 2).input_ids) - 1
    )
    assert first.config == second.config
    assert first.loss_uniform != second.loss_uniform
    assert [one.loss for one in first.trials] == [one.loss for one in second.trials]


@pytest.mark.parametrize("rule", ["kl", "state", "argmax_stable"])
def test_the_numbers_fit_together(decoder, llama, rule):
    loaded = loaded_of(decoder, llama)
    before = loaded.weights_hash
    found = evaluate_halting(
        TEXT * 2, loaded, HaltOptions(halt=rule, target_depth="auto", timing_seconds=0.05)
    )
    assert 2 <= found.average_loops <= 8
    assert sum(found.histogram) == pytest.approx(1.0)
    average = sum((at + 1) * share for at, share in enumerate(found.histogram))
    assert average == pytest.approx(found.average_loops)
    visits = 2 + 2 * found.average_loops
    assert found.row.executed_share == pytest.approx(visits / 18)
    assert (found.check_flops_per_token > 0) == (rule != "state")
    assert found.row.causality.causal
    low = score(
        loaded.decoder, given_report(loaded), policy=Dense(),
        schedule=with_loops(ORDER, int(found.average_loops)),
    ).nats.mean()  # fmt: skip
    assert abs(found.loss_same_depth - low) < 0.1
    assert found.timing["ratio"].median > 0
    assert "<svg" in found.page()
    assert found.table().row_count == 4
    assert json.loads(found.to_json())["own_loops"] == 8
    assert dataclasses.replace(loaded).weights_hash == before
    assert isinstance(loaded.decoder.policy, Dense)


def given_report(loaded):
    documents = tokendepth.text.documents.tokenize_all(TEXT * 2, loaded.tokenizer)
    cut = list(passages(documents, 24))
    return cut[len(cut) // 2 :]


def test_more_loops_than_its_own(decoder, llama):
    loaded = loaded_of(decoder, llama)
    halt = HaltOptions(halt="state", threshold=0.0, loops_max=11, timing_seconds=0.0)
    found = evaluate_halting(TEXT, loaded, halt)
    assert (found.loops_max, found.average_loops, found.own_loops) == (11, 11.0, 8)
    assert found.trials == ()
    assert found.loss_same_depth == pytest.approx(found.row.loss.value)
    assert found.summary()["seconds"] is None
    output = loaded.decoder(IDS, row_keys=KEYS)
    assert (loops_of(output) == 8).all()


def test_the_command_ends_with_the_fixed_names(run_folder, capsys, tmp_path):
    given = ["evaluate", str(run_folder), "--halt", "kl", "--target-depth", "auto"]
    page = tmp_path / "page.html"
    more = ["--timing-seconds", "0.01", "--html", str(page)]
    assert main([*given, *more]) == 0
    told = last(capsys.readouterr().out)
    names = {"loss", "average_loops", "loops_max", "loss_uniform", "executed_share", "seconds"}
    assert names | {"seconds_uniform"} <= set(told)
    assert told["loops_max"] == 4
    assert told["seconds"] > 0
    assert page.read_text().count("<svg") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--threshold", "0.1"], "halt: name the rule"),
        (["--halt", "kl"], "target_depth: give either --target-depth or --threshold"),
        (["--halt", "kl", "--threshold", "1", "--target-depth", "auto"], "give either"),
        (["--halt", "kl", "--target-depth", "deep"], "target_depth: got 'deep'; it must be auto"),
        (["--halt", "kl", "--target-depth", "0.5"], "target_depth: got '0.5'"),
        (["--halt", "kl", "--threshold", "1", "--loops-max", "1"], "loops_max: got 1"),
        (["--halt", "state", "--threshold", "-1"], "threshold: got -1.0"),
        (["--halt", "kl", "--threshold", "1", "--least", "1"], "least: got 1; 'kl'"),
        (["--halt", "kl", "--threshold", "1", "--routing", "hard"], "routing: got hard"),
        (["--halt", "kl", "--threshold", "1", "--executor", "auto"], "executor: got 'auto'"),
    ],
)
def test_wrong_options_are_named(given, said, run_folder, capsys):
    assert main(["evaluate", str(run_folder), *given]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_model_without_loops_is_refused(llama):
    with pytest.raises(ValueError, match="no core that runs again and again"):
        evaluate_halting(TEXT, llama, HaltOptions(halt="kl", threshold=0.1))
