"""Evaluate a looped model whose tokens halt: loss, loops and seconds against a uniform depth.

The threshold is found on the first half of the passages and everything is reported on the second
half, so that no number is of text that the threshold was chosen on.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokendepth.adapters.load import Loaded, load
from tokendepth.depth.dense import Dense
from tokendepth.depth.halting import Halting, HaltingConfig
from tokendepth.engine.timing import Arm, Spread, paired
from tokendepth.evaluation.calibrate import Trial, calibrated
from tokendepth.evaluation.evaluate import EvaluateOptions, fingerprint, prepared, probed, row_of
from tokendepth.evaluation.groups import TextFacts
from tokendepth.evaluation.halt_options import HaltOptions
from tokendepth.evaluation.halting_result import HaltingEvaluation
from tokendepth.evaluation.loss import TokenScores, padded, score
from tokendepth.evaluation.passages import Passage
from tokendepth.evaluation.readout import score_read_out
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import with_loops
from tokendepth.text.documents import tokenize_all
from tokendepth.types import OnProgress, Schedule


def evaluate_halting(
    texts: str | Sequence[str],
    model: str | Path | Loaded,
    halting: HaltOptions,
    *,
    names: Sequence[str] | None = None,
    on_progress: OnProgress = lambda done, total: None,
    **options: Any,
) -> HaltingEvaluation:
    """Probe, calibrate on the first half of the passages, and report on the second.

    Args:
        texts: one text, or several documents.
        model: what `tokendepth.load` takes, or what it returned; looped.
        halting: the rule, and a threshold or a target.
        names: what to call the documents.
        on_progress: told (passes done, passes in all).
        options: the fields of `EvaluateOptions`; the routing and the executor are the policy's.

    Raises:
        ValueError: an option out of its range, a model without loops, or a text of one passage.
        CausalityError: decisions look ahead; nothing is scored.
        NonFiniteError: a logit is NaN or infinite.
    """
    halting.check()
    _check_unused(EvaluateOptions(**options))
    loaded = model if isinstance(model, Loaded) else load(model)
    documents = tokenize_all(texts, loaded.tokenizer, names)
    kept, given, reading = prepared(loaded, documents, EvaluateOptions(**options))
    half = _calibrating(len(given), halting)
    task = _Task.of(loaded.decoder, halting, reading.batch)
    config, trials = task.config(given[:half], on_progress)
    causality = probed(task.decoder, given, reading, policy=Halting(config))
    scores = {name: task.score(given[half:], arm) for name, arm in task.arms(config).items()}
    text = TextFacts(kept, loaded)
    own, near = scores["uniform"], task.between(given[half:], scores["halting"])
    read = score_read_out(
        task.decoder, given[half:], Halting(config), task.loops, batch=reading.batch
    )
    return HaltingEvaluation(
        model=loaded.title,
        data=", ".join(document.name for document in documents),
        config=config,
        target=halting.target_depth,
        loops_max=task.loops,
        own_loops=task.own,
        row=row_of(causality, scores["halting"], given[half:], text),
        average_loops=task.average(scores["halting"]),
        histogram=task.histogram(scores["halting"]),
        check_flops_per_token=scores["halting"].cost.flops["check"] / own.cost.tokens,
        loss_uniform=float(own.nats.mean()),
        uniform_flops_per_token=own.cost.total_flops / own.cost.tokens,
        loss_same_depth=near,
        loss_readout=float(read.nats.mean()),
        average_loops_readout=float(read.loops.mean()),
        timing=task.timed(given[half:], config, halting.timing_seconds),
        trials=tuple(trials),
        measured={
            **loaded.facts(),
            **dataclasses.asdict(reading),
            **dataclasses.asdict(halting),
            "executor": "gathered",
            "key_value_rule": task.decoder.config.key_value_rule,
            "calibration_passages": half,
            "passages": len(given) - half,
            "data_sha256": fingerprint(kept),
        },
    )


def _calibrating(num_passages: int, halting: HaltOptions) -> int:
    """How many passages the threshold is sought on; none where it is given.

    Raises:
        ValueError: none would be left to report on.
    """
    half = num_passages // 2 if halting.target_depth else 0
    if halting.target_depth and half == 0:
        raise ValueError(
            "texts: one passage cannot be cut into text to calibrate on and text to report on; "
            "give a longer text, or a threshold"
        )
    return half


def _check_unused(options: EvaluateOptions) -> None:
    """Raise a `ValueError` for an option that would do nothing here."""
    if options.routing:
        raise ValueError(
            f"routing: got {', '.join(options.routing)}; halting is hard routing, leave it out"
        )
    if options.executor not in ("dense", "gathered"):
        raise ValueError(
            f"executor: got {options.executor!r}; halting runs on `gathered`, leave it out"
        )


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """What runs."""

    policy: Halting | Dense
    schedule: Schedule


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A looped model, how deep it goes by itself, and how deep it may go when tokens halt."""

    decoder: Decoder
    halting: HaltOptions
    own: int
    loops: int
    batch: int

    @staticmethod
    def of(decoder: Decoder, halting: HaltOptions, batch: int) -> "_Task":
        """Of a model.

        Raises:
            ValueError: one without loops.
        """
        with_loops(decoder.schedule, 2)
        own = len(decoder.schedule.core)
        return _Task(
            decoder=decoder, halting=halting, own=own, loops=halting.loops_max or own, batch=batch
        )

    def arms(self, config: HaltingConfig) -> dict[str, _Arm]:
        """The halting model, and the one it is compared with."""
        return {
            "halting": _Arm(
                policy=Halting(config), schedule=with_loops(self.decoder.schedule, self.loops)
            ),
            "uniform": self.uniform(self.own),
        }

    def uniform(self, loops: int) -> _Arm:
        """Every token runs so many loops."""
        return _Arm(policy=Dense(), schedule=with_loops(self.decoder.schedule, loops))

    def score(self, given: Sequence[Passage], arm: _Arm) -> TokenScores:
        """Every token of the passages, gathered."""
        return score(
            self.decoder, given, batch=self.batch, executor="gathered", policy=arm.policy,
            schedule=arm.schedule,
        )  # fmt: skip

    def loops_of(self, scores: TokenScores) -> np.ndarray:
        """Of each scored token."""
        order = self.decoder.schedule
        core = len(order.spans[order.core[0]].blocks)
        return (scores.executed - (len(order.visits) - core * len(order.core))) // core

    def average(self, scores: TokenScores) -> float:
        """Loops over scored tokens."""
        return float(self.loops_of(scores).mean())

    def histogram(self, scores: TokenScores) -> tuple[float, ...]:
        """Share of tokens that stopped after 1 to `loops` loops."""
        counts = np.bincount(self.loops_of(scores), minlength=self.loops + 1)[1:]
        return tuple((counts / counts.sum()).tolist())

    def config(
        self, given: Sequence[Passage], on_progress: OnProgress
    ) -> tuple[HaltingConfig, list[Trial]]:
        """The setting for the target, found on these passages; the given one without a target."""
        target, config = self.halting.target(), self.halting.config()
        if target is None:
            return config, []
        loss = float(self.score(given, self.uniform(self.own)).nats.mean())

        def run(policy: Halting) -> tuple[float, float]:
            arm = _Arm(policy=policy, schedule=with_loops(self.decoder.schedule, self.loops))
            scores = self.score(given, arm)
            return float(scores.nats.mean()), self.average(scores)

        return calibrated(config, target, loss, self.loops, run, on_progress)

    def between(self, given: Sequence[Passage], scores: TokenScores) -> float:
        """Loss of uniform depth at the same average loops, interpolated between whole numbers."""
        average = self.average(scores)
        low, high = math.floor(average), math.ceil(average)
        losses: Mapping[int, float] = {
            loops: float(self.score(given, self.uniform(loops)).nats.mean())
            for loops in {low, high}
        }
        return losses[low] + (average - low) * (losses[high] - losses[low])

    def timed(
        self, given: Sequence[Passage], config: HaltingConfig, budget: float
    ) -> Mapping[str, Spread] | None:
        """Seconds of one forward pass over a batch of passages, and uniform over halting."""
        if budget == 0.0:
            return None
        device = self.decoder.embedding.weight.device
        ids, mask, _ = padded(given[: self.batch], device)
        keys = torch.arange(len(ids), device=device)

        def arm(one: _Arm) -> Arm:
            def run(_: object) -> object:
                with torch.inference_mode():
                    return self.decoder(
                        ids, None if bool(mask.all()) else mask, policy=one.policy,
                        schedule=one.schedule, executor="gathered", row_keys=keys,
                    )  # fmt: skip

            return Arm(run)

        arms = {name: arm(one) for name, one in self.arms(config).items()}
        seconds = paired(arms, device, budget=budget)
        ratios = seconds["uniform"] / seconds["halting"]
        return {name: Spread.of(values) for name, values in (*seconds.items(), ("ratio", ratios))}
