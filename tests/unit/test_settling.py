"""The settling rule against its definition, spelled out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokendepth.measure.lens import Readings
from tokendepth.measure.settling import (
    DEFAULT_THRESHOLDS,
    MEANINGS,
    RULES,
    check_rule,
    rule_holds,
    settle,
)


def _by_definition(holds: list[bool]) -> tuple[int, bool]:
    last = len(holds) - 1
    fitting = [k for k in range(last + 1) if all(holds[j] for j in range(k, last + 1))]
    return (min(fitting), False) if fitting else (last, True)


@given(
    st.integers(1, 8).flatmap(
        lambda states: st.lists(
            st.lists(st.booleans(), min_size=states, max_size=states), min_size=1, max_size=12
        )
    )
)
def test_depth_is_the_smallest_state_from_which_the_rule_holds(tokens: list[list[bool]]) -> None:
    depth, unsettled = settle(torch.tensor(tokens).T.contiguous())
    found = list(zip(depth.tolist(), unsettled.tolist(), strict=True))
    assert found == [_by_definition(holds) for holds in tokens]


def _readings(rows: dict[str, list[float]]) -> Readings:
    states = len(rows["kl_last"])
    same = torch.tensor(rows["same_argmax"]).bool()
    top = torch.zeros(states, 1, 1)
    return Readings(
        kl_last=torch.tensor(rows["kl_last"])[:, None],
        kl_previous=torch.tensor(rows["kl_previous"])[:, None],
        entropy=torch.zeros(states, 1),
        same_argmax=same[:, None],
        relative_change=torch.tensor(rows["relative_change"])[:, None],
        top_ids=top.long(),
        top_probabilities=top,
    )


NAN = float("nan")
EXAMPLE = _readings(
    {
        "kl_last": [0.05, 0.3, 0.0999, 0.0],
        "kl_previous": [NAN, 0.01, 0.02, 0.3],
        "relative_change": [NAN, 0.01, 0.02, 0.03],
        "same_argmax": [0.0, 1.0, 1.0, 1.0],
    }
)


@pytest.mark.parametrize(
    ("rule", "threshold", "depth", "unsettled"),
    [
        ("kl_last", 0.1, 2, False),  # right at state 0, wrong at 1: not settled at 0
        ("kl_last", 0.31, 0, False),
        ("kl_last", 0.3, 2, False),  # below the threshold, not at it
        ("kl_previous", 0.1, 3, True),
        ("kl_previous", 0.5, 1, False),  # never at state 0, which has none before it
        ("state", 0.05, 1, False),
        ("state", 0.001, 3, True),
        ("argmax", None, 1, False),
    ],
)
def test_each_rule(rule: str, threshold: float | None, depth: int, unsettled: bool) -> None:
    found, flag = settle(rule_holds(EXAMPLE, rule, threshold))
    assert (int(found[0]), bool(flag[0])) == (depth, unsettled)


def test_default_thresholds() -> None:
    assert RULES[0] == "kl_last"
    assert DEFAULT_THRESHOLDS == {
        "kl_last": 0.1,
        "kl_previous": 0.1,
        "argmax": None,
        "state": 0.05,
    }
    assert set(MEANINGS) == set(RULES)
    assert check_rule("state", None) == 0.05
    assert check_rule("state", 0.2) == 0.2


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("nan"), float("inf")])
def test_a_threshold_must_be_a_positive_number(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"^threshold: got .*above 0"):
        check_rule("kl_last", threshold)


def test_argmax_takes_no_threshold() -> None:
    with pytest.raises(ValueError, match=r"^threshold: .*'argmax' has none"):
        check_rule("argmax", 0.1)


def test_an_unknown_rule_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="^rule: got 'kl'; allowed are kl_last, kl_previous"):
        check_rule("kl", None)
