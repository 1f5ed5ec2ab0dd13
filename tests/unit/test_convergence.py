"""Readings after each loop against uniform runs, and settling against its definition."""

import dataclasses
import json

import pytest
import torch

import tokendepth
from tests.cli.commands import last
from tests.unit.test_halting import (
    CONFIG,
    IDS,
    KEYS,
    ORDER,
    by_definition,
    contractive,
    decoder,
    one_thread,
    states_and_logits,
)
from tokendepth.depth.dense import Dense
from tokendepth.measure.convergence import convergence, settled_after
from tokendepth.measure.loop_readings import each_loop, read_loops
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import looped, with_loops
from tokendepth.training.recipe import Recipe
from tokendepth.training.train import train

__all__ = ["decoder", "one_thread"]
TEXT = "The question is: that the thing is done, to be or not to be 7 times?\n" * 3


def targets_of(ids):
    return torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], -1)), 1)


def test_one_pass_reads_what_uniform_runs_say(decoder):
    mask = torch.ones_like(IDS, dtype=torch.bool)
    mask[1, 9:] = False
    read = read_loops(decoder, IDS, mask, targets_of(IDS), 6, KEYS)
    states, logits = states_and_logits(decoder, 6)
    for k in range(1, 7):
        for name, rule, least in (
            ("kl", "kl", 2), ("change", "state", 1), ("acceleration", "acceleration", 2),
            ("turned", "argmax_stable", 2),
        ):  # fmt: skip
            mine = getattr(read, name)[k - 1]
            if k < least:
                assert torch.isnan(mine).all()
            else:
                expected = by_definition(rule, k, states, logits)[mask]
                torch.testing.assert_close(mine, expected, rtol=1e-7, atol=1e-13)
        log_p = logits[k].log_softmax(-1)[:, :-1].gather(2, IDS[:, 1:, None]).squeeze(2)
        told = read.loss[k - 1][~torch.isnan(read.loss[k - 1])]
        inside = mask.clone()
        inside[:, -1] = False
        torch.testing.assert_close(told, -log_p[inside[:, :-1]], rtol=1e-7, atol=1e-12)


def test_settled_is_for_good():
    kl = torch.tensor([
        [float("nan")] * 5,
        [0.5, 0.01, 0.01, 0.5, 0.01],
        [0.5, 0.5, 0.01, 0.5, 0.01],
        [0.01, 0.01, 0.01, 0.5, 0.01],
        [0.01, 0.01, 0.01, 0.5, 9.0],
    ])  # fmt: skip
    assert settled_after(kl, 0.1, 5).tolist() == [4, 4, 2, 5, 5]
    assert settled_after(kl, 0.1, 4).tolist() == [4, 4, 2, 4, 2]
    assert settled_after(kl, 0.5, 4).tolist() == [4, 4, 2, 4, 2]  # below, not at


def test_a_contraction_is_seen_as_one(llama):
    loaded = tokendepth.Loaded(
        title="toy", model=_with_vocabulary(contractive(0.5)), tokenizer=llama.tokenizer
    )
    found = convergence(TEXT, loaded, loops=20, until=16, length=24, limit=60)
    assert found.contraction_rate == pytest.approx(0.5, rel=0.02)
    rows = found.loops
    for before, after in zip(rows[5:], rows[6:], strict=False):
        assert after.change / before.change == pytest.approx(0.5, rel=0.05)
        assert after.kl / before.kl == pytest.approx(0.25, rel=0.2)  # about the square
    kl = [found.start_kl[loop] for loop in (1, 8, 16, 20)]
    assert kl == sorted(kl, reverse=True)
    assert kl[-1] < 1e-8 < 1e-4 < kl[0]
    assert rows[0].kl is None
    assert rows[-1].turned == 0.0
    assert 2 <= found.median_depth <= 16
    assert sum(row.num_tokens for row in found.by_type) == found.num_tokens == 60
    mean = sum(row.num_tokens * row.mean_depth.value for row in found.by_type) / 60
    assert mean == pytest.approx(found.mean_depth.value)
    summary = found.summary()
    assert summary["mean_kl"][0] is None
    assert len(summary["mean_kl"]) == len(summary["loss_by_loop"]) == 20
    assert json.loads(found.to_json())["until"] == 16
    assert "<svg" in found.page()
    assert {"function word", "punctuation"} <= set(summary["by_type"])


