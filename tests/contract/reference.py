"""The specification: one sequence, one token and one block at a time, in Python loops.

Nothing of the executors, stores, masks, blocks or attention is used but their weights; which keys a
query sees is spelled out as a set.
"""

import torch
from torch.nn import functional

from tokendepth.numerics import keyed_normal


def run(decoder, ids, key, keep, weight):
    """States of one sequence before the read-out, under given decisions.

    `key` is the row's key, `keep` is (seq, span) booleans, `weight` (seq, span) or None.
    """
    order, gates, rule = decoder.schedule, decoder.policy.gates, decoder.config.key_value_rule
    length = len(ids)
    hidden = [_embed(decoder, token, at) for at, token in enumerate(ids)]
    embedded = None
    kept_slots = {}
    for number, span in enumerate(order.spans):
        if span.inject and embedded is None:
            embedded = list(hidden)
            if order.start in ("normal", "truncated"):
                cut = 3.0 if order.start == "truncated" else None
                hidden = [
                    order.start_std
                    * keyed_normal(order.seed, len(one), key, torch.tensor(at), within=cut).to(one)
                    for at, one in enumerate(hidden)
                ]
        entry = hidden
        if span.inject:
            pairs = zip(hidden, embedded, strict=True)
            entry = [decoder.adapter(torch.cat(pair)) for pair in pairs]
        if span.normed:
            entry = [
                one / (one.square().mean() + decoder.config.norm_epsilon).sqrt() for one in entry
            ]
        state = list(entry)
        runs = [bool(keep[at, number]) for at in range(length)]
        scale = [1.0 if weight is None else weight[at, number] for at in range(length)]
        inner = scale if gates == "update" else [1.0] * length
        for index in span.blocks:
            state = _block(decoder, index, span.loop, state, runs, inner, rule, kept_slots)
        hidden = [
            _leave(hidden[at], state[at], scale[at], gates) if runs[at] else hidden[at]
            for at in range(length)
        ]
    return torch.stack(hidden)


def read_out(decoder, row):
    """Logits of one state."""
    config = decoder.config
    logits = decoder.head(_norm(config, decoder.final_norm, row))
    return logits if config.logit_cap is None else _cap(logits, config.logit_cap)


def _embed(decoder, token, at):
    embedded = decoder.embedding.weight[token] * decoder.config.embedding_scale
    if decoder.config.positions == "learned":
        embedded = embedded + decoder.position_embedding.weight[at]
    return embedded


def _leave(old, new, scale, gates):
    return old + scale * (new - old) if gates == "span" else new


def _block(decoder, index, loop, state, runs, scale, rule, slots):
    config, block = decoder.config, decoder.blocks[index]
    attention = block.attention
    fresh = {}
    for at, one in enumerate(state):
        if runs[at] or rule == "all":
            normed = _norm(config, block.attention_norm, one)
            keys = _heads(config, attention.key(normed), attention.key_norm)
            fresh[at] = (
                _turn(decoder, index, keys, at),
                attention.value(normed).unflatten(0, (-1, config.head_dim)),
            )
    seen = fresh if rule != "carried" else {**slots.get(index, {}), **fresh}
    slots[index] = seen
    after = list(state)
    window = config.windows[index] if config.windows else None
    for at, one in enumerate(state):
        if not runs[at]:
            continue
        normed = _norm(config, block.attention_norm, one)
        query = _heads(config, attention.query(normed), attention.query_norm)
        query = _turn(decoder, index, query, at)
        first = 0 if window is None else at - window + 1
        before = [seen[other] for other in sorted(seen) if first <= other <= at]
        update = attention.output(_mix(config, query, before))
        if config.post_norms or index in config.bare_post_norms:
            update = _norm(config, block.attention_post_norm, update)
        after[at] = one + scale[at] * update
        source = one if config.parallel else after[at]
        norm = block.attention_norm if config.shared_norm else block.feed_forward_norm
        update = _feed_forward(config, block.feed_forward, _norm(config, norm, source))
        if config.post_norms or index in config.bare_post_norms:
            update = _norm(config, block.feed_forward_post_norm, update)
        after[at] = after[at] + scale[at] * update
    return after


def _norm(config, norm, row):
    if config.norm == "layer":
        row = row - row.mean()
    unit = row / (row.square().mean() + config.norm_epsilon).sqrt()
    if norm.weight is None:
        return unit
    gains = norm.weight + 1 if config.gains_from_one else norm.weight
    return unit * gains + norm.bias if config.norm == "layer" else unit * gains


def _heads(config, row, norm):
    heads = row.unflatten(0, (-1, config.head_dim))
    if norm is None:
        return heads
    return torch.stack([_norm(config, norm, head) for head in heads])


def _mix(config, query, before):
    heads = []
    factor = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
    for head, vector in enumerate(query):
        group = head // (len(query) // len(before[0][0]))
        scores = torch.stack([vector @ key[group] for key, _ in before]) * factor
        if config.attention_cap is not None:
            scores = _cap(scores, config.attention_cap)
        shares = scores.softmax(0)
        heads.append(
            sum(share * value[group] for share, (_, value) in zip(shares, before, strict=True))
        )
    return torch.cat(heads)


def _cap(values, cap):
    return cap * torch.tanh(values / cap)


def _feed_forward(config, layer, row):
    activation = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda values: functional.gelu(values, approximate="tanh"),
    }[config.activation]
    if config.gated:
        return layer.down(activation(layer.gate(row)) * layer.up(row))
    return layer.down(activation(layer.up(row)))


def _turn(decoder, index, heads, position):
    config = decoder.config
    if config.positions == "learned":
        return heads
    windowed = config.windows and config.windows[index] and config.window_rotary_base is not None
    frequencies = (decoder.window_rotary if windowed else decoder.rotary).frequencies
    width = config.rotary_width or config.head_dim
    turned = heads.clone()
    for pair, frequency in enumerate(frequencies):
        angle = (position * frequency).to(heads.dtype)
        first, second = heads[:, pair], heads[:, pair + width // 2]
        turned[:, pair] = first * angle.cos() - second * angle.sin()
        turned[:, pair + width // 2] = second * angle.cos() + first * angle.sin()
    return turned
