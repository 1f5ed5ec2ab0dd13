"""Verdicts of `transport` on couplings whose answer is known.

    python benchmarks/couplings.py [--seeds 20] [--n 4000] [--couplings rotation …]

Clouds of 3 n points in 16 dimensions with singular values 4 k^-1.5, as those of a model. Prints one
JSON row a coupling: the share of seeds with the right verdict, what was read, its scatter over
seeds beside the standard error that was told, and the extrapolated reading beside the truth.
"""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable

import numpy as np

from tokendepth.measure.transition import Transition, measure_transition

DIM = 16
SPECTRUM = 4 * np.arange(1, DIM + 1) ** -1.5
Move = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def turn(random: np.random.Generator) -> np.ndarray:
    return np.linalg.qr(random.standard_normal((DIM, DIM)))[0]


def stretch(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Symmetric and positive: every direction grows by 1.5 to 3, in a turned basis."""
    basis = turn(random)
    return x @ (basis * random.uniform(1.5, 3.0, DIM)) @ basis.T


def quarter_turn(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """In the planes of directions 1 and 2, 3 and 4, and so on.

    A random turn would not do: between clouds that are nearly lines, an acute one is optimal.
    """
    del random
    return np.stack([-x[:, 1::2], x[:, ::2]], axis=2).reshape(x.shape)


def shuffled(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """An expansion of which 30 % of the points exchange their targets."""
    y = 1.5 * x
    some = np.flatnonzero(random.random(len(x)) < 0.3)
    y[some] = y[random.permutation(some)]
    return y


# Between normal clouds with the variances a² and b² of two directions exchanged.
TURNED = np.square(SPECTRUM[::2] - SPECTRUM[1::2]).sum() / np.square(SPECTRUM).sum()

COUPLINGS: dict[str, tuple[Move, str, float | None]] = {
    "shift": (lambda x, random: x + 2 * random.standard_normal(DIM), "optimal", None),
    "expansion": (lambda x, random: 1.8 * x + 1, "optimal", 1.0),
    "stretch": (stretch, "optimal", 1.0),
    "rotation": (quarter_turn, "not optimal", float(TURNED)),
    "shuffle": (shuffled, "not optimal", None),
    "reversal": (lambda x, random: -2 * x, "not optimal", 1 / 9),
}
"""The move, the right verdict, and ebar of endless samples where it is known: shift, radius-matched
expansion, symmetric positive stretch, rotation, 30 % shuffle, x to -2 x."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--couplings", nargs="+", default=list(COUPLINGS), choices=list(COUPLINGS))
    options = parser.parse_args()
    for name in options.couplings:
        move, expected, truth = COUPLINGS[name]
        found = []
        for seed in range(options.seeds):
            random = np.random.default_rng(seed)
            x = random.standard_normal((3 * options.n, DIM)) * SPECTRUM
            found.append(
                measure_transition(
                    x, move(x, random), layers=(0, 1), n=options.n, seeds=(seed,),
                    num_directions=20,
                )
            )  # fmt: skip
        print(json.dumps(judged(name, expected, truth, found)), flush=True)


def judged(
    name: str, expected: str, truth: float | None, found: list[Transition]
) -> dict[str, object]:
    told = [each for each in found if each.ebar.value is not None]
    row = {
        "figure": f"coupling: {name}",
        "expected": expected,
        "right": statistics.mean(each.verdict == expected for each in found),
        "verdicts": Counter(each.verdict for each in found),
        "seeds": len(found),
        "largest_gap": max(each.gap for each in found),
    }
    if told:
        beyond = [each.ebar_extrapolated.value for each in told]
        row |= {
            "ebar": statistics.median(each.ebar.value for each in told),
            "calibration": statistics.median(each.ebar_calibration.value for each in told),
            "scatter": statistics.pstdev(each.ebar.value for each in told),
            "told_error": statistics.median(each.ebar_error for each in told),
            "extrapolated": statistics.median(beyond),
            "extrapolated_scatter": statistics.pstdev(beyond),
            "truth": truth,
        }
    return row


if __name__ == "__main__":
    main()
