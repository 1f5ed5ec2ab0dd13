"""The result of an evaluation with halting: against a uniform depth, in loss, FLOPs and seconds."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokendepth.depth.halting import HaltingConfig
from tokendepth.engine.timing import Spread
from tokendepth.evaluation.calibrate import Trial
from tokendepth.evaluation.result import RoutingRow
from tokendepth.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class HaltingEvaluation(Result):
    """A looped model whose tokens halt, on text that its threshold was not chosen on."""

    model: str
    data: str
    config: HaltingConfig
    """With the threshold that was found."""
    target: str | None
    loops_max: int
    own_loops: int
    """Of the model's schedule: the uniform depth."""
    row: RoutingRow
    """Of the tokens that halt."""
    average_loops: float
    histogram: tuple[float, ...]
    """Share of tokens that stopped after 1, 2, … loops."""
    check_flops_per_token: float
    loss_uniform: float
    uniform_flops_per_token: float
    loss_same_depth: float
    """Of uniform depth at the same average loops, interpolated."""
    loss_readout: float
    """All tokens run all loops, each is read where it would halt."""
    average_loops_readout: float
    timing: Mapping[str, Spread] | None
    """Seconds of one batch: `halting`, `uniform`, and `ratio` of the second to the first."""
    trials: tuple[Trial, ...]
    """What calibration tried."""
    measured: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """The last line of the command; seconds are None where they were not measured."""
        timing = self.timing or {}
        seconds = {name: spread.median for name, spread in timing.items()}
        return {
            "model": self.model,
            "data": self.data,
            "halt": self.config.rule,
            "threshold": self.config.threshold,
            "patience": self.config.patience,
            "loss": self.row.loss.value,
            "average_loops": self.average_loops,
            "loops_max": self.loops_max,
            "loss_uniform": self.loss_uniform,
            "loss_same_depth": self.loss_same_depth,
            "loss_readout": self.loss_readout,
            "average_loops_readout": self.average_loops_readout,
            "executed_share": self.row.executed_share,
            "flops_per_token": self.row.flops_per_token,
            "check_flops_per_token": self.check_flops_per_token,
            "uniform_flops_per_token": self.uniform_flops_per_token,
            "num_near": self.row.num_near,
            "causal": self.row.causality.causal,
            "seconds": seconds.get("halting"),
            "seconds_uniform": seconds.get("uniform"),
            "speedup": seconds.get("ratio"),
        }

    def to_json(self) -> str:
        """The summary, the row in full, the trials, and how it was measured."""
        timing = self.timing or {}
        return json.dumps(
            {
                **self.summary(),
                "config": dataclasses.asdict(self.config),
                "target": self.target,
                "own_loops": self.own_loops,
                "histogram": list(self.histogram),
                "row": self.row.to_dict(),
                "timing": {name: dataclasses.asdict(one) for name, one in timing.items()},
                "trials": [dataclasses.asdict(one) for one in self.trials],
                "measured": dict(self.measured),
            },
            allow_nan=False,
        )

    def table(self) -> "Table":
        """Halting against uniform depths."""
        from tokendepth.reporting.halting import halting_grid

        return halting_grid(self).table()

    def plot(self) -> "Figure":
        """Where tokens stopped, what calibration tried, and loops by token type."""
        from tokendepth.reporting.halting import halting_figure

        return halting_figure(self)

    def page(self) -> str:
        """A self-contained HTML page."""
        from tokendepth.reporting.halting import halting_page

        return halting_page(self)
