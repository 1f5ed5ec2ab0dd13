"""The result of a comparison: a row a run, and differences from the baseline paired by seed."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tokendepth.measure.statistics import Estimate, mean_of_pairs
from tokendepth.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One run, scored and timed on the same text as the others."""

    run: str
    group: str
    """Runs of one group differ in their seed alone."""
    seed: int | None
    policy: str
    routing: str
    control: bool
    key_value_rule: str
    causal: bool
    loss: float
    bits_per_byte: float
    executed_share: float
    flops_per_token: float
    seconds_per_token: float
    """Of a prefill on the `gathered` executor, timed in the same rounds as all other runs."""
    seconds_quartiles: tuple[float, float]
    """Over the rounds: half of them lie between."""


@dataclass(frozen=True, kw_only=True)
class GroupDifference:
    """A group against the baseline, over the seeds that both have."""

    group: str
    baseline: str
    control: bool
    seeds: tuple[int, ...]
    loss: float
    """Mean over the group's runs."""
    executed_share: float
    loss_difference: Estimate
    """Mean over seeds of this loss minus the baseline's; the interval is Student's t."""
    flops_ratio: float
    """FLOPs of the baseline over this group's: projected."""
    seconds_ratio: float
    """Seconds of the baseline over this group's: measured."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """Rows in the order the runs were named."""

    rows: tuple[ComparedRun, ...]
    baseline: str
    data: str
    measured: Mapping[str, Any]

    @cached_property
    def differences(self) -> tuple[GroupDifference, ...]:
        """Every group but the baseline; none where no seed is shared."""
        groups: dict[str, list[ComparedRun]] = {}
        for row in self.rows:
            groups.setdefault(row.group, []).append(row)
        base = groups.pop(self.baseline)
        made = [_difference(name, rows, base) for name, rows in groups.items()]
        return tuple(one for one in made if one is not None)

    def summary(self) -> dict[str, Any]:
        """Rows and differences."""
        return {
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "differences": [dataclasses.asdict(one) for one in self.differences],
            "baseline": self.baseline,
            "data": self.data,
        }

    def to_json(self) -> str:
        """The same, and how it was measured."""
        return json.dumps({**self.summary(), "measured": dict(self.measured)}, allow_nan=False)

    def table(self) -> "Table":
        """One line a run."""
        from tokendepth.reporting.comparison import run_grid

        return run_grid(self).table()

    def plot(self) -> "Figure":
        """Loss against executed share, FLOPs and seconds."""
        from tokendepth.reporting.comparison import comparison_figure

        return comparison_figure(self)

    def page(self) -> str:
        """A self-contained HTML page."""
        from tokendepth.reporting.comparison import comparison_page

        return comparison_page(self)


def _difference(
    name: str, rows: list[ComparedRun], base: list[ComparedRun]
) -> GroupDifference | None:
    mine = {row.seed: row for row in rows if row.seed is not None}
    theirs = {row.seed: row for row in base if row.seed is not None}
    seeds = tuple(seed for seed in mine if seed in theirs)
    if not seeds:
        return None
    pairs = [(mine[seed], theirs[seed]) for seed in seeds]
    return GroupDifference(
        group=name,
        baseline=base[0].group,
        control=rows[0].control,
        seeds=seeds,
        loss=float(np.mean([one.loss for one, _ in pairs])),
        executed_share=float(np.mean([one.executed_share for one, _ in pairs])),
        loss_difference=mean_of_pairs(np.array([one.loss - two.loss for one, two in pairs])),
        flops_ratio=_ratio(pairs, "flops_per_token"),
        seconds_ratio=_ratio(pairs, "seconds_per_token"),
    )


def _ratio(pairs: list[tuple[ComparedRun, ComparedRun]], name: str) -> float:
    return float(np.mean([getattr(two, name) / getattr(one, name) for one, two in pairs]))
