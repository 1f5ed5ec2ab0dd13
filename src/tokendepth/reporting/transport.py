"""A transport measurement as a table, three figures and a page."""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from tokendepth.measure.moves import RESOLVABLE, TOLERANCE
from tokendepth.measure.transition import Reading, Transition
from tokendepth.measure.transport_result import Transport
from tokendepth.reporting.grid import Grid
from tokendepth.reporting.page import report_page


def transition_grid(result: Transport) -> Grid:
    """One row a transition, in the columns of the literature."""
    return Grid(
        title=f"Transport between layers of {result.model}",
        columns=(
            "layers", "verdict", "floor/P", "A/P", "e", "ebar", "range", "error", "n to inf",
            "calibration", "sliced", "rho", "null", "cosine", "Gaussian R2", "remainder rho",
            "n needed",
        ),
        num_left=2,
        narrow=(
            "layers", "verdict", "floor/P", "A/P", "e", "ebar", "calibration", "sliced", "rho",
        ),
        caption=f"{result.num_points:,} points of {result.num_types:,} token types, "
        f"{result.num_positions:,} positions, samples of {_sizes(result)}; n.r. = not resolvable",
        rows=[_cells(each) for each in result.transitions],
    )  # fmt: skip


def _sizes(result: Transport) -> str:
    return ", ".join(f"{n:,}" for n in sorted({each.n for each in result.transitions})) or "none"


def _cells(each: Transition) -> tuple[str, ...]:
    per_p = (each.floor / each.p, each.a / each.p) if each.p > 0.0 else (np.inf, np.inf)
    return (
        each.name,
        "n.r." if each.verdict == "not resolvable" else each.verdict,
        *(f"{value:.3g}" for value in per_p),
        _shown(each.e),
        _shown(each.ebar),
        _range(each.ebar),
        _number(each.ebar_error),
        _shown(each.ebar_extrapolated),
        _shown(each.ebar_calibration),
        f"{each.sliced:.2f}",
        _shown(each.rho),
        *(_number(value) for value in (each.rho_null, each.cosine, each.gaussian_r2)),
        _shown(each.remainder_rho),
        "not told" if each.n_needed is None else f"{each.n_needed:,}",
    )


def _number(value: float | None) -> str:
    return "n.r." if value is None else f"{value:.2f}"


def _shown(reading: Reading) -> str:
    return _number(reading.value)


def _range(reading: Reading) -> str:
    return "n.r." if reading.value is None else f"{reading.low:.2f} to {reading.high:.2f}"


def transport_figure(result: Transport) -> Figure:
    """Efficiency with its calibration, agreement of maps with its null, and the floor."""
    figure = Figure(figsize=(11.0, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    steps = result.steps
    layers = np.array([each.source + 0.5 for each in steps])
    _line(left, layers, [each.e for each in steps], "e", "#225ea8")
    _line(left, layers, [each.ebar for each in steps], "ebar", "#d9480f")
    calibrations = [each.ebar_calibration for each in steps]
    _line(left, layers, calibrations, "calibration", "#5b6675", marker="x", line="")
    left.plot(layers, [each.sliced for each in steps], ":", color="#41b6c4", label="sliced bound")
    left.set(title="Efficiency (1 = cheapest)", xlabel="layer", ylim=(0, None))
    _line(middle, layers, [each.rho for each in steps], "rho", "#225ea8")
    nulls = [np.nan if each.rho_null is None else each.rho_null for each in steps]
    cosines = [np.nan if each.cosine is None else each.cosine for each in steps]
    middle.plot(layers, nulls, "--", color="#5b6675", label="shuffled")
    middle.plot(layers, cosines, ":", color="#41b6c4", label="cosine")
    middle.set(title="Agreement with the optimal map", xlabel="layer")
    floors = [each.floor / each.p if each.p > 0.0 else np.nan for each in steps]
    right.semilogy(layers, floors, "o-", color="#225ea8", ms=3, label="floor / P")
    right.axhline(RESOLVABLE, color="#d9480f", linewidth=1, label="resolvable below")
    right.set(title="Sampling floor", xlabel="layer")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(framealpha=0.85, edgecolor="none", fontsize=8)
    return figure


def _line(
    axes, layers: np.ndarray, readings: list[Reading], label: str, colour: str,
    marker: str = "o", line: str = "-",
) -> None:  # fmt: skip
    there = [at for at, reading in enumerate(readings) if reading.value is not None]
    kept = [readings[at] for at in there]
    values = np.array([[each.value, each.low, each.high] for each in kept], dtype=float)
    if len(values):
        reach = np.abs(values[:, 1:] - values[:, :1]).T
        axes.errorbar(layers[there], values[:, 0], yerr=reach, fmt=marker + line, ms=3,
                      color=colour, label=label, linewidth=1.2)  # fmt: skip


def notes(result: Transport) -> Iterator[str]:
    """What a reader must know before quoting a number."""
    yield (
        "Source, target and floor come from three disjoint samples of points; the costs are exact "
        f"(largest relative duality gap {max((t.gap for t in result.transitions), default=0):.1g})."
    )
    yield (
        f"ebar is told where the floor is at most {RESOLVABLE:.0%} of P, and called optimal within "
        f"{TOLERANCE} of the reading of an expansion, which is optimal, through the same pipeline."
    )
    moved = [each for each in result.transitions if each.calibration == "move"]
    if moved:
        yield (
            f"In {len(moved)} of {len(result.transitions)} transitions the radius hardly changes, "
            "so the calibration is an expansion with moves as large as the real ones."
        )
    yield (
        "error: standard error of ebar over samples, from the prices of its assignments; n to inf: "
        "ebar for samples without end, if its bias falls as the floor does."
    )
    explained = [each.explained for each in result.transitions]
    if explained:
        yield f"The camera sees {min(explained):.1%} of the variance it was made from."
    if not result.complete:
        yield "Interrupted: the transitions finished until then."


def transport_page(result: Transport) -> str:
    """Table and figures on one page."""
    return report_page(
        title="Do the layers move the cloud of states at the cheapest cost?",
        lead=f"{result.model}; {result.num_points:,} points.",
        figure=transport_figure(result),
        grids=[transition_grid(result)],
        notes=list(notes(result)),
        measured=result.measured,
    )
