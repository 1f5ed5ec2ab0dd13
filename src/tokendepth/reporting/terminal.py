"""A depth map in the terminal: the text, each token on the colour of its depth."""

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from tokendepth.measure.depth_map import DepthMap
from tokendepth.measure.settling import MEANINGS
from tokendepth.reporting.colours import depth_colours
from tokendepth.text.pieces import visible

MAX_TOKENS = 1000
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def coloured_text(result: DepthMap, *, width: int, colour: bool) -> Text:
    """The mapped text. Without colour each token carries its depth as a subscript.

    Lines break where the text does, and between tokens at `width`.
    """
    shown = Text()
    column = 0
    for at, document in enumerate(result.document[:MAX_TOKENS]):
        if at and document != result.document[at - 1]:
            shown.append("\n\n")
            column = 0
        piece = _piece(result, at, colour)
        if column + cell_len(piece.plain) > width:
            shown.append("\n")
            column = 0
        shown.append_text(piece)
        column += cell_len(piece.plain)
        if result.texts[at].endswith("\n"):
            shown.append("\n")
            column = 0
    if result.num_tokens > MAX_TOKENS:
        left = result.num_tokens - MAX_TOKENS
        shown.append(f"\n… {left:,} more tokens in the JSON lines", style="italic")
    return shown


def _piece(result: DepthMap, at: int, colour: bool) -> Text:
    depth = int(result.depth[at])
    text = visible(result.texts[at])
    if not colour:
        return Text(text + str(depth).translate(_SUBSCRIPTS)) if text else Text()
    background, foreground = depth_colours(depth, result.num_layers)
    style = f"{foreground} on {background}"
    return Text(text, style=style if result.counted[at] else f"{style} dim")


def legend(result: DepthMap, *, colour: bool) -> Text:
    """What the colours mean."""
    threshold = "" if result.threshold is None else f", threshold {result.threshold:g}"
    text = Text(f"depth 0 to {result.num_layers} by rule {result.rule}{threshold}  ")
    if colour:
        for depth in range(result.num_layers + 1):
            background, foreground = depth_colours(depth, result.num_layers)
            edge = depth in (0, result.num_layers)
            text.append(f" {depth} " if edge else " ", style=f"{foreground} on {background}")
    text.append(f"\n{MEANINGS[result.rule]}", style="dim")
    return text


def notes(result: DepthMap) -> Iterator[str]:
    """What the statistics leave out, and what else a reader must know, a sentence each."""
    special = sum(kind == "special" for kind in result.types)
    yield f"Special tokens: {result.measured['special_tokens']}; first ids {_ids(result)}."
    left_out = result.num_tokens - int(result.counted.sum())
    firsts = left_out - special
    yield (
        f"Left out of the statistics: {special} special or template tokens and {max(firsts, 0)} "
        "first positions of a window"
        + ("." if result.measured["include_first"] else " (--include-first counts these).")
    )
    cut = [facts for facts in result.documents if len(facts.window_starts) > 1]
    if cut:
        yield (
            f"Longer than the model's {result.measured['max_positions']} positions, so cut into "
            f"windows: {', '.join(f'{f.name} ({len(f.window_starts)})' for f in cut)}."
        )
    dropped = sum(facts.num_dropped for facts in result.documents)
    if dropped:
        yield f"Not mapped because of the limit: {dropped:,} tokens."
    if not result.counted.any():
        yield (
            "No token is counted, so there are no statistics: "
            "give a longer text, or --include-first."
        )
    if not result.complete:
        yield "Interrupted: only the windows done until then are here."
    yield (
        "A depth read through a logit lens depends on the read-out: an early state may hold a "
        "prediction that the last layer's unembedding cannot read."
    )


def _ids(result: DepthMap) -> str:
    return " ".join(str(one) for one in result.measured["first_ids"])
