"""A convergence measurement as tables, a figure and a page."""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from tokendepth.measure.convergence_result import Convergence
from tokendepth.reporting.grid import Grid
from tokendepth.reporting.page import report_page
from tokendepth.reporting.table import interval


def loop_grid(result: Convergence) -> Grid:
    """One row a loop."""
    return Grid(
        title=f"Convergence of {result.model} on {result.data}",
        columns=(
            "loop", "loss", "mean KL", "median KL", "state change", "second difference", "turned",
        ),
        num_left=1,
        caption=f"{result.num_tokens:,} tokens; KL between the predictions of a loop and the one "
        "before, in nats; changes of the state over its norm; turned = another likeliest token",
        rows=[
            (
                str(row.loop),
                f"{row.loss:.4f}",
                *map(_short, (row.kl, row.median_kl, row.change, row.acceleration)),
                "-" if row.turned is None else f"{row.turned:.4f}",
            )
            for row in result.loops
        ],
    )  # fmt: skip


def type_grid(result: Convergence) -> Grid:
    """When tokens of each type have settled."""
    return Grid(
        title=f"Loops until KL stays below {result.threshold:g}, to loop {result.until}",
        columns=("type", "tokens", "mean", "95 % interval", "median", "moving"),
        caption=f"By the type of the token that is read; moving = not settled after the "
        f"{result.own_loops} loops of the model. Intervals by bootstrap over windows",
        rows=[
            (
                row.type,
                f"{row.num_tokens:,}",
                f"{row.mean_depth.value:.2f}",
                interval(row.mean_depth, digits=2),
                f"{row.median_depth:g}",
                f"{row.share_moving:.3f}",
            )
            for row in result.by_type
        ],
    )


def convergence_figure(result: Convergence) -> Figure:
    """Loss; KL, change and second difference; depth by token type."""
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    loops = [row.loop for row in result.loops]
    left.plot(loops, [row.loss for row in result.loops], "o-", color="#225ea8", ms=3)
    left.set(title="Loss", xlabel="loops", ylabel="nats a token")
    lines = (
        ("KL", [row.kl for row in result.loops], "#225ea8"),
        ("state change", [row.change for row in result.loops], "#d9480f"),
        ("second difference", [row.acceleration for row in result.loops], "#5b6675"),
    )
    for label, values, colour in lines:
        told = [np.nan if value is None else value for value in values]
        middle.semilogy(loops, told, "o-", color=colour, ms=3, label=label)
    middle.set(title="Between successive loops", xlabel="loop")
    middle.legend(frameon=False, fontsize=8)
    names = [row.type for row in result.by_type]
    right.barh(names, [row.mean_depth.value for row in result.by_type], color="#41b6c4")
    right.set(title="Loops until settled", xlabel="mean over tokens")
    right.invert_yaxis()
    for axes in (left, middle):
        axes.axvline(result.own_loops, color="#5b6675", linewidth=0.8, linestyle=":")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def notes(result: Convergence) -> Iterator[str]:
    """What a reader must know before quoting a number."""
    yield (
        f"A token has settled at the first loop from which on KL(previous || current) stays below "
        f"{result.threshold:g} nats up to loop {result.until}; where it never does, it counts as "
        f"{result.until}. Median {result.median_depth:g}; after {result.own_loops} loops "
        f"{result.share_moving:.1%} still move."
    )
    yield f"The change of the state shrinks by a factor of {result.contraction_rate:.3f} in a loop."
    if result.start_kl:
        told = ", ".join(f"{value:.2g} after {loop}" for loop, value in result.start_kl.items())
        yield f"Between two initial states predictions differ by a mean KL of {told} loops."
    yield "Nothing halts here: every token runs every loop. Dotted: the loops of the model."


def convergence_page(result: Convergence) -> str:
    """Tables and figure on one page."""
    return report_page(
        title="Do the tokens converge, and when?",
        lead=f"{result.model} on {result.data}.",
        figure=convergence_figure(result),
        grids=[loop_grid(result), type_grid(result)],
        notes=list(notes(result)),
        measured=result.measured,
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
