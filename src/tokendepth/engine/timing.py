"""Seconds that can be trusted: arms timed in turn within a round, in shuffled order.

A machine that slows down for a while slows all arms of a round, so ratios are taken round by round.
On a GPU the device's own events are read; nothing else sees when the work is done.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float

Name = TypeVar("Name")

WARM_UP = 3
"""Runs of each arm before anything is timed, or more: a tenth of the budget goes to them."""
MIN_ROUNDS, MAX_ROUNDS = 7, 2000


@dataclass(frozen=True)
class Arm:
    """One thing to time: `prepare` is not timed, `run` gets what it made."""

    run: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None

    def once(self) -> object:
        """Prepare and run."""
        return self.run(self.prepare())


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Float[np.ndarray, " round"]) -> "Spread":
        """Of some values."""
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        return Spread(median=float(median), low=float(low), high=float(high))


def paired(
    arms: Mapping[Name, Arm], device: torch.device, *, budget: float, seed: int = 0
) -> dict[Name, Float[np.ndarray, " round"]]:
    """Seconds of each arm in each round.

    Args:
        arms: by name; each is run before anything is timed, until it is warm.
        device: on which they run.
        budget: seconds to spend on the rounds, at least `MIN_ROUNDS` of them.
        seed: of the order within rounds.
    """
    first: dict[Name, float] = {}
    warm, spent = 0, 0.0
    while warm < WARM_UP or (spent < 0.1 * budget and warm < MAX_ROUNDS):
        first = {name: timed(arm, device) for name, arm in arms.items()}
        warm, spent = warm + 1, spent + sum(first.values())
    rounds = int(min(max(budget / max(sum(first.values()), 1e-9), MIN_ROUNDS), MAX_ROUNDS))
    order = random.Random(seed)
    seconds: dict[Name, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name in order.sample(list(arms), k=len(arms)):
            seconds[name].append(timed(arms[name], device))
    return {name: np.array(values) for name, values in seconds.items()}


def timed(arm: Arm, device: torch.device) -> float:
    """Seconds of one run."""
    given = arm.prepare()
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        begin.record()
        arm.run(given)
        end.record()
        torch.cuda.synchronize(device)
        return begin.elapsed_time(end) / 1e3
    started = time.perf_counter()
    arm.run(given)
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - started
