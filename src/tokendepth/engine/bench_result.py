"""The result of a benchmark: what FLOPs project beside what a clock measured."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokendepth.engine.breakdown import Part, PartRow
from tokendepth.engine.phases import Phase
from tokendepth.engine.timing import Spread
from tokendepth.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

WORTH = 1.02
"""A measured speed-up below this is none, however quiet the machine."""


_EATERS: Mapping[Part, str] = {
    "products": "matrix products on few rows",
    "attention": "attention kernels",
    "head": "head products",
    "gather": "gathers",
    "other": "Python, launches and elementwise work",
}


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """One executor in one phase at one batch size."""

    phase: Phase
    batch: int
    length: int
    alpha: float | None
    """Of given decisions; None where the policy decided."""
    executor: str
    routers: bool
    """Whether something that multiplies decided, or was made to run before given decisions."""
    control: bool
    """The dense model against itself: what the speed-up of nothing looks like here."""
    seconds: Spread
    dense_seconds: float
    speedup: Spread
    """Measured: seconds of the dense model over seconds of this, round by round."""
    flops_speedup: float
    """Projected, by the ledger."""
    executed_share: float
    peak_bytes: int | None
    dense_peak_bytes: int | None
    gathered_bytes: int
    rounds: int
    verdict: str
    parts: tuple[PartRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: medians under the plain names, quartiles beside them."""
        row = dataclasses.asdict(self)
        for name in ("seconds", "speedup"):
            spread = row.pop(name)
            row |= {name: spread["median"], f"{name}_quartiles": [spread["low"], spread["high"]]}
        return row


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The executed share below which an executor is faster than the dense model."""

    phase: Phase
    batch: int
    executor: str
    routers: bool
    executed_share: float | None
    """Between two measured shares, by a straight line; None if all or none of them pay."""
    words: str


def verdict(
    control: bool, speedup: Spread, projected: float, noise: Spread, parts: Sequence[PartRow]
) -> str:
    """Whether it is faster, and if not, why."""
    if control:
        return f"noise: the dense model against itself, {speedup.median:.3f}"
    least = max(WORTH, 1 + abs(noise.median - 1))
    if speedup.median > least and speedup.low > 1:
        return "gain"
    if projected < WORTH:
        return f"no gain: FLOPs promise {projected:.2f}x, there is nothing to save"
    lost = {_EATERS[row.part]: row.lost_otherwise for row in parts}
    lost["padded queries and masked pairs"] = sum(row.lost_to_padding for row in parts)
    worst = max(lost, key=lambda name: lost[name])
    saved = sum(row.dense_seconds - row.projected_seconds for row in parts)
    if saved <= 0:
        return f"no gain: too little time lies in what FLOPs count; most is lost to {worst}"
    return f"no gain: {worst} eat {lost[worst] / saved:.0%} of what FLOPs promise"


@dataclass(frozen=True, kw_only=True)
class Benchmark(Result):
    """Rows in the order they were measured."""

    model: str
    policy: str
    """Who decided; `given decisions` where they were drawn."""
    rows: tuple[BenchmarkRow, ...]
    measured: Mapping[str, Any]

    @property
    def break_even(self) -> tuple[BreakEven, ...]:
        """For each executor that was measured at several shares."""
        groups: dict[tuple[Phase, int, str, bool], list[BenchmarkRow]] = {}
        for row in self.rows:
            if not row.control:
                groups.setdefault((row.phase, row.batch, row.executor, row.routers), []).append(row)
        return tuple(_break_even(*key, rows) for key, rows in groups.items() if len(rows) > 1)

    def summary(self) -> dict[str, Any]:
        """The rows without their parts."""
        rows = [row.to_dict() for row in self.rows]
        for row in rows:
            del row["parts"]
        return {
            "model": self.model,
            "policy": self.policy,
            "rows": rows,
            "break_even": [dataclasses.asdict(one) for one in self.break_even],
        }

    def to_json(self) -> str:
        """All rows with their parts, and how they were measured."""
        return json.dumps(
            {
                **self.summary(),
                "rows": [row.to_dict() for row in self.rows],
                "measured": dict(self.measured),
            },
            allow_nan=False,
        )

    def table(self) -> "Table":
        """Measured and projected side by side."""
        from tokendepth.reporting.benchmark import speed_grid, verdicts

        return speed_grid(self, verdicts(self)).table()

    def plot(self) -> "Figure":
        """Measured against projected speed-up, and where the time went."""
        from tokendepth.reporting.benchmark import benchmark_figure

        return benchmark_figure(self)

    def page(self) -> str:
        """A self-contained HTML page."""
        from tokendepth.reporting.benchmark import benchmark_page

        return benchmark_page(self)


def _break_even(
    phase: Phase, batch: int, executor: str, routers: bool, rows: Sequence[BenchmarkRow]
) -> BreakEven:
    ordered = sorted(rows, key=lambda row: row.executed_share)
    shares = np.array([row.executed_share for row in ordered])
    gains = np.array([row.speedup.median - 1 for row in ordered])
    crossing = np.flatnonzero((gains[:-1] > 0) & (gains[1:] <= 0))
    share = None
    if len(crossing):
        at = int(crossing[-1])
        step = gains[at] / (gains[at] - gains[at + 1])
        share = float(shares[at] + step * (shares[at + 1] - shares[at]))
        words = f"faster below {share:.2f}"
    elif gains[0] <= 0:
        words = f"never faster, down to {shares[0]:.2f}"
    else:
        words = f"faster at all shares, up to {shares[-1]:.2f}"
    return BreakEven(
        phase=phase,
        batch=batch,
        executor=executor,
        routers=routers,
        executed_share=share,
        words=words,
    )
