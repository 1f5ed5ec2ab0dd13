"""Tables of a depth map."""

from rich import box
from rich.table import Table

from tokendepth.measure.depth_map import DepthMap, Estimate


def type_table(result: DepthMap) -> Table:
    """Depth by token type with the interval over documents, and all counted tokens at the end."""
    one = len(result.documents) < 2
    caption = (
        "one document: no interval over documents"
        if one
        else f"95 % intervals: bootstrap over {len(result.documents)} documents"
    )
    table = Table(title="Depth by token type", caption=caption, box=box.SIMPLE_HEAD)
    table.add_column("type")
    for name in ("tokens", "mean depth", "95 % interval", "median", "unsettled"):
        table.add_column(name, justify="right")
    for row in result.by_type:
        table.add_row(
            row.type,
            f"{row.num_tokens:,}",
            f"{row.mean_depth.value:.2f}",
            interval(row.mean_depth),
            f"{row.median_depth:g}",
            f"{row.share_unsettled:.1%}",
        )
    mean = result.mean_depth
    if mean is not None:
        table.add_section()
        table.add_row(
            "all",
            f"{int(result.counted.sum()):,}",
            f"{mean.value:.2f}",
            interval(mean),
            f"{result.median_depth:g}",
            f"{result.share_unsettled:.1%}",
        )
    return table


def rule_table(result: DepthMap) -> Table:
    """The same tokens under every rule."""
    table = Table(title="The same tokens under each rule", box=box.SIMPLE_HEAD)
    table.add_column("rule")
    for name in ("threshold", "mean depth", "median", "unsettled"):
        table.add_column(name, justify="right")
    for row in result.by_rule:
        table.add_row(
            f"{row.rule} (shown)" if row.rule == result.rule else row.rule,
            "-" if row.threshold is None else f"{row.threshold:g}",
            f"{row.mean_depth:.2f}",
            f"{row.median_depth:g}",
            f"{row.share_unsettled:.1%}",
        )
    return table


def interval(estimate: Estimate, digits: int = 2) -> str:
    """The interval in words; a dash where there is none."""
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.low:.{digits}f} to {estimate.high:.{digits}f}"
