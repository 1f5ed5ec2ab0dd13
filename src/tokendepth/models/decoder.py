"""The one decoder: it embeds, asks the policy, hands each span to an executor, and reads out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tokendepth.depth import few
from tokendepth.depth.base import Context, Policy, Turns, check_routing, unread, unwatched
from tokendepth.depth.dense import Dense
from tokendepth.depth.execute import ExecutorName
from tokendepth.models import build
from tokendepth.models.config import DecoderConfig
from tokendepth.models.schedule import stack
from tokendepth.models.walk import Record, Walk
from tokendepth.nn.cache import Cache
from tokendepth.nn.track import EMPTY
from tokendepth.numerics import wide
from tokendepth.types import Decision, Plan, Schedule, Span


@dataclass(frozen=True, kw_only=True)
class DecoderOutput:
    """What a forward pass gives. What can be derived from the decisions is made when asked for."""

    logits: Float[Tensor, "batch seq vocab"]
    """Of every position, or (batch, 1, vocab) with `only_last`."""
    decisions: tuple[Decision, ...]
    """The decisions, in the graph; one a span."""
    states: dict[int, Float[Tensor, "batch seq dim"]]
    """The collected ones: state k after k block executions."""
    padded_queries: int
    """Query slots that attention padded, over all gathered spans."""
    record: Record

    @cached_property
    def executed(self) -> Bool[Tensor, "batch seq visit"]:
        """True where a row's update was applied; False at padding. Equal for every executor."""
        return self.record.executed()

    @cached_property
    def checked(self) -> Bool[Tensor, "batch seq check"]:
        """Which rows each read-out on the way was made for, in order."""
        return self.record.checks()

    @cached_property
    def plan(self) -> Plan:
        """The decisions, detached, to be replayed."""
        return self.record.plan()

    @cached_property
    def penalty(self) -> dict[str, Float[Tensor, "batch seq"]]:
        """Each named penalty, summed over spans."""
        return self.record.penalty()


