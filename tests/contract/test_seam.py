"""What the contract suite does not reach by its product: single facts of the seam."""

import dataclasses
from dataclasses import replace

import pytest
import torch

from tests.contract import reference, toys
from tests.contract.cases import (
    CASES,
    CONFIG,
    KEYS,
    POLICIES,
    VOCAB,
    WIDTH,
    Case,
    build,
    ragged,
)
from tokendepth.depth.dense import Dense
from tokendepth.depth.execute import check_executor
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.depth.random_keep import RandomKeep
from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import load_weights, save_weights
from tokendepth.models.schedule import looped, stack
from tokendepth.nn.attention import Attention, AttentionConfig
from tokendepth.nn.cache import Store
from tokendepth.nn.track import EMPTY, Track
from tokendepth.numerics import keyed_normal, keyed_uniform


@pytest.mark.parametrize("executor", ["dense", "gathered", "feed_forward"])
@pytest.mark.parametrize("sizes", [(6,), (1, 2, 3), (1,) * 6, (5, 1)], ids=str)
@torch.no_grad()
def test_carried_sees_cached_tokens_deeper_and_shallower_than_the_new_one(executor, sizes):
    """Depths go up and down from token to token, with borders between chunks at each of them."""
    order = looped(prelude=1, core=2, coda=1, loops=3)
    decoder = build(Case("random", "looped", "carried"))
    loops = torch.tensor([3, 1, 2, 3, 1, 2])
    ids = torch.arange(6)[None] * 3 % VOCAB
    cache, states, start = decoder.cache(), [], 0
    for size in sizes:
        part = slice(start, start + size)
        policy = FixedExit((1 + 2 * loops)[None, part])
        output = decoder(
            ids[:, part], policy=policy, cache=cache, executor=executor, collect=[8], schedule=order
        )
        states.append(output.states[8])
        start += size
    keep = torch.ones(6, 5, dtype=torch.bool)
    for loop in range(3):
        keep[:, 1 + loop] = loops > loop
    decoder.policy = Dense()
    expected = reference.run(decoder, ids[0], torch.tensor(0), keep, None)
    torch.testing.assert_close(torch.cat(states, 1)[0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
@torch.no_grad()
def test_saved_and_loaded_it_decides_the_same(policy, tmp_path):
    case = next(case for case in CASES if case.policy == policy)
    decoder, again = build(case), build(case)
    save_weights(decoder, tmp_path / "weights")
    for parameter in again.parameters():
        parameter.zero_()
    load_weights(again, tmp_path / "weights")
    ids, mask = ragged()
    first = decoder(ids, mask, routing=case.routing, row_keys=KEYS)
    second = again(ids, mask, routing=case.routing, row_keys=KEYS)
    assert torch.equal(first.executed, second.executed)
    assert torch.equal(first.logits, second.logits)


def test_weights_of_another_policy_are_refused(tmp_path):
    save_weights(Decoder(CONFIG, stack(4), toys.UpdateGate(WIDTH)), tmp_path / "weights")
    with pytest.raises(ValueError, match="unknown.*policy.router.bias"):
        load_weights(Decoder(CONFIG, stack(4)), tmp_path / "weights")


@torch.no_grad()
def test_a_read_out_of_the_policys_own_makes_the_logits():
    case = next(case for case in CASES if case.policy == "exit" and case.schedule == "stack")
    decoder, (ids, mask) = build(case), ragged()
    output = decoder(ids, mask, row_keys=KEYS, collect=[4])
    own, inside = decoder.policy.read_out, mask.bool()
    expected = own(output.states[4][inside], output.executed.sum(-1)[inside])
    torch.testing.assert_close(output.logits[inside], expected)
    plain = decoder.read_out(output.states[4][inside])
    assert not torch.allclose(output.logits[inside], plain)


class Forgetful(toys.Policy):
    """Sticky, but remembers nothing itself: the driver must latch."""

    sticky = True

    def __init__(self):
        super().__init__()
        self.inner = RandomKeep(0.7)

    def decide(self, span, hidden, state, context):
        return self.inner.decide(span, hidden, state, context)


@torch.no_grad()
def test_once_left_a_sticky_policy_never_runs_again():
    decoder = Decoder(CONFIG, stack(4, stem=0), Forgetful()).eval()
    ids, mask = ragged()
    executed = decoder(ids, mask, row_keys=KEYS).executed
    assert (executed[..., 1:] <= executed[..., :-1]).all()
    free = decoder(ids, mask, row_keys=KEYS, policy=RandomKeep(0.7)).executed
    assert not (free[..., 1:] <= free[..., :-1]).all()


@pytest.mark.parametrize("rule", ["all", "kept"])
@torch.no_grad()
def test_a_check_leaves_the_final_coda_as_it_was(rule):
    """The first span is read too, so check and coda would have the same tag."""
    decoder = Decoder(replace(CONFIG, key_value_rule=rule), stack(4, stem=0, coda=1)).eval()
    ids, mask = ragged()
    read = decoder(ids, mask, policy=toys.Peek(Forgetful()), row_keys=KEYS, cache=decoder.cache())
    unread = decoder(ids, mask, policy=Forgetful(), row_keys=KEYS)
    assert read.checked.shape[-1] == 3
    inside = mask.bool()
    torch.testing.assert_close(read.logits[inside], unread.logits[inside], rtol=0, atol=1e-5)


def test_a_query_without_keys_gives_zeros_and_finite_gradients():
    queries = torch.randn(1, 2, 4, 4, requires_grad=True)
    keys = torch.randn(1, 3, 2, 4, requires_grad=True)
    visible = torch.tensor([[[False, False, False], [True, False, True]]])
    attention = Attention(
        AttentionConfig(width=8, num_heads=2, num_key_value_heads=2, head_dim=queries.shape[-1])
    )
    mixed = attention.attend(queries, keys, keys, visible)
    assert mixed[0, 0].abs().sum() == 0
    mixed.sum().backward()
    assert torch.isfinite(queries.grad).all()
    assert torch.isfinite(keys.grad).all()


def test_of_each_position_only_the_newest_loop_up_to_this_one_is_visible():
    store, one = Store(Track()), torch.zeros(1, 2, 1, 2)
    store.extend(one, one, torch.tensor([[0, 1]]), loop=0)
    store.extend(one, one, torch.tensor([[0, EMPTY]]), loop=1)
    store.extend(one, one, torch.tensor([[0, 1]]), loop=2)
    assert [store.track.newest(loop).slots[0].tolist() for loop in range(3)] == [
        [0, 1],
        [2, 1],
        [4, 5],
    ]
    store.extend(one[:, :1], one[:, :1], torch.tensor([[3]]), loop=0)
    found = store.track.newest(0)
    assert (found.slots[0].tolist(), found.there[0].tolist(), found.whole) == (
        [0, 1, 0, 6],
        [True, True, False, True],
        False,
    )
    queries = torch.tensor([[1, 3]])
    assert found.visible(queries, None)[0].tolist() == [
        [True, True, False, False],
        [True, True, False, True],
    ]
    assert found.visible(queries, 2)[0, 1].tolist() == [False, False, False, True]


def test_padding_of_gathered_queries_is_counted():
    depth = torch.tensor([[4, 4, 4, 1], [1, 1, 1, 4]])
    ids = torch.zeros(2, 4, dtype=torch.long)
    # 3 routed blocks, 4 of 8 rows: keys in order take the queries at their own places, 8 slots;
    # else they move together, up to the 3 of the sequence with the most.
    for rule, slots in (("all", 8), ("kept", 6)):
        decoder = Decoder(dataclasses.replace(CONFIG, key_value_rule=rule), stack(4)).eval()
        output = decoder(ids, policy=FixedExit(depth), executor="gathered")
        assert output.padded_queries == 3 * (slots - 4)
        assert decoder(ids, policy=FixedExit(depth)).padded_queries == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"routing": "soft"}, "routing: got 'soft'; RandomKeep has hard"),
        ({"collect": [9]}, "collect: got 9; states are 0 to 4"),
        ({"schedule": stack(5)}, "schedule: it runs block 4"),
    ],
)
def test_wrong_options_are_named(wrong, message):
    decoder = Decoder(CONFIG, stack(4), RandomKeep(0.5))
    with pytest.raises(ValueError, match=message):
        decoder(torch.zeros(1, 2, dtype=torch.long), **wrong)


def test_an_unknown_executor_names_the_known_ones():
    with pytest.raises(ValueError, match="executor: got 'sparse'; allowed are dense, gathered"):
        check_executor("sparse")


def test_carried_needs_a_block_that_is_revisited():
    case = Case("random", "looped", "carried")
    with pytest.raises(ValueError, match="'carried' needs a schedule"):
        build(case)(torch.zeros(1, 2, dtype=torch.long), schedule=stack(4))


def test_keyed_draws_are_uniform_and_depend_on_every_key():
    rows, positions = torch.arange(200)[:, None], torch.arange(200)
    draws = keyed_uniform(7, rows, positions)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(draws.var() - 1 / 12) < 0.005
    counts = torch.histc(draws, 20, 0, 1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 45  # chi square, 19 degrees: p < 0.001 above 43.8
    assert len(draws.unique()) == draws.numel()
    assert not torch.equal(draws, keyed_uniform(8, rows, positions))
    normal = keyed_normal(7, 500, torch.arange(40))
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03


def test_toys_are_short():
    import inspect

    for name in toys.__dict__:
        value = getattr(toys, name)
        if inspect.isclass(value) and value.__module__ == toys.__name__:
            assert len(inspect.getsource(value).splitlines()) <= 30
