"""Decoding and sampling against the generation of transformers, token by token."""

import pytest
import torch
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import tokendepth
from tests.parity.families import VOCAB, build
from tokendepth.engine.beams import beam_search
from tokendepth.engine.decode import GenerateOptions, stream
from tokendepth.engine.sampling import Sampling, choose, penalised, warped

FAMILIES = ("gpt2", "llama", "gpt_neox", "mistral")
LENGTHS = (3, 7, 5)
families = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pair():
    """A model of transformers in float64, and ours with its weights."""
    made = {}

    def get(name):
        if name not in made:
            theirs = build(name).double()
            made[name] = theirs, tokendepth.from_transformers(theirs)
        return made[name]

    return get


def prompts(seed=5):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]


def theirs_of(model, rows, **options):
    """New tokens of each row up to and with its end token."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    made = model.generate(
        ids, attention_mask=mask, do_sample=False, pad_token_id=0, **options
    )  # fmt: skip
    return [_up_to(row[width:].tolist(), options.get("eos_token_id")) for row in made]


def _up_to(ids, ends):
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    at = next((at for at, token in enumerate(ids) if token in ends), len(ids) - 1)
    return ids[: at + 1]


def greedy(decoder, rows, stops=(), **options):
    made = [[] for _ in rows]
    steps = stream(
        decoder, rows, GenerateOptions(**options), ended=lambda row, ids: ids[-1] in stops
    )
    for step in steps:
        for token in step:
            made[token.row].append(token.id)
    return made


def common(rows):
    """A token that some row, but not every one, comes to early."""
    met = [set(row[2:]) for row in rows]
    return next(
        token
        for row in rows
        for token in row[2:]
        if 0 < sum(token in one for one in met) < len(rows)
    )


@families
def test_greedy_of_a_ragged_batch_token_by_token(name, pair):
    theirs, ours = pair(name)
    rows = prompts()
    got = greedy(ours, rows, max_new_tokens=20)
    free = theirs_of(theirs, rows, max_new_tokens=20, eos_token_id=VOCAB + 5)
    assert got == free
    stop = common(free)
    ended = theirs_of(theirs, rows, max_new_tokens=20, eos_token_id=stop)
    assert len({len(row) for row in ended}) > 1
    assert greedy(ours, rows, (stop,), max_new_tokens=20, chunk=2) == ended
    sampling = Sampling(repetition_penalty=1.4)
    penalty = [  # one by one: in a batch they count the padding token as held
        theirs_of(theirs, [row], max_new_tokens=20, eos_token_id=VOCAB + 5, repetition_penalty=1.4)
        for row in rows
    ]
    penalty = [row for (row,) in penalty]
    assert penalty != free
    assert greedy(ours, rows, max_new_tokens=20, sampling=sampling) == penalty


@families
@pytest.mark.parametrize("beams", [2, 3, 4])
def test_beam_search_token_by_token(name, beams, pair):
    theirs, ours = pair(name)
    rows = prompts(beams)
    free = theirs_of(theirs, rows, max_new_tokens=12, eos_token_id=VOCAB + 5, num_beams=beams)
    assert _searched(ours, rows, (), beams=beams) == free
    stop, seen_ends = common(free), 0
    for penalty in (0.0, 1.0, 2.5, -0.5):
        wanted = theirs_of(
            theirs, rows, max_new_tokens=12, eos_token_id=[stop, 9], num_beams=beams,
            length_penalty=penalty,
        )  # fmt: skip
        got = _searched(ours, rows, (stop, 9), beams=beams, length_penalty=penalty)
        assert got == wanted, penalty
        seen_ends += sum(row[-1] in (stop, 9) and len(row) < 12 for row in wanted)
    assert seen_ends


def _searched(decoder, rows, stops, **options):
    made = beam_search(decoder, rows, GenerateOptions(max_new_tokens=12, **options), stops=stops)
    assert [{token.row for token in row} for row in made] == [{n} for n in range(len(rows))]
    return [[token.id for token in row] for row in made]


def test_beam_search_with_a_repetition_penalty(pair):
    theirs, ours = pair("llama")
    for row in prompts():
        wanted = theirs_of(
            theirs, [row], max_new_tokens=12, eos_token_id=VOCAB + 5, num_beams=3,
            repetition_penalty=1.3,
        )  # fmt: skip
        sampling = Sampling(repetition_penalty=1.3)
        assert _searched(ours, [row], (), beams=3, sampling=sampling) == wanted


def _logits(rows=6, vocab=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, vocab, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("penalty", [0.6, 1.3, 4.0])
def test_the_repetition_penalty_is_theirs(penalty):
    held = torch.randint(40, (6, 9), generator=torch.Generator().manual_seed(1))
    logits = _logits()
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(held, logits.clone())
    got = penalised(logits, held.tolist(), penalty)
    torch.testing.assert_close(got, wanted)
    assert not torch.equal(got, logits)
    assert torch.equal(logits, _logits()), "what the model gave is not written over"


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [None, 1, 5, 400])
@pytest.mark.parametrize("top_p", [None, 1e-6, 0.5, 0.9, 1.0])
def test_temperature_top_k_and_top_p_are_theirs(temperature, top_k, top_p):
    logits, ids = _logits(), torch.zeros(6, 1, dtype=torch.long)
    wanted = TemperatureLogitsWarper(temperature)(ids, logits)
    if top_k is not None:
        wanted = TopKLogitsWarper(top_k)(ids, wanted)
    if top_p is not None and top_p < 1:
        wanted = TopPLogitsWarper(top_p)(ids, wanted)
    got = warped(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    torch.testing.assert_close(got, wanted)


def test_draws_have_the_frequencies_of_the_distribution():
    """Chi-square over 40,000 draws of fixed keys; what is cut off is never drawn."""
    count, sampling = 40_000, Sampling(temperature=0.8, top_k=9, top_p=0.95, seed=3)
    logits = _logits(rows=1, vocab=16, seed=4)
    p = warped(logits, sampling).softmax(-1)[0]
    for keys, positions in (
        (torch.arange(count), torch.zeros(count, dtype=torch.long)),
        (torch.zeros(count, dtype=torch.long), torch.arange(count)),
    ):
        drawn, sure = choose(logits.expand(count, -1), [[]] * count, keys, positions, sampling)
        seen = torch.bincount(drawn, minlength=16)
        assert (seen[p == 0] == 0).all()
        there = p > 0
        gap = (seen[there] - count * p[there]).square() / (count * p[there])
        assert gap.sum() < 27.9, "beyond the 0.1 % of 9 degrees of freedom"
        torch.testing.assert_close(sure, logits.softmax(-1)[0][drawn])
    other = choose(
        logits.expand(count, -1), [[]] * count, keys, positions, Sampling(temperature=0.8, seed=4)
    )[0]
    assert (other != drawn).double().mean() > 0.2


def test_near_ties_of_a_model_in_double_precision_are_not_rounded_away():
    logits = torch.tensor([[1.0, 1.0 + 1e-12, 0.5]], dtype=torch.float64)
    chosen, _ = choose(logits, [[]], torch.tensor([0]), torch.tensor([0]), Sampling())
    assert chosen.tolist() == [1]
