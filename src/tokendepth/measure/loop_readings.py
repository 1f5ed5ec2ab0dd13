"""What a looped model says after each of its loops: one forward pass, read on the way.

Every token runs every loop; after each, coda and head are run on the state as it is, with keys and
values of their own. So the logits after loop k are those of the model with k loops, whatever the
number of loops of the pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokendepth.depth.base import Context, Policy, State
from tokendepth.depth.halting import VALUES, HaltingRule
from tokendepth.errors import NonFiniteError
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import with_loops
from tokendepth.numerics import all_finite, normalise
from tokendepth.types import PLAIN, Decision, Span

OnLoop = Callable[[int, Tensor, Tensor | None], None]
"""Told (loops that have run, states, logits) of the tokens, (token, ...), padding left out. Before
the first loop there are no logits."""


@dataclass(frozen=True, kw_only=True)
class LoopReadings:
    """Of each token after each loop, the first axis being loops from 1; float64.

    NaN where there is nothing to compare with: loop 1 for all but `change` and `loss`.
    """

    kl: Float[Tensor, "loop token"]
    """KL(p_{k-1} || p_k), nats."""
    change: Float[Tensor, "loop token"]
    """||s_k - s_{k-1}|| / ||s_k||."""
    acceleration: Float[Tensor, "loop token"]
    """||(s_k - s_{k-1}) - (s_{k-1} - s_{k-2})|| / ||s_k||."""
    turned: Float[Tensor, "loop token"]
    """1 where the likeliest token is another than after the loop before, else 0."""
    loss: Float[Tensor, "loop token"]
    """Nats of the target; NaN for tokens without one."""


class _Reader(Policy):
    """Keeps everybody, and reads before every loop but the first."""

    control: ClassVar[bool] = True

    def __init__(self, tell: OnLoop) -> None:
        super().__init__()
        self.tell = tell

    def start(self, hidden: Tensor, context: Context) -> State:
        """No loop has run."""
        del hidden, context
        return 0

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """The plain loop."""
        del span
        logits = context.read(context.mask) if state else None
        self.tell(state, hidden[context.mask], logits)
        return PLAIN, state + 1


@torch.no_grad()
def each_loop(
    decoder: Decoder,
    input_ids: Int[Tensor, "batch seq"],
    mask: Bool[Tensor, "batch seq"],
    loops: int,
    tell: OnLoop,
    *,
    row_keys: Int[Tensor, " batch"],
    seed: int = 0,
) -> None:
    """Run a looped model, and tell of its tokens before the first and after every loop.

    Args:
        decoder: with a core that runs again and again.
        input_ids: token ids.
        mask: False at padding.
        loops: how many.
        tell: called in order, 0 to `loops`.
        row_keys: for the draw of the looped state.
        seed: added to that of the draw, for another state to start from.

    Raises:
        ValueError: a model without such a core.
        NonFiniteError: logits are NaN or infinite.
    """
    order = with_loops(decoder.schedule, loops)
    order = replace(order, seed=order.seed + seed)
    end = order.first_visit[order.coda[0]] if order.coda else len(order.visits)

    def checked(loop: int, states: Tensor, logits: Tensor | None) -> None:
        if logits is not None and not all_finite(logits):
            raise NonFiniteError(
                f"the logits after loop {loop} are not finite ({logits.dtype}); measure in a "
                "wider --dtype, or fewer --loops"
            )
        tell(loop, states, logits)

    output = decoder(
        input_ids, None if bool(mask.all()) else mask, schedule=order, policy=_Reader(checked),
        row_keys=row_keys, collect=[end],
    )  # fmt: skip
    checked(loops, output.states[end][mask], output.logits[mask])


def read_loops(
    decoder: Decoder,
    input_ids: Int[Tensor, "batch seq"],
    mask: Bool[Tensor, "batch seq"],
    targets: Int[Tensor, "batch seq"],
    loops: int,
    row_keys: Int[Tensor, " batch"],
) -> LoopReadings:
    """All readings of a batch; targets are -1 where there is none.

    Raises:
        ValueError: a model without a core that runs again and again.
        NonFiniteError: logits are NaN or infinite.
    """
    states: list[Tensor] = []
    before: list[Tensor] = []
    rows: dict[str, list[Tensor]] = {
        name: [] for name in ("kl", "change", "acceleration", "turned")
    }
    losses: list[Tensor] = []
    wanted = targets[mask]

    def value(rule: HaltingRule, seen: list[Tensor], least: int) -> Tensor:
        if len(seen) < least:
            return torch.full((len(wanted),), torch.nan, dtype=torch.float64, device=mask.device)
        return VALUES[rule](seen).double()

    def tell(loop: int, now: Tensor, logits: Tensor | None) -> None:
        states.append(now.double())
        del states[:-3]
        if logits is None:
            return
        before.append(logits.double())
        del before[:-2]
        rows["change"].append(value("state", states, 2))
        rows["acceleration"].append(value("acceleration", states, 3))
        rows["kl"].append(value("kl", before, 2))
        rows["turned"].append(value("argmax_stable", before, 2))
        log_p = normalise(before[-1])[1]
        nats = -log_p.gather(1, wanted.clamp_min(0)[:, None]).squeeze(1)
        losses.append(nats.masked_fill(wanted < 0, torch.nan))

    each_loop(decoder, input_ids, mask, loops, tell, row_keys=row_keys)
    stacked = {name: torch.stack(values).cpu() for name, values in rows.items()}
    return LoopReadings(**stacked, loss=torch.stack(losses).cpu())
