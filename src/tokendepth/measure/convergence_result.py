"""The result of a convergence measurement: one row a loop, and when tokens have settled."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokendepth.measure.statistics import Estimate
from tokendepth.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class LoopRow:
    """Means over tokens after one loop; None where there is nothing to compare with."""

    loop: int
    kl: float | None
    """KL(p_{k-1} || p_k), nats."""
    median_kl: float | None
    change: float
    """Of the state, relative to its norm."""
    acceleration: float | None
    turned: float | None
    """Share of tokens whose likeliest prediction is another than after the loop before."""
    loss: float
    """Nats a token of the model with so many loops."""


@dataclass(frozen=True, kw_only=True)
class TypeDepth:
    """When tokens of one type have settled."""

    type: str
    num_tokens: int
    mean_depth: Estimate
    """Loops; the interval resamples windows."""
    median_depth: float
    share_moving: float
    """Not settled after the model's own number of loops."""


@dataclass(frozen=True, kw_only=True)
class Convergence(Result):
    """How the tokens of a text converge in a looped model."""

    model: str
    data: str
    num_tokens: int
    own_loops: int
    """Of the model's schedule."""
    threshold: float
    """A token has settled at the first loop from which on KL stays below it, in nats."""
    until: int
    """The last loop that is looked at for that."""
    loops: tuple[LoopRow, ...]
    mean_depth: Estimate
    median_depth: float
    share_moving: float
    contraction_rate: float
    """Factor by which the change of the state shrinks in a loop, over loops 2 to `until`."""
    start_kl: Mapping[int, float]
    """Mean KL between predictions from two initial states, by loop; empty where the schedule
    draws none."""
    by_type: tuple[TypeDepth, ...]
    """By the type of the token that is read."""
    measured: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """The last line of the command; entry k - 1 of a list is that of loop k."""
        return {
            "model": self.model,
            "data": self.data,
            "num_tokens": self.num_tokens,
            "own_loops": self.own_loops,
            "threshold": self.threshold,
            "mean_kl": [row.kl for row in self.loops],
            "loss_by_loop": [row.loss for row in self.loops],
            "median_depth": self.median_depth,
            "mean_depth": self.mean_depth.value,
            "share_moving": self.share_moving,
            "contraction_rate": self.contraction_rate,
            "start_kl": {str(loop): value for loop, value in self.start_kl.items()},
            "by_type": {row.type: row.mean_depth.value for row in self.by_type},
        }

    def to_json(self) -> str:
        """The summary, every row, and how it was measured."""
        return json.dumps(
            {
                **self.summary(),
                "until": self.until,
                "loops": [dataclasses.asdict(row) for row in self.loops],
                "types": [dataclasses.asdict(row) for row in self.by_type],
                "measured": dict(self.measured),
            },
            allow_nan=False,
        )

    def table(self) -> "Table":
        """One line a loop."""
        from tokendepth.reporting.convergence import loop_grid

        return loop_grid(self).table()

    def plot(self) -> "Figure":
        """Loss, KL and changes by loop; depth by token type."""
        from tokendepth.reporting.convergence import convergence_figure

        return convergence_figure(self)

    def page(self) -> str:
        """A self-contained HTML page."""
        from tokendepth.reporting.convergence import convergence_page

        return convergence_page(self)
