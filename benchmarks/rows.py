"""One JSON row a figure, and ratios of two arms timed round by round."""

import json
import statistics
from collections.abc import Callable, Sequence

import torch

from tokendepth.engine.timing import Arm, paired


def row(figure: str, values: Sequence[float], **more: object) -> None:
    """Print the median and the range of some values."""
    print(
        json.dumps(
            {
                "figure": figure,
                "median": round(statistics.median(values), 3),
                "min": round(min(values), 3),
                "max": round(max(values), 3),
                "rounds": len(values),
                **more,
            }
        ),
        flush=True,
    )


def ratios(arms: dict[str, Callable[[], object]], budget: float) -> list[float]:
    """Seconds of the first arm over the second, round by round; `budget` seconds of rounds."""
    given = {name: Arm(lambda _, run=run: run()) for name, run in arms.items()}
    first, second = paired(given, torch.device("cpu"), budget=budget).values()
    return (first / second).tolist()
