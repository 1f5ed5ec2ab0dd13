"""Rules that every policy inherits, on every schedule, executor and rule for keys and values."""

import dataclasses

import pytest
import torch
from torch import nn

from tests.contract import reference, toys
from tests.contract.cases import (
    BLOCKS,
    CASES,
    CAUSAL,
    CUTS,
    EXECUTORS,
    KEYS,
    LENGTHS,
    PRODUCT,
    SCHEDULES,
    SKIPPING,
    VOCAB,
    build,
    fitting_seed,
    ragged,
    rotated,
)
from tokendepth.depth.dense import Dense

executors = pytest.mark.parametrize("executor", EXECUTORS)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Matrices this small are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cases(which):
    return pytest.mark.parametrize("case", which, ids=str)


@torch.no_grad()
def run(decoder, ids, mask, case, **options):
    options.setdefault("row_keys", KEYS[: len(ids)])
    return decoder(ids, mask, routing=case.routing, **options)


def close(ours, theirs, scale=1e-5):
    assert torch.isfinite(theirs).all()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=scale * float(theirs.abs().max()))


def per_token(values, mask):
    """Rows without their padding, in order."""
    return torch.cat([row[keep.bool()] for row, keep in zip(values, mask, strict=True)])


@cases(SKIPPING)
def test_each_case_really_skips(case):
    assert fitting_seed(case) is not None


@cases(CAUSAL)
@executors
def test_batch_equals_singles_whatever_the_padding(case, executor):
    decoder = build(case)
    right, left = ragged("right"), ragged("left", seed=9, extra=5)
    batch = run(decoder, *right, case, executor=executor)
    other = run(decoder, *left, case, executor=executor)
    close(per_token(other.logits, left[1]), per_token(batch.logits, right[1]))
    assert torch.equal(per_token(other.executed, left[1]), per_token(batch.executed, right[1]))
    assert not batch.executed[right[1] == 0].any()
    if case.policy == "fixed":
        return  # its depths belong to the rows of this batch
    for row, length in enumerate(LENGTHS):
        single = run(
            decoder, right[0][row : row + 1, :length], None, case, executor=executor,
            row_keys=KEYS[row : row + 1],
        )  # fmt: skip
        close(single.logits[0], batch.logits[row, :length])
        assert torch.equal(single.executed[0], batch.executed[row, :length])


@pytest.mark.parametrize(
    ("case", "executor", "cut"), rotated(CAUSAL, EXECUTORS, list(CUTS)), ids=str
)
def test_cached_equals_uncached(case, executor, cut):
    decoder = build(case)
    ids, mask = ragged("right", extra=0)
    whole = run(decoder, ids, mask, case, executor="dense")
    cache, logits, executed, start = decoder.cache(), [], [], 0
    for size in CUTS[cut]:
        part = slice(start, start + size)
        output = run(decoder, ids[:, part], mask[:, part], case, executor=executor, cache=cache)
        logits.append(output.logits)
        executed.append(output.executed)
        start += size
    assert torch.equal(torch.cat(executed, 1), whole.executed)
    close(per_token(torch.cat(logits, 1), mask), per_token(whole.logits, mask))


@pytest.mark.parametrize(
    ("case", "cut", "executor"), rotated(CAUSAL, (1, 3, 7), EXECUTORS), ids=str
)
def test_a_suffix_moves_nothing_before_it(case, cut, executor):
    decoder = build(case)
    ids, mask = ragged("right")
    before = run(decoder, ids, mask, case, executor=executor)
    changed = ids.clone()
    changed[:, cut:] = (changed[:, cut:] + 1) % VOCAB
    after = run(decoder, changed, mask, case, executor=executor)
    inside = mask[:, :cut].bool()
    close(after.logits[:, :cut][inside], before.logits[:, :cut][inside], 1e-9)
    assert torch.equal(after.executed[:, :cut], before.executed[:, :cut])


def test_the_causality_probe_sees_a_leak():
    (case,) = [c for c in CASES if c.policy == "topk" and c.schedule == "stack" and c.rule == "all"]
    decoder = build(case)
    assert not decoder.policy.causal("hard")
    ids, mask = ragged("right")
    before = run(decoder, ids, mask, case)
    moved = False
    for shift in range(1, VOCAB):
        changed = ids.clone()
        changed[:, 1:] = (changed[:, 1:] + shift) % VOCAB
        after = run(decoder, changed, mask, case)
        moved |= bool((after.executed[:, :1] != before.executed[:, :1]).any())
    assert moved


