"""Halting without training: a token stops when a rule says that its output or state has settled.

J. Logan, depth-recurrent convergence (the rule on KL); J. Geiping et al., arXiv:2502.05171 (rules
on states and on the likeliest token); Two-Scale Latent Dynamics, arXiv:2509.23314 (second
difference). With s_k the state after k loops, p_k the prediction that coda and head make of it, and
n the number of loops between two checks:

    kl              KL(p_{k-n} || p_k)                                            reads
    entropy         H(p_k)                                                        reads
    margin          1 - (largest of p_k - second largest)                         reads
    argmax_stable   0 where p_{k-n} and p_k have the same largest, else 1         reads
    state           ||s_k - s_{k-n}|| / ||s_k||
    acceleration    ||(s_k - s_{k-n}) - (s_{k-n} - s_{k-2n})|| / ||s_k||

A check holds where the value lies below the threshold; a token halts once `patience` checks in a
row have held. A value that is no longer below it breaks the row only from `hysteresis` times the
threshold on. Rules that read pay for coda and head at each check: the ledger's line `check`.

Values are computed in float32 at least. The margins that decisions report are distances from the
threshold; of `kl` they are distances between the roots of twice the values, since a small KL is
about half the mean square of what log-probabilities change by, and rounding moves those.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.numerics import entropy, normalise, small_kl, wide
from tokendepth.types import Decision, Span

HaltingRule = Literal["kl", "state", "acceleration", "entropy", "margin", "argmax_stable"]
HALTING_RULES: tuple[HaltingRule, ...] = get_args(HaltingRule)
READS: tuple[HaltingRule, ...] = ("kl", "entropy", "margin", "argmax_stable")
"""Rules that pay for a read-out at each check."""
BACK: dict[HaltingRule, int] = {
    "kl": 1, "state": 1, "acceleration": 2, "entropy": 0, "margin": 0, "argmax_stable": 1,
}  # fmt: skip
"""How many checks before this one a rule compares with."""
CHUNK = 2**24
"""Numbers of a distribution that are worked on at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltingConfig:
    """Of `Halting`."""

    rule: HaltingRule = "kl"
    threshold: float | None = None
    """A check holds below it: nats for `kl` and `entropy`, a ratio for `state` and `acceleration`,
    a probability for `margin`. None for `argmax_stable`, which has none."""
    patience: int = 1
    """Checks in a row that must hold."""
    hysteresis: float = 1.0
    """A row of checks is broken from so many times the threshold on; at least 1."""
    least: int = 2
    """Loops that every token runs before the first check."""
    every: int = 1
    """Loops between two checks."""

    def __post_init__(self) -> None:
        if self.rule not in HALTING_RULES:
            raise ValueError(f"rule: got {self.rule!r}; allowed are {', '.join(HALTING_RULES)}")
        if (self.threshold is None) != (self.rule == "argmax_stable"):
            word = "has none: leave it out" if self.rule == "argmax_stable" else "needs one"
            raise ValueError(f"threshold: got {self.threshold}; the rule {self.rule!r} {word}")
        if self.threshold is not None and not self.threshold >= 0.0:
            raise ValueError(f"threshold: got {self.threshold}; it must be at least 0")
        if not self.hysteresis >= 1.0:
            raise ValueError(f"hysteresis: got {self.hysteresis}; it must be at least 1")
        for name in ("patience", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}; it must be at least 1")
        first = self.every * BACK[self.rule] + (self.rule in READS)
        if self.least < max(first, 1):
            raise ValueError(
                f"least: got {self.least}; {self.rule!r} with a check every {self.every} loops can "
                f"first tell after {max(first, 1)}"
            )

    def build(self, host: Host) -> "Halting":
        """The policy."""
        del host
        return Halting(self)


@dataclass(frozen=True, kw_only=True)
class _Progress:
    """What is remembered between the loops of a call."""

    loops: int
    """That have run."""
    live: Bool[Tensor, "batch seq"]
    """Tokens that go on."""
    streak: Int[Tensor, "batch seq"]
    """Checks in a row that have held."""
    seen: tuple[Float[Tensor, "row last"], ...]
    """Of the live tokens, the last logits or states that were looked at, oldest first."""


