"""The ledger against torch's own counter, against hooks, and against pairs counted one by one."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.contract.cases import (
    BLOCKS,
    CASES,
    EXECUTORS,
    KEYS,
    SCHEDULES,
    SKIPPING,
    build,
    ragged,
    rotated,
)
from tokendepth.models.cost import LINES, dense_twin, ledger

SIZES = {"once": (12,), "chunks": (5, 1, 6)}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def calls(case, executor, cut, *, padded=True):
    """Each call's output, what the cache held before it, and what torch's counter saw."""
    decoder = build(case)
    ids, mask = ragged("right", extra=0)
    if not padded:
        ids, mask = ids[2:3], None
    cache = decoder.cache() if len(SIZES[cut]) > 1 else None
    start = 0
    for size in SIZES[cut]:
        part = slice(start, start + size)
        before = {} if cache is None else cache.tracks
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            output = decoder(
                ids[:, part],
                None if mask is None else mask[:, part],
                routing=case.routing,
                executor=executor,
                cache=cache,
                row_keys=KEYS[: len(ids)],
            )
        yield decoder, output, before, counter.get_total_flops()
        start += size


@pytest.mark.parametrize(
    ("case", "executor", "cut"), rotated(CASES, EXECUTORS, list(SIZES)), ids=str
)
def test_what_is_computed_is_what_torch_counts(case, executor, cut):
    for decoder, output, before, counted in calls(case, executor, cut):
        mine = ledger(decoder, output, before=before, counting="computed")
        assert mine.total_flops == counted


@pytest.mark.parametrize(
    ("case", "executor"),
    rotated([c for c in SKIPPING if c.policy != "fixed"], ("dense", "gathered")),
    ids=str,
)
def test_without_padding_too(case, executor):
    for decoder, output, before, counted in calls(case, executor, "chunks", padded=False):
        mine = ledger(decoder, output, before=before, counting="computed")
        assert mine.total_flops == counted


@pytest.mark.parametrize(
    ("case", "executor", "cut"), rotated(SKIPPING, EXECUTORS, list(SIZES)), ids=str
)
def test_visible_pairs_are_those_counted_one_by_one(case, executor, cut):
    stored = {}
    for decoder, output, before, _ in calls(case, executor, cut):
        mine = ledger(decoder, output, before=before)
        size = decoder.config.num_heads * decoder.config.head_dim
        assert mine.flops["attention"] == 4 * size * _pairs(case, output, stored, executor)


def _pairs(case, output, stored, executor):
    """Sets of stored positions for each row, block and loop; `stored` outlives the call."""
    record, total = output.record, 0
    windows = BLOCKS[case.block].get("windows", (None,) * 4)
    for number, (index, block) in enumerate(SCHEDULES[case.schedule].visits):
        loop = SCHEDULES[case.schedule].spans[index].loop
        for row in range(len(record.mask)):
            tokens = [
                (int(position), bool(runs))
                for position, runs, there in zip(
                    record.positions[row], output.executed[row, :, number], record.mask[row],
                    strict=True,
                )
                if there
            ]  # fmt: skip
            mine = stored.setdefault((row, block, loop), set())
            mine |= {position for position, runs in tokens if runs or case.rule == "all"}
            seen = set(mine)
            if case.rule == "carried":
                seen = set().union(
                    *(
                        positions
                        for (other, at, earlier), positions in stored.items()
                        if other == row and at == block and earlier <= loop
                    )
                )
            for position, runs in tokens:
                if runs or executor != "gathered":
                    first = 0 if windows[block] is None else position - windows[block] + 1
                    total += sum(first <= one <= position for one in seen)
    return total


@pytest.mark.parametrize(
    ("case", "executor"), rotated(SKIPPING, ("gathered", "feed_forward")), ids=str
)
def test_rows_of_each_module_are_what_hooks_count(case, executor):
    decoder = build(case)
    ids, mask = ragged()
    spent, handles = {}, []

    def watch(module, line):
        def hook(module, args, out):
            rows = args[0].flatten(0, -2).shape[0]
            spent[line] = spent.get(line, 0) + 2 * rows * module.weight.numel()

        handles.append(module.register_forward_hook(hook))

    for block in decoder.blocks:
        attention = block.attention
        for line, module in (
            ("query", attention.query), ("key_value", attention.key),
            ("key_value", attention.value), ("output", attention.output),
        ):  # fmt: skip
            watch(module, line)
        for module in block.feed_forward.modules():
            if isinstance(module, nn.Linear):
                watch(module, "feed_forward")
    watch(decoder.adapter, "adapter")
    with torch.no_grad():
        plan = decoder(ids, mask, routing=case.routing, row_keys=KEYS).plan
        spent.clear()
        output = decoder(ids, mask, plan=plan, executor=executor, row_keys=KEYS)
    mine = ledger(decoder, output, counting="computed").flops
    lines = ("query", "key_value", "output", "feed_forward", "adapter")
    assert {line: mine[line] for line in lines} == {line: spent.get(line, 0) for line in lines}
    assert mine["check"] == mine["router"] == 0


@pytest.mark.parametrize("case", [c for c in CASES if c.policy == "halt"], ids=str)
def test_checks_are_a_line_of_their_own(case):
    decoder = build(case)
    ids, mask = ragged()
    with torch.no_grad():
        output = decoder(ids, mask, row_keys=KEYS)
    mine = ledger(decoder, output, executor="gathered")
    head = 2 * decoder.config.width * decoder.config.vocab_size
    least = int(output.checked.sum()) * head
    assert mine.flops["check"] >= least > 0
    assert mine.flops["head"] == int(mask.sum()) * head
    assert mine.executed == int(output.executed.sum())
    twin = ledger(decoder, dense_twin(output.record))
    assert twin.flops["check"] == twin.flops["router"] == 0
    assert twin.executed_share == 1
    assert set(mine.flops) == set(LINES)
