"""The probe sees planted leaks, and nothing where there are none."""

import pytest
import torch

from tests.contract import toys
from tests.contract.cases import CAUSAL, CONFIG, VOCAB, WIDTH, build
from tokendepth.depth.base import Policy
from tokendepth.depth.dense import Dense
from tokendepth.evaluation.causality import probe
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import stack
from tokendepth.nn.attention import Attention
from tokendepth.types import Decision

IDS = torch.randint(VOCAB, (2, 40), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class LooksAhead(Policy):
    """Keeps a row if the next token's state says so, from one position on."""

    def __init__(self, start=0):
        super().__init__()
        self.start_at = start

    def decide(self, span, hidden, state, context):
        ahead = hidden[..., 0].roll(-1, dims=1) > 0
        ahead[:, -1] = True
        return Decision(keep=ahead | (context.positions < self.start_at)), state


class CountsTheCall(Policy):
    """Decides by how many tokens the call has."""

    def decide(self, span, hidden, state, context):
        return Decision(keep=context.positions >= 0.25 * hidden.shape[1]), state


class WeighsAhead(Policy):
    """Keeps every row, with a weight that the mean of the whole row moves."""

    def decide(self, span, hidden, state, context):
        weight = torch.sigmoid(hidden.mean((1, 2)))[:, None].expand(hidden.shape[:2])
        return Decision(weight=weight), state


class FlinchesAhead(Policy):
    """Keeps every row, unless some later state of the row is larger than any of the text's."""

    def __init__(self, largest):
        super().__init__()
        self.largest = largest

    def decide(self, span, hidden, state, context):
        later = hidden[..., 0].flip(1).cummax(1).values.flip(1).roll(-1, dims=1)
        later[:, -1] = -torch.inf
        return Decision(keep=later <= self.largest), state


class AsksItsNeighbours(Policy):
    """Keeps a row if it lies above the mean of the batch at its position."""

    def decide(self, span, hidden, state, context):
        return Decision(keep=hidden[..., 0] >= hidden[..., 0].mean(0)), state


class LooksAheadAndDenies(Policy):
    """Looks ahead, and says of every decision that it lay at its threshold."""

    def decide(self, span, hidden, state, context):
        ahead = hidden[..., 0].roll(-1, dims=1) > 0
        ahead[:, -1] = True
        return Decision(keep=ahead, margin=torch.zeros(ahead.shape)), state


def decoder(policy=None):
    torch.manual_seed(0)
    made = Decoder(CONFIG, stack(4), policy)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.35, mean=float(parameter.ndim == 1))
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize(
    "case",
    [c for c in CAUSAL if c.policy != "fixed" and c.schedule in ("stack", "looped")],
    ids=str,
)
def test_policies_that_keep_the_rule_pass(case):
    found = probe(build(case), IDS, routing=case.routing)
    assert found.causal
    assert found.moved is None
    assert found.prefixes == (1, 3, 7, 15, 31, 39)
    assert found.largest_change < 1e-9


@pytest.mark.parametrize(
    ("policy", "moved"),
    [
        (LooksAhead(), "a decision of a prefix of"),
        (LooksAhead(start=20), "a decision of a prefix of 31 tokens"),
        (CountsTheCall(), "when it stood alone"),
        (WeighsAhead(), "a weight of a prefix of"),
    ],
    ids=["next token", "only after twenty", "length of the call", "weight"],
)
@pytest.mark.parametrize("executor", ["dense", "gathered"])
def test_a_planted_leak_is_seen(policy, moved, executor):
    found = probe(decoder(policy), IDS, executor=executor)
    assert not found.causal
    assert moved in found.moved
    assert found.label == "LEAKS"


def test_a_leak_that_only_other_text_wakes_is_seen():
    """The text itself and its prefixes alone keep every row; only what replaces the rest tells."""
    made = decoder()
    states = made(IDS, collect=(1, 2, 3)).states
    made.policy = FlinchesAhead(max(float(one[..., 0].max()) for one in states.values()))
    assert made(IDS).executed.all()
    assert "with the tokens after it" in probe(made, IDS).moved


def test_top_k_over_the_batch_is_labelled_or_seen(monkeypatch):
    torch.manual_seed(0)
    policy = toys.BatchTopK(WIDTH, share=0.5)
    honest = probe(decoder(policy), IDS)
    assert (honest.declared, honest.causal, honest.label) == (
        False, False, "not causal, as declared",
    )  # fmt: skip
    monkeypatch.setattr(toys.BatchTopK, "causal", lambda self, routing: True)
    assert "a decision" in probe(decoder(policy), IDS).moved


def test_a_leak_in_attention_is_seen(monkeypatch):
    honest = Attention.attend

    def leaky(self, queries, keys, values, visible):
        size = (len(queries), queries.shape[1], keys.shape[1])
        return honest(self, queries, keys, values, torch.ones(size, dtype=torch.bool))

    monkeypatch.setattr(Attention, "attend", leaky)
    found = probe(decoder(toys.UpdateGate(WIDTH)), IDS, routing="hard")
    assert "a logit" in found.moved or "a decision" in found.moved


def test_a_turned_decision_within_rounding_is_excused(monkeypatch):
    """A decision that rounding turns tells nothing, if the policy says how near it was."""

    class Turns(Policy):
        def __init__(self, margin):
            super().__init__()
            self.margin = margin

        def decide(self, span, hidden, state, context):
            keep = torch.ones(hidden.shape[:2], dtype=torch.bool)
            keep[:, 1:2] = hidden.shape[1] > 7
            margin = torch.full(keep.shape, 1.0)
            margin[:, 1:2] = self.margin
            return Decision(keep=keep, margin=margin), state

    near, far = (probe(decoder(Turns(margin)), IDS) for margin in (1e-6, 0.1))
    assert near.causal
    assert near.num_excused > 0
    assert "a decision" in far.moved


def test_a_text_without_a_prefix_to_probe_is_refused():
    with pytest.raises(ValueError, match="input_ids: a text of one token has no prefix"):
        probe(decoder(Dense()), IDS[:, :1])


@pytest.mark.parametrize(
    "leak", [LooksAhead(start=33), AsksItsNeighbours(), LooksAheadAndDenies()],
    ids=["late", "other rows", "denied"],
)  # fmt: skip
def test_leaks_that_short_prefixes_and_excuses_would_hide(leak):
    assert not probe(decoder(leak), IDS).causal