class Halting(Policy):
    """Tokens stop, once and for all, when the rule holds; on a stack, a block counts as a loop.

    Args:
        config: which rule, and how patient.
    """

    sticky: ClassVar[bool] = True

    def __init__(self, config: HaltingConfig) -> None:
        super().__init__()
        self.config = config
        self.rule: HaltingRule = config.rule
        self.threshold = config.threshold
        self.patience, self.hysteresis = config.patience, config.hysteresis
        self.least, self.every = config.least, config.every

    def start(self, hidden: Tensor, context: Context) -> State:
        """Everybody goes on."""
        del hidden
        return _Progress(
            loops=0,
            live=context.mask,
            streak=context.positions.new_zeros(context.mask.shape),
            seen=(),
        )

    @torch.no_grad()
    def decide(
        self,
        span: Span,
        hidden: Float[Tensor, "batch seq dim"],
        state: State,
        context: Context,
    ) -> tuple[Decision, State]:
        """Which tokens run one loop more."""
        del span
        now: _Progress = state
        after = replace(now, loops=now.loops + 1)
        keep = now.live if now.loops >= self.least else None
        if not self.looks(now.loops):
            return Decision(keep=keep), after
        looked = context.read(now.live) if self.rule in READS else hidden[now.live]
        seen = (*now.seen, looked)
        if now.loops < self.least:
            margin = self._spread(now.live, _gap(looked)) if self.rule == "argmax_stable" else None
            return Decision(margin=margin), replace(after, seen=seen)
        value = VALUES[self.rule](seen)
        streak, margin = self.judge(value, now.streak[now.live], looked)
        go_on = streak < self.patience
        live = now.live.masked_scatter(now.live, go_on)
        kept = seen[len(seen) - BACK[self.rule] :]
        after = replace(
            after,
            live=live,
            streak=now.streak.masked_scatter(now.live, streak),
            seen=kept if bool(go_on.all()) else tuple(one[go_on] for one in kept),
        )
        return Decision(keep=live, margin=self._spread(now.live, margin)), after

    def looks(self, loops: int) -> bool:
        """Whether anything is looked at after so many loops: the same in every call."""
        first = self.least - self.every * BACK[self.rule]
        return loops >= first and (loops - first) % self.every == 0

    def judge(
        self, value: Float[Tensor, " row"], streak: Int[Tensor, " row"], looked: Tensor
    ) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
        """The row of checks that have held, and how near it was."""
        if self.threshold is None:
            return torch.where(value < 0.5, streak + 1, 0), _gap(looked)
        upper = self.threshold * self.hysteresis
        broken = torch.where(value < upper, streak, 0)
        streak = torch.where(value < self.threshold, streak + 1, broken)
        low, high = (
            _unit(self.rule, value) - _unit(self.rule, one) for one in (self.threshold, upper)
        )
        return streak, torch.where(low.abs() <= high.abs(), low, high)

    def _spread(
        self, live: Bool[Tensor, "batch seq"], values: Float[Tensor, " row"]
    ) -> Float[Tensor, "batch seq"]:
        """In their places; what was not compared is infinitely far from a threshold."""
        far = torch.full(live.shape, torch.inf, dtype=values.dtype, device=values.device)
        return far.masked_scatter(live, values)


def _unit(rule: HaltingRule, value: Any) -> Any:
    """A value in the unit of its margin."""
    return (2 * value) ** 0.5 if rule == "kl" else value


def _by_chunks(
    tell: Callable[..., Float[Tensor, " row"]], *logits: Float[Tensor, "row vocab"]
) -> Float[Tensor, " row"]:
    """Over some rows at a time: a large vocabulary of floats is held few times at once."""
    size = max(1, CHUNK // max(1, logits[0].shape[-1]))
    parts = zip(*(one.split(size) for one in logits), strict=True)
    found = [tell(*(wide(one) for one in part)) for part in parts]
    return torch.cat(found) if found else wide(logits[0][:, 0])


def _kl(before: Tensor, now: Tensor) -> Float[Tensor, " row"]:
    return small_kl(*normalise(before), *normalise(now))


def _entropy(now: Tensor) -> Float[Tensor, " row"]:
    return entropy(*normalise(now))


def _difference(now: Tensor) -> Float[Tensor, " row"]:
    """Of the largest and the second largest probability."""
    best = normalise(now)[0].topk(min(2, now.shape[-1]), dim=-1).values
    return best[:, 0] - (best[:, 1] if best.shape[-1] > 1 else 0.0)


def _gap(looked: Float[Tensor, "row vocab"]) -> Float[Tensor, " row"]:
    return _by_chunks(_difference, looked)


def _relative(change: Tensor, now: Tensor) -> Float[Tensor, " row"]:
    size = torch.linalg.vector_norm(wide(now), dim=-1)
    return torch.linalg.vector_norm(change, dim=-1) / size.clamp_min(1e-30)


def _state(seen: Sequence[Tensor]) -> Float[Tensor, " row"]:
    before, now = seen[-2:]
    return _relative(wide(now) - wide(before), now)


def _acceleration(seen: Sequence[Tensor]) -> Float[Tensor, " row"]:
    first, before, now = (wide(one) for one in seen[-3:])
    return _relative((now - before) - (before - first), now)


def _argmax(seen: Sequence[Tensor]) -> Float[Tensor, " row"]:
    before, now = seen[-2:]
    return (before.argmax(dim=-1) != now.argmax(dim=-1)).float()


VALUES: dict[HaltingRule, Callable[[Sequence[Tensor]], Float[Tensor, " row"]]] = {
    "kl": lambda seen: _by_chunks(_kl, *seen[-2:]),
    "entropy": lambda seen: _by_chunks(_entropy, seen[-1]),
    "margin": lambda seen: 1.0 - _gap(seen[-1]),
    "argmax_stable": _argmax,
    "state": _state,
    "acceleration": _acceleration,
}
"""What each rule compares with its threshold, from what was looked at, the newest last."""
