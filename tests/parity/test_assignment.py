"""Assignment against scipy, brute force and closed forms, and its proof against the definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from tokendepth.measure import assignment as module
from tokendepth.measure.assignment import Assignment, assign, assign_cost
from tokendepth.measure.pair_costs import GivenCosts, SquaredDistances
from tokendepth.measure.pair_search import broken_pairs, near_pairs


def distances(source, target):
    return ((source[:, None] - target[None]) ** 2).sum(axis=2)


def check(found: Assignment, matrix, tolerance=1e-12):
    """The optimum of scipy, every row or column used once, and prices that prove it."""
    matched = found.permutation >= 0
    columns = found.permutation[matched]
    assert matched.sum() == min(matrix.shape)
    assert len(set(columns.tolist())) == len(columns)
    assert matched.all() or len(columns) == matrix.shape[1]
    mine = matrix[np.flatnonzero(matched), columns]
    best = matrix[linear_sum_assignment(matrix)]
    size = np.abs(best).sum()
    assert mine.sum() == pytest.approx(best.sum(), abs=max(1e-12 * size, 1e-300))
    assert found.cost == pytest.approx(best.mean(), abs=max(1e-12 * size / len(best), 1e-300))
    slack = matrix - found.dual_source[:, None] - found.dual_target[None]
    scale = np.abs(matrix).max() + np.abs(found.dual_source).max()
    assert slack.min() >= -1e-12 * scale
    bound = found.dual_source.sum() + found.dual_target.sum()
    assert bound == pytest.approx(mine.sum(), abs=max(1e-11 * max(size, scale), 1e-300))
    if matrix.shape[0] < matrix.shape[1]:  # else a column left out would have to be paid for
        assert found.dual_target.max() <= 0.0
    if matrix.shape[0] > matrix.shape[1]:
        assert found.dual_source.max() <= 0.0
    assert abs(found.gap) <= tolerance


def mixture(random, n, dim):
    centres = 3 * random.standard_normal((6, dim))
    return [
        centres[random.integers(6, size=n)] + 0.05 * random.standard_normal((n, dim))
        for _ in range(2)
    ]


def warped(draw, n, dim):
    turned = draw((n, dim)) @ np.linalg.qr(draw((dim, dim)))[0]
    return draw((n, dim)), turned + turned**3 / 3


def collinear(draw, n, dim):
    line = draw(dim)
    return draw((n, 1)) * line, draw((n, 1)) * line + 1


def near_planar(draw, n, dim):
    flat = draw((2, dim))
    return [draw((n, 2)) @ flat + 1e-9 * draw((n, dim)) for _ in range(2)]


def duplicated(random, n, dim):
    few = random.standard_normal((n // 10 + 1, dim))
    return [few[random.integers(len(few), size=n)] for _ in range(2)]


def very_near(random, n, dim):
    points = random.standard_normal((n, dim))
    moved = points + 1e-7 * random.standard_normal((n, dim))
    return points, moved[random.permutation(n)]


def clouds(kind, n, dim, seed=0):
    random = np.random.default_rng(seed)
    draw = random.standard_normal
    spectrum = 4 * np.arange(1, dim + 1) ** -1.5
    make = {
        "independent": lambda: (draw((n, dim)), draw((n, dim))),
        "clustered": lambda: mixture(random, n, dim),
        "warped": lambda: warped(draw, n, dim),
        "stretched": lambda: (draw((n, dim)), draw((n, dim)) * spectrum + 5),
        "collinear": lambda: collinear(draw, n, dim),
        "near planar": lambda: near_planar(draw, n, dim),
        "heavy tails": lambda: random.standard_cauchy((2, n, dim)) ** 3,
        "far away": lambda: 1e8 + draw((2, n, dim)),
        "far apart": lambda: (draw((n, dim)) - 1e6, draw((n, dim)) + 1e6),
        "duplicated": lambda: duplicated(random, n, dim),
        "lattice": lambda: random.integers(3, size=(2, n, dim)).astype(float),
        "very near": lambda: very_near(random, n, dim),
        "sorted": lambda: (np.sort(draw((n, dim)), axis=0), -np.sort(draw((n, dim)), axis=0)),
    }
    return make[kind]()


KINDS = (
    "independent", "clustered", "warped", "stretched", "collinear", "near planar", "heavy tails",
    "far away", "far apart", "duplicated", "lattice", "very near", "sorted",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "dim"), [(1, 3), (2, 2), (7, 1), (60, 2), (400, 5)])
def test_every_kind_of_cloud(kind, n, dim):
    source, target = clouds(kind, n, dim)
    check(assign(source, target), distances(source, target))


@pytest.mark.parametrize("kind", ["independent", "clustered", "duplicated", "warped"])
@pytest.mark.parametrize("threads", [1, 3])
def test_more_points_than_one_part_holds(kind, threads, monkeypatch):
    """Several threads and blocks, and more columns than a panel."""
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    monkeypatch.setattr("tokendepth.measure.pair_search.PANEL", 500)
    source, target = clouds(kind, 1300, 4)
    check(assign(source, target), cdist(source, target, "sqeuclidean"))


def test_wide_points():
    """So many dimensions that a matrix product is left to its own threads."""
    source, target = clouds("independent", 600, 100)
    check(assign(source, target), cdist(source, target, "sqeuclidean"))


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (30, 41), (41, 30), (200, 1000), (300, 290)])
@pytest.mark.parametrize("kind", ["independent", "lattice", "clustered"])
def test_clouds_of_different_sizes(shape, kind):
    source, target = clouds(kind, max(shape), 3)
    source, target = source[: shape[0]], target[: shape[1]]
    check(assign(source, target), distances(source, target))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_brute_force(n):
    source, target = clouds("independent", n, 2, seed=n)
    matrix = distances(source, target)
    best = min(
        sum(matrix[row, column] for row, column in enumerate(order))
        for order in itertools.permutations(range(n))
    )
    assert assign(source, target).cost * n == pytest.approx(best, rel=1e-13)


def test_a_line_is_sorted():
    random = np.random.default_rng(0)
    source, target = random.standard_normal((500, 1)), random.standard_normal((500, 1)) ** 3
    found = assign(source, target)
    order = np.argsort(np.argsort(source[:, 0]))
    assert (found.permutation == np.argsort(target[:, 0])[order]).all()


def test_a_cloud_against_itself_costs_exactly_nothing():
    source, _ = clouds("independent", 700, 8)
    source = 1e6 + 10 * source
    found = assign(source, source)
    assert (found.permutation == np.arange(700)).all()
    assert (found.cost, found.gap) == (0.0, 0.0)
    order = np.random.default_rng(1).permutation(700)
    assert (assign(source, source[order]).permutation == np.argsort(order)).all()


def test_shift_and_stretch_are_known():
    source, _ = clouds("independent", 500, 6)
    shift = np.arange(6.0)
    assert assign(source, source + shift).cost == pytest.approx((shift**2).sum(), rel=1e-13)
    doubled = assign(source, 2 * source)
    assert (doubled.permutation == np.arange(500)).all()
    assert doubled.cost == pytest.approx((source**2).sum(axis=1).mean(), rel=1e-13)


@pytest.mark.parametrize("scale", [1e-120, 1e-6, 1.0, 3e7, 1e140])
def test_the_unit_does_not_matter(scale):
    source, target = clouds("warped", 300, 4)
    plain, scaled = assign(source, target), assign(source * scale, target * scale)
    assert (plain.permutation == scaled.permutation).all()
    assert scaled.cost == pytest.approx(plain.cost * scale**2, rel=1e-12)
    assert abs(scaled.gap) <= 1e-12


def test_distance_of_clouds_is_a_metric_that_motion_leaves_alone():
    first, second = clouds("independent", 300, 3)
    third = clouds("stretched", 300, 3)[1]
    turn = np.linalg.qr(np.random.default_rng(5).standard_normal((3, 3)))[0]
    there, back = assign(first, third), assign(third, first)
    assert there.cost == pytest.approx(back.cost, rel=1e-12)
    assert (back.permutation[there.permutation] == np.arange(300)).all()
    moved = assign(first @ turn + 7, third @ turn + 7)
    assert moved.cost == pytest.approx(there.cost, rel=1e-10)
    sides = [assign(*pair).cost ** 0.5 for pair in ((first, second), (second, third))]
    assert there.cost**0.5 <= sum(sides) + 1e-12


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from(
        ["ties", "negative", "offset", "rank one", "tiny"]
    ),
)  # fmt: skip
def test_any_matrix(rows, columns, seed, kind):
    random = np.random.default_rng(seed)
    matrix = random.integers(0, 4, size=(rows, columns)).astype(float)
    if kind == "negative":
        matrix = random.standard_normal((rows, columns)) * 100 - 50
    elif kind == "offset":
        matrix = random.random((rows, columns)) + 1e6 * random.random((rows, 1))
        matrix = matrix + 1e6 * random.random(columns)
    elif kind == "rank one":
        matrix = np.outer(random.standard_normal(rows), random.standard_normal(columns))
    elif kind == "tiny":
        matrix = 1e-200 * random.random((rows, columns))
    check(assign_cost(matrix), matrix)


def test_integers_are_taken_as_they_are():
    matrix = np.random.default_rng(0).integers(0, 3, size=(300, 300))
    check(assign_cost(matrix), matrix.astype(float))


def test_a_large_matrix_agrees_with_the_clouds_it_comes_from():
    source, target = clouds("clustered", 1500, 3)
    from_matrix = assign_cost(distances(source, target))
    assert from_matrix.cost == pytest.approx(assign(source, target).cost, rel=1e-12)
    assert abs(from_matrix.gap) <= 1e-12


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_entries_that_are_no_numbers_are_refused_with_their_place(bad):
    source, target = clouds("independent", 20, 3)
    target[17, 2] = bad
    with pytest.raises(ValueError, match=r"target: got -?(nan|inf) at \[17, 2\]"):
        assign(source, target)
    with pytest.raises(ValueError, match=r"matrix: got -?(nan|inf) at \[17, 2\]"):
        assign_cost(target)


def test_shapes_and_sizes_that_cannot_be_are_refused():
    points = np.ones((4, 3))
    with pytest.raises(ValueError, match="target: got points of dimension 2"):
        assign(points, np.ones((4, 2)))
    with pytest.raises(ValueError, match="source: got shape"):
        assign(np.ones((0, 3)), points)
    with pytest.raises(ValueError, match="matrix: got shape"):
        assign_cost(np.ones((3, 0)))
    with pytest.raises(ValueError, match=r"source: got 1e\+200 at \[0, 1\]"):
        assign(np.where(np.eye(4, 3, 1) == 1, 1e200, 0.0), points)


@pytest.mark.parametrize("price", [0.0, 1e-10])
def test_floors_hold_where_a_product_cannot_tell_pairs_apart(price):
    """30 targets within rounding of one another, as a matrix product sees them."""
    target = 1e3 + np.random.default_rng(0).random((30, 2)) * 1e-6
    source = np.full((30, 2), 1e3)
    source[0] = -1e7
    costs = SquaredDistances(source, target)
    u, v, asked = np.full(30, price), np.zeros(30), np.arange(30)
    least = distances(source, target).min(axis=1)
    found = broken_pairs(costs, u, v, asked, certain=True)
    assert (found.floor <= np.minimum(least, u)).all()
    assert (found.floor[1:] == np.minimum(least, u)[1:]).all()
    quick = broken_pairs(costs, u, v, asked)
    assert np.isneginf(quick.floor[1:]).all() == (price > least[1:].min())
    found = assign(source, target)
    dual = found.dual_source[:, None] + found.dual_target
    assert (dual - distances(source, target) <= 1e-14 * np.abs(found.dual_source[:, None])).all()


@pytest.mark.parametrize("panel", [4096, 300])
@pytest.mark.parametrize("dim", [3, 70])
def test_near_pairs_are_the_nearest_of_each_row_and_column(panel, dim, monkeypatch):
    monkeypatch.setattr("tokendepth.measure.pair_search.PANEL", panel)
    source, target = clouds("independent", 700, dim)
    costs = SquaredDistances(source[:650], target)
    u, v = np.random.default_rng(1).random(650), np.random.default_rng(2).random(700)
    matrix = distances(source[:650], target)
    reduced = matrix - u[:, None] - v
    wanted = np.zeros(matrix.shape, bool)
    np.put_along_axis(wanted, np.argpartition(reduced, 9, axis=1)[:, :9], True, axis=1)
    np.put_along_axis(wanted, np.argpartition(reduced, 9, axis=0)[:9], True, axis=0)
    for found in (near_pairs(costs, u, v, 9), near_pairs(GivenCosts(matrix), u, v, 9)):
        rows, columns, exact = found
        marked = np.zeros(matrix.shape, bool)
        marked[rows, columns] = True
        assert (marked == wanted).all()
        assert exact == pytest.approx(matrix[rows, columns], rel=1e-12)
        assert len(rows) == marked.sum()
    rows, columns, _ = near_pairs(costs, u, v, 700, below=float(np.quantile(reduced, 0.001)))
    assert len(rows) == 0 or (reduced[rows, columns] < 0).all()


def test_what_float32_cannot_tell_apart_is_looked_at_again():
    """Clusters so tight that all pairs within one lie inside float32's error."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((4, 5))
    source, target = (
        centres[random.integers(4, size=200)] + 1e-6 * random.standard_normal((200, 5))
        for _ in range(2)
    )
    costs = SquaredDistances(source, target)
    matrix = distances(source, target)
    u, v = matrix.min(axis=1) + 1e-13, np.zeros(200)
    asked = np.arange(10, 190)
    found = broken_pairs(costs, u, v, asked)
    broken = np.unique(found.rows)
    assert len(broken) > 150
    assert (np.diff(found.rows) >= 0).all()
    assert (found.costs < u[found.rows]).all()
    quiet = np.isfinite(found.floor)
    assert found.floor[quiet] == pytest.approx(matrix[asked[quiet]].min(axis=1), rel=1e-9)


def test_the_start_does_not_change_the_result(monkeypatch):
    for kind in ("stretched", "clustered"):
        source, target = clouds(kind, 500, 4)
        expected = assign(source, target)
        for loose in (0.0, np.inf):  # the Gaussian start always, and never
            monkeypatch.setattr(module, "LOOSE", loose)
            found = assign(source, target)
            assert found.cost == pytest.approx(expected.cost, rel=1e-13)
            assert abs(found.gap) <= 1e-12
