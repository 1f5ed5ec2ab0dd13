"""Runs side by side: pairs by hand, scores that are kept, controls that are marked."""

import dataclasses
import json
import math
from functools import partial

import numpy as np
import pytest
import torch

import tokendepth
from tokendepth.comparison.compare import CompareOptions, Entrant, compare_entrants
from tokendepth.comparison.groups import name_groups, origin
from tokendepth.comparison.result import ComparedRun, Comparison
from tokendepth.comparison.scores import FILE
from tokendepth.evaluation.evaluate import EvaluateOptions
from tokendepth.measure.statistics import mean_of_pairs
from tokendepth.text.documents import tokenize

TEXT = "The question is: that the thing is done, to be or not to be? " * 3
OPTIONS = CompareOptions(
    score=EvaluateOptions(length=24), timed_batch=2, timed_length=8, seconds=0.01
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def entrants(llama, tmp_path=None):
    """The dense model and random depths over it, two seeds each."""
    made = []
    for group, policy in (("dense", tokendepth.Dense), ("random", None)):
        for seed in (0, 1):
            loaded = dataclasses.replace(llama)
            decoder = loaded.decoder
            decoder.policy = policy() if policy else tokendepth.RandomKeep(0.5, seed=seed)
            folder = None
            if tmp_path is not None:
                folder = tmp_path / f"{group}-{seed}"
                folder.mkdir(exist_ok=True)
            documents = [tokenize("text", TEXT, llama.tokenizer)]
            made.append(
                Entrant(
                    name=f"{group}-{seed}", loaded=loaded, documents=documents, folder=folder,
                    group=group, seed=seed,
                )
            )  # fmt: skip
    return made


def test_rows_pairs_and_marks(llama):
    result = compare_entrants(entrants(llama), OPTIONS, data="text")
    assert result.baseline == "dense"
    assert [row.control for row in result.rows] == [False, False, True, True]
    assert [row.executed_share == 1 for row in result.rows] == [True, True, False, False]
    (one,) = result.differences
    losses = [row.loss for row in result.rows]
    gaps = [losses[2] - losses[0], losses[3] - losses[1]]
    assert one.seeds == (0, 1)
    assert one.loss_difference.value == pytest.approx(np.mean(gaps))
    reach = 12.706 * abs(gaps[0] - gaps[1]) / 2  # t at 97.5 % with one degree of freedom
    assert one.loss_difference.high - one.loss_difference.value == pytest.approx(reach, rel=1e-4)
    assert one.flops_ratio > 1
    page = result.page()
    assert "control" in page
    assert "paired by seed" in page
    assert result.table().row_count == 4
    read = json.loads(result.to_json())
    assert read["rows"][2]["policy"] == "RandomKeep"
    assert read["measured"]["weights_sha256"]["dense-0"]


def test_nothing_is_scored_twice(llama, tmp_path, monkeypatch):
    first = compare_entrants(entrants(llama, tmp_path), OPTIONS, data="text")
    assert (tmp_path / "dense-0" / FILE).is_file()

    def again(*args, **kwargs):
        raise AssertionError("scored again")

    monkeypatch.setattr("tokendepth.comparison.scores.evaluate_documents", again)
    second = compare_entrants(entrants(llama, tmp_path), OPTIONS, data="text")
    assert [row.loss for row in second.rows] == [row.loss for row in first.rows]
    other = dataclasses.replace(OPTIONS, score=EvaluateOptions(length=16))
    with pytest.raises(AssertionError, match="scored again"):
        compare_entrants(entrants(llama, tmp_path), other, data="text")
    longer = [
        dataclasses.replace(one, documents=[tokenize("text", f"{TEXT}No.", llama.tokenizer)])
        for one in entrants(llama, tmp_path)
    ]
    with pytest.raises(AssertionError, match="scored again"):
        compare_entrants(longer, OPTIONS, data="text")
    changed = entrants(llama, tmp_path)
    changed[2].loaded.decoder.policy = tokendepth.RandomKeep(0.9, seed=0)
    with pytest.raises(AssertionError, match="scored again"):
        compare_entrants(changed, OPTIONS, data="text")


def test_a_damaged_file_of_scores_is_written_anew(llama, tmp_path):
    first = compare_entrants(entrants(llama, tmp_path), OPTIONS, data="text")
    (tmp_path / "dense-0" / FILE).write_text('{"half": ')
    second = compare_entrants(entrants(llama, tmp_path), OPTIONS, data="text")
    assert second.rows[0].loss == first.rows[0].loss
    assert json.loads((tmp_path / "dense-0" / FILE).read_text())


def test_students_interval_by_hand():
    found = mean_of_pairs(np.array([1.0, 2.0, 3.0]))
    assert found.value == 2
    assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    assert mean_of_pairs(np.array([1.0])).low is None


def row(group, seed, loss=1.0, flops=1.0, seconds=1.0):
    return ComparedRun(
        run=f"{group}{seed}", group=group, seed=seed, policy="Dense", routing="hard",
        control=False, key_value_rule="all", causal=True, loss=loss, bits_per_byte=1.0,
        executed_share=1.0, flops_per_token=flops, seconds_per_token=seconds,
        seconds_quartiles=(seconds * 0.9, seconds * 1.2),
    )  # fmt: skip


def compared(*rows):
    return Comparison(rows=rows, baseline="a", data="text", measured={})


def test_pairs_are_taken_seed_by_seed():
    """Seeds differ by far more than groups do; seed 7 has no partner."""
    losses = {0: (1.0, 1.1), 1: (2.0, 2.2), 2: (3.0, 3.3)}
    base = [row("a", seed, one, flops=4.0, seconds=6.0) for seed, (one, _) in losses.items()]
    mine = [row("b", seed, two, flops=2.0, seconds=4.0) for seed, (_, two) in losses.items()]
    (one,) = compared(row("b", 7, 99.0), *base, *reversed(mine)).differences
    assert sorted(one.seeds) == [0, 1, 2]
    assert one.loss_difference.value == pytest.approx(0.2)
    reach = 4.302653 * 0.1 / math.sqrt(3)
    assert one.loss_difference.low == pytest.approx(0.2 - reach, rel=1e-5)
    assert one.loss == pytest.approx(2.2)
    assert (one.flops_ratio, one.seconds_ratio) == (2.0, 1.5)


def test_without_a_common_seed_nothing_is_paired():
    result = compared(row("a", 0), row("b", 1))
    assert result.differences == ()
    assert "nothing could be paired" in result.page()


def test_wrong_use_is_named(llama, tmp_path):
    two = entrants(llama)[:2]
    with pytest.raises(ValueError, match=r"runs: got \['dense-0'\]; name at least two"):
        compare_entrants(two[:1], OPTIONS, data="text")
    other = dataclasses.replace(two[1], documents=[tokenize("text", "No.", llama.tokenizer)])
    with pytest.raises(ValueError, match="dense-1 reads other tokens than dense-0"):
        compare_entrants([two[0], other], OPTIONS, data="text")
    with pytest.raises(ValueError, match="has no config.json"):
        origin(tmp_path)


def run_of(folder, name, fingerprint="f", **config):
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps({"recipe": "tiny"} | config))
    (folder / name / "manifest.json").write_text(json.dumps({"fingerprint": fingerprint}))
    return origin(folder / name)


def test_a_group_is_what_differs_in_its_seed_alone(tmp_path):
    def named(*made):
        return name_groups(list(made))

    make = partial(run_of, tmp_path)
    first = make("a", seed=0, steps=5)
    assert (first.label, first.seed) == ("tiny", 0)
    saves = make("b", seed=1, steps=5, checkpoint_every=9, changes=["checkpoint_every=9"])
    longer = make("c", seed=0, steps=7, changes=["steps=7"])
    edited = make("d", seed=0, steps=5, policy={"kind": "dense", "width": 3})
    elsewhere = make("e", "g", seed=0, steps=5)
    assert named(first, saves, longer) == ["tiny", "tiny", "tiny steps=7"]
    assert named(edited, first) == ["tiny policy.kind=dense policy.width=3", "tiny"]
    assert named(first, elsewhere) == ["tiny text=f", "tiny text=g"]
