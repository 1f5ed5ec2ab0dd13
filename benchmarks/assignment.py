"""Exact assignment against scipy, lapx and POT, each with the formation of its cost matrix.

    python benchmarks/assignment.py [--n 4000] [--rounds 3] [--seed 0]     against the peers
    python benchmarks/assignment.py --alone --n 20000                       ours only, with memory

Needs the extra `peers`. Every peer runs once on every cloud; the fastest that found the optimum
then runs in turn with ours. Prints one JSON row a cloud: seconds by the clock and of the processor,
and the ratio peer / ours of each. Compilation happens before, on a small problem, and is reported
apart.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from clouds import CLOUDS
from tokendepth.measure.assignment import assign

OPTIMAL = 1e-9  # relative; a peer that ends higher has not solved the problem


def timed(run: Callable[[], float]) -> tuple[float, float, float]:
    """Its value, seconds by the clock, and seconds of the processor."""
    clock, cpu = time.perf_counter(), time.process_time()
    value = run()
    return value, time.perf_counter() - clock, time.process_time() - cpu


def peers(x: np.ndarray, y: np.ndarray) -> dict[str, Callable[[], float]]:
    import lap
    import ot
    from scipy.optimize import linear_sum_assignment

    def pairs(solver: Callable) -> Callable[[], float]:
        def run() -> float:
            matrix = ot.dist(x, y)
            rows, columns = solver(matrix)
            return float(matrix[rows, columns].mean())

        return run

    def emd() -> float:
        matrix = ot.dist(x, y)
        return float((ot.emd([], [], matrix, numItermax=10**9) * matrix).sum())

    solvers = {"scipy": linear_sum_assignment}
    for name in ("lapjvx", "lapjvc", "lapjvr", "lapjvh"):
        solvers[name] = lambda matrix, name=name: getattr(lap, name)(matrix, return_cost=False)
    solvers["lapjvs"] = lambda matrix: lap.lapjvs(
        matrix, return_cost=False, jvx_like=True, prefer_float32=False
    )
    return {**{name: pairs(solver) for name, solver in solvers.items()}, "POT emd": emd}


def against(name: str, n: int, rounds: int, seed: int) -> dict[str, object]:
    x, y = CLOUDS[name](np.random.default_rng(seed), n, 16)
    best = assign(x, y)
    once = {peer: timed(run) for peer, run in peers(x, y).items()}
    solved = {
        peer: clock
        for peer, (value, clock, _) in once.items()
        if value <= best.cost * (1 + OPTIMAL) + 1e-300
    }
    assert all(value >= best.cost * (1 - OPTIMAL) for value, _, _ in once.values())
    fastest = min(solved, key=lambda peer: solved[peer])
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(timed(peers(x, y)[fastest])[1:])
        ours.append(timed(lambda: assign(x, y).cost)[1:])
    ratios = [[t[at] / o[at] for t, o in zip(theirs, ours, strict=True)] for at in (0, 1)]
    return {
        "figure": f"assignment, {name}, n = {n}",
        "gap": best.gap,
        "fastest_peer": fastest,
        "peers_once_s": {peer: round(clock, 2) for peer, (_, clock, _) in once.items()},
        "not_optimal": sorted(set(once) - set(solved)),
        "ours_clock_s": round(statistics.median(o[0] for o in ours), 3),
        "ours_cpu_s": round(statistics.median(o[1] for o in ours), 3),
        "ratio_clock": [round(r, 2) for r in sorted(ratios[0])],
        "ratio_cpu": [round(r, 2) for r in sorted(ratios[1])],
    }


def alone(name: str, n: int, seed: int) -> dict[str, object]:
    x, y = CLOUDS[name](np.random.default_rng(seed), n, 16)
    found: list = []
    _, clock, cpu = timed(lambda: found.append(assign(x, y)) or 0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "figure": f"assignment alone, {name}, n = {n}",
        "gap": found[0].gap,
        "clock_s": round(clock, 2),
        "cpu_s": round(cpu, 2),
        "peak_mb_of_process": round(peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--clouds", nargs="+", default=list(CLOUDS), choices=list(CLOUDS))
    options = parser.parse_args()
    x, y = CLOUDS["clustered"](np.random.default_rng(0), 300, 16)
    _, first, _ = timed(lambda: assign(x, y).cost)
    print(json.dumps({"figure": "first call, with loading or compiling", "seconds": first}))
    for name in options.clouds:
        if options.alone:
            row = alone(name, options.n, options.seed)
        else:
            row = against(name, options.n, options.rounds, options.seed)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
