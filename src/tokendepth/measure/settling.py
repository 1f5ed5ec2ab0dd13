"""Settling depth: after how many blocks a token no longer changes.

The smallest k such that a rule holds at every state from k to L. Persistence matters: a prediction
that is right at state 3, wrong at state 7 and right again at the end has not settled at 3. Where
the rule does not hold even at L, the depth is L and the token is `unsettled`.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokendepth.measure.lens import Readings

Rule = Literal["kl_last", "kl_previous", "argmax", "state"]
RULES: tuple[Rule, ...] = get_args(Rule)
DEFAULT_THRESHOLDS: dict[Rule, float | None] = {
    "kl_last": 0.1,
    "kl_previous": 0.1,
    "argmax": None,
    "state": 0.05,
}
MEANINGS: dict[Rule, str] = {
    "kl_last": "KL(p_L || p_j) < threshold: the prediction is close to the last one",
    "kl_previous": "KL(p_{j-1} || p_j) < threshold: the last block changed the prediction little",
    "argmax": "the most likely token is the one of the last state",
    "state": "||s_j - s_{j-1}|| / ||s_j|| < threshold: the last block changed the state little",
}


def check_rule(rule: str, threshold: float | None) -> float | None:
    """The threshold to use: the given one, or the rule's default.

    Raises:
        ValueError: an unknown rule, a threshold that is not a positive number, or a threshold for
            a rule that has none.
    """
    if rule not in RULES:
        raise ValueError(f"rule: got {rule!r}; allowed are {', '.join(RULES)}")
    default = DEFAULT_THRESHOLDS[rule]
    if threshold is None:
        return default
    if default is None:
        raise ValueError(f"threshold: the rule {rule!r} has none, got {threshold}; leave it out")
    if not 0.0 < threshold < float("inf"):
        raise ValueError(f"threshold: got {threshold}; it must be a number above 0")
    return threshold


def rule_holds(
    readings: Readings, rule: Rule, threshold: float | None
) -> Bool[Tensor, "state token"]:
    """Where a rule holds. Rules that compare with the state before never hold at state 0."""
    if rule == "argmax" or threshold is None:
        return readings.same_argmax
    values = {
        "kl_last": readings.kl_last,
        "kl_previous": readings.kl_previous,
        "state": readings.relative_change,
    }[rule]
    return values < threshold  # NaN at state 0 compares as False


def settle(
    holds: Bool[Tensor, "state token"],
) -> tuple[Int[Tensor, " token"], Bool[Tensor, " token"]]:
    """Settling depth of each token, 0 to L, and whether it is unsettled even at L."""
    num_layers = holds.shape[0] - 1
    settled_run = holds.flip(0).to(torch.int64).cumprod(dim=0).sum(dim=0)
    unsettled = settled_run == 0
    return (num_layers + 1 - settled_run).clamp_max(num_layers), unsettled
