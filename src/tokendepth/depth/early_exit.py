"""Early exit: a token leaves after the first block whose own prediction is certain enough.

BranchyNet (Teerapittayanon et al., arXiv:1709.01686) and its kin for decoders (Schuster et al.,
arXiv:2207.07061), as token-selective attention (arXiv:2605.05222) compares itself with: after each
routed block but the first lies an exit of a norm of its own and the shared head,

    logits_d = head(norm_d(h_d)),    leave at the first d with certainty(logits_d) > threshold

where d blocks have run. The last exit is the model's own read-out, so that a token which never
leaves gets what the dense model says. A read-out on the way is paid for by every token that is
still there (`check` in the ledger). With p = softmax(logits), certainty lies between 0 and 1:

    confidence  max p      margin  max p - second p      entropy  1 + sum p log p / log vocab
"""

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.depth.few import product
from tokendepth.numerics import entropy, normalise, wide
from tokendepth.types import Decision, Schedule, Span

Rule = Literal["confidence", "margin", "entropy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExitConfig:
    """Of `EarlyExit`."""

    threshold: float = 0.9
    """A token leaves where it is more certain than this; from 0 to 1, where none leaves."""
    rule: Rule = "confidence"
    """What certainty is; a threshold for one means nothing to another."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold: got {self.threshold}; it must lie between 0 and 1")
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule: got {self.rule!r}; allowed are {', '.join(get_args(Rule))}")

    def build(self, host: Host) -> "EarlyExit":
        """Exits before each routed span but the first, with norms like the final one."""
        norms = {depth: copy.deepcopy(host.final_norm) for depth in exit_depths(host.schedule)}
        read_out = ExitReadOut(norms, host.final_norm, host.head, host.config.logit_cap)
        return EarlyExit(read_out, self)


def exit_depths(schedule: Schedule) -> tuple[int, ...]:
    """Block executions up to each exit on the way, the coda's included."""
    coda = sum(len(schedule.spans[index].blocks) for index in schedule.coda)
    routed = [index for index, span in enumerate(schedule.spans) if span.routed]
    return tuple(schedule.first_visit[index] + coda for index in routed[1:])


class ExitReadOut:
    """A norm for each exit on the way, the model's own for all other depths, one head.

    No module: final norm and head stay the decoder's, and are saved as such.
    """

    def __init__(
        self, norms: dict[int, nn.Module], final_norm: nn.Module, head: nn.Linear, cap: float | None
    ) -> None:
        self.norms, self.final_norm, self.head, self.cap = norms, final_norm, head, cap

    def __call__(
        self, rows: Float[Tensor, "row dim"], depth: Int[Tensor, " row"]
    ) -> Float[Tensor, "row vocab"]:
        """Logits of rows for which `depth` blocks have run."""
        there = depth.unique().tolist()
        if len(there) == 1:
            normed = self.norms.get(there[0], self.final_norm)(rows)
        else:
            normed = self.final_norm(rows)
            for one in there:
                if one in self.norms:
                    mine = depth == one
                    normed = normed.masked_scatter(mine[:, None], self.norms[one](rows[mine]))
        logits = product(normed, self.head)
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


class EarlyExit(Policy):
    """Leave at the first exit that is certain.

    Args:
        read_out: the exits; `EarlyExitConfig.build` makes them.
        config: rule and threshold.
    """

    sticky: ClassVar[bool] = True

    def __init__(self, read_out: ExitReadOut, config: EarlyExitConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or EarlyExitConfig()
        self.threshold = config.threshold
        self.rule: Rule = config.rule
        self.depths = tuple(read_out.norms)
        """Of the exits on the way."""
        self.norms = nn.ModuleList(read_out.norms.values())
        self.read_out = read_out

    def start(self, hidden: Tensor, context: Context) -> State:
        """All tokens are there."""
        del hidden
        return context.mask

    def decide(
        self,
        span: Span,
        hidden: Float[Tensor, "batch seq dim"],
        state: State,
        context: Context,
    ) -> tuple[Decision, State]:
        """Read out the tokens that are there, and keep the uncertain ones.

        Raises:
            ValueError: a schedule with an exit that was not made.
        """
        del span, hidden
        spans = context.schedule.spans
        if not any(one.routed for one in spans[: context.span_index]):
            return Decision(), state
        self._check(context.schedule)
        with torch.no_grad():
            above = certainty(context.read(state), self.rule) - self.threshold
        there = torch.zeros_like(state).masked_scatter(state, above <= 0.0)
        far = torch.full(state.shape, torch.inf, dtype=above.dtype, device=state.device)
        return Decision(keep=there, margin=far.masked_scatter(state, above)), there

    def _check(self, schedule: Schedule) -> None:
        lacking = sorted(set(exit_depths(schedule)) - set(self.depths))
        if lacking:
            raise ValueError(
                f"schedule: it has an exit after {lacking[0]} blocks, and exits were made after "
                f"{', '.join(map(str, self.depths)) or 'none'}; give the schedule that the policy "
                "was made with"
            )


def certainty(logits: Float[Tensor, "row vocab"], rule: Rule) -> Float[Tensor, " row"]:
    """How certain each prediction is, between 0 and 1, in float32 at least."""
    p, log_p = normalise(wide(logits))
    if rule == "confidence":
        return p.amax(dim=-1)
    if rule == "margin":
        best = p.topk(2, dim=-1).values
        return best[:, 0] - best[:, 1]
    return 1.0 - entropy(p, log_p) / torch.tensor(p.shape[-1]).to(p).log()