@pytest.mark.parametrize(
    ("case", "executor", "dtype"),
    rotated(CASES, ("gathered", "feed_forward"), (torch.float32, torch.float64)),
    ids=str,
)
def test_executors_agree_under_one_plan(case, executor, dtype):
    decoder = build(case, dtype)
    ids, mask = ragged()
    recorded = run(decoder, ids, mask, case)
    dense = run(decoder, ids, mask, case, plan=recorded.plan)
    other = run(decoder, ids, mask, case, plan=recorded.plan, executor=executor)
    close(
        per_token(dense.logits, mask),
        per_token(recorded.logits, mask),
        1e-9 if dtype == torch.float64 else 1e-6,
    )
    close(per_token(other.logits, mask), per_token(dense.logits, mask))
    assert torch.equal(other.executed, dense.executed)
    assert torch.equal(dense.executed, recorded.executed)


@cases(CASES)
def test_a_plan_is_replayed_on_another_batch_and_with_a_cache(case):
    decoder = build(case)
    ids, mask = ragged()
    recorded = run(decoder, ids, mask, case)
    order = torch.tensor([2, 0, 3])
    cache = decoder.cache()
    logits = []
    for start, stop in ((0, 4), (4, 12)):
        part = run(
            decoder, ids[order, start:stop], mask[order, start:stop], case, plan=recorded.plan,
            cache=cache, executor="gathered", row_keys=KEYS[order],
        )  # fmt: skip
        logits.append(part.logits)
    got = per_token(torch.cat(logits, 1), mask[order, :12])
    close(got, per_token(recorded.logits[order], mask[order]))
    with pytest.raises(ValueError, match="row key 99"):
        run(decoder, ids[:1], mask[:1], case, plan=recorded.plan, row_keys=torch.tensor([99]))


def test_every_kind_of_block_meets_everything():
    """All pairs: policies with their routings, schedules with their rules, on each block."""
    met = set().union(*(case.pairs for case in CASES))
    for case in PRODUCT:
        for block in BLOCKS:
            assert dataclasses.replace(case, block=block).pairs <= met


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in CASES else pytest.mark.slow)
        for one in PRODUCT
        for case in (dataclasses.replace(one, block=block) for block in BLOCKS)
    ],
    ids=str,
)
def test_the_dense_executor_is_the_written_out_specification(case):
    decoder = build(case)
    ids, mask = ragged()
    output = run(decoder, ids, mask, case, collect=[len(SCHEDULES[case.schedule].visits)])
    last = output.states[len(SCHEDULES[case.schedule].visits)]
    for row in (1, 2):
        length = LENGTHS[row]
        weight = None if output.plan.weight is None else output.plan.weight[row, :length]
        with torch.no_grad():
            expected = reference.run(
                decoder, ids[row, :length], KEYS[row], output.plan.keep[row, :length], weight
            )
            expected_logits = torch.stack([reference.read_out(decoder, one) for one in expected])
        close(last[row, :length], expected, 1e-9)
        if decoder.policy.read_out is None:
            close(output.logits[row, :length], expected_logits, 1e-9)


@cases(SKIPPING)
@executors
def test_skipped_rows_keep_their_residual_and_rows_run_are_counted(case, executor):
    decoder = build(case)
    ids, mask = ragged()
    order = SCHEDULES[case.schedule]
    visits = len(order.visits)
    counted = []
    handles = [
        block.feed_forward.register_forward_hook(
            lambda module, args, out: counted.append(args[0].flatten(0, -2).shape[0])
        )
        for block in decoder.blocks
    ]
    plan = run(decoder, ids, mask, case).plan
    counted.clear()
    output = run(decoder, ids, mask, case, plan=plan, executor=executor, collect=range(visits + 1))
    for handle in handles:
        handle.remove()
    for number, (index, _) in enumerate(order.visits):
        skipped = mask.bool() & ~output.plan.keep[..., index]
        if order.spans[index].inject and number == order.first_visit[1]:
            continue  # the looped state starts here: the residual before it is the prelude's
        before, after = output.states[number], output.states[number + 1]
        assert torch.equal(before[skipped], after[skipped])
    if executor == "gathered":
        assert sum(counted) == int(output.executed.sum())
    elif executor == "dense":
        assert sum(counted) == mask.numel() * visits


