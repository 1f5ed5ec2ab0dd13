"""Figures of a depth map."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tokendepth.measure.depth_map import DepthMap
from tokendepth.reporting.colours import depth_colours


def depth_figure(result: DepthMap) -> Figure:
    """Histogram of depths; distance to the last prediction and entropy by state.

    Lines are medians over the counted tokens, bands the middle half of them.
    """
    figure = Figure(figsize=(9.5, 3.1), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    states = np.arange(result.num_layers + 1)
    colours = [depth_colours(int(state), result.num_layers)[0] for state in states]
    left.bar(states, result.histogram, color=colours, edgecolor="#556", linewidth=0.5)
    left.set(title=f"Settling depth ({result.rule})", xlabel="depth", ylabel="tokens")
    _band(middle, states, result.kl[result.counted])
    middle.set(title="KL to the last prediction", xlabel="state", ylabel="nats")
    _band(right, states, result.entropy[result.counted])
    right.set(title="Entropy", xlabel="state", ylabel="nats")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _band(axes, states: np.ndarray, values: np.ndarray) -> None:
    if len(values) == 0:
        return
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    axes.fill_between(states, low, high, color="#1d91c0", alpha=0.2, linewidth=0)
    axes.plot(states, middle, color="#225ea8", linewidth=1.6)
    axes.set_ylim(bottom=0)
