"""In which order the blocks run: a plain stack, or a looped core between prelude and coda."""

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
) -> Schedule:
    """Prelude blocks, a core run `loops` times, coda blocks. Only the core is routed.

    With `inject` every loop begins with adapter([state; output of the prelude]).
    """
    if core < 1 or loops < 1 or min(prelude, coda) < 0:
        raise ValueError(
            f"got prelude={prelude}, core={core}, coda={coda}, loops={loops}; core and loops must "
            "be at least 1, the others at least 0"
        )
    core_blocks = tuple(range(prelude, prelude + core))
    coda_blocks = tuple(range(prelude + core, prelude + core + coda))
    spans = [Span(blocks=tuple(range(prelude)), routed=False)] if prelude else []
    spans += [Span(blocks=core_blocks, loop=loop, inject=inject) for loop in range(loops)]
    spans += [Span(blocks=coda_blocks, routed=False)] if coda else []
    return Schedule(spans=tuple(spans), start=start, start_std=start_std)
