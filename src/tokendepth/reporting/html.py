"""The page of a depth map."""

from typing import Any

import numpy as np

from tokendepth.measure.depth_map import DepthMap
from tokendepth.measure.settling import MEANINGS
from tokendepth.reporting.colours import depth_colours
from tokendepth.reporting.figures import depth_figure
from tokendepth.reporting.page import render, svg
from tokendepth.reporting.table import interval
from tokendepth.reporting.terminal import notes
from tokendepth.text.pieces import visible

MAX_TOKENS = 4000
"""Tokens on a page; a browser is slow with more. The JSON lines hold all of them."""


def depth_page(result: DepthMap) -> str:
    """The page: text coloured by depth, details of a token on hover, tables and figures."""
    return render(
        "depth_map.html.j2",
        {"interval": interval, "visible": visible},
        result=result,
        shown=min(result.num_tokens, MAX_TOKENS),
        colours=[depth_colours(depth, result.num_layers) for depth in range(result.num_layers + 1)],
        breaks=_line_breaks(result),
        data=_data(result),
        figure=svg(depth_figure(result)),
        meanings=MEANINGS,
        notes=list(notes(result)),
    )


def _data(result: DepthMap) -> dict[str, Any]:
    """What the page's script needs, in short names and few digits, since a page holds it all."""
    count = min(result.num_tokens, MAX_TOKENS)
    used = np.unique(result.top_ids[:count])
    return {
        "rule": result.rule,
        "layers": result.num_layers,
        "vocabulary": {int(one): visible(result.top_texts[int(one)]) for one in used},
        "depths": {rule: depth[:count].tolist() for rule, depth in result.depths.items()},
        "unsettled": {
            rule: np.flatnonzero(flags[:count]).tolist()
            for rule, flags in result.unsettled_under.items()
        },
        "tokens": [
            {
                "text": visible(result.texts[at]) or "(rest of a character)",
                "type": result.types[at],
                "id": int(result.ids[at]),
                "at": int(result.index[at]),
                "kl": _short(result.kl[at]),
                "entropy": _short(result.entropy[at]),
                "top": result.top_ids[at].tolist(),
                "p": [_short(row) for row in result.top_probabilities[at]],
            }
            for at in range(count)
        ],
    }


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.3g}") for value in values]


def _line_breaks(result: DepthMap) -> list[str]:
    """What follows each token on the page: nothing, a line break, or a new document's name."""
    after = []
    for at in range(min(result.num_tokens, MAX_TOKENS)):
        last = at + 1 == result.num_tokens
        if not last and result.document[at + 1] != result.document[at]:
            after.append("document")
        else:
            after.append("line" if result.texts[at].endswith("\n") else "")
    return after
