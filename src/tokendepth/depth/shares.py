"""A share from 0 to 1 for all routed spans, or one for each of them."""

from tokendepth.depth.base import Context

Shares = float | tuple[float, ...]


def check_each(name: str, given: Shares) -> None:
    """Raise a `ValueError` unless it is a share, or several."""
    for one in given if isinstance(given, tuple) else (given,):
        if not 0.0 <= one <= 1.0:
            raise ValueError(f"{name}: got {one}; it must lie between 0 and 1")


def each_routed(name: str, given: Shares, num_routed: int) -> tuple[float, ...]:
    """One for each routed span.

    Raises:
        ValueError: another number of them.
    """
    if not isinstance(given, tuple):
        return (given,) * num_routed
    if len(given) != num_routed:
        raise ValueError(
            f"{name}: got {len(given)} values; the schedule has {num_routed} routed spans"
        )
    return given


def each_here(name: str, given: Shares, context: Context) -> float:
    """That of the span which is being decided about."""
    spans = context.schedule.spans
    place = sum(span.routed for span in spans[: context.span_index])
    return each_routed(name, given, sum(span.routed for span in spans))[place]
