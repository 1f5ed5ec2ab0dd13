"""`auto`: what it chooses between, and that choices are followed, told, and change no answer."""

import itertools

import pytest
import torch

import tokendepth
from tokendepth.depth import auto
from tokendepth.depth.auto import Costs
from tokendepth.models.config import DecoderConfig
from tokendepth.models.cost import ledger
from tokendepth.models.decoder import Decoder

CONFIG = DecoderConfig(
    vocab_size=19,
    width=16,
    num_blocks=5,
    num_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    inner_width=24,
)
IDS = torch.randint(19, (3, 24), generator=torch.Generator().manual_seed(0))
KEYS = torch.arange(3)
HALF = tokendepth.RandomKeep(0.5)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def decoder():
    torch.manual_seed(0)
    return Decoder(CONFIG).eval().requires_grad_(False)


@pytest.fixture
def in_turn(monkeypatch):
    """Spans go to the three executors in turn."""
    names = itertools.cycle(("gathered", "feed_forward", "dense"))
    monkeypatch.setattr(auto, "choose", lambda *arguments: next(names))


def test_the_faster_line_is_taken_if_it_is_clearly_faster():
    lines = {"dense": (1.0, 0.0), "gathered": (0.2, 1.0), "feed_forward": (0.5, 0.3)}
    costs = Costs(lines)
    assert costs.fastest(0.1) == "gathered"
    assert costs.fastest(0.6) == "feed_forward"
    assert Costs({**lines, "feed_forward": (9.0, 0.0)}).fastest(0.79) == "dense"
    assert Costs({**lines, "feed_forward": (9.0, 0.0)}).fastest(0.75) == "gathered"


def test_choices_are_told_and_the_answer_is_the_same(decoder, in_turn):
    expected = decoder(IDS, policy=HALF, row_keys=KEYS)
    output = decoder(IDS, policy=HALF, row_keys=KEYS, executor="auto")
    assert output.record.executor == "auto"
    assert output.record.ran == ("gathered", "feed_forward", "dense", "gathered", "feed_forward")
    torch.testing.assert_close(output.logits, expected.logits, rtol=0, atol=1e-5)
    assert torch.equal(output.executed, expected.executed)


def test_the_ledger_counts_what_ran(decoder, in_turn):
    rows = []
    for block in decoder.blocks:
        block.feed_forward.register_forward_hook(
            lambda module, args, out: rows.append(args[0].flatten(0, -2).shape[0])
        )
    output = decoder(IDS, policy=HALF, row_keys=KEYS, executor="auto")
    mine = ledger(decoder, output, counting="computed")
    assert mine.flops["feed_forward"] == sum(rows) * 3 * 2 * 16 * 24
    plain = decoder(IDS, policy=HALF, row_keys=KEYS)
    with pytest.raises(ValueError, match="auto would choose"):
        ledger(decoder, plain, executor="auto")


def test_nothing_to_skip_is_dense_and_nothing_to_run_is_gathered(decoder):
    ran = {
        share: decoder(IDS, policy=tokendepth.RandomKeep(share), executor="auto").record.ran
        for share in (0.0, 1.0)
    }
    assert ran == {0.0: ("dense", *["gathered"] * 4), 1.0: ("dense",) * 5}


@pytest.mark.parametrize("rule", ["all", "kept"])
@pytest.mark.parametrize("past", [0, 8])
def test_a_measurement_is_made_once_and_leaves_nothing_behind(rule, past, monkeypatch):
    torch.manual_seed(0)
    decoder = Decoder(CONFIG.__class__(**{**as_dict(CONFIG), "key_value_rule": rule})).eval()
    auto.costs.cache_clear()
    before = torch.get_rng_state()
    for _ in range(2):
        cache = decoder.cache()
        with torch.no_grad():
            if past:
                decoder(IDS[:, :past], policy=HALF, row_keys=KEYS, cache=cache)
            output = decoder(
                IDS[:, past:], policy=HALF, row_keys=KEYS, executor="auto", cache=cache
            )
    assert torch.equal(torch.get_rng_state(), before)
    assert auto.costs.cache_info().misses == 1
    assert auto.costs.cache_info().hits >= 4
    expected = decoder(IDS, policy=HALF, row_keys=KEYS).logits[:, past:]
    torch.testing.assert_close(output.logits, expected, rtol=0, atol=1e-4)


def test_padded_calls_are_measured_apart(decoder):
    mask = torch.ones_like(IDS)
    mask[0, :5] = 0
    auto.costs.cache_clear()
    for given in (None, mask):
        decoder(IDS, given, policy=HALF, row_keys=KEYS, executor="auto")
    assert auto.costs.cache_info().misses == 2


def as_dict(config):
    return {name: getattr(config, name) for name in config.__slots__}
