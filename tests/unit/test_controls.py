"""Controls at a policy's own depth, and what a comparison makes of them."""

import itertools
import math

import numpy as np
import pytest
import torch

import tokendepth
from tokendepth.adapters.load import Loaded
from tokendepth.comparison.compare import CompareOptions, Entrant, compare_entrants
from tokendepth.comparison.more import with_more
from tokendepth.depth.dense import Dense
from tokendepth.depth.early_exit import EarlyExitConfig
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.depth.mixture_of_depths import MixtureOfDepthsConfig
from tokendepth.depth.random_keep import RandomKeepConfig
from tokendepth.depth.token_selective import TokenSelectiveConfig
from tokendepth.evaluation import controls
from tokendepth.evaluation.controls import best_subset, control_configs, mean_decisions
from tokendepth.evaluation.evaluate import EvaluateOptions
from tokendepth.evaluation.loss import score
from tokendepth.evaluation.passages import passages
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.policies import with_policy
from tokendepth.text.documents import Document
from tokendepth.text.tokenizers import CharacterTokenizer
from tokendepth.types import Schedule

CONFIG = DecoderConfig(
    vocab_size=19,
    width=16,
    num_blocks=5,
    num_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    inner_width=32,
)
IDS = torch.randint(19, (90,), generator=torch.Generator().manual_seed(0)).tolist()
TEXT = Document(name="text", ids=tuple(IDS), is_special=(False,) * len(IDS))
GIVEN = list(passages([TEXT], 16))
LETTERS = CharacterTokenizer("abcdefghijklmnopqrs")
OPTIONS = CompareOptions(
    score=EvaluateOptions(length=16), timed_batch=2, timed_length=8, seconds=0.01
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def decoder(config, seed=0):
    torch.manual_seed(seed)
    made = Decoder(CONFIG)
    made.policy = config.build(made)
    for name, parameter in made.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.4)
    return made.eval().requires_grad_(False)


def test_another_policy_shares_the_weights_and_leaves_the_first_alone():
    made = decoder(TokenSelectiveConfig())
    before, policy = made(torch.tensor([IDS[:12]]), routing="hard").logits, made.policy
    dense = with_policy(made, Dense().config)
    assert isinstance(dense.policy, Dense)
    assert made.policy is policy
    assert torch.equal(made(torch.tensor([IDS[:12]]), routing="hard").logits, before)
    for one, two in zip(made.blocks.parameters(), dense.blocks.parameters(), strict=True):
        assert one.data_ptr() == two.data_ptr()
    assert dense.head.weight is dense.embedding.weight
    kept = with_policy(made, TokenSelectiveConfig(threshold=0.95), keeping=True)
    ids = torch.tensor([IDS[:12]])
    assert kept(ids, routing="hard").executed.sum() > made(ids, routing="hard").executed.sum()
    assert torch.equal(kept(ids, routing="soft").logits, made(ids, routing="soft").logits)


def test_rates_and_gates_by_hand():
    made = decoder(TokenSelectiveConfig())
    kept, soft, tokens = np.zeros(4), np.zeros(4), 0
    for passage in GIVEN:
        ids = torch.tensor([passage.ids[:-1]])
        kept += made(ids, routing="hard").executed[0, :, 1:].double().sum(0).numpy()
        decisions = made(ids, routing="soft").decisions[1:]
        soft += np.array([float(one.weight.double().sum()) for one in decisions])
        tokens += ids.numel()
    assert len({len(passage.ids) for passage in GIVEN}) > 1
    np.testing.assert_allclose(mean_decisions(made, GIVEN, "hard", batch=4), kept / tokens)
    np.testing.assert_allclose(mean_decisions(made, GIVEN, "soft"), soft / tokens, rtol=1e-6)


@pytest.mark.parametrize("most", [64, 0], ids=["all tried", "one by one"])
def test_the_best_subset_is_the_one_that_predicts_best(most, monkeypatch):
    monkeypatch.setattr(controls, "MOST_SUBSETS", most)
    made = decoder(TokenSelectiveConfig(), seed=3)

    def loss(skipped):
        spans = [one for place, one in enumerate(made.schedule.spans) if place not in skipped]
        short = with_policy(made, Dense().config)
        short.schedule = Schedule(spans=tuple(spans))
        return float(score(short, GIVEN).nats.mean())

    single = min([(one,) for one in range(1, 5)], key=loss)
    assert best_subset(made, GIVEN, 3).skipped == single
    pairs = list(itertools.combinations(range(1, 5), 2))
    if most:
        assert best_subset(made, GIVEN, 2).skipped == min(pairs, key=loss)
    else:
        assert best_subset(made, GIVEN, 2).skipped == min(
            (one for one in pairs if single[0] in one), key=loss
        )