def _with_vocabulary(small):
    """The toy with room for the tokenizer's ids."""
    torch.manual_seed(1)
    made = Decoder(dataclasses.replace(small.config, vocab_size=320), ORDER).double().eval()
    names = dict(small.named_parameters())
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "embedding" not in name and "head" not in name:
                parameter.copy_(names[name])
    return made.requires_grad_(False)


def test_the_batch_and_the_padding_change_nothing(llama, decoder):
    loaded = tokendepth.Loaded(
        title="toy", model=_with_vocabulary(decoder), tokenizer=llama.tokenizer
    )
    one, other = (
        convergence(TEXT, loaded, loops=5, until=4, length=13, batch=batch) for batch in (1, 4)
    )
    assert one.num_tokens == other.num_tokens
    for a, b in zip(one.loops, other.loops, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-9)
        assert a.change == pytest.approx(b.change, rel=1e-9)
    assert one.share_moving == other.share_moving


def test_share_moving_and_median_follow_the_readings(llama, decoder):
    loaded = tokendepth.Loaded(
        title="toy", model=_with_vocabulary(decoder), tokenizer=llama.tokenizer
    )
    strict = convergence(TEXT, loaded, threshold=1e-13, until=12, limit=40)
    assert (strict.own_loops, strict.until, len(strict.loops)) == (8, 12, 32)
    assert strict.share_moving == 1.0
    lax = convergence(TEXT, loaded, threshold=100.0, limit=40)
    assert (lax.median_depth, lax.share_moving, lax.until) == (2.0, 0.0, 16)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"threshold": 0.0}, "threshold: got 0.0"),
        ({"loops": 1}, "loops: got 1; it must be at least 2"),
        ({"loops": 4, "until": 5}, "until: got 5; at most the 4 loops"),
        ({}, "schedule: it has no core that runs again and again"),
    ],
)
def test_wrong_options_are_named(wrong, said, llama):
    with pytest.raises(ValueError, match=said):
        convergence(TEXT, llama, **wrong)


@pytest.fixture
def run_folder(tmp_path):
    """A looped run of three steps."""
    (tmp_path / "text.txt").write_text(TEXT * 10)
    config = dataclasses.replace(CONFIG, vocab_size=1)
    order = looped(prelude=1, core=2, coda=1, loops=4, start="truncated", normed_coda=True)
    recipe = Recipe(
        recipe="looped", decoder=config, schedule=order, window=16, batch=4, steps=3,
        evaluate_every=0,
    )  # fmt: skip
    return train(recipe, str(tmp_path / "text.txt"), tmp_path / "run").run


def test_the_command_ends_with_the_fixed_names(run_folder, capsys, tmp_path):
    from tokendepth.cli.main import main

    page, whole = tmp_path / "page.html", tmp_path / "whole.json"
    given = ("convergence", str(run_folder), "--limit", "40", "--html", str(page))
    assert main([*given, "--json", str(whole)]) == 0
    told = last(capsys.readouterr().out)
    assert len(told["mean_kl"]) == 16
    assert {"median_depth", "share_moving", "by_type"} <= set(told)
    assert page.read_text().count("<svg") == 1
    assert len(json.loads(whole.read_text())["loops"]) == 16
    assert main(["convergence", str(run_folder), "--threshold", "-1"]) == 2
    assert "threshold: got -1.0" in capsys.readouterr().err


def test_every_loop_is_that_of_the_shorter_model(decoder):
    """A check on all rows takes the way without masks, and gives the same."""
    seen = []
    mask = torch.ones_like(IDS, dtype=torch.bool)
    each_loop(
        decoder, IDS, mask, 5, lambda loop, states, logits: seen.append(logits), row_keys=KEYS
    )
    for k in range(1, 6):
        uniform = decoder(IDS, policy=Dense(), schedule=with_loops(ORDER, k), row_keys=KEYS)
        torch.testing.assert_close(seen[k], uniform.logits[mask], rtol=0, atol=1e-12)
    assert seen[0] is None


def test_types_of_a_character_run(run_folder):
    loaded = tokendepth.load(run_folder)
    found = convergence(TEXT, loaded, limit=50, loops=4)
    spaces = sum(one in " \n" for one in TEXT[:50])
    row = next(row for row in found.by_type if row.type == "whitespace")
    assert row.num_tokens == spaces
