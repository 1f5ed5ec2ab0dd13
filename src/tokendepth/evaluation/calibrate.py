"""A threshold for a halting rule, found on text that nothing is reported on.

`auto` takes the fewest average loops whose loss is at most `SLACK` times that of the model's own
number of loops; a number takes the average that comes nearest to it. Thresholds are searched by
halving an interval of their logarithms; `argmax_stable` has none, and its patience is tried.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tokendepth.depth.halting import Halting, HaltingConfig

SLACK = 1.001
LOWEST, HIGHEST = 1e-9, 1e2
"""Thresholds looked at."""
STEPS = 12
"""Thresholds tried: decades over 2 to the power of this are told apart."""

Target = Literal["auto"] | float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting on the calibration text."""

    config: HaltingConfig
    loss: float
    average_loops: float


def calibrated(
    config: HaltingConfig,
    target: Target,
    loss_uniform: float,
    loops: int,
    run: Callable[[Halting], tuple[float, float]],
    on_trial: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[HaltingConfig, list[Trial]]:
    """The setting for a target.

    Args:
        config: the rule and all of its settings but the one that is looked for.
        target: `auto`, or average loops.
        loss_uniform: of the model's own number of loops on the same text.
        loops: the most that a token can run.
        run: loss and average loops of a policy on the calibration text.
        on_trial: told (trials done, in all).

    Returns:
        The setting, and all that was tried. Where nothing meets `auto`, every token runs all loops.
    """
    trials: list[Trial] = []

    def tried(one: HaltingConfig) -> Trial:
        loss, average = run(Halting(one))
        trials.append(Trial(config=one, loss=loss, average_loops=average))
        on_trial(len(trials), STEPS)
        return trials[-1]

    def deep_enough(trial: Trial) -> bool:
        if target == "auto":
            return trial.loss <= SLACK * loss_uniform
        return trial.average_loops >= target

    if config.rule == "argmax_stable":
        for patience in range(1, max(2, (loops - config.least) // config.every + 1)):
            tried(replace(config, patience=patience))
    else:
        low, high = math.log(LOWEST), math.log(HIGHEST)
        for _ in range(STEPS):
            middle = (low + high) / 2
            if deep_enough(tried(replace(config, threshold=math.exp(middle)))):
                low = middle
            else:
                high = middle
    return _best(trials, config, target, deep_enough, loops), trials


def _best(
    trials: Sequence[Trial],
    config: HaltingConfig,
    target: Target,
    deep_enough: Callable[[Trial], bool],
    loops: int,
) -> HaltingConfig:
    if target == "auto":
        good = [one for one in trials if deep_enough(one)]
        if good:
            return min(good, key=lambda one: one.average_loops).config
        if config.rule == "argmax_stable":
            return replace(config, patience=loops + 1)
        return replace(config, threshold=0.0)
    return min(trials, key=lambda one: abs(one.average_loops - float(target))).config
