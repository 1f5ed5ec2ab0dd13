"""The result object: what it counts, what it exports, and that its numbers are the readings'."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import tokendepth
from tokendepth.measure.settling import RULES

TEXTS = ["The question is: to be, or not to be 🙂?\n", "that of the king", "42 be ing"]
FIRST_FIELDS = ["document", "index", "id", "text", "type", "depth", "unsettled", "entropy", "kl"]


@pytest.fixture(scope="module")
def result(llama: Any) -> tokendepth.DepthMap:
    """A map of three documents."""
    return tokendepth.map(TEXTS, llama, threshold=0.5, top_k=3)


def test_rows_hold_the_fixed_fields_first_and_in_order(result: tokendepth.DepthMap) -> None:
    rows = list(result.rows())
    assert len(rows) == result.num_tokens
    for row in rows:
        assert list(row)[: len(FIRST_FIELDS)] == FIRST_FIELDS
        assert len(row["kl"]) == len(row["entropy"]) == result.num_layers + 1
        assert row["kl"][-1] == 0.0
        assert 0 <= row["depth"] <= result.num_layers
        json.dumps(row, allow_nan=False)


def test_rows_are_in_reading_order_and_join_to_the_texts(result: tokendepth.DepthMap) -> None:
    rows = list(result.rows())
    for number, text in enumerate(TEXTS):
        mine = [row for row in rows if row["document"] == number]
        assert [row["index"] for row in mine] == list(range(len(mine)))
        assert "".join(row["text"] for row in mine) == text
    assert [row["document"] for row in rows] == sorted(row["document"] for row in rows)


def test_numbers_are_those_of_each_text_alone(result: tokendepth.DepthMap, llama: Any) -> None:
    lens = tokendepth.Lens(llama.view)
    for number, text in enumerate(TEXTS):
        ids = torch.tensor([llama.tokenizer(text)["input_ids"]])
        read = lens.read(tokendepth.capture(llama.view, ids), torch.ones_like(ids).bool(), top_k=3)
        mine = result.document == number
        np.testing.assert_allclose(result.kl[mine], read.kl_last.T, atol=1e-4)
        np.testing.assert_allclose(result.entropy[mine], read.entropy.T, atol=1e-4)
        assert (result.top_ids[mine] == read.top_ids.transpose(0, 1).numpy()).all()
        assert result.ids[mine].tolist() == ids[0].tolist()


def test_depth_follows_from_the_exported_kl(result: tokendepth.DepthMap) -> None:
    for row in result.rows():
        late = [state for state, value in enumerate(row["kl"]) if value >= 0.5]
        assert row["depth"] == (late[-1] + 1 if late else 0)
        assert not row["unsettled"], "the last state is at no distance from itself"
    assert len(set(result.depth.tolist())) > 1, "the example must be able to tell depths apart"


def test_statistics_leave_out_first_positions_and_special_tokens(llama: Any) -> None:
    text = "the <|im_end|> king of the question"
    plain, all_in = (
        tokendepth.map([text, "to be or"], llama, include_first=include)
        for include in (False, True)
    )
    special = np.array([kind == "special" for kind in plain.types])
    assert special.sum() == 1
    first = plain.index == 0
    assert (plain.counted == ~special & ~first).all()
    assert (all_in.counted == ~special).all()
    assert plain.num_tokens == all_in.num_tokens
    for one in (plain, all_in):
        depths = one.depth[one.counted]
        assert one.mean_depth.value == pytest.approx(depths.mean())
        assert one.median_depth == np.median(depths)
        assert one.share_unsettled == one.unsettled[one.counted].mean()
        assert one.histogram.tolist() == [(depths == k).sum() for k in range(5)]


def test_types_partition_the_counted_tokens(result: tokendepth.DepthMap) -> None:
    rows = result.by_type
    assert sum(row.num_tokens for row in rows) == result.counted.sum()
    for row in rows:
        chosen = result.counted & (np.array(result.types) == row.type)
        assert row.num_tokens == chosen.sum()
        assert row.mean_depth.value == pytest.approx(result.depth[chosen].mean())
    total = sum(row.mean_depth.value * row.num_tokens for row in rows)
    assert total / result.counted.sum() == pytest.approx(result.mean_depth.value)


def test_intervals_need_two_documents(result: tokendepth.DepthMap, llama: Any) -> None:
    one = tokendepth.map(TEXTS[0], llama)
    assert one.mean_depth.low is None
    assert json.loads(one.to_json())["mean_depth_interval"] == [None, None]
    assert result.mean_depth.low <= result.mean_depth.value <= result.mean_depth.high


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_may_be_the_shown_one(rule: Any, llama: Any) -> None:
    shown = tokendepth.map(TEXTS, llama, rule=rule)
    default = tokendepth.map(TEXTS, llama)
    assert (shown.depth == default.depths[rule]).all()
    assert shown.threshold == {"argmax": None, "state": 0.05}.get(rule, 0.1)
    assert [row.rule for row in shown.by_rule] == list(RULES)


def test_to_json_parses_and_says_how_it_was_measured(
    result: tokendepth.DepthMap, llama: Any
) -> None:
    whole = json.loads(result.to_json())
    assert whole["num_tokens"] == result.num_tokens
    assert whole["mean_depth"] == result.mean_depth.value
    assert sum(whole["histogram"]) == whole["num_counted"]
    assert [facts["name"] for facts in whole["documents"]] == ["text 1", "text 2", "text 3"]
    measured = whole["measured"]
    assert measured["weights_sha256"] == llama.weights_hash
    assert measured["tokendepth"] == tokendepth.__version__
    assert measured["dtype"] == "float32"
    assert measured["first_ids"] == llama.tokenizer(TEXTS[0])["input_ids"][:5]
    assert measured["threshold"] == 0.5


def test_nothing_counted_is_no_statistics_and_no_crash(llama: Any) -> None:
    single = tokendepth.map("k", llama)
    assert (single.mean_depth, single.median_depth, single.share_unsettled) == (None, None, None)
    assert single.by_type == single.by_rule == ()
    assert json.loads(single.to_json())["mean_depth"] is None
    assert "No token is counted" in single.page()


def test_a_float64_model_maps_too(make_model: Any, tokenizer: Any) -> None:
    model = make_model("Llama").double()
    wide = tokendepth.map(TEXTS, tokendepth.Loaded(title="wide", model=model, tokenizer=tokenizer))
    assert wide.measured["dtype"] == "float64"
    assert len(list(wide.rows())) == wide.num_tokens


def test_table_and_plot(result: tokendepth.DepthMap) -> None:
    assert result.table().row_count == len(result.by_type) + 1
    figure = result.plot()
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": -1.0}, "^threshold: got -1.0"),
        ({"top_k": -1}, "^top_k: got -1"),
        ({"top_k": 1000}, "^top_k: got 1000"),
        ({"batch": 0}, "^batch: got 0"),
        ({"limit": 0}, "^limit: got 0"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str, llama: Any) -> None:
    with pytest.raises(ValueError, match=message):
        tokendepth.map("the king", llama, **options)


def test_a_misspelt_option_and_no_text(llama: Any) -> None:
    with pytest.raises(TypeError, match="treshold"):
        tokendepth.map("the king", llama, treshold=0.1)
    with pytest.raises(ValueError, match="^texts: got none"):
        tokendepth.map([], llama)
    with pytest.raises(ValueError, match="^text: text 2 is empty"):
        tokendepth.map(["the", ""], llama)
