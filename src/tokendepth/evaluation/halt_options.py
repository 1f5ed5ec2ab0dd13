"""When tokens of a looped model stop: the options of an evaluation with halting."""

import math
from dataclasses import dataclass

from tokendepth.depth.halting import BACK, READS, HaltingConfig, HaltingRule
from tokendepth.evaluation.calibrate import Target


@dataclass(frozen=True, kw_only=True)
class HaltOptions:
    """When tokens of a looped model stop."""

    halt: HaltingRule | None = None
    """Stop each token of a looped model by this rule; the model's own policy unless given."""
    target_depth: str | None = None
    """Find the threshold: for so many loops on average, or `auto` for the fewest at the loss of the
    model's own number of loops."""
    threshold: float | None = None
    """Of the rule, in its own unit, where no target is given."""
    patience: int = 1
    """Checks in a row that must hold."""
    hysteresis: float = 1.0
    """A row of checks is broken from so many times the threshold on."""
    least: int | None = None
    """Loops before the first check; 2, or what the rule needs."""
    check_every: int = 1
    """Loops between two checks."""
    loops_max: int | None = None
    """The most loops of a token; the model's own unless given."""
    timing_seconds: float = 2.0
    """For measuring seconds against the uniform depth; 0 for no measurement."""

    def check(self) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        plain = HaltOptions(timing_seconds=self.timing_seconds)
        if self.halt is None and self != plain:
            raise ValueError("halt: name the rule that these options are of, such as --halt kl")
        if self.halt is None:
            return
        if (self.target_depth is None) == (self.threshold is None) and not (
            self.halt == "argmax_stable" and self.threshold is None
        ):
            raise ValueError("target_depth: give either --target-depth or --threshold")
        if self.loops_max is not None and self.loops_max < 2:
            raise ValueError(f"loops_max: got {self.loops_max}; it must be at least 2")
        if not 0.0 <= self.timing_seconds < math.inf:
            raise ValueError(f"timing_seconds: got {self.timing_seconds}; it must be at least 0")
        self.target()
        self.config()

    def target(self) -> Target | None:
        """The target, if there is one.

        Raises:
            ValueError: neither `auto` nor a number of loops.
        """
        if self.target_depth is None or self.target_depth == "auto":
            return None if self.target_depth is None else "auto"
        try:
            value = float(self.target_depth)
        except ValueError:
            value = math.nan
        if not 1.0 <= value < math.inf:
            raise ValueError(
                f"target_depth: got {self.target_depth!r}; it must be auto, or average loops of at "
                "least 1"
            )
        return value

    def config(self) -> HaltingConfig:
        """Of the policy; with a target, at a threshold that is not the one yet."""
        assert self.halt is not None
        given = self.threshold
        if given is None and self.halt != "argmax_stable":
            given = 0.0
        least = self.check_every * BACK[self.halt] + (self.halt in READS)
        least = self.least or max(2, least)
        return HaltingConfig(
            rule=self.halt,
            threshold=given,
            patience=self.patience,
            hysteresis=self.hysteresis,
            least=least,
            every=self.check_every,
        )
