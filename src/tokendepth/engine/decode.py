"""The decoding loop: prefill, then a token a step for every row that is not done.

Rows whose text has ended leave the batch: the cache, the compute and the limits of depth go on
with the others, and no row's tokens depend on who shares its batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokendepth.depth.base import Policy, check_routing
from tokendepth.depth.execute import ExecutorName, check_executor
from tokendepth.depth.limited import limited
from tokendepth.engine.sampling import Sampling, choose
from tokendepth.errors import NonFiniteError
from tokendepth.models.decoder import Decoder, DecoderOutput
from tokendepth.nn.cache import Cache
from tokendepth.numerics import all_finite, rows_finite

DEFAULT_NEW_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """How far to go on, and how."""

    max_new_tokens: int | None = None
    """Stop a text after so many new tokens; 64, or what a model with learned positions has left,
    unless given."""
    sampling: Sampling = field(default_factory=Sampling)
    beams: int = 1
    """Above 1: keep so many of the most likely continuations of each prompt, and give the best."""
    length_penalty: float = 1.0
    """Of beams: log-probabilities are divided by length to this power; above 0 favours longer."""
    stop: tuple[str, ...] = ()
    """Stop at any of these strings, which are cut off."""
    depth: tuple[int, ...] = ()
    """At most so many block executions a token before the coda: one number for all prompts, or one
    a prompt."""
    routing: str | None = None
    """How the policy decides; its hard routing unless given."""
    executor: ExecutorName = "gathered"
    """How decisions are run."""
    chunk: int | None = None
    """Read prompts in pieces of so many tokens; whole unless given."""

    def check(self, num_prompts: int) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        for name in ("max_new_tokens", "beams", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}; it must be at least 1")
        if len(self.depth) not in (0, 1, num_prompts):
            raise ValueError(
                f"depth: got {len(self.depth)} limits for {num_prompts} prompts; give one for all "
                "or one a prompt"
            )
        if not math.isfinite(self.length_penalty):
            raise ValueError(
                f"length_penalty: got {self.length_penalty}; it must be a finite number"
            )
        if "" in self.stop:
            raise ValueError("stop: got an empty string, at which every text stops at once")
        self.sampling.check()
        check_executor(self.executor)
        if self.beams > 1 and (self.sampling.temperature > 0 or self.stop):
            raise ValueError(
                "beams: beam search takes the most likely continuation; it goes with neither "
                "temperature nor stop"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """One generated token."""

    row: int
    """Of which prompt."""
    id: int
    depth: int
    """Block executions that made the logits it was chosen from."""
    confidence: float
    """Probability that the model itself gives it, 0 to 1."""


Ended = Callable[[int, Sequence[int]], bool]
"""(prompt, its new tokens) -> whether the text ends with the last of them."""


def stream(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    options: GenerateOptions,
    *,
    ended: Ended = lambda row, ids: False,
    row_keys: Sequence[int] | None = None,
    cache: Cache | None = None,
) -> Iterator[tuple[NewToken, ...]]:
    """Generate token by token.

    Args:
        decoder: the model; its own policy decides depths.
        prompts: token ids, of any lengths, at least one each.
        options: but for `beams`, `length_penalty` and `stop`.
        ended: asked after each token.
        row_keys: keys of the prompts for keyed draws; 0, 1, ... unless given.
        cache: of earlier turns, one row a prompt; the prompts go on from it, and it is extended in
            place by all but the last new token, with which the next turn begins. All rows then run
            to the end. The repetition penalty knows the tokens of this turn alone.

    Yields:
        The new tokens of one step: one of each prompt that has not ended.

    Raises:
        ValueError: an empty prompt, a policy that looks at later tokens, an option out of range.
        NonFiniteError: logits that are NaN or infinite.
    """
    options.check(len(prompts))
    step = Stepper(decoder, prompts, options, row_keys, cache)
    rows = list(range(len(prompts)))
    held = [list(prompt) for prompt in prompts]
    new: list[list[int]] = [[] for _ in prompts]
    open_rows = set(rows)
    output = step.prefill(prompts)
    for number in range(step.most):
        chosen, confidence = choose(
            output.logits[:, 0], [held[row] for row in rows], step.keys, step.positions(),
            options.sampling,
        )  # fmt: skip
        depth = output.executed[step.last(output)].sum(dim=-1)
        made = tuple(
            NewToken(row=row, id=int(token), depth=int(deep), confidence=float(sure))
            for row, token, deep, sure in zip(rows, chosen, depth, confidence, strict=True)
            if row in open_rows
        )
        for token in made:
            held[token.row].append(token.id)
            new[token.row].append(token.id)
            if ended(token.row, new[token.row]):
                open_rows.discard(token.row)
        yield made
        if not open_rows or number + 1 == step.most:
            return
        if cache is None and len(open_rows) < len(rows):
            staying = [at for at, row in enumerate(rows) if row in open_rows]
            step.keep(staying)
            rows, chosen = [rows[at] for at in staying], chosen[staying]
        output = step.next(chosen)


class Stepper:
    """The decoder, its cache and what belongs to the rows that are still in the batch."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        options: GenerateOptions,
        row_keys: Sequence[int] | None = None,
        cache: Cache | None = None,
    ) -> None:
        _check_prompts(decoder, prompts, cache)
        self.most = _most_new(decoder, prompts, options, cache)
        """New tokens of each row."""
        self.decoder, self.options = decoder, options
        self.device = decoder.embedding.weight.device
        self.routing = check_routing(decoder.policy, options.routing or _hard(decoder.policy))
        if not decoder.policy.causal(self.routing):
            raise ValueError(
                f"routing: under {self.routing!r} {type(decoder.policy).__name__} decides by later "
                "tokens, which do not exist yet; take a causal routing"
            )
        keys = range(len(prompts)) if row_keys is None else row_keys
        if len(keys) != len(prompts):
            raise ValueError(
                f"row_keys: got {len(keys)} for {len(prompts)} prompts; give one a prompt"
            )
        self.keys = torch.tensor(list(keys), device=self.device)
        limits = options.depth * (len(prompts) if len(options.depth) == 1 else 1)
        self.limits = torch.tensor(limits, device=self.device) if limits else None
        room = max(len(prompt) for prompt in prompts) + self.most
        self.cache = decoder.cache(room=room) if cache is None else cache
        self.policy = self._policy()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> DecoderOutput:
        """Read the prompts, the shorter ones padded on the left."""
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, longest - len(prompt) :] = 1
        given = None if bool(mask.all()) else mask.to(self.device)
        ids, size, output = ids.to(self.device), self.options.chunk or longest, None
        for start in range(0, longest, size):
            part = slice(start, start + size)
            output = self._run(ids[:, part], None if given is None else given[:, part])
        assert output is not None
        return output

    def next(self, tokens: Int[Tensor, " row"]) -> DecoderOutput:
        """One more token of every row."""
        return self._run(tokens[:, None], None)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows of the batch alone; some may come twice."""
        at = torch.tensor(list(rows), device=self.device)
        self.cache.reorder(at)
        self.keys = self.keys[at]
        if self.limits is not None:
            self.limits = self.limits[at]
            self.policy = self._policy()

    def positions(self) -> Int[Tensor, " row"]:
        """Of the tokens that are chosen next."""
        assert self.cache.seen is not None
        return self.cache.seen

    def last(self, output: DecoderOutput) -> tuple[Tensor, Tensor]:
        """Where each row's last token lies in a call."""
        return output.record.last

    def _run(self, ids: Tensor, mask: Tensor | None) -> DecoderOutput:
        with torch.no_grad():
            output = self.decoder(
                ids,
                mask,
                cache=self.cache,
                policy=self.policy,
                routing=self.routing,
                executor=self.options.executor,
                row_keys=self.keys,
                only_last=True,
            )
        _check_logits(output.logits[:, 0], self.keys, self.positions())
        return output

    def _policy(self) -> Policy:
        own = self.decoder.policy
        return own if self.limits is None else limited(own, self.limits)