def test_one_draw_is_a_random_depth_of_the_wanted_shares():
    made = decoder(RandomKeepConfig(share=(1.0, 0.7, 0.3, 0.1), one_draw=True))
    ran = made(torch.zeros(40, 100, dtype=torch.long), row_keys=torch.arange(40)).executed
    assert (ran[..., 1:] <= ran[..., :-1]).all()
    shares = ran.double().mean((0, 1)).numpy()
    np.testing.assert_allclose(shares, [1.0, 1.0, 0.7, 0.3, 0.1], atol=0.03)


def test_random_depths_are_read_out_by_the_exits_of_the_policy():
    made = decoder(EarlyExitConfig(threshold=0.5))
    configs = control_configs(made, GIVEN, "hard")
    assert list(configs) == ["random depths"]
    shares = configs["random depths"].share
    assert configs["random depths"].one_draw
    assert shares == mean_decisions(made, GIVEN, "hard")
    assert shares[0] == 1.0 > shares[1] >= shares[-1] > 0.0
    ids = torch.tensor([IDS[:12]])
    for depth in (2, 3):
        fixed = RandomKeepConfig(share=(1.0,) * (depth - 1) + (0.0,) * (5 - depth))
        state = made(ids, policy=FixedExit(depth), collect=[5]).states[5]
        expected = made.head(made.policy.norms[depth - 2](state))
        torch.testing.assert_close(with_policy(made, fixed)(ids).logits, expected)


def test_a_policy_that_weighs_its_rows_has_no_controls_by_draws():
    assert control_configs(decoder(MixtureOfDepthsConfig(capacity=0.5)), GIVEN, "hard") == {}


def entrants(*configs):
    return [
        Entrant(
            name=type(config).__name__, documents=[TEXT], group=f"group {number}", seed=0,
            loaded=Loaded(title="toy", model=decoder(config), tokenizer=LETTERS),
        )
        for number, config in enumerate(configs)
    ]  # fmt: skip


def test_a_comparison_with_controls_and_variants():
    given = CompareOptions(**(vars(OPTIONS) | {"controls": True, "variants": ("threshold=0.95",)}))
    first = entrants(Dense().config, TokenSelectiveConfig())
    result = compare_entrants(with_more(first, given), given, data="text")
    rows = {row.group: row for row in result.rows}
    own = "group 1"
    assert list(rows) == [
        "group 0", own, f"{own} (threshold=0.95)", f"{own} (draws per span)",
        f"{own} (constant gate)", f"{own} (fixed subset)",
    ]  # fmt: skip
    share = rows[own].executed_share
    assert 0.3 < share < 0.9
    assert rows[f"{own} (threshold=0.95)"].executed_share > share
    assert rows[f"{own} (draws per span)"].executed_share == pytest.approx(share, abs=0.1)
    subset = rows[f"{own} (fixed subset)"].executed_share
    assert subset == pytest.approx(math.ceil(5 * share - 1e-9) / 5)
    assert [row.control for row in result.rows] == [False, False, False, True, True, True]
    assert rows[f"{own} (constant gate)"].routing == "soft"
    assert len(result.differences) == 5
    assert isinstance(first[1].loaded.decoder.policy, tokendepth.TokenSelective)


def test_a_variant_that_fits_no_run_is_refused():
    given = CompareOptions(**(vars(OPTIONS) | {"variants": ("threshhold=0.6",)}))
    with pytest.raises(ValueError, match="variants: no policy here has the field of 'threshhold"):
        with_more(entrants(Dense().config, TokenSelectiveConfig()), given)
    given = CompareOptions(**(vars(OPTIONS) | {"variants": ("threshold=1.5",)}))
    with pytest.raises(ValueError, match="threshold: got 1.5"):
        with_more(entrants(TokenSelectiveConfig()), given)
