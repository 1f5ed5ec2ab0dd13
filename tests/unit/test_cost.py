"""The ledger of a model of two layers on four tokens, counted by hand."""

import pytest
import torch

from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.models.config import DecoderConfig
from tokendepth.models.cost import dense_twin, ledger
from tokendepth.models.decoder import Decoder

CONFIG = DecoderConfig(
    vocab_size=11, width=6, num_blocks=2, num_heads=2, num_key_value_heads=1, head_dim=4,
    inner_width=5,
)  # fmt: skip
IDS = torch.arange(4)[None]


@pytest.fixture
def decoder():
    torch.manual_seed(0)
    return Decoder(CONFIG).eval().requires_grad_(False)


def test_dense_by_hand(decoder):
    mine = ledger(decoder, decoder(IDS))
    # 2 layers x 4 tokens; queries 6 -> 8, keys and values 6 -> 4 each, back 8 -> 6.
    assert mine.flops["query"] == 2 * 4 * 2 * 6 * 8
    assert mine.flops["key_value"] == 2 * 4 * 2 * 6 * (4 + 4)
    # 1 + 2 + 3 + 4 pairs, 2 heads of 4: scores and the weighted sum.
    assert mine.flops["attention"] == 2 * (1 + 2 + 3 + 4) * 2 * 2 * 8
    assert mine.flops["output"] == 2 * 4 * 2 * 8 * 6
    assert mine.flops["feed_forward"] == 2 * 4 * 2 * (6 * 5 + 6 * 5 + 5 * 6)
    assert mine.flops["head"] == 4 * 2 * 6 * 11
    assert mine.flops["adapter"] == mine.flops["check"] == mine.flops["router"] == 0
    assert mine.total_flops == 768 + 768 + 640 + 768 + 1440 + 528
    assert mine.executed_share == 1
    assert mine.gathered_bytes == 0


def test_skipped_rows_by_hand(decoder):
    """The first and the last token run both layers, the two between leave after the first."""
    policy = FixedExit(torch.tensor([[2, 1, 1, 2]]))
    output = decoder(IDS, policy=policy, executor="gathered")
    mine = ledger(decoder, output)
    assert mine.flops["query"] == (4 + 2) * 2 * 6 * 8
    assert mine.flops["key_value"] == (4 + 4) * 2 * 6 * 8  # the rule `all`
    assert mine.flops["attention"] == ((1 + 2 + 3 + 4) + (1 + 4)) * 2 * 2 * 8
    assert mine.flops["feed_forward"] == (4 + 2) * 2 * 90
    assert mine.executed_share == 6 / 8
    # In and out 2 rows of 6, queries and mixed values 2 rows of 8, normed input 4 rows of 6.
    assert mine.gathered_bytes == 4 * 2 * (2 * 6 + 2 * 6 + 2 * 8 + 2 * 8 + 4 * 6)
    as_dense = ledger(decoder, output, executor="dense")
    assert as_dense.total_flops == ledger(decoder, dense_twin(output.record)).total_flops
    partly = ledger(decoder, output, executor="feed_forward")
    assert partly.flops["feed_forward"] == (4 + 2) * 2 * 90
    assert partly.flops["attention"] == as_dense.flops["attention"]


def test_two_calls_add_up(decoder):
    one = ledger(decoder, decoder(IDS))
    both = one + one
    assert both.total_flops == 2 * one.total_flops
    assert (both.tokens, both.executed, both.layers) == (8, 16, 2)


def test_a_later_call_needs_to_know_the_cache(decoder):
    cache = decoder.cache()
    decoder(IDS, cache=cache)
    with pytest.raises(ValueError, match="before: the call had a cache"):
        ledger(decoder, decoder(IDS[:, :1], cache=cache))
