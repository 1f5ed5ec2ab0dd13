"""Rounds of matching and looking: the loop that ends with a proof.

Pairs are drawn from a sparse graph of near ones. They are matched with prices u of rows and v of
columns, u_i + v_j <= c_ij on every arc and equal on matched ones. Then all pairs are held against
the prices: what costs less joins the graph, and the rows concerned are matched again. When nothing
does, sum(u) + sum(v) bounds every assignment from below, and the one found reaches it.

Prices of columns only ever fall here. What has been shown for a row therefore stays true until the
row's own price rises above what it was shown for (`shown`), and only such rows are looked at again.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from tokendepth.measure.pair_costs import PairCosts
from tokendepth.measure.pair_search import broken_pairs, near_pairs
from tokendepth.measure.sparse_graph import graph_of, merged
from tokendepth.measure.sparse_matching import augment, bid, reduce_rows, take_cheapest

WIDTH = 12  # near columns a row, and near rows a column
STEPS = (0.4, 0.1, 0.03, 0.01, 0.003)  # of an auction, in units of the spread of a row's costs
BIDS = 12  # a row and step at most
SPARE = 8  # free columns offered to a row that reaches none
SLICE = 256  # rows augmented in one call, between which Ctrl-C is heard
MAX_ROUNDS = 500


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Each row with a column of its own, and the prices that prove it."""

    mate: Int[np.ndarray, " row"]
    u: Float[np.ndarray, " row"]
    v: Float[np.ndarray, " column"]


def match(
    costs: PairCosts, u: Float[np.ndarray, " row"], v: Float[np.ndarray, " column"]
) -> Matching:
    """The cheapest matching of every row.

    Args:
        costs: of all pairs; no more rows than columns.
        u: prices of rows to start from, a guess.
        v: prices of columns to start from, a guess; 0 where there are more columns than rows,
            since a column that stays free must cost nothing.
    """
    rounds = _Rounds(costs, u, v)
    for _ in range(MAX_ROUNDS):
        rounds.match()
        if not rounds.look():
            break
    return Matching(mate=rounds.mate, u=np.minimum(rounds.u, rounds.floor), v=rounds.v)


class _Rounds:
    """The graph, the prices and the matching so far."""

    def __init__(self, costs: PairCosts, u: np.ndarray, v: np.ndarray) -> None:
        self.costs, self.v = costs, v.copy()
        self.graph = graph_of(costs.shape[0], *near_pairs(costs, u, v, WIDTH))
        self._square = costs.shape[0] == costs.shape[1]
        self._random = np.random.default_rng(0)
        self._start()
        self._free = take_cheapest(*self._arcs(), self.u, self.v, self.mate, self.owner)
        if self._square:
            self._free = self._reduced(self._free, passes=2)
            self._many = len(self._free) > len(self.u) // 50

    def _start(self) -> None:
        """No row has a column, and nothing is known of it."""
        self.u = np.zeros(self.costs.shape[0])
        self.floor = np.full(len(self.u), -np.inf)
        self._shown = np.full(len(self.u), -np.inf)
        self._many = False
        self._forget()

    def _forget(self) -> None:
        self.mate = np.full(self.costs.shape[0], -1)
        self.owner = np.full(self.costs.shape[1], -1)
        self._free = np.arange(len(self.mate))

    def match(self) -> None:
        """Give every row a column."""
        if self._many:
            self._auction()
        free = self._reduced(self._free, passes=4)
        while len(free):
            stuck = [
                augment(*self._arcs(), self.u, self.v, self.mate, self.owner, some)
                for some in np.array_split(free, -(-len(free) // SLICE))
            ]
            free = np.sort(np.concatenate(stuck))
            if len(free):
                spare = np.flatnonzero(self.owner < 0)
                self._join(
                    np.repeat(free, SPARE), self._random.choice(spare, size=SPARE * len(free))
                )

    def look(self) -> bool:
        """Find pairs that cost less than their prices; True when there are any, now in the graph.

        Where there are many, the graph lacks whole regions of pairs: the next ones are looked for
        from both sides, so that they spread over columns as well as rows.
        """
        stale = np.flatnonzero(self.u > self._shown)
        found = broken_pairs(self.costs, self.u, self.v, stale)
        rows, columns, exact = found.rows, found.columns, found.costs
        many = len(rows) > len(self.u) // 4
        if many:
            spread = near_pairs(self.costs, self.u, self.v, WIDTH, below=0.0)
            rows, columns, exact = spread if len(spread[0]) else (rows, columns, exact)
        else:
            self.floor[stale] = found.floor
            self._shown[stale] = np.where(np.isfinite(found.floor), self.u[stale], -np.inf)
        before = len(self.graph.head)
        self.graph = merged(self.graph, rows, columns, exact)
        if len(self.graph.head) == before:  # what is left is rounding, of pairs known already
            unsure = stale if many else stale[~np.isfinite(self.floor[stale])]
            found = broken_pairs(self.costs, self.u, self.v, unsure, certain=True)
            self.floor[unsure] = found.floor
            return False
        lowest = np.zeros(len(self.u))
        np.minimum.at(lowest, rows, exact - self.u[rows] - self.v[columns])
        self._release(np.flatnonzero(lowest < 0), lowest)
        return True

    def _release(self, rows: np.ndarray, lowest: np.ndarray) -> None:
        """Lower the rows' prices as far as their new pairs ask for, and match them again.

        With more columns than rows everything starts anew: a column may cost less than nothing
        only while it is taken, which releasing its row would break.
        """
        if not self._square:
            self.v[:] = 0.0
            self._start()
            return
        self.u[rows] += lowest[rows]
        self._shown[rows] = np.minimum(self._shown[rows], self.u[rows])
        self.owner[self.mate[rows]] = -1
        self.mate[rows] = -1
        self._free = rows
        self._many = len(rows) > len(self.u) // 8

    def _auction(self) -> None:
        """Bring prices close to the best ones before rows are matched one by one."""
        reduced = self.graph.cost - self.v[self.graph.head]
        first = self.graph.start[:-1]
        low = np.minimum.reduceat(reduced, first)
        means = np.add.reduceat(reduced, first) / np.diff(self.graph.start)
        spread = float((means - low).mean())
        if spread <= 0.0:
            return
        for step in STEPS:
            bid(*self._arcs(), self.v, step * spread, BIDS * len(self.u))
        self._forget()

    def _reduced(self, free: np.ndarray, passes: int) -> np.ndarray:
        for _ in range(passes):
            if len(free):
                free = reduce_rows(*self._arcs(), self.u, self.v, self.mate, self.owner, free)
        return free

    def _arcs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.graph.start, self.graph.head, self.graph.cost

    def _join(self, rows: np.ndarray, columns: np.ndarray) -> None:
        self.graph = merged(self.graph, rows, columns, self.costs.of(rows, columns))
