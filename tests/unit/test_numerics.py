"""Distances against torch.distributions, and the choice of dtype and device."""

import re

import pytest
import torch
from torch.distributions import Categorical
from torch.distributions import kl_divergence as reference_kl

from tokendepth.numerics import (
    DTYPES,
    all_finite,
    entropy,
    first_maximum,
    kl_divergence,
    normalise,
    resolve_device,
    resolve_dtype,
    rows_finite,
    wide,
)

CPU = torch.device("cpu")


def _logits(scale: float, seed: int) -> torch.Tensor:
    return scale * torch.randn(6, 500, generator=torch.Generator().manual_seed(seed))


def probabilities(log_p: torch.Tensor) -> torch.Tensor:
    return normalise(log_p)[0]


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
def test_kl_and_entropy_equal_the_reference(scale: float) -> None:
    logits_p, logits_q = _logits(scale, 0), _logits(scale, 1)
    p, q = Categorical(logits=logits_p.double()), Categorical(logits=logits_q.double())
    (ours, log_p), (_, log_q) = normalise(logits_p), normalise(logits_q)
    found_kl = kl_divergence(ours, log_p, log_q)
    found_entropy = entropy(ours, log_p)
    torch.testing.assert_close(found_kl, reference_kl(p, q).float(), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(found_entropy, p.entropy().float(), rtol=1e-6, atol=1e-5)


def test_a_wide_vocabulary_keeps_its_small_terms() -> None:
    logits = torch.linspace(-40, 0, 49_152)[None]
    p, log_p = normalise(logits)
    torch.testing.assert_close(log_p.double(), logits.double().log_softmax(-1), rtol=0, atol=4e-6)
    assert p.double().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_kl_is_directed() -> None:
    log_p = torch.tensor([[0.9, 0.1]]).log()
    log_q = torch.tensor([[0.5, 0.5]]).log()
    assert kl_divergence(log_p.exp(), log_p, log_q).item() == pytest.approx(0.368064, abs=1e-5)
    assert kl_divergence(log_q.exp(), log_q, log_p).item() == pytest.approx(0.510826, abs=1e-5)


def test_kl_of_a_distribution_with_itself_is_not_negative() -> None:
    log_p = _logits(3.0, 2).log_softmax(-1)
    nudged = log_p + 1e-7  # rounding makes the sum slightly negative
    assert kl_divergence(probabilities(log_p), log_p, nudged).tolist() == [0.0] * 6


def test_entropy_of_known_distributions() -> None:
    uniform = torch.full((1, 8), 1 / 8).log()
    certain = torch.tensor([[0.0, -200.0, -200.0]])
    assert entropy(probabilities(uniform), uniform).item() == pytest.approx(2.0794415)
    assert entropy(probabilities(certain), certain).item() == pytest.approx(0.0, abs=1e-30)


def test_probabilities_hold_no_denormals() -> None:
    log_p = torch.tensor([[0.0, -86.0, -88.0, -95.0, -300.0, -torch.inf]])
    p = probabilities(log_p)
    assert (p >= torch.finfo(torch.float32).tiny).all()
    torch.testing.assert_close(p[:, :2], log_p[:, :2].exp())
    assert p.sum().item() == 1.0
    assert log_p[0, 4] == -300.0, "the argument is not changed"


def test_a_finite_tensor_whose_sum_overflows_is_finite() -> None:
    huge = torch.full((4,), 3e38)
    assert torch.isinf(huge.sum())
    assert all_finite(huge)
    assert all_finite(torch.tensor([3e38, 3e38, -3e38]))
    assert all_finite(torch.zeros(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_is_seen(bad: float) -> None:
    values = torch.ones(2, 3)
    values[1, 2] = bad
    assert not all_finite(values)
    assert rows_finite(values).tolist() == [True, False]


def test_opposite_infinities_do_not_cancel() -> None:
    assert not all_finite(torch.tensor([float("inf"), -float("inf")]))


def test_wide_keeps_float64_and_widens_the_rest() -> None:
    for dtype in DTYPES.values():
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        assert wide(torch.ones(1, dtype=dtype)).dtype == expected


def test_dtypes_by_name() -> None:
    assert resolve_dtype(None, CPU) == torch.float32
    assert resolve_dtype(torch.float16, CPU) == torch.float16
    assert {name: resolve_dtype(name, CPU) for name in DTYPES} == DTYPES
    assert resolve_dtype("auto", CPU) in (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", ["float31", "fp32", "", torch.int8])
def test_an_unknown_dtype_lists_the_known_ones(dtype: object) -> None:
    with pytest.raises(ValueError, match="^dtype: got .*allowed are float32, bfloat16, .*auto"):
        resolve_dtype(dtype, CPU)


def test_auto_takes_the_dtype_that_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for faster in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(
            "tokendepth.numerics._seconds",
            lambda dtype, *rest, faster=faster: 1.0 if dtype == faster else 2.0,
        )
        assert resolve_dtype("auto", CPU) == faster


def test_an_absent_gpu_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="^device: got 'cuda'.*there is: .*cpu.*Leave the option"):
        resolve_device("cuda")


def test_a_gpu_beyond_the_last_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1").index == 1
    with pytest.raises(ValueError, match=re.escape("device: got 'cuda:2'; there are 2 GPUs")):
        resolve_device("cuda:2")


def test_an_unknown_device_lists_the_known_ones() -> None:
    assert resolve_device(None) == CPU
    with pytest.raises(ValueError, match="^device: got 'gpu'; allowed are cpu, cuda"):
        resolve_device("gpu")


def test_the_first_of_several_maxima():
    values = torch.tensor([[1.0, 3.0, 3.0], [5.0, 2.0, 5.0], [0.0, 0.0, 0.0]])
    assert first_maximum(values).tolist() == [1, 0, 0]
    assert first_maximum(values).tolist() == values.argmax(dim=-1).tolist()
    assert first_maximum(values.requires_grad_()).dtype is torch.long
