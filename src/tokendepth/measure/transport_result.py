"""The result of a transport measurement: one row a transition between layers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokendepth.measure.transition import Transition
from tokendepth.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Transport(Result):
    """How a model moves its cloud of token states from layer to layer."""

    model: str
    num_layers: int
    transitions: tuple[Transition, ...]
    num_points: int
    num_types: int
    num_positions: int
    measured: Mapping[str, Any]
    """How: versions, weights, dtype, options, texts."""
    complete: bool = True
    """False after an interruption: the transitions finished until then."""

    @property
    def steps(self) -> tuple[Transition, ...]:
        """Transitions between neighbouring layers, before the final norm."""
        return tuple(
            each
            for each in self.transitions
            if each.target == each.source + 1 and not each.final_norm
        )

    def summary(self) -> dict[str, Any]:
        """Model and transitions in few numbers; None where something cannot be told."""
        return {
            "model": self.model,
            "num_points": self.num_points,
            "complete": self.complete,
            "transitions": [_short(each) for each in self.transitions],
        }

    def to_json(self) -> str:
        """Every number of every transition, and how it was measured."""
        return json.dumps(
            {
                "model": self.model,
                "num_layers": self.num_layers,
                "num_points": self.num_points,
                "num_types": self.num_types,
                "num_positions": self.num_positions,
                "complete": self.complete,
                "transitions": [each.to_dict() for each in self.transitions],
                "measured": dict(self.measured),
            },
            allow_nan=False,
        )

    def table(self) -> "Table":
        """In the columns of the literature."""
        from tokendepth.reporting.transport import transition_grid

        return transition_grid(self).table()

    def plot(self) -> "Figure":
        """Efficiency, agreement of maps, and floor, by transition."""
        from tokendepth.reporting.transport import transport_figure

        return transport_figure(self)

    def page(self) -> str:
        """A self-contained HTML page."""
        from tokendepth.reporting.transport import transport_page

        return transport_page(self)


def _short(each: Transition) -> dict[str, Any]:
    return {
        "layer": each.name,
        "a_over_p": each.a / each.p if each.p > 0.0 else None,
        "e": each.e.value,
        "ebar": each.ebar.value,
        "ebar_error": each.ebar_error,
        "ebar_extrapolated": each.ebar_extrapolated.value,
        "ebar_calibration": each.ebar_calibration.value,
        "floor_over_p": each.floor / each.p if each.p > 0.0 else None,
        "sliced": each.sliced,
        "rho": each.rho.value,
        "rho_null": each.rho_null,
        "cosine": each.cosine,
        "gaussian_r2": each.gaussian_r2,
        "resolvable": each.resolvable,
        "verdict": each.verdict,
    }
