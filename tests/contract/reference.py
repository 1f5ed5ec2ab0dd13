"""The specification: one sequence, one token and one block at a time, in Python loops.

Nothing of the executors, stores or masks is used; which keys a query sees is spelled out as a set.
"""

import torch

from tokendepth.numerics import keyed_normal


def run(decoder, ids, key, keep, weight):
    """Logits of one sequence under given decisions.

    `key` is the row's key, `keep` is (seq, span) booleans, `weight` (seq, span) or None.
    """
    order, gates, rule = decoder.schedule, decoder.policy.gates, decoder.config.key_value_rule
    length = len(ids)
    hidden = [decoder.embedding(token) for token in ids]
    embedded = None
    kept_slots = {}
    for number, span in enumerate(order.spans):
        if span.inject and embedded is None:
            embedded = list(hidden)
            if order.start == "normal":
                hidden = [
                    keyed_normal(order.seed, len(one), key, torch.tensor(at)).to(one)
                    for at, one in enumerate(hidden)
                ]
        entry = hidden
        if span.inject:
            pairs = zip(hidden, embedded, strict=True)
            entry = [decoder.adapter(torch.cat(pair)) for pair in pairs]
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


def _leave(old, new, scale, gates):
    return old + scale * (new - old) if gates == "span" else new


def _block(decoder, index, loop, state, runs, scale, rule, slots):
    block = decoder.blocks[index]
    attention = block.attention
    heads = (-1, attention.config.head_dim)
    fresh = {}
    for at, one in enumerate(state):
        if runs[at] or rule == "all":
            normed = block.attention_norm(one)
            fresh[at] = (
                _turn(decoder, attention.key(normed).unflatten(0, heads), at),
                attention.value(normed).unflatten(0, heads),
            )
    seen = fresh if rule != "carried" else {**slots.get(index, {}), **fresh}
    slots[index] = seen
    after = list(state)
    for at, one in enumerate(state):
        if not runs[at]:
            continue
        query = attention.query(block.attention_norm(one)).unflatten(0, heads)
        query = _turn(decoder, query, at)
        before = [seen[other] for other in sorted(seen) if other <= at]
        after[at] = one + scale[at] * attention.output(_mix(query, before))
        update = block.feed_forward(block.feed_forward_norm(after[at]))
        after[at] = after[at] + scale[at] * update
    return after


def _mix(query, before):
    heads = []
    for head, vector in enumerate(query):
        group = head // (len(query) // len(before[0][0]))
        scores = torch.stack([vector @ key[group] for key, _ in before]) / len(vector) ** 0.5
        shares = scores.softmax(0)
        heads.append(
            sum(share * value[group] for share, (_, value) in zip(shares, before, strict=True))
        )
    return torch.cat(heads)


def _turn(decoder, heads, position):
    half = heads.shape[-1] // 2
    cos = (position * decoder.rotary.frequencies).cos().to(heads.dtype)
    sin = (position * decoder.rotary.frequencies).sin().to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
