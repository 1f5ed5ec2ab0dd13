"""A training run as a table, a figure and a page."""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from tokendepth.reporting.grid import Grid
from tokendepth.reporting.page import report_page
from tokendepth.training.result import Trained


def validation_grid(result: Trained) -> Grid:
    """The last passes over the validation text; all of them on the page."""
    passes = [row for row in result.rows if "validation_loss" in row]
    names = [name for name in (passes[-1] if passes else {}) if name != "step"]
    return Grid(
        title=f"{result.recipe}, {result.steps:,} steps",
        columns=("step", *(name.removeprefix("validation_").replace("_", " ") for name in names)),
        num_left=0,
        caption=f"nats a token on the validation text; {result.tokens_per_second:,.0f} tokens/s",
        rows=[
            (f"{row['step']:,}", *(f"{row.get(name, float('nan')):.4f}" for name in names))
            for row in passes
        ],
    )


def training_figure(result: Trained) -> Figure:
    """Loss of each step, its running mean, and the passes over the validation text."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    steps = [row for row in result.rows if "loss" in row]
    at, loss = [row["step"] for row in steps], np.array([row["loss"] for row in steps])
    axes.plot(at, loss, color="#41b6c4", alpha=0.35, linewidth=0.8, label="each step")
    width = max(1, len(loss) // 50)
    if len(loss) > width:
        smooth = np.convolve(loss, np.ones(width) / width, "valid")
        axes.plot(at[width - 1 :], smooth, color="#225ea8", label=f"mean of {width} steps")
    passes = [row for row in result.rows if "validation_loss" in row]
    axes.plot(
        [row["step"] for row in passes],
        [row["validation_loss"] for row in passes],
        "o-", color="#d9480f", markersize=3, label="validation",
    )  # fmt: skip
    axes.set(xlabel="step", ylabel="nats a token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def notes(result: Trained) -> Iterator[str]:
    """What a reader must know."""
    yield (
        "Validation is one full pass over a fixed text, without dropout; a step's loss is that of "
        "its own batch, with dropout and penalties."
    )
    if not result.finished:
        yield f"Stopped after step {result.steps:,}; the run can go on."


def training_page(result: Trained) -> str:
    """Figure and table on one page."""
    return report_page(
        title="How training went",
        lead=f"{result.recipe} in {result.run}.",
        figure=training_figure(result),
        grids=[validation_grid(result)],
        notes=list(notes(result)),
        measured=result.measured,
    )
