"""An evaluation with halting as a table, a figure and a page."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from tokendepth.evaluation.causality import NEAR
from tokendepth.evaluation.halting_result import HaltingEvaluation
from tokendepth.reporting.evaluation import group_grid
from tokendepth.reporting.grid import Grid, count, seconds
from tokendepth.reporting.page import report_page


def halting_grid(result: HaltingEvaluation) -> Grid:
    """Halting, its analysis twin, and uniform depths."""
    config, timing = result.config, result.timing or {}
    threshold = "" if config.threshold is None else f" below {config.threshold:.3g}"
    took = {name: seconds(spread.median) for name, spread in timing.items()}
    return Grid(
        title=f"{result.model} on {result.data}: tokens halt at {config.rule}{threshold}",
        columns=("arm", "loss", "loops", "FLOPs a token", "of them checks", "seconds a batch"),
        caption=f"At most {result.loops_max} loops; losses in nats a token, FLOPs projected, "
        "seconds measured in turn",
        rows=[
            (
                "halting (freeze)", f"{result.row.loss.value:.4f}", f"{result.average_loops:.2f}",
                count(result.row.flops_per_token), count(result.check_flops_per_token),
                took.get("halting", "-"),
            ),
            (
                "halting (readout)", f"{result.loss_readout:.4f}",
                f"{result.average_loops_readout:.2f}", "-", "-", "-",
            ),
            (
                f"uniform {result.own_loops}", f"{result.loss_uniform:.4f}",
                f"{result.own_loops:.2f}", count(result.uniform_flops_per_token), "0",
                took.get("uniform", "-"),
            ),
            (
                "uniform, same loops", f"{result.loss_same_depth:.4f}",
                f"{result.average_loops:.2f}", "-", "-", "-",
            ),
        ],
    )  # fmt: skip


def halting_figure(result: HaltingEvaluation) -> Figure:
    """Where tokens stopped; loss over average loops while calibrating; depth by token type."""
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    loops = list(range(1, result.loops_max + 1))
    left.bar(loops, result.histogram, color="#225ea8")
    left.set(title="Where tokens stopped", xlabel="loops", ylabel="share of tokens")
    tried = sorted(result.trials, key=lambda one: one.average_loops)
    middle.plot(
        [one.average_loops for one in tried], [one.loss for one in tried], "o-", ms=3,
        color="#225ea8",
    )  # fmt: skip
    middle.set(title="Calibration text", xlabel="average loops", ylabel="nats a token")
    kinds = [group.group for group in result.row.by_type]
    shares = [group.executed_share for group in result.row.by_type]
    right.barh(kinds, shares, color="#41b6c4")
    right.set(title="Executed share by predicted token", xlim=(0, 1.02))
    right.invert_yaxis()
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def notes(result: HaltingEvaluation) -> Iterator[str]:
    """What a reader must know before quoting a number."""
    if result.target is not None:
        yield (
            "The threshold was found on the first half of the passages; every number is of the "
            "second half."
        )
    yield (
        "Freeze is what runs: a token that has halted is not computed again, and its newest keys "
        "and values stay visible. Readout runs every loop and reads each token where it would halt."
    )
    projected = result.uniform_flops_per_token / result.row.flops_per_token
    if result.timing is None:
        yield f"Projected: {projected:.2f} times fewer FLOPs, checks included; nothing was timed."
    else:
        ratio = result.timing["ratio"]
        verdict = "a gain" if ratio.low > 1 else "no gain"
        yield (
            f"Measured: {ratio.median:.2f} times as fast as {result.own_loops} loops for all "
            f"(quartiles {ratio.low:.2f} to {ratio.high:.2f}), {verdict}; FLOPs project "
            f"{projected:.2f}, checks included."
        )
    if result.row.num_near:
        yield (
            f"{result.row.num_near:,} tokens have a check within {NEAR:g} of its threshold; "
            "rounding may turn those."
        )


def halting_page(result: HaltingEvaluation) -> str:
    """Table, figure and groups on one page."""
    return report_page(
        title="Where tokens stop, and what that saves",
        lead=f"{result.model} on {result.data}.",
        figure=halting_figure(result),
        grids=[
            halting_grid(result),
            group_grid("By type of the predicted token", "type", result.row.by_type),
            group_grid("By tokens read before", "tokens read before", result.row.by_position),
        ],
        notes=list(notes(result)),
        measured=result.measured,
    )