@cases([c for c in CASES if c.policy == "random"])
@executors
def test_nothing_skipped_is_the_dense_model(case, executor):
    decoder = build(case)
    ids, _ = ragged(extra=0)
    decoder.policy.share = 1.0
    everything = run(decoder, ids, None, case, executor=executor)
    dense = run(decoder, ids, None, case, policy=Dense(), executor=executor)
    close(everything.logits, dense.logits, 1e-9)
    assert everything.executed.all()


@cases([c for c in CASES if c.policy == "random" and c.rule == "all"])
@executors
@pytest.mark.parametrize("sizes", [(12,), (5, 1, 6)], ids=["once", "chunks"])
def test_a_check_gives_what_the_model_would_answer_there(case, executor, sizes):
    """A read before span i equals the model of the spans before i and the coda."""
    decoder, (ids, mask) = build(case), ragged(extra=0)
    order, peek = decoder.schedule, toys.Peek(decoder.policy)
    cache, start = decoder.cache(), 0
    for size in sizes:
        part = slice(start, start + size)
        output = run(
            decoder, ids[:, part], mask[:, part], case, policy=peek, executor=executor, cache=cache
        )
        start += size
        assert torch.equal(output.checked, torch.stack([rows for _, rows, _ in peek.seen], -1))
        for index, rows, logits in peek.seen:
            looped = any(span.inject for span in order.spans[:index])
            if not rows.any() or (order.start != "hidden" and not looped):
                continue  # nothing was read, or the shortened model has no looped state to begin
            close(logits, _truncated(decoder, order, index, ids, mask, case)[:, part][rows])
        peek.seen.clear()


def _truncated(decoder, order, index, ids, mask, case):
    """Logits of the spans before `index` and the coda, under the policy's own decisions."""
    spans = (*order.spans[:index], *(order.spans[coda] for coda in order.coda))
    short = dataclasses.replace(order, spans=spans)
    sticky = toys.Peek(decoder.policy)
    return run(decoder, ids, mask, case, schedule=short, policy=sticky).logits


@cases([c for c in CASES if c.policy in ("update", "span", "exit", "halt", "token_selective")])
def test_gradients_reach_the_policy_and_match_between_executors(case):
    gradients = {}
    for executor in EXECUTORS:
        decoder = build(case).requires_grad_(True)
        ids, mask = ragged()
        output = decoder(ids, mask, routing=case.routing, executor=executor, row_keys=KEYS)
        loss = (output.logits * mask[..., None]).square().sum()
        for penalty in output.penalty.values():
            loss = loss + (penalty * mask).sum()
        loss.backward()
        gradients[executor] = {
            name: value.grad for name, value in decoder.named_parameters() if value.grad is not None
        }
    for executor in ("gathered", "feed_forward"):
        assert gradients[executor].keys() == gradients["dense"].keys()
        most = max(float(value.abs().max()) for value in gradients["dense"].values())
        for name, value in gradients["dense"].items():
            # That of a bias of keys is zero, but for rounding, without rotary positions.
            atol = 1e-8 * max(float(value.abs().max()), 1e-6 * most)
            torch.testing.assert_close(gradients[executor][name], value, rtol=0, atol=atol)
    if case.policy in ("update", "span") and (case.policy, case.routing) != ("span", "hard"):
        assert gradients["dense"]["policy.router.weight"].abs().max() > 0
    if case.policy == "token_selective":
        assert gradients["dense"]["policy.routers.0.inner.weight"].abs().max() > 0


@cases(CAUSAL)
def test_penalties_and_statistics_ignore_padding(case):
    decoder = build(case)
    few, many = ragged(extra=0), ragged(extra=6, seed=4)
    outputs = [run(decoder, *batch, case) for batch in (few, many)]
    assert outputs[0].executed.sum() == outputs[1].executed.sum()
    for name, value in outputs[0].penalty.items():
        other = outputs[1].penalty[name]
        close(per_token(other, many[1]), per_token(value, few[1]), 1e-9)


def test_state_is_a_module_field_nowhere():
    """Two calls in a row give the same bits: nothing is remembered outside the cache."""
    for case in CASES:
        decoder = build(case)
        weights = {name: value.clone() for name, value in decoder.state_dict().items()}
        first, second = (run(decoder, *ragged(), case) for _ in range(2))
        assert torch.equal(first.logits, second.logits)
        assert all(torch.equal(weights[name], now) for name, now in decoder.state_dict().items())
        assert isinstance(decoder.policy, nn.Module)
        assert dataclasses.is_dataclass(first)
