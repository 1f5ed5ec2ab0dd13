"""An evaluation as tables, a figure and a page."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from tokendepth.evaluation.causality import NEAR
from tokendepth.evaluation.result import Evaluation, GroupRow
from tokendepth.reporting.grid import Grid, count
from tokendepth.reporting.page import report_page
from tokendepth.reporting.table import interval


def routing_grid(result: Evaluation) -> Grid:
    """One row a routing."""
    return Grid(
        title=f"{result.policy} on {result.data}",
        columns=(
            "routing", "probe", "loss", "95 % interval", "bits a byte",
            "executed share", "FLOPs a token", "of dense FLOPs", "near a threshold",
        ),
        num_left=2,
        narrow=("routing", "probe", "loss", "bits a byte", "executed share", "of dense FLOPs"),
        caption=f"{result.num_tokens:,} tokens, {result.num_bytes:,} bytes; loss in nats, its "
        "interval by bootstrap over passages",
        rows=[
            (
                row.routing,
                row.causality.label,
                f"{row.loss.value:.4f}",
                interval(row.loss, digits=4),
                f"{row.bits_per_byte:.4f}",
                f"{row.executed_share:.3f}",
                count(row.flops_per_token),
                f"{row.flops_per_token / row.dense_flops_per_token:.3f}",
                "not told" if row.num_near is None else f"{row.num_near:,}",
            )
            for row in result.rows
        ],
    )  # fmt: skip


def gate_grid(result: Evaluation) -> Grid:
    """How open the gates were under each routing that has some."""
    tenths = [f"{low / 10:.1f}" for low in range(10)]
    return Grid(
        title="Gates: weights of updates, 1 - p",
        columns=("routing", "alpha", "p above 0.5", "token-layers saved", *tenths),
        caption="Alpha is the mean weight; the last columns are the share of weights from that "
        "tenth on. Saved counts every update by its weight: nothing is saved before hard routing.",
        rows=[
            (
                row.routing,
                f"{row.gates.alpha:.3f}",
                f"{row.gates.share_above_half:.3f}",
                f"{row.gates.token_layers_saved:.3f}",
                *(f"{share:.3f}" for share in row.gates.histogram),
            )
            for row in result.rows
            if row.gates is not None
        ],
    )


def group_grid(title: str, first: str, rows: tuple[GroupRow, ...]) -> Grid:
    """Loss and depth by token type or position."""
    return Grid(
        title=title,
        columns=(first, "tokens", "loss (nats)", "executed share", "alpha"),
        rows=[
            (
                row.group,
                f"{row.num_tokens:,}",
                f"{row.loss:.4f}",
                f"{row.executed_share:.3f}",
                "-" if row.alpha is None else f"{row.alpha:.3f}",
            )
            for row in rows
        ],
    )


def evaluation_figure(result: Evaluation) -> Figure:
    """Loss by position, loss and executed share by the type of the predicted token."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    colours = ("#225ea8", "#d9480f", "#5b6675")
    for row, colour in zip(result.rows, colours, strict=False):
        names = [group.group for group in row.by_position]
        left.plot(names, [group.loss for group in row.by_position], "o-", color=colour, ms=3,
                  label=row.routing)  # fmt: skip
    left.set(title="Loss by tokens read before", ylabel="nats")
    left.tick_params(axis="x", rotation=60, labelsize=7)
    if len(result.rows) > 1:
        left.legend(frameon=False)
    kinds = [group.group for group in result.main.by_type]
    middle.barh(kinds, [group.loss for group in result.main.by_type], color=colours[0])
    middle.set(title="Loss by token type", xlabel="nats")
    right.barh(kinds, [group.executed_share for group in result.main.by_type], color="#41b6c4")
    right.set(title="Executed share", xlim=(0, 1.02), yticks=[])
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (middle, right):
        axes.invert_yaxis()
    return figure


def notes(result: Evaluation) -> Iterator[str]:
    """What a reader must know before quoting a number."""
    yield (
        f"Loss is of {result.main.routing} routing unless said otherwise; keys and values of "
        f"skipped tokens follow the rule `{result.key_value_rule}`."
    )
    if result.control:
        yield f"{result.policy} learns nothing: it is a control."
    for row in result.rows:
        if not row.causality.declared:
            yield (
                f"Under {row.routing} routing decisions look at later tokens, as the policy says "
                "itself: this loss is not that of a language model and must not be compared."
            )
        if row.num_near:
            yield (
                f"{row.num_near:,} tokens have a decision within {NEAR:g} of its threshold under "
                f"{row.routing} routing; rounding may turn those."
            )
    yield "FLOPs are projected, from matrix products alone; seconds are measured by `benchmark`."


def evaluation_page(result: Evaluation) -> str:
    """Routings, groups and figure on one page."""
    main = result.main
    return report_page(
        title="How well it predicts, and how deep it goes",
        lead=f"{result.model}, policy {result.policy}, on {result.data}.",
        figure=evaluation_figure(result),
        grids=[
            routing_grid(result),
            *([gate_grid(result)] if any(row.gates for row in result.rows) else []),
            group_grid("By type of the predicted token", "type", main.by_type),
            group_grid("By tokens read before", "tokens read before", main.by_position),
        ],
        notes=list(notes(result)),
        measured=result.measured,
    )
