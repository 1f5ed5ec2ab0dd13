"""A benchmark as tables, a figure and a page."""

from matplotlib.figure import Figure

from tokendepth.engine.bench_result import Benchmark, BenchmarkRow
from tokendepth.engine.breakdown import PARTS
from tokendepth.reporting.grid import Grid, count, seconds
from tokendepth.reporting.page import report_page

NOTES = (
    "Projected is what FLOPs promise, measured is what the clock says; only the second is time.",
    "The row `dense` is the dense model against itself: a speed-up no farther from 1 is noise.",
    "Ratios are taken round by round in shuffled order; given are medians and quartiles.",
    "Peak memory is of tensors, on top of the weights (for training, gradients included).",
    "Lost time is against the projection of each part; negative where a part beat it.",
)


SPEED = "Measured and projected: times as fast as the dense model."


def speed_grid(result: Benchmark, caption: str = SPEED) -> Grid:
    """One row an executor, phase and batch."""
    return Grid(
        title=f"{result.model}, {result.policy}: speed against the dense model",
        columns=(
            "phase", "executor", "routers", "batch", "alpha", "executed share", "dense", "time",
            "measured", "quartiles", "projected", "peak", "dense peak", "verdict",
        ),
        num_left=3,
        narrow=(
            "phase", "executor", "routers", "batch", "alpha", "executed share", "measured",
            "projected",
        ),
        caption=caption,
        rows=[
            (
                row.phase,
                row.executor,
                _routers(row.routers),
                str(row.batch),
                "-" if row.alpha is None else f"{row.alpha:g}",
                f"{row.executed_share:.3f}",
                seconds(row.dense_seconds),
                seconds(row.seconds.median),
                f"{row.speedup.median:.3f}",
                f"{row.speedup.low:.3f} to {row.speedup.high:.3f}",
                f"{row.flops_speedup:.3f}",
                _bytes(row.peak_bytes),
                _bytes(row.dense_peak_bytes),
                row.verdict,
            )
            for row in result.rows
        ],
    )  # fmt: skip


def verdicts(result: Benchmark) -> str:
    """A line for each executor that does not pay, with the reason."""
    lines = [
        f"{_name(row)}: {row.verdict}"
        for row in result.rows
        if not row.control and row.verdict != "gain"
    ]
    return "\n".join([SPEED, *lines])


def parts_grid(result: Benchmark) -> Grid:
    """Where the time of each comparison went."""
    return Grid(
        title="What eats the gain",
        columns=(
            "phase", "executor", "part", "batch", "alpha", "dense", "projected", "measured",
            "lost to padding", "lost otherwise",
        ),
        num_left=3,
        caption="Parts add up to the whole: shares of a profiled run, applied to the median time.",
        rows=[
            (
                row.phase,
                _executor(row),
                part.part,
                str(row.batch),
                "-" if row.alpha is None else f"{row.alpha:g}",
                seconds(part.dense_seconds),
                seconds(part.projected_seconds),
                seconds(part.seconds),
                seconds(part.lost_to_padding) if part.part == "attention" else "-",
                seconds(part.lost_otherwise),
            )
            for row in result.rows
            if not row.control
            for part in row.parts
        ],
    )  # fmt: skip


def break_even_grid(result: Benchmark) -> Grid:
    """Where sparse execution begins to pay."""
    return Grid(
        title="Break-even",
        columns=("phase", "executor", "routers", "executed share", "batch"),
        num_left=4,
        rows=[
            (one.phase, one.executor, _routers(one.routers), one.words, str(one.batch))
            for one in result.break_even
        ],
    )


def benchmark_figure(result: Benchmark) -> Figure:
    """Measured beside projected speed-up, and the time by part beside the dense model's."""
    rows = [row for row in result.rows if not row.control]
    height = 1.4 + 0.34 * len(rows)
    figure = Figure(figsize=(11, height), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    at = range(len(rows))
    medians = [row.speedup.median for row in rows]
    spread = [
        [row.speedup.median - row.speedup.low for row in rows],
        [row.speedup.high - row.speedup.median for row in rows],
    ]
    left.errorbar(medians, at, xerr=spread, fmt="o", color="#225ea8", label="measured", capsize=2)
    left.plot([row.flops_speedup for row in rows], at, "|", color="#d9480f", ms=14, mew=2,
              label="projected")  # fmt: skip
    left.axvline(1.0, color="#5b6675", linewidth=1)
    left.set_yticks(list(at), [_name(row) for row in rows], fontsize=8)
    left.set(title="Speed-up over the dense model", xlabel="times")
    colours = ("#225ea8", "#41b6c4", "#a1dab4", "#d9480f", "#adb5bd")
    edges = [0.0] * len(rows)
    for part, colour in zip(PARTS, colours, strict=True):
        shares = [
            next(one.seconds for one in row.parts if one.part == part) / row.dense_seconds
            for row in rows
        ]
        right.barh(at, shares, left=edges, color=colour, label=part, height=0.6)
        edges = [edge + share for edge, share in zip(edges, shares, strict=True)]
    right.axvline(1.0, color="#5b6675", linewidth=1)
    right.set(title="Time over the dense model's, by part", xlabel="times")
    figure.legend(loc="outside lower center", ncols=len(PARTS) + 2, frameon=False, fontsize=8)
    left.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def benchmark_page(result: Benchmark) -> str:
    """Speed, parts and break-even on one page."""
    grids = [speed_grid(result), parts_grid(result)]
    if result.break_even:
        grids.insert(1, break_even_grid(result))
    return report_page(
        title="What skipping saves",
        lead=f"{result.model}, {result.policy}, against the same model run dense.",
        figure=benchmark_figure(result),
        grids=grids,
        notes=NOTES,
        measured=result.measured,
    )


def _routers(there: bool) -> str:
    return "run" if there else "-"


def _executor(row: BenchmarkRow) -> str:
    return f"{row.executor}, routers" if row.routers else row.executor


def _name(row: BenchmarkRow) -> str:
    given = "" if row.alpha is None else f", alpha {row.alpha:g}"
    return f"{row.phase}, batch {row.batch}, {_executor(row)}{given}"


def _bytes(number: int | None) -> str:
    return "-" if number is None else f"{count(number)}B"
