"""Exact assignment between two clouds, with a proof.

Pairs are drawn from a sparse graph of near ones (`pair_search`), matched with prices that prove it
(`sparse_matching`), and then every pair that was left out is held against the prices: whatever costs
less than its prices joins the graph, and the rows concerned are matched again. When nothing does,
the prices prove that no assignment of all pairs is cheaper.

The prices start from the optimal map between Gaussians with the clouds' means and covariances:
x → Ax with A symmetric makes -2 x·y at least -x·Ax - y·A⁻¹y, which are prices of a row and of a column.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from tokendepth.measure.pair_costs import GivenCosts, PairCosts, SquaredDistances
from tokendepth.measure.pair_search import broken_pairs, nearest_pairs
from tokendepth.measure.sparse_graph import Graph, merged
from tokendepth.measure.sparse_matching import augment, bid, reduce_rows

LIMIT=12
REBID=()
WIDTH = 12
STEPS = (0.4, 0.1, 0.03, 0.01, 0.003)
MAX_ROUNDS = 200


@dataclass
class _State:
    u: Float[np.ndarray, " row"]
    v: Float[np.ndarray, " column"]
    mate: Int[np.ndarray, " row"]
    owner: Int[np.ndarray, " column"]


def solve(costs: PairCosts, u, v, stats=None):
    import time
    T={}; t0=[time.perf_counter()]
    def mark(n):
        t=time.perf_counter(); T[n]=T.get(n,0)+t-t0[0]; t0[0]=t
    num_rows, num_columns = costs.shape
    start, tail, head, cost = nearest_pairs(costs, u, v, WIDTH)
    graph = Graph(start=start, head=head, cost=cost)
    mark('near')
    v = v.copy()
    def SC():
        reduced = graph.cost - v[graph.head]
        low = np.minimum.reduceat(reduced, graph.start[:-1])
        return float((np.add.reduceat(reduced, graph.start[:-1]) / np.diff(graph.start) - low).mean())
    scale=SC()
    log=[]
    if scale > 0:
        for step in STEPS:
            log.append(bid(graph.start, graph.head, graph.cost, v, step * scale, LIMIT * num_rows))
    mark('bid')
    mate = np.full(num_rows, -1); owner = np.full(num_columns, -1)
    u = np.zeros(num_rows); certified = np.full(num_rows, -np.inf)
    free = np.arange(num_rows)
    rng = np.random.default_rng(0)
    wide = False
    for turn in range(MAX_ROUNDS):
        for _ in range(4): free = reduce_rows(graph.start, graph.head, graph.cost, u, v, mate, owner, free)
        mark('arr')
        nf=len(free)
        while True:
            nf2=len(free); tt=time.process_time()
            free = augment(graph.start, graph.head, graph.cost, u, v, mate, owner, free)
            mark('augment'); log.append(('aug',nf2,round(1e3*(time.process_time()-tt))))
            if not len(free): break
            spare = np.flatnonzero(owner < 0)
            rows = np.repeat(np.sort(free), 8); columns = rng.choice(spare, size=len(rows))
            graph = merged(graph, rows, columns, costs.of(rows, columns))
            log.append(('stuck',len(free))); wide=True
            mark('stuck')
        if wide:
            _, tail, head, cost = nearest_pairs(costs, u, v, WIDTH, 0.0)
            reduced = cost - u[tail] - v[head]
            real = reduced < -1e-9 * scale
            log.append((nf,'w',real.sum()))
            mark('wide')
            wide = real.sum() > num_rows // 8
            if real.sum() > num_rows//40:
                tail, head, cost = tail[real], head[real], cost[real]
                graph = merged(graph, tail, head, cost)
                low = np.zeros(num_rows); np.minimum.at(low, tail, reduced[real])
                free = np.unique(tail); u[free] += low[free]
                owner[mate[free]] = -1
                mate[free] = -1
                mark('merge')
                if REBID and len(free) > num_rows//8:
                    scale = SC()
                    for step in REBID:
                        log.append(bid(graph.start, graph.head, graph.cost, v, step * scale, LIMIT * num_rows))
                    mate[:]=-1; owner[:]=-1; free=np.arange(num_rows)
                    mark('bid')
                continue
        stale = np.flatnonzero(u > certified)
        b = broken_pairs(costs, u, v, stale)
        certified[stale] = b.floor
        log.append((nf,len(stale),len(b.rows)))
        mark('price')
        if not len(b.rows): break
        wide = len(b.rows) > num_rows//4
        if wide: 
            certified[stale]=-np.inf; free=np.zeros(0,int)
            continue
        graph = merged(graph, b.rows, b.columns, b.costs)
        free = np.unique(b.rows)
        u[free] = certified[free]
        owner[mate[free]] = -1
        mate[free] = -1
        mark('merge')
    if stats is not None: stats.update(uv=(np.minimum(u,certified),v),T=T,log=log,arcs=len(graph.head)/num_rows)
    primal = costs.of(np.arange(num_rows), mate)
    dual = np.minimum(u, certified)
    return mate, primal.mean(), (primal.sum() - dual.sum() - v.sum()) / primal.sum()


def gaussian_prices(source, target):
    """Prices from the optimal map between Gaussians."""
    a, b = source.mean(0), target.mean(0)
    x, y = source - a, target - b
    D = x.shape[1]
    S = x.T @ x / len(x); T = y.T @ y / len(y)
    S += 1e-8 * np.trace(S) / D * np.eye(D); T += 1e-8 * np.trace(T) / D * np.eye(D)
    def root(S):
        w, V = np.linalg.eigh(S); return (V * np.sqrt(np.maximum(w, 0))) @ V.T
    h = root(S); hi = np.linalg.inv(h); A = hi @ root(h @ T @ h) @ hi
    A = (A + A.T) / 2
    d = a - b
    u = (x**2).sum(1) - ((x @ A) * x).sum(1) + 2 * x @ d + d@d
    v = (y**2).sum(1) - ((y @ np.linalg.inv(A)) * y).sum(1) - 2 * y @ d
    return u, v
