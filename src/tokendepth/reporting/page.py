"""Pages as one HTML file: no server, no network, nothing beside it."""

import html as markup
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from tokendepth.reporting.grid import Grid


def render(template: str, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """A template of this package, filled in; a missing value is an error."""
    environment = Environment(
        loader=PackageLoader("tokendepth.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(**values)


def report_page(
    *,
    title: str,
    lead: str,
    figure: Figure,
    grids: Sequence[Grid],
    notes: Sequence[str],
    measured: Mapping[str, Any],
) -> str:
    """A page of one figure, some tables, what to mind, and how it was measured."""
    return render(
        "report.html.j2",
        {},
        title=title,
        lead=lead,
        figure=svg(figure),
        grids=grids,
        notes=notes,
        measured=measured,
    )


def framed(page: str) -> str:
    """The page for a notebook cell, kept apart from the notebook's own styles."""
    source = markup.escape(page, quote=True)
    return f'<iframe srcdoc="{source}" style="width:100%;height:640px;border:0"></iframe>'


def svg(figure: Figure) -> str:
    """The figure as an SVG element with real text, the same bytes every time."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tokendepth"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    source = buffer.getvalue()
    return source[source.index("<svg") :]
