"""The result of an evaluation: how well a model predicts, and how deep it goes for that."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokendepth.evaluation.causality import NEAR, Causality
from tokendepth.evaluation.gates import Gates
from tokendepth.measure.statistics import Estimate
from tokendepth.result import Result
from tokendepth.types import KeyValueRule, Routing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """Predictions of one token type, or at some positions of a passage."""

    group: str
    num_tokens: int
    loss: float
    """Nats a token."""
    executed_share: float
    alpha: float | None
    """Mean weight of the updates; None where decisions have none."""


@dataclass(frozen=True, kw_only=True)
class RoutingRow:
    """The same text under one routing of the policy."""

    routing: Routing
    causality: Causality
    loss: Estimate
    """Nats a token; the interval resamples passages."""
    bits_per_byte: float
    accuracy: float
    """Share of tokens of which the likeliest prediction was right."""
    executed_share: float
    gates: Gates | None
    """How open the gates were; None where decisions have no weights."""
    flops_per_token: float
    """Of the decisions on the `gathered` executor, by the ledger."""
    dense_flops_per_token: float
    """With nothing skipped."""
    num_near: int | None
    """Tokens with a decision within `NEAR` of its threshold, which rounding may turn; None where
    the policy tells no distances."""
    by_position: tuple[GroupRow, ...]
    by_type: tuple[GroupRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        row = dataclasses.asdict(self)
        return {**row, "causal": self.causality.causal, "near_distance": NEAR}


@dataclass(frozen=True, kw_only=True)
class Evaluation(Result):
    """One row a routing; the first is the one that is compared between systems."""

    model: str
    policy: str
    control: bool
    key_value_rule: KeyValueRule
    data: str
    num_tokens: int
    num_bytes: int
    rows: tuple[RoutingRow, ...]
    measured: Mapping[str, Any]

    @property
    def main(self) -> RoutingRow:
        """Hard routing where the policy has it, else its default."""
        return self.rows[0]

    def row(self, routing: str) -> RoutingRow:
        """Of one routing.

        Raises:
            ValueError: a routing that was not evaluated.
        """
        for row in self.rows:
            if row.routing == routing:
                return row
        there = ", ".join(row.routing for row in self.rows)
        raise ValueError(f"routing: got {routing!r}; evaluated were {there}")

    def summary(self) -> dict[str, Any]:
        """Of the first routing; the loss of each under its name where there are several.

        `alpha` and `share_above_half` are of soft routing, where the policy has it.
        """
        several = {f"loss_{row.routing}": row.loss.value for row in self.rows}
        gates = next((row.gates for row in self.rows if row.routing == "soft"), None)
        return {
            "model": self.model,
            "policy": self.policy,
            "key_value_rule": self.key_value_rule,
            "data": self.data,
            "num_tokens": self.num_tokens,
            "routing": self.main.routing,
            "loss": self.main.loss.value,
            "bits_per_byte": self.main.bits_per_byte,
            "executed_share": self.main.executed_share,
            "causal": self.main.causality.causal,
            "accuracy": self.main.accuracy,
            **(several if len(self.rows) > 1 else {}),
            **({} if gates is None else _gate_summary(gates)),
        }

    def to_json(self) -> str:
        """The summary, every routing in full, and how it was measured."""
        return json.dumps(
            {
                **self.summary(),
                "control": self.control,
                "num_bytes": self.num_bytes,
                "rows": [row.to_dict() for row in self.rows],
                "measured": dict(self.measured),
            },
            allow_nan=False,
        )

    def table(self) -> "Table":
        """One line a routing."""
        from tokendepth.reporting.evaluation import routing_grid

        return routing_grid(self).table()

    def plot(self) -> "Figure":
        """Loss by position and by token type, and how deep tokens of each type went."""
        from tokendepth.reporting.evaluation import evaluation_figure

        return evaluation_figure(self)

    def page(self) -> str:
        """A self-contained HTML page."""
        from tokendepth.reporting.evaluation import evaluation_page

        return evaluation_page(self)


def _gate_summary(gates: Gates) -> dict[str, float]:
    return {
        "alpha": gates.alpha,
        "share_above_half": gates.share_above_half,
        "token_layers_saved": gates.token_layers_saved,
    }
