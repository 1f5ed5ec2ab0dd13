"""Bootstrap intervals over documents."""

import numpy as np
import pytest

from tokendepth.measure.statistics import mean_over_tokens


def _corpus(documents: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Documents of different lengths and levels."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 40, documents)
    member = np.repeat(np.arange(documents), lengths)
    levels = rng.normal(10, 3, documents)
    return levels[member] + rng.normal(0, 1, len(member)), member


def test_one_document_has_no_interval() -> None:
    estimate = mean_over_tokens(np.array([1.0, 2.0, 6.0]), np.array([4, 4, 4]))
    assert (estimate.value, estimate.low, estimate.high) == (3.0, None, None)


def test_the_mean_is_over_tokens_not_over_documents() -> None:
    estimate = mean_over_tokens(np.array([1.0, 1.0, 1.0, 5.0]), np.array([0, 0, 0, 1]))
    assert estimate.value == 2.0
    assert (estimate.low, estimate.high) == (1.0, 5.0)


def test_documents_that_agree_have_an_interval_of_no_width() -> None:
    estimate = mean_over_tokens(np.full(6, 2.5), np.array([0, 0, 1, 1, 2, 2]))
    assert (estimate.low, estimate.value, estimate.high) == (2.5, 2.5, 2.5)


@pytest.mark.parametrize("documents", [2, 5, 40])
def test_the_interval_holds_the_mean(documents: int) -> None:
    estimate = mean_over_tokens(*_corpus(documents))
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < estimate.value < estimate.high


def test_resampling_documents_is_wider_than_resampling_tokens() -> None:
    values, member = _corpus(20)
    over_documents = mean_over_tokens(values, member)
    over_tokens = mean_over_tokens(values, np.arange(len(values)))
    assert over_documents.high - over_documents.low > 2 * (over_tokens.high - over_tokens.low)


def test_it_is_the_same_each_time_and_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    assert mean_over_tokens(*_corpus(12)) == mean_over_tokens(*_corpus(12))
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_the_order_of_tokens_and_the_numbers_of_documents_do_not_matter() -> None:
    values, member = _corpus(25)
    plain = mean_over_tokens(values, member)
    order = np.random.default_rng(3).permutation(len(values))
    shuffled = mean_over_tokens(values[order], member[order])
    assert shuffled.value == pytest.approx(plain.value)
    assert (shuffled.low, shuffled.high) == pytest.approx((plain.low, plain.high))
    renamed = mean_over_tokens(values, 1000 - 7 * member)  # the documents in reverse order
    width = plain.high - plain.low
    assert (renamed.low, renamed.high) == pytest.approx((plain.low, plain.high), abs=0.1 * width)


def test_against_a_bootstrap_written_out() -> None:
    values, member = _corpus(30, seed=5)
    estimate = mean_over_tokens(values, member)
    by_document = [values[member == one] for one in range(30)]
    rng = np.random.default_rng(11)
    means = []
    for _ in range(4000):
        drawn = [by_document[one] for one in rng.integers(0, 30, 30)]
        means.append(np.concatenate(drawn).mean())
    low, high = np.percentile(means, [2.5, 97.5])
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(low, abs=0.1 * (high - low))
    assert estimate.high == pytest.approx(high, abs=0.1 * (high - low))