class Decoder(nn.Module):
    """A decoder whose depth is decided per token.

    Args:
        config: sizes and kinds of its parts.
        schedule: in which order blocks run; a plain stack with the first block as stem by default.
        policy: the decoder's own; every token runs every block by default.

    Raises:
        ValueError: parts that do not fit together.
    """

    def __init__(
        self,
        config: DecoderConfig,
        schedule: Schedule | None = None,
        policy: Policy | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.schedule = schedule or stack(config.num_blocks)
        self.policy = policy or Dense()
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(
            build.block(config, index) for index in range(config.num_blocks)
        )
        self.final_norm = build.norm(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=config.head_bias)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        self.position_embedding = (
            nn.Embedding(config.max_positions or 0, config.width)
            if config.positions == "learned"
            else None
        )
        self.rotary, self.window_rotary = build.rotaries(config)
        self.adapter = (
            nn.Linear(2 * config.width, config.width, bias=False) if config.adapter else None
        )

    def cache(self, *, room: int = 0, rewind: int = 0) -> Cache:
        """An empty cache under this decoder's rule for keys and values of skipped rows.

        Args:
            room: tokens to make place for at once; it grows beyond them.
            rewind: how many tokens `crop` must be able to take back where blocks have windows.
        """
        return Cache(self.config.key_value_rule, room, rewind)

    def read_out(
        self, rows: Float[Tensor, "row dim"], depth: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, "row vocab"]:
        """Final norm and head: the logits of states before the final norm, at any depth."""
        del depth
        logits, cap = few.product(self.final_norm(rows), self.head), self.config.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq"],
        attention_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        schedule: Schedule | None = None,
        policy: Policy | None = None,
        plan: Plan | None = None,
        routing: str | None = None,
        executor: ExecutorName = "dense",
        collect: Sequence[int] = (),
        row_keys: Int[Tensor, " batch"] | None = None,
        only_last: bool = False,
    ) -> DecoderOutput:
        """Run the model.

        Args:
            input_ids: token ids.
            attention_mask: 1 for tokens, 0 for padding on either side.
            cache: of earlier calls; extended in place.
            schedule: instead of the decoder's own.
            policy: instead of the decoder's own; `Dense()` forces every block.
            plan: decisions to replay; the policy is then not asked, but for its read-out.
            routing: one of the policy's; its first by default.
            executor: how decisions are run.
            collect: states to return, 0 to the number of block executions.
            row_keys: document or window of each row, for keyed draws and plans; 0 by default.
            only_last: read out the last token of each row alone; logits are (batch, 1, vocab).

        Raises:
            ValueError: an unknown routing, executor or state, or a schedule, rule and adapter that
                do not fit together.
        """
        chosen = policy or self.policy
        order = schedule or self.schedule
        _check_fit(self, order, collect)
        context = self._context(input_ids, attention_mask, cache, order, row_keys)
        context.routing = check_routing(chosen, routing)
        context.gates = chosen.gates if plan is None else plan.gates
        walk = Walk(self, chosen, plan, executor, context)
        states, hidden = self._states(walk, input_ids, collect)
        if cache is not None:
            cache.advance(context.mask, full=context.full)
            cache.memory = walk.memory()
        record = walk.record(only_last=only_last)
        last = record.last if only_last else None
        flat = hidden.flatten(0, 1) if last is None else hidden[last]
        if chosen.read_out is None:
            logits = self.read_out(flat)
        else:
            depth = record.executed().sum(dim=-1)
            logits = chosen.read_out(flat, depth.flatten() if last is None else depth[last])
        return DecoderOutput(
            logits=logits.unflatten(0, (len(input_ids), -1)),
            decisions=record.decisions,
            states=states,
            padded_queries=context.padded_queries,
            record=record,
        )

    def states(
        self, input_ids: Tensor, attention_mask: Tensor | None, wanted: Sequence[int]
    ) -> dict[int, Float[Tensor, "batch seq dim"]]:
        """The wanted states alone: spans after the last of them and the read-out are not run.

        Raises:
            ValueError: as `forward`.
        """
        _check_fit(self, self.schedule, wanted)
        context = self._context(input_ids, attention_mask, None, self.schedule, None)
        context.routing, context.gates = self.policy.routings[0], self.policy.gates
        walk = Walk(self, self.policy, None, "dense", context)
        return self._states(walk, input_ids, wanted, until=max(wanted))[0]

    def _states(
        self, walk: Walk, input_ids: Tensor, wanted: Sequence[int], until: int | None = None
    ) -> tuple[dict[int, Tensor], Tensor]:
        """The collected states, and what the walk ended with."""
        hidden = self.embed(input_ids, walk.context.positions)
        states = {0: hidden} if 0 in wanted else {}

        def watch(visit: int, make: Callable[[], Tensor]) -> None:
            if visit + 1 in wanted:
                states[visit + 1] = make()

        walk.context.watch = watch if wanted else unwatched
        return states, walk.run(hidden, until)

    def embed(self, input_ids: Tensor, positions: Tensor) -> Float[Tensor, "batch seq dim"]:
        """State 0.

        Raises:
            ValueError: a position beyond the table of learned ones.
        """
        hidden = self.embedding(input_ids)
        if self.config.embedding_scale != 1.0:
            hidden = hidden * torch.tensor(self.config.embedding_scale).to(hidden)
        if self.position_embedding is not None:
            last = int(positions.max()) if positions.numel() else 0
            if last >= self.position_embedding.num_embeddings:
                raise ValueError(
                    f"input_ids: position {last} is beyond the {self.config.max_positions} learned "
                    "positions (max_positions); shorten the text"
                )
            hidden = hidden + self.position_embedding(positions)
        return nn.functional.dropout(hidden, self.config.dropout, self.training)

    def turns(self, positions: Tensor) -> Turns:
        """Rotary angles for blocks without and with a window."""
        if self.rotary is None:
            return None, None
        dtype = self.embedding.weight.dtype
        plain = self.rotary.turn(positions, dtype)
        if self.window_rotary is None:
            return plain, plain
        return plain, self.window_rotary.turn(positions, dtype)

    def enter(
        self, span: Span, hidden: Tensor, embedded: Tensor | None
    ) -> Float[Tensor, "batch seq dim"]:
        """What the first block of a span reads: the state, adapted or normed as the span says."""
        if span.inject:
            assert self.adapter is not None
            assert embedded is not None
            hidden = self.adapter(torch.cat((hidden, embedded), dim=-1))
        if span.normed:
            normed = nn.functional.rms_norm(
                wide(hidden), hidden.shape[-1:], eps=self.config.norm_epsilon
            )
            hidden = normed.to(hidden.dtype)
        return hidden

    def _context(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None,
        order: Schedule,
        row_keys: Tensor | None,
    ) -> Context:
        _check_shapes(input_ids, attention_mask, row_keys)
        _check_cache(self, cache, len(input_ids))
        seen = None if cache is None else cache.seen
        full = attention_mask is None or bool(attention_mask.all())
        if attention_mask is None:
            mask = torch.ones_like(input_ids, dtype=torch.bool)
            positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
        else:
            mask = attention_mask.bool()
            positions = (mask.cumsum(dim=-1) - 1).clamp_min(0)
        positions = positions if seen is None else positions + seen[:, None]
        keys = (
            mask.new_zeros(len(mask), dtype=torch.long)
            if row_keys is None
            else row_keys.to(mask.device)
        )
        return Context(
            positions=positions,
            mask=mask,
            full=full,
            slots=positions if full else torch.where(mask, positions, EMPTY),
            row_keys=keys,
            turns=self.turns(positions),
            schedule=order,
            cache=self.cache() if cache is None else cache,
            alone=cache is None,
            forget=cache is None and self.config.key_value_rule != "carried",
            routing="hard",
            previous=None if cache is None else cache.memory,
            read=unread,
            watch=unwatched,
        )


