"""Beam search: of each prompt, the continuation whose log-probability is highest for its length."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tokendepth.engine.decode import GenerateOptions, NewToken, Stepper
from tokendepth.engine.sampling import penalised
from tokendepth.models.decoder import Decoder
from tokendepth.numerics import wide


@dataclass(frozen=True)
class _Beam:
    """A continuation so far."""

    score: float
    """Sum of log-probabilities."""
    tokens: tuple[NewToken, ...] = ()

    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


class _Prompt:
    """The open beams of one prompt and the continuations that have ended."""

    def __init__(self, number: int, ids: Sequence[int], options: GenerateOptions) -> None:
        self.number, self.ids, self.options = number, list(ids), options
        self.open = [_Beam(0.0)]
        self.ended: list[tuple[float, _Beam]] = []
        self.parents = [0]

    def held(self) -> list[list[int]]:
        return [self.ids + beam.ids() for beam in self.open]

    def extend(
        self,
        scores: Float[Tensor, "beam vocab"],
        sure: Float[Tensor, "beam vocab"],
        depths: Sequence[int],
        stops: Collection[int],
    ) -> None:
        """The best `beams` that go on; those that stop among the best are set aside."""
        size = self.options.beams
        total = scores + torch.tensor([[beam.score] for beam in self.open], device=scores.device)
        best = total.flatten().topk(min((1 + len(stops)) * size, total.numel()))
        beams, self.open, self.parents = self.open, [], []
        for rank, (score, at) in enumerate(
            zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ):
            parent, token = divmod(at, scores.shape[1])
            new = NewToken(
                row=self.number, id=token, depth=depths[parent],
                confidence=float(sure[parent, token].exp()),
            )  # fmt: skip
            made = _Beam(score, (*beams[parent].tokens, new))
            if token in stops:
                if rank < size:
                    self.ended.append((self._worth(made), made))
            elif len(self.open) < size:
                self.open.append(made)
                self.parents.append(parent)
        self.ended = sorted(self.ended, key=lambda one: -one[0])[:size]

    def done(self) -> bool:
        """No open beam can be worth more than the worst that is kept, if it ended now."""
        if len(self.ended) < self.options.beams:
            return False
        return self._worth(self.open[0]) <= self.ended[-1][0]

    def best(self) -> _Beam:
        """The continuation that is given."""
        every = [*self.ended]
        if not self.done():
            every += [(self._worth(beam), beam) for beam in self.open]
        return max(every, key=lambda one: one[0])[1]

    def _worth(self, beam: _Beam) -> float:
        return beam.score / len(beam.tokens) ** self.options.length_penalty


def beam_search(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    options: GenerateOptions,
    *,
    stops: Collection[int] = (),
    row_keys: Sequence[int] | None = None,
) -> list[tuple[NewToken, ...]]:
    """The best continuation of each prompt, with a stop token at its end where it has stopped.

    A prompt is done when as many continuations have ended as there are beams, and the best open
    one is worth less than all of them. Its rows then leave the batch.

    Args:
        decoder: the model.
        prompts: token ids.
        options: `beams` of them, `length_penalty`, and how to run.
        stops: token ids that end a continuation.
        row_keys: keys of the prompts for a policy's keyed draws; 0, 1, ... unless given.

    Raises:
        ValueError: as `stream`.
    """
    options.check(len(prompts))
    step = Stepper(decoder, prompts, options, row_keys)
    every = [_Prompt(number, ids, options) for number, ids in enumerate(prompts)]
    open_prompts, output = every, step.prefill(prompts)
    for number in range(step.most):
        depths = output.executed[step.last(output)].sum(dim=-1).tolist()
        logits, at, rows = output.logits[:, 0], 0, []
        for prompt in open_prompts:
            mine = slice(at, at + len(prompt.open))
            sure = wide(logits[mine]).log_softmax(dim=-1)
            scores = penalised(sure, prompt.held(), options.sampling.repetition_penalty)
            prompt.extend(scores, sure, depths[mine], stops)
            if not prompt.done():
                rows += [at + parent for parent in prompt.parents]
            at = mine.stop
        open_prompts = [prompt for prompt in open_prompts if not prompt.done()]
        if not open_prompts or number + 1 == step.most:
            break
        if rows != list(range(at)):
            step.keep(rows)
        chosen = [beam.tokens[-1].id for prompt in open_prompts for beam in prompt.open]
        output = step.next(torch.tensor(chosen, device=step.device))
    return [prompt.best().tokens for prompt in every]