def _hard(policy: Policy) -> str:
    """Generation is of hard decisions where the policy has them."""
    return "hard" if "hard" in policy.routings else policy.routings[0]


def _check_logits(
    logits: Float[Tensor, "row vocab"], keys: Int[Tensor, " row"], seen: Int[Tensor, " row"]
) -> None:
    if all_finite(logits):
        return
    row = int((~rows_finite(logits)).nonzero()[0])
    raise NonFiniteError(
        f"logits: NaN or infinity after {int(seen[row])} tokens of the prompt with row key "
        f"{int(keys[row])}; check the weights, or take a wider dtype"
    )


def _check_prompts(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    cache: Cache | None,
) -> None:
    if not prompts:
        raise ValueError("prompts: got none; give at least one")
    for number, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompts: prompt {number + 1} has no tokens; give at least one")
        wrong = [token for token in prompt if not 0 <= token < decoder.config.vocab_size]
        if wrong:
            raise ValueError(
                f"prompts: prompt {number + 1} has token {wrong[0]}; the model knows 0 to "
                f"{decoder.config.vocab_size - 1}"
            )
    if cache is not None and cache.seen is not None and len(cache.seen) != len(prompts):
        raise ValueError(f"cache: it holds {len(cache.seen)} rows for {len(prompts)} prompts")


def _most_new(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    options: GenerateOptions,
    cache: Cache | None,
) -> int:
    """New tokens of each row: those asked for, or as many as there are positions.

    Raises:
        ValueError: more than that.
    """
    if decoder.position_embedding is None:
        return options.max_new_tokens or DEFAULT_NEW_TOKENS
    before = 0 if cache is None or cache.seen is None else int(cache.seen.max())
    read = before + max(len(prompt) for prompt in prompts)
    positions = decoder.position_embedding.num_embeddings
    left = positions + 1 - read  # the last new token is not read
    wanted = options.max_new_tokens or max(1, min(left, DEFAULT_NEW_TOKENS))
    if wanted > left:
        raise ValueError(
            f"max_new_tokens: {read + wanted - 1} positions would be needed, and the model has "
            f"learned {positions}; give at most {max(left, 0)}, or a shorter prompt"
        )
    return wanted