def _check_fit(decoder: Decoder, order: Schedule, collect: Sequence[int]) -> None:
    if order.num_blocks > decoder.config.num_blocks:
        raise ValueError(
            f"schedule: it runs block {order.num_blocks - 1}; there are blocks 0 to "
            f"{decoder.config.num_blocks - 1}"
        )
    if order.injects and decoder.adapter is None:
        raise ValueError("schedule: it injects, but the config has adapter=False; set it to True")
    # One loop of a looped core is still one: it injects.
    if decoder.config.key_value_rule == "carried" and not (order.revisits or order.injects):
        raise ValueError(
            "key_value_rule: 'carried' needs a schedule in which a block runs more than once; "
            "take 'all' or 'kept'"
        )
    for state in collect:
        if not 0 <= state <= len(order.visits):
            raise ValueError(f"collect: got {state}; states are 0 to {len(order.visits)}")


def _check_shapes(
    input_ids: Tensor, attention_mask: Tensor | None, row_keys: Tensor | None
) -> None:
    if input_ids.ndim != 2:
        raise ValueError(
            f"input_ids: got shape {tuple(input_ids.shape)}; it must be (batch, seq), also for one "
            "text: input_ids[None]"
        )
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask: got shape {tuple(attention_mask.shape)} for ids of "
            f"{tuple(input_ids.shape)}; give the mask of this call's tokens alone, the cache knows "
            "those before"
        )
    if row_keys is not None and row_keys.shape != (len(input_ids),):
        raise ValueError(
            f"row_keys: got shape {tuple(row_keys.shape)} for a batch of {len(input_ids)}; it must "
            "have one key a row"
        )


def _check_cache(decoder: Decoder, cache: Cache | None, batch: int) -> None:
    if cache is None:
        return
    if cache.rule != decoder.config.key_value_rule:
        raise ValueError(
            f"cache: its rule is {cache.rule!r}, the decoder's key_value_rule is "
            f"{decoder.config.key_value_rule!r}; make it with decoder.cache()"
        )
    if cache.seen is not None and len(cache.seen) != batch:
        raise ValueError(f"cache: it holds a batch of {len(cache.seen)}, this call has {batch}")
    heads = (decoder.config.num_key_value_heads, decoder.config.head_dim)
    store = next(iter(cache.stores.values()), None)
    if store is not None and store.parts is not None and store.parts[0].shape[2:] != heads:
        raise ValueError(
            f"cache: it holds {store.parts[0].shape[2]} heads of {store.parts[0].shape[3]}, the "
            f"decoder has {heads[0]} of {heads[1]}; it is of another model"
        )
