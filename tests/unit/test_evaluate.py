"""Loss of every token once, against transformers; the same for every batch size."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import tokendepth
from tests.contract import toys
from tests.unit.test_causality import LooksAhead
from tokendepth.errors import CausalityError
from tokendepth.evaluation.evaluate import EvaluateOptions, evaluate_documents
from tokendepth.evaluation.passages import passages
from tokendepth.text.documents import Document, tokenize

TEXTS = (
    "The question is: that the thing is done, to be or not to be? " * 4,
    "Naïve 🙂 12 kings!\n",
)


def documents(loaded):
    return [tokenize(f"text {at}", text, loaded.tokenizer) for at, text in enumerate(TEXTS)]


def evaluate(loaded, policy=None, **options):
    on = loaded.on_decoder()
    if policy is not None:
        on.model.policy = policy
    options = {"length": 24, **options}
    try:
        return evaluate_documents(on, documents(loaded), EvaluateOptions(**options), data="texts")
    finally:
        on.model.policy = tokendepth.Dense()


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    length=st.integers(3, 17),
    prefix=st.integers(0, 2),
)
def test_every_token_after_the_first_is_predicted_once(lengths, length, prefix):
    given = [
        Document(
            name="d", ids=tuple(range(size)), is_special=(False,) * size,
            num_prefix=min(prefix, size),
        )
        for size in lengths
    ]  # fmt: skip
    seen = {number: [] for number in range(len(given))}
    for passage in passages(given, length):
        assert len(passage.ids) <= length + 1
        front, body = passage.ids[: passage.num_repeated], passage.ids[passage.num_repeated :]
        assert front == tuple(range(passage.num_repeated))
        assert body == tuple(range(passage.first, passage.first + len(body)))
        targets = zip(passage.ids[1:], passage.scored, strict=True)
        seen[passage.document] += [target for target, scored in targets if scored]
    assert seen == {number: list(range(1, size)) for number, size in enumerate(lengths)}


def test_loss_and_bits_are_those_of_transformers(llama):
    result = evaluate(llama)
    nats, num_bytes = [], 0
    for text in TEXTS:
        ids = torch.tensor(llama.tokenizer(text)["input_ids"])
        num_bytes += len(text.encode()) - len(llama.tokenizer.decode(ids[:1]).encode())
        for start in range(0, len(ids) - 1, 24):
            piece = ids[start : start + 25]
            with torch.no_grad():
                logits = llama.model(piece[None, :-1]).logits[0]
            nats.append(functional.cross_entropy(logits.double(), piece[1:], reduction="none"))
    expected = torch.cat(nats)
    assert result.num_tokens == len(expected)
    assert result.num_bytes == num_bytes
    assert result.main.loss.value == pytest.approx(float(expected.mean()), abs=1e-6)
    bits = float(expected.sum()) / math.log(2) / num_bytes
    assert result.main.bits_per_byte == pytest.approx(bits, rel=1e-6)
    assert result.main.executed_share == 1
    assert result.main.loss.low < result.main.loss.value < result.main.loss.high
    first = [float(one[0]) for one in nats]
    assert result.main.by_position[0].loss == pytest.approx(np.mean(first), abs=1e-6)
    for rows in (result.main.by_position, result.main.by_type):
        assert sum(row.num_tokens for row in rows) == result.num_tokens
        mean = sum(row.num_tokens * row.loss for row in rows) / result.num_tokens
        assert mean == pytest.approx(result.main.loss.value)


@pytest.mark.parametrize("executor", ["dense", "gathered"])
def test_the_same_for_every_batch_size(llama, executor):
    policy = tokendepth.RandomKeep(0.5, seed=2)
    results = [evaluate(llama, policy, batch=batch, executor=executor) for batch in (1, 3, 16)]
    for other in results[1:]:
        assert other.main.loss.value == pytest.approx(results[0].main.loss.value, abs=1e-6)
        assert other.main.executed_share == results[0].main.executed_share
        assert other.main.flops_per_token == results[0].main.flops_per_token
        for one, two in zip(other.main.by_type, results[0].main.by_type, strict=True):
            assert one.loss == pytest.approx(two.loss, abs=1e-6)
    assert 0.5 < results[0].main.executed_share < 0.75  # the first of four blocks is the stem


def test_every_routing_hard_first_and_how_near_its_thresholds(llama):
    torch.manual_seed(0)
    gate = toys.UpdateGate(32).requires_grad_(False)
    result = evaluate(llama, gate)
    assert [row.routing for row in result.rows] == ["hard", "soft", "hard_soft"]
    summary = result.summary()
    assert summary["loss"] == summary["loss_hard"] == result.row("hard").loss.value
    assert summary["loss_soft"] != summary["loss_hard"]
    assert result.row("soft").executed_share == 1
    assert result.row("soft").num_near is None
    assert result.row("hard").num_near == 0
    gate.router.weight.zero_()
    gate.router.bias.zero_()  # every token sits on the threshold
    assert evaluate(llama, gate, routing=("hard",)).main.num_near == result.num_tokens
    with pytest.raises(ValueError, match="routing: got 'soft'; evaluated were hard"):
        evaluate(llama, gate, routing=("hard",)).row("soft")


def test_a_leak_is_refused_before_anything_is_scored(llama):
    with pytest.raises(CausalityError, match="LooksAhead says it is causal under hard routing"):
        evaluate(llama, LooksAhead())


def test_a_policy_that_says_so_is_scored_and_labelled(llama):
    torch.manual_seed(0)
    result = evaluate(llama, toys.BatchTopK(32, share=0.5).requires_grad_(False))
    assert result.summary()["causal"] is False
    assert "not causal, as declared" in result.page()
    assert "must not be compared" in result.page()


def test_what_is_written_is_whole_and_self_contained(llama, tmp_path):
    result = evaluate(llama)
    result.write_json(tmp_path / "e.json")
    read = json.loads((tmp_path / "e.json").read_text())
    assert read["loss"] == result.main.loss.value
    assert read["rows"][0]["causality"]["prefixes"] == [1, 3, 7, 15, 31, 39]
    assert read["measured"]["weights_sha256"]
    assert not re.search(r"<(script|link|img|iframe|object|embed)\b", result.page())
    assert result._repr_html_().startswith("<iframe")
    assert result.table().row_count == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch: got 0"),
        ({"length": 0}, "length: got 0"),
        ({"length": 65}, "length: got 65; the model has 64 positions"),
        ({"routing": ("soft",)}, "routing: got 'soft'; Dense has hard"),
    ],
)
def test_options_out_of_range_are_named(llama, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(llama, **options)


def test_texts_that_cannot_be_scored_are_refused(llama):
    one = Document(name="one", ids=(3,), is_special=(False,))
    foreign = dataclasses.replace(one, ids=(3, 9999), is_special=(False, False))
    options = EvaluateOptions(length=8)
    with pytest.raises(ValueError, match="no token can be predicted"):
        evaluate_documents(llama, [one], options, data="one")
    with pytest.raises(ValueError, match="has token 9999; the model's vocabulary ends at 319"):
        evaluate_documents(llama, [foreign], options, data="foreign")
