"""The studies of token-selective attention: which arms each has, and what the paper found.

An arm is a recipe with some fields replaced, trained with several seeds, and the other values of
its policy under which the trained model is scored once more.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokendepth.recipes.dense import dense_shakespeare_small, shallower
from tokendepth.recipes.named import recipe_named
from tokendepth.training.recipe import Recipe, changed

SWEPT = tuple(
    {"rule": rule, "threshold": threshold}
    for rule, thresholds in {
        "confidence": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
        "margin": (0.1, 0.2, 0.4, 0.6, 0.8),
        "entropy": (0.3, 0.4, 0.5, 0.6, 0.8),
    }.items()
    for threshold in thresholds
)
LOWER = {"optimizer.learning_rate": 1e-3, "optimizer.final_learning_rate": 1e-4}
SHORTER = {**LOWER, "optimizer.warmup_steps": 50, "batch": 32, "steps": 800}
COPY20 = {"window": 43, "skip": 21, "steps": 390, "batch": 256}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is trained and how it is scored."""

    name: str
    recipe: Recipe
    """Its validation during training is left to the end: rows have that of the trained model."""
    data: str
    sweep: tuple[Mapping[str, Any], ...] = ()
    """Other values of the policy's config."""
    controls: bool = False
    """Score what the policy must beat on the same weights too."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Arms that are compared with the first of them, by seed."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    published: Mapping[str, str] = field(default_factory=dict)
    """What the paper reports for an arm at its own size."""


def arm(
    name: str,
    recipe: str | Recipe,
    data: str,
    changes: Mapping[str, Any] | None = None,
    **how: Any,
) -> Arm:
    """An arm by the name of its recipe and the fields that are replaced in it."""
    made = recipe_named(recipe) if isinstance(recipe, str) else recipe
    given = changed(made, {"evaluate_every": 0, **(changes or {})})
    return Arm(name=name, recipe=given, data=data, **how)


def shakespeare_small() -> Study:
    """Every way to spend fewer token-layers, on Tiny-Shakespeare at width 128."""
    text, tsa = "tinyshakespeare", "tsa_shakespeare_small"
    four = shallower(dense_shakespeare_small(), "dense_shakespeare_four_small", 4)
    arms = (
        arm("dense", "dense_shakespeare_small", text),
        arm("tsa", tsa, text, controls=True),
        arm("tsa 0.6", tsa, text, {"objective.share": 0.6}, controls=True),
        arm("dense, 5 blocks", "dense_shakespeare_shallow_small", text),
        arm("dense, 4 blocks", four, text),
        arm("tsa published", "tsa_shakespeare_published_small", text, controls=True),
        arm("early exit", "early_exit_shakespeare_small", text, sweep=SWEPT, controls=True),
        arm("mixture of depths", "mod_shakespeare_small", text),
        arm("mixture of depths 0.6", "mod_shakespeare_small", text, {"policy.capacity": 0.2}),
        arm("tsa, soft to 0.75", tsa, text, {"objective.soft_until": 0.75}),
        arm(
            "tsa, soft, p(1-p) priced",
            tsa,
            text,
            {"objective.routing": "soft", "objective.indecision": 0.2},
        ),
    )
    published = {
        "dense": "1.4422",
        "tsa published": "soft 1.4482, alpha 0.726 (share 0.772)",
        "early exit": "1.4450 without exits; 1.4481 at share 0.785, 1.4586 at 0.728",
    }
    return Study(arms=arms, published=published)


def copy_small() -> Study:
    """Copy ten letters; the settings of the published code beside it."""
    return _task("copy", "accuracy 1.0, alpha 0.341 (share 0.451)")


def sort_small() -> Study:
    """Sort ten letters; the settings of the published code beside it."""
    return _task("sort", "accuracy 0.9878 against 0.9915, alpha 0.730 (share 0.775)")


def _task(task: str, published: str) -> Study:
    names = {
        "dense": f"dense_{task}_small",
        "tsa": f"tsa_{task}_small",
        "tsa published": f"tsa_{task}_published_small",
    }
    arms = [arm(name, recipe, task, controls=name == "tsa") for name, recipe in names.items()]
    arms += [
        arm(f"{name}, length 20", recipe, f"{task}20", COPY20) for name, recipe in names.items()
    ]
    return Study(arms=tuple(arms), published={"tsa published": published})


def lambda_sweep_small() -> Study:
    """The price on open gates, as published, from none to much."""
    published = {
        0.0: "1.4388, alpha 0.755",
        0.001: "1.4391, alpha 0.747",
        0.005: "1.4423, alpha 0.702",
        0.01: "1.4412, alpha 0.659",
        0.05: "1.4452, alpha 0.395",
        0.1: "1.4538, alpha 0.260",
        0.5: "1.5271, alpha 0.036",
    }
    arms = tuple(
        arm(
            f"lambda {price:g}",
            "tsa_shakespeare_published_small",
            "tinyshakespeare",
            {"objective.penalties": {"depth": price}},
        )
        for price in published
    )
    found = {f"lambda {price:g}": f"soft {told}" for price, told in published.items()}
    return Study(arms=arms, seeds=(0,), published=found)


def width256() -> Study:
    """The published width in 800 steps of 32 windows: one seed of three arms."""
    return _three("", "tinyshakespeare", SHORTER, (0,))


def wikitext_small() -> Study:
    """Bytes of WikiText-2 at width 128."""
    return _three("_small", "wikitext2", {"tokenizer": "bytes"}, (0, 1, 2))


def _three(size: str, data: str, changes: Mapping[str, Any], seeds: tuple[int, ...]) -> Study:
    names = ("dense", "tsa", "tsa published")
    recipes = ("dense_shakespeare", "tsa_shakespeare", "tsa_shakespeare_published")
    arms = itertools.starmap(
        lambda name, recipe: arm(name, recipe + size, data, changes),
        zip(names, recipes, strict=True),
    )
    return Study(arms=tuple(arms), seeds=seeds)


STUDIES = {
    made.__name__: made
    for made in (
        shakespeare_small,
        copy_small,
        sort_small,
        lambda_sweep_small,
        width256,
        wikitext_small,
    )
}
"""By name."""
