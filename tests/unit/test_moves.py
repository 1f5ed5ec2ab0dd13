"""Quantities of a transition: identities, closed forms, couplings known to be optimal or not."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from tokendepth.measure.assignment import assign
from tokendepth.measure.gaussian_map import covariance, linear_part
from tokendepth.measure.moves import (
    agreement,
    calibrate,
    corrected_cost,
    efficiency,
    expansion,
    extrapolated,
    fall,
    halved_cost,
    move_sizes,
    resolvable,
    sliced,
    sorted_projections,
    spearman,
    three_samples,
    unit_directions,
    verdict,
)
from tokendepth.measure.transition import Transition, measure_transition

# floor/P, A/P, whether e and whether ebar were published, of 12 transitions of Pythia-160m.
PUBLISHED = (
    (0.08, 3.8, True, True), (0.51, 3.4, True, False), (0.50, 0.7, True, False),
    (0.09, 0.1, True, True), (2.73, 1.2, False, False), (2.92, 5.3, False, False),
    (2.47, 1.4, False, False), (0.73, 3.7, True, False), (0.59, 6.3, True, False),
    (0.58, 3.1, True, False), (0.13, 1.5, True, True), (0.11, 99.0, True, True),
)  # fmt: skip


def centred(cloud):
    return cloud - cloud.mean(axis=0)


def plane(seed=0, n=2400):
    return np.random.default_rng(seed).standard_normal((n, 2)) * [2.0, 1.0]


def measured(x, y, **options) -> Transition:
    options = {"n": len(x) // 3, "seeds": range(1), "num_directions": 100, **options}
    return measure_transition(x, y, layers=(0, 1), **options)


@pytest.mark.parametrize(("floor", "a", "tell_e", "tell_ebar"), PUBLISHED)
def test_the_rule_reproduces_what_was_published_as_resolvable(floor, a, tell_e, tell_ebar):
    assert resolvable(floor, 1.0) == tell_ebar
    assert resolvable(floor, 1.0 + a) == tell_e


def test_e_is_the_share_of_the_raw_clouds():
    """With the whole cloud paired to itself nothing is sampled, and the identity is exact."""
    x = plane(n=400)
    y = x @ np.array([[0.0, 1.0], [-1.0, 0.0]]) + [3.0, 1.0]
    a, p = move_sizes(x, y)
    ebar = assign(centred(x), centred(y)).cost / p
    whole = assign(x, y).cost / np.square(y - x).sum(axis=1).mean()
    assert efficiency(a, p, ebar) == pytest.approx(whole, rel=1e-12)


def test_sizes_of_a_shift_and_of_a_stretch():
    x = plane()
    assert move_sizes(x, x + [3.0, 4.0]) == pytest.approx((25.0, 0.0), abs=1e-20)
    a, p = move_sizes(centred(x), 3 * centred(x))
    assert a == pytest.approx(0.0, abs=1e-20)
    assert p == pytest.approx(4 * np.square(centred(x)).sum(axis=1).mean())
    assert expansion(x, 3 * x + 5) == pytest.approx(3.0)


def test_samples_are_disjoint_and_refused_when_there_are_too_few_points():
    samples = three_samples(np.random.default_rng(0), 30, 10)
    assert sorted(np.concatenate(samples)) == list(range(30))
    with pytest.raises(ValueError, match="n: got 11, which takes 33 points"):
        three_samples(np.random.default_rng(0), 30, 11)


def test_independent_samples_of_one_cloud_are_nothing_apart_after_the_floor():
    x = np.random.default_rng(0).standard_normal((900, 6))
    samples = three_samples(np.random.default_rng(0), len(x), 300)
    cost = corrected_cost(*(x[some] for some in samples))
    assert cost.floor > 1.0
    assert abs(cost.value) < 0.1 * cost.floor


def test_a_known_expansion_reads_about_one():
    x = centred(plane())
    samples = three_samples(np.random.default_rng(0), len(x), 800)
    reading, floor = calibrate(x, 2.0, samples)
    assert reading == pytest.approx(1.0, abs=0.15)
    assert floor < 0.3


def test_the_sliced_bound_is_tight_for_uniform_stretch_and_below_the_exact_cost():
    x = centred(plane(n=500))
    random = np.random.default_rng(1)
    directions = unit_directions(random, 2, 2000)
    assert np.linalg.norm(directions, axis=0) == pytest.approx(1.0)

    def bound(y):
        return sliced(sorted_projections(x, directions), sorted_projections(y, directions), 2)

    assert bound(2 * x) == pytest.approx(assign(x, 2 * x).cost, rel=0.05)
    turned = x @ np.array([[0.6, 0.8], [-0.8, 0.6]])
    for y in (turned, x + np.tanh(2 * x), random.standard_normal((500, 2))):
        assert bound(y) <= assign(x, y).cost * 1.05


def test_the_gaussian_map_pushes_one_covariance_to_the_other():
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 900, 5)) @ random.standard_normal((2, 5, 5))
    source, target = covariance(centred(x)), covariance(centred(y))
    matrix = linear_part(source, target)
    assert matrix == pytest.approx(matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > 0
    assert matrix @ source @ matrix == pytest.approx(target, rel=1e-6, abs=1e-8)
    assert linear_part(source, source) == pytest.approx(np.eye(5), abs=1e-6)
    stretches = np.diag([1.0, 4.0, 9.0]), np.diag([4.0, 1.0, 9.0])
    assert linear_part(*stretches) == pytest.approx(np.diag([2.0, 0.5, 1.0]))


def test_rank_agreement_is_scipys():
    random = np.random.default_rng(0)
    first, second = random.integers(5, size=(2, 300)).astype(float)
    assert spearman(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert np.isnan(spearman(first, np.ones(300)))
    found = agreement(plane(1), plane(1) * 2, random)
    assert (found.rho, found.rho_by_coordinate, found.cosine) == pytest.approx((1, 1, 1), abs=0.2)
    assert abs(found.rho_null) < 0.05


def test_verdicts_at_their_bounds():
    assert verdict(0.0, 1.0, 0.29, 1.0, 0.9) == "optimal"
    assert verdict(0.0, 1.0, 0.31, 1.0, 0.9) == "not resolvable"
    assert verdict(0.0, 1.0, 0.1, 0.7, 0.9) == "not optimal"
    assert verdict(99.5, 0.5, 1.0, 0.1, 0.9) == "optimal"  # e is at least 0.995, whatever P does
    assert verdict(99.5, 0.5, 31.0, 0.1, 0.9) == "not resolvable"


@pytest.mark.parametrize(
    ("name", "move", "expected"),
    [
        ("shift", lambda x: x + [3.0, -1.0], "optimal"),
        ("expansion", lambda x: 2 * x, "optimal"),
        ("stretch", lambda x: x @ np.array([[2.0, 0.5], [0.5, 0.4]]), "optimal"),
        ("monotone", lambda x: x + 2 * np.tanh(2 * x), "optimal"),
        ("rotation", lambda x: x @ np.array([[0.0, 1.0], [-1.0, 0.0]]), "not optimal"),
        ("flip", lambda x: -2 * x, "not optimal"),
    ],
)
def test_couplings_whose_answer_is_known(name, move, expected):
    x = plane()
    found = measured(x, move(x))
    assert found.verdict == expected
    assert found.gap < 1e-12
    assert found.rho_null is None or abs(found.rho_null) < 0.08
    if name in ("expansion", "stretch", "monotone"):
        assert min(found.rho.value, found.cosine, found.rho_by_coordinate) > 0.8
    if name == "flip":
        assert found.rho.value < -0.8
    if found.resolvable:
        assert found.sliced <= found.ebar.value + 0.3  # the floor taken off is not the bias left
        assert found.ebar.low <= found.ebar.value <= found.ebar.high


def test_a_linear_map_leaves_no_remainder_to_tell():
    x = plane()
    found = measured(x, x @ np.array([[2.0, 0.5], [0.5, 0.4]]))
    assert found.gaussian_r2 == pytest.approx(1.0, abs=1e-6)
    assert found.remainder_rho.value is None
    more = 1.5 * plane(n=3600)
    assert measured(more, more + 4 * np.tanh(2 * more)).remainder_rho.value > 0.5


def test_a_small_step_is_not_resolvable_and_says_how_many_points_it_would_take():
    x = plane()
    found = measured(x, x + 0.05 * np.random.default_rng(3).standard_normal(x.shape))
    assert found.verdict == "not resolvable"
    assert found.ebar.value is None
    assert found.e.value is None
    assert found.n_needed > found.n
    assert abs(found.rho.value) < 0.3  # an independent target: not trivially 1


def test_a_cloud_that_stays_is_no_division_by_zero():
    x = plane(n=60)
    found = measured(x, x)
    assert found.verdict == "not resolvable"
    assert (found.a, found.p) == (0.0, 0.0)


def test_it_comes_back_from_json():
    x = plane(n=90)
    found = measured(x, 2 * x)
    assert Transition.from_dict(found.to_dict()) == found


def drawn(seed, n, dim):
    """Three samples of an expansion by 1.8, whose squared distance is 0.64 times the spread."""
    spectrum = 4 * np.arange(1, dim + 1) ** -1.5
    x, y, z = np.random.default_rng(seed).standard_normal((3, n, dim)) * spectrum
    return (x, 1.8 * y, 1.8 * z), 0.64 * float(np.square(spectrum).sum())


@pytest.mark.parametrize("dim", [2, 8])
def test_the_standard_error_is_the_scatter_of_repeated_samples(dim):
    costs = [corrected_cost(*drawn(seed, 150, dim)[0]) for seed in range(60)]
    scatter = np.std([cost.value for cost in costs], ddof=1)
    told = np.mean([cost.error for cost in costs])
    assert 0.75 * scatter < told < 1.4 * scatter


def test_bias_that_falls_by_a_power_is_taken_off_exactly():
    for alpha in (0.3, 1.0):
        small, large = (2.0 + 5.0 * n**-alpha for n in (100, 200))
        assert fall(5.0 * 200**-alpha, 5.0 * 100**-alpha) == pytest.approx(alpha)
        assert extrapolated(large, small, alpha) == pytest.approx(2.0, rel=1e-12)
    assert extrapolated(2.0, 3.0, fall(1.0, 1.01)) is None
    assert fall(0.0, 0.0) == 0.0


def test_extrapolation_is_honest_where_the_answer_is_known():
    """It brings readings of an optimal coupling, whose ebar is 1, most of the way there."""
    read, halves, floors = [], [], []
    for seed in range(20):
        samples, p = drawn(seed, 300, 12)
        cost, half = corrected_cost(*samples), halved_cost(*samples)
        read.append(cost.value / p)
        halves.append(half[0] / p)
        floors.append((cost.floor, half[1]))
    alpha = fall(*np.mean(floors, axis=0))
    better = np.mean([extrapolated(*pair, alpha) for pair in zip(read, halves, strict=True)])
    assert np.mean(halves) < np.mean(read) < 0.9
    assert abs(better - 1) < 0.5 * abs(np.mean(read) - 1)


def test_a_transition_tells_its_error_and_where_it_leads_only_if_it_is_resolvable():
    x = plane()
    found = measured(x, 2 * x + 1, seeds=range(2))
    assert found.ebar_extrapolated.value == pytest.approx(1, abs=4 * found.ebar_error)
    assert 0 < found.ebar_error < 0.3
    hidden = measured(x, x + 0.01 * np.random.default_rng(3).standard_normal(x.shape))
    assert not hidden.resolvable
    assert (hidden.ebar_error, hidden.ebar_extrapolated.value) == (None, None)
