"""Heads whose weights 8 bits hold exactly: the same logits, whatever happens to the weights."""

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from torch import nn

from tokendepth.depth import few
from tokendepth.nn import few_products
from tokendepth.nn.levels import levels_of


def quantised(outputs=10, inner=96, seed=0) -> torch.Tensor:
    """As a file of that quantisation gives them."""
    weights = np.random.default_rng(seed).normal(size=(outputs, inner)).astype(np.float32)
    weights[1, 32:64] = 0
    kind = gguf.GGMLQuantizationType.Q8_0
    return torch.from_numpy(dequantize(quantize(weights, kind), kind))


@pytest.fixture
def head():
    made = nn.Linear(96, 10, bias=False)
    with torch.no_grad():
        made.weight.copy_(quantised())
    return made


@pytest.fixture
def by_levels(monkeypatch):
    """Rows of each product that was made by levels."""
    count, product = [], few_products.level_product

    def counted(rows, *others):
        count.append(len(rows))
        product(rows, *others)

    monkeypatch.setattr(few_products, "level_product", counted)
    return count


def same(head, rows):
    with torch.no_grad():
        torch.testing.assert_close(few.product(rows, head), rows @ head.weight.T)


def test_levels_give_the_weights_bit_by_bit():
    weights = quantised(5000)
    found = levels_of(weights)
    assert found is not None
    scales = torch.from_numpy(found.scales).repeat_interleave(32, dim=1)
    assert torch.equal(torch.from_numpy(found.levels) * scales, weights)


@pytest.mark.parametrize("last", [0, 9])
def test_one_weight_between_levels_is_enough_to_refuse(last):
    weights = quantised()
    weights[last, 95] += 1e-6
    assert levels_of(weights) is None
    assert levels_of(quantised()[:, :80]) is None  # not in whole groups


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_same_product(head, count, by_levels):
    same(head, torch.randn(count, 96, generator=torch.Generator().manual_seed(1)))
    assert by_levels == [count]


def test_more_rows_and_other_weights_take_the_plain_kernel(head, by_levels):
    same(head, torch.randn(5, 96))
    same(nn.Linear(96, 10, bias=False), torch.randn(1, 96))
    assert by_levels == []


@pytest.mark.parametrize("change", ["in place", "data", "another", "one weight"])
def test_changed_weights_are_seen(head, change, by_levels):
    same(head, torch.ones(1, 96))
    with torch.no_grad():
        if change == "in place":
            head.weight.copy_(quantised(seed=1))
        elif change == "data":
            head.weight.data.copy_(quantised(seed=1))
        elif change == "another":
            head.weight = nn.Parameter(quantised(seed=1))
        else:
            head.weight[3, 7] = 0.1234567
    same(head, torch.ones(1, 96))
    assert len(by_levels) == (1 if change == "one weight" else 2)
