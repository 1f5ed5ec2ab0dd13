"""A comparison as tables, a figure and a page."""

from collections.abc import Iterator

import matplotlib
from matplotlib.figure import Figure

from tokendepth.comparison.result import Comparison
from tokendepth.reporting.grid import Grid, count, seconds
from tokendepth.reporting.page import report_page


def run_grid(result: Comparison) -> Grid:
    """One row a run."""
    return Grid(
        title=f"Runs on {result.data}",
        caption="Time: median of the rounds, and the quartiles.",
        columns=(
            "run", "policy", "routing", "keys", "", "seed", "loss (nats)", "bits a byte",
            "executed share", "FLOPs a token", "time a token",
        ),
        num_left=5,
        narrow=(
            "run", "", "seed", "loss (nats)", "executed share", "FLOPs a token", "time a token",
        ),
        rows=[
            (
                row.run,
                row.policy,
                row.routing,
                row.key_value_rule,
                _mark(row.control, row.causal),
                "-" if row.seed is None else str(row.seed),
                f"{row.loss:.4f}",
                f"{row.bits_per_byte:.4f}",
                f"{row.executed_share:.3f}",
                count(row.flops_per_token),
                f"{seconds(row.seconds_per_token)} "
                f"({' to '.join(map(seconds, row.seconds_quartiles))})",
            )
            for row in result.rows
        ],
    )  # fmt: skip


def difference_grid(result: Comparison) -> Grid:
    """Groups against the baseline."""
    return Grid(
        title=f"Against {result.baseline}, paired by seed",
        columns=(
            "group", "", "seeds", "loss", "difference", "95 % interval", "executed share",
            "projected speed-up", "measured speed-up",
        ),
        num_left=2,
        caption="Intervals: Student's t over seeds; none with fewer than two.",
        rows=[
            (
                one.group,
                _mark(one.control, True),
                ", ".join(map(str, one.seeds)),
                f"{one.loss:.4f}",
                f"{one.loss_difference.value:+.4f}",
                "-"
                if one.loss_difference.low is None or one.loss_difference.high is None
                else f"{one.loss_difference.low:+.4f} to {one.loss_difference.high:+.4f}",
                f"{one.executed_share:.3f}",
                f"{one.flops_ratio:.2f}",
                f"{one.seconds_ratio:.2f}",
            )
            for one in result.differences
        ],
    )  # fmt: skip


def comparison_figure(result: Comparison) -> Figure:
    """Loss against executed share (proxy), FLOPs (projected) and seconds (measured)."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    groups = list(dict.fromkeys(row.group for row in result.rows))
    colours = matplotlib.colormaps["tab10"].colors  # pyright: ignore[reportAttributeAccessIssue]
    panels = (
        ("executed_share", 1.0, "Proxy: executed share", "of all token-layers"),
        ("flops_per_token", 1e-6, "Projected: FLOPs a token", "millions"),
        ("seconds_per_token", 1e6, "Measured: time a token", "microseconds"),
    )
    for axis, (name, scale, title, unit) in zip(axes, panels, strict=True):
        for number, group in enumerate(groups):
            rows = [row for row in result.rows if row.group == group]
            colour = colours[number % len(colours)]
            axis.plot(
                [scale * getattr(row, name) for row in rows],
                [row.loss for row in rows],
                "o" if not rows[0].control else "s",
                markerfacecolor="none" if rows[0].control else colour,
                markeredgecolor=colour,
                label=f"{group} (control)" if rows[0].control else group,
            )
        axis.set(title=title, xlabel=unit)
        axis.set_xlim(left=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("loss (nats)")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def notes(result: Comparison) -> Iterator[str]:
    """What a reader must know before quoting a number."""
    yield "Each loss is of the policy and routing that its row names; controls learn no depth."
    yield "Times are medians of a prefill on the gathered executor, all runs in the same rounds."
    if any(not row.causal for row in result.rows):
        yield "Rows marked `not causal` look at later tokens: their loss must not be compared."
    if not result.differences:
        yield f"No group shares a seed with {result.baseline}: nothing could be paired."


def comparison_page(result: Comparison) -> str:
    """Figure, runs and differences on one page."""
    return report_page(
        title="Loss against depth, FLOPs and seconds",
        lead=f"{len(result.rows)} runs on {result.data}; the baseline is {result.baseline}.",
        figure=comparison_figure(result),
        grids=[run_grid(result), *([difference_grid(result)] if result.differences else [])],
        notes=list(notes(result)),
        measured=result.measured,
    )


def _mark(control: bool, causal: bool) -> str:
    return " ".join(word for word in ("control" * control, "not causal" * (not causal)) if word)
