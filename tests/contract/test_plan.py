"""A plan is replayed for the tokens it was recorded on, or says why not."""

from dataclasses import replace

import pytest
import torch

import tokendepth
from tests.contract import toys
from tests.contract.cases import CONFIG, VOCAB, WIDTH
from tokendepth.adapters.decoder import DecoderView
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import looped, stack
from tokendepth.types import Schedule, Span

IDS = torch.arange(8).view(2, 4) % VOCAB


@pytest.fixture
def decoder():
    torch.manual_seed(0)
    return Decoder(CONFIG, stack(4)).eval().requires_grad_(False)


def test_the_same_batch_needs_no_row_keys(decoder):
    depths = FixedExit(torch.tensor([1, 4]))
    recorded = decoder(IDS, policy=depths)
    again = decoder(IDS, plan=recorded.plan, executor="gathered")
    assert torch.equal(again.executed, recorded.executed)
    assert again.executed[0].sum() != again.executed[1].sum()


def test_two_decisions_for_one_key_and_position_are_refused(decoder):
    plan = decoder(IDS, policy=FixedExit(torch.tensor([1, 4]))).plan
    with pytest.raises(ValueError, match="two decisions.*distinct row_keys"):
        decoder(IDS[:, :2], plan=plan)
    same = decoder(IDS, policy=FixedExit(2)).plan
    assert decoder(IDS[:, :2], plan=same).executed.sum() == 2 * 2 * 2


def test_weights_scale_what_they_scaled_when_recorded(decoder):
    gated = toys.SpanGate(WIDTH).requires_grad_(False)
    recorded = decoder(IDS, policy=gated, row_keys=torch.arange(2))
    again = decoder(IDS, plan=recorded.plan, row_keys=torch.arange(2))
    torch.testing.assert_close(again.logits, recorded.logits)


def test_another_schedule_is_refused(decoder):
    plan = decoder(IDS).plan
    with pytest.raises(ValueError, match="another schedule"):
        decoder(IDS, plan=plan, schedule=looped(prelude=1, core=2, coda=1, loops=2))


def test_large_and_negative_row_keys_do_not_collide(decoder):
    keys = torch.tensor([2**62, 0])
    plan = decoder(IDS, policy=FixedExit(torch.tensor([1, 4])), row_keys=keys).plan
    swapped = decoder(IDS.flip(0), plan=plan, row_keys=keys.flip(0))
    assert swapped.executed[0].sum() == 16
    assert swapped.executed[1].sum() == 4
    minus = torch.tensor([-1, -2])
    plan = decoder(IDS, policy=FixedExit(torch.tensor([1, 4])), row_keys=minus).plan
    assert decoder(IDS[:1], plan=plan, row_keys=minus[:1]).executed.sum() == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention_mask": torch.ones(2, 6)}, "attention_mask: got shape"),
        ({"cache": tokendepth.Cache(rule="kept")}, "cache: its rule is 'kept'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(decoder, arguments, message):
    with pytest.raises(ValueError, match=message):
        decoder(IDS, **arguments)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ((Span(blocks=(0,)), Span(blocks=(1,)), Span(blocks=(1,))), "block 1 runs twice in loop 0"),
        ((Span(blocks=()),), "name at least one"),
        ((Span(blocks=(-1,)),), "name at least one, from 0"),
    ],
)
def test_schedules_that_cannot_run_are_refused(spans, message):
    with pytest.raises(ValueError, match=message):
        Schedule(spans=spans)


def test_half_precision_keeps_positions_apart():
    decoder = Decoder(CONFIG, stack(4))
    before = decoder.rotary.frequencies.clone()
    half = decoder.to(torch.bfloat16)
    assert half.embedding.weight.dtype == torch.bfloat16
    assert torch.equal(half.rotary.frequencies, before)
    assert half.double().rotary.frequencies.dtype == torch.float64


@pytest.mark.parametrize("rule", ["all", "carried"])
def test_states_alone_run_no_further_than_needed(rule):
    torch.manual_seed(0)
    order = looped(prelude=1, core=2, coda=1, loops=3)
    decoder = Decoder(replace(CONFIG, key_value_rule=rule), order, FixedExit(3)).eval()
    ran, handles = [], []
    for block in (decoder.head, *decoder.blocks):
        hook = block.feed_forward if block is not decoder.head else block
        handles.append(hook.register_forward_hook(lambda *_: ran.append(1)))
    found = tokendepth.capture(DecoderView(model=decoder), IDS, states=[1, 2])
    assert len(ran) == 3  # the prelude and one loop of two blocks; neither coda nor head
    whole = decoder(IDS, collect=[1, 2]).states
    assert all(torch.equal(found[state], whole[state]) for state in (1, 2))


def test_a_read_out_of_the_policys_own_is_said_to_need_a_depth():
    decoder = Decoder(CONFIG, stack(4)).eval()
    decoder.policy = toys.StickyExit(toys.ExitNorms(decoder.head, WIDTH, 4), 0.5)
    with pytest.raises(ValueError, match="StickyExit brings a read-out of its own"):
        tokendepth.Lens(DecoderView(model=decoder))
