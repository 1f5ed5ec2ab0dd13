"""Toy policies, one for each way of deciding. None is longer than 30 lines."""

import torch
from torch import nn

from tokendepth.depth.base import Policy
from tokendepth.nn.cache import Memory
from tokendepth.types import Decision


class UpdateGate(Policy):
    """A router on the state gates each residual add of the block."""

    gates = "update"
    routings = ("soft", "hard", "hard_soft")

    def __init__(self, width, shift=0.0):
        super().__init__()
        self.router, self.shift = nn.Linear(width, 1), shift

    def decide(self, span, hidden, state, context):
        logit = self.router(hidden).squeeze(-1) - self.shift
        weight, keep = torch.sigmoid(logit), logit > 0
        cost = {"depth": weight}
        if context.routing == "soft":
            return Decision(weight=weight, penalty=cost), state
        weight = weight if context.routing == "hard_soft" else None
        return Decision(keep=keep, weight=weight, penalty=cost, margin=logit), state

    def flops(self, *, tokens, spans):
        return 2 * self.router.in_features * tokens * spans


class SpanGate(Policy):
    """A router on the normed attention input gates the change of the whole span."""

    gates = "span"
    routings = ("hard_soft", "soft", "hard")

    def __init__(self, width, shift=0.0):
        super().__init__()
        self.router, self.shift = nn.Linear(width, 1), shift

    def decide(self, span, hidden, state, context):
        logit = self.router(context.attention_input()).squeeze(-1) - self.shift
        weight = None if context.routing == "hard" else torch.sigmoid(logit)
        keep = None if context.routing == "soft" else logit > 0
        return Decision(keep=keep, weight=weight, margin=logit), state

    def flops(self, *, tokens, spans):
        return 2 * self.router.in_features * tokens * spans


class ExitNorms(nn.Module):
    """A read-out with a norm gain for each depth."""

    def __init__(self, head, width, depths):
        super().__init__()
        self.head, self.gains = head, nn.Parameter(1 + 0.1 * torch.randn(depths + 1, width))

    def forward(self, rows, depth):
        return self.head(nn.functional.rms_norm(rows, rows.shape[-1:]) * self.gains[depth])


class StickyExit(Policy):
    """Leave when the own read-out is confident."""

    sticky = True

    def __init__(self, read_out, confidence):
        super().__init__()
        self.read_out, self.confidence = read_out, confidence

    def start(self, hidden, context):
        return context.mask

    def decide(self, span, hidden, state, context):
        best = context.read(state).softmax(-1).amax(-1)
        go_on = torch.zeros_like(state).masked_scatter(state, best < self.confidence)
        far = torch.full_like(state, torch.inf, dtype=best.dtype)
        margin = far.masked_scatter(state, best - self.confidence)
        return Decision(keep=go_on, margin=margin), go_on


class HaltByReadOut(Policy):
    """Halt when two successive read-outs through the coda agree."""

    sticky = True

    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def start(self, hidden, context):
        return context.mask, None

    def decide(self, span, hidden, state, context):
        alive, before = state
        log_p = context.read(alive).log_softmax(-1)
        now = log_p.new_zeros((*alive.shape, log_p.shape[-1])).masked_scatter(
            alive[..., None], log_p
        )
        if before is None:
            return Decision(keep=alive), (alive, now)
        moved = (before.exp() * (before - now)).sum(-1)
        alive = alive & (moved > self.threshold)
        return Decision(keep=alive), (alive, now)


class UpFront(Policy):
    """A depth chosen from the first state; the sets of later spans are nested."""

    def __init__(self, width, spans):
        super().__init__()
        self.router = nn.Linear(width, spans)

    def start(self, hidden, context):
        return self.router(hidden).argmax(-1), 0

    def decide(self, span, hidden, state, context):
        depth, number = state
        return Decision(keep=depth >= number), (depth, number + 1)

    def flops(self, *, tokens, spans):
        del spans  # once, from the first state
        return 2 * self.router.in_features * self.router.out_features * tokens


class Tired(Policy):
    """A token runs if it scores above what its row's earlier tokens have spent."""

    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, 1)

    def start(self, hidden, context):
        scores, before = self.router(hidden).squeeze(-1), context.previous
        spent, ran, after = torch.zeros_like(scores[:, 0]), [], []
        if before is not None:
            newest = before.positions.argmax(1, keepdim=True)
            there = before.positions.gather(1, newest) >= 0
            spent = before.values["spent"].gather(1, newest).where(there, 0.0).squeeze(1)
        for score, real in zip(scores.unbind(1), context.mask.unbind(1), strict=True):
            ran.append(score > spent)
            spent = torch.where(real, spent / 2 + ran[-1], spent)
            after.append(spent)
        return torch.stack(ran, 1), torch.stack(after, 1)

    def decide(self, span, hidden, state, context):
        return Decision(keep=state[0]), state

    def remember(self, state, context):
        old = context.previous or Memory(context.slots[:, :0], {"spent": state[1][:, :0]})
        spent = torch.cat((old.values["spent"], state[1]), 1)
        return Memory(torch.cat((old.positions, context.slots), 1), {"spent": spent})

    def flops(self, *, tokens, spans):
        return 2 * self.router.in_features * tokens  # once, from the first state


class BatchTopK(Policy):
    """The highest scores of the whole batch run: not causal."""

    routings = ("hard",)

    def __init__(self, width, share):
        super().__init__()
        self.router, self.share = nn.Linear(width, 1), share

    def causal(self, routing):
        return False

    def decide(self, span, hidden, state, context):
        score = self.router(hidden).squeeze(-1).masked_fill(~context.mask, -torch.inf)
        count = int(self.share * context.mask.sum())
        least = score.flatten().topk(max(count, 1)).values[-1]
        return Decision(keep=score >= least), state

    def flops(self, *, tokens, spans):
        return 2 * self.router.in_features * tokens * spans


class Peek(Policy):
    """Reads before every span, and lets another policy decide: what a check costs and gives."""

    sticky = True

    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen = inner, []

    def start(self, hidden, context):
        return context.mask

    def decide(self, span, hidden, state, context):
        self.seen.append((context.span_index, state, context.read(state)))
        decision, _ = self.inner.decide(span, hidden, None, context)
        return decision, state & decision.keep
