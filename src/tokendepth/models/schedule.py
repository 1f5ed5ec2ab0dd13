"""In which order the blocks run: a plain stack, or a looped core between prelude and coda."""

from dataclasses import replace

from tokendepth.types import Schedule, Span, Start


def stack(num_blocks: int, *, stem: int = 1, coda: int = 0, every: int = 1) -> Schedule:
    """A plain stack: one block a span; the first `stem` and the last `coda` are not routed.

    Of those between them, each `every`-th is routed, the first included.
    """
    if every < 1:
        raise ValueError(f"every: got {every}; it must be at least 1")
    if not 0 <= stem + coda <= num_blocks:
        raise ValueError(
            f"stem, coda: got {stem} and {coda}; together at most the {num_blocks} blocks there are"
        )
    return Schedule(
        spans=tuple(
            Span(
                blocks=(block,),
                routed=stem <= block < num_blocks - coda and (block - stem) % every == 0,
            )
            for block in range(num_blocks)
        )
    )


def looped(
    *,
    prelude: int,
    core: int,
    coda: int,
    loops: int,
    inject: bool = True,
    start: Start = "hidden",
    start_std: float = 1.0,
    normed_coda: bool = False,
) -> Schedule:
    """Prelude blocks, a core run `loops` times, coda blocks. Only the core is routed.

    With `inject` every loop begins with adapter([state; output of the prelude]); with `normed_coda`
    the coda begins with the state at unit mean square.
    """
    if core < 1 or loops < 1 or min(prelude, coda) < 0:
        raise ValueError(
            f"got prelude={prelude}, core={core}, coda={coda}, loops={loops}; core and loops must "
            "be at least 1, the others at least 0"
        )
    if normed_coda and not coda:
        raise ValueError("normed_coda: there is no coda; give it a block, or leave this out")
    core_blocks = tuple(range(prelude, prelude + core))
    coda_blocks = tuple(range(prelude + core, prelude + core + coda))
    spans = [Span(blocks=tuple(range(prelude)), routed=False)] if prelude else []
    spans += [Span(blocks=core_blocks, loop=loop, inject=inject) for loop in range(loops)]
    spans += [Span(blocks=coda_blocks, routed=False, normed=normed_coda)] if coda else []
    return Schedule(spans=tuple(spans), start=start, start_std=start_std)


def with_loops(order: Schedule, loops: int, *, learned: int | None = None) -> Schedule:
    """A looped schedule with another number of loops; the weights do not depend on it.

    Args:
        order: whose core runs again and again, without other spans in between.
        loops: at least 1.
        learned: only so many of the last loops carry gradients: truncated back-propagation.

    Raises:
        ValueError: a plain stack, or numbers out of their range.
    """
    if loops < 1 or (learned is not None and learned < 1):
        raise ValueError(f"loops, learned: got {loops} and {learned}; both are at least 1")
    core = order.core
    if not core or core != tuple(range(core[0], core[-1] + 1)):
        raise ValueError(
            "schedule: it has no core that runs again and again; take a looped one of two loops or "
            "more"
        )
    one = order.spans[core[0]]
    first = 0 if learned is None else loops - learned
    spans = [replace(one, loop=loop, grad=one.grad and loop >= first) for loop in range(loops)]
    return replace(order, spans=(*order.spans[: core[0]], *spans, *order.spans[core[-1] + 1 :]))
