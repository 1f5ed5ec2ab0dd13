"""Give a pretrained model a policy: the base frozen, the policy taught by the model itself."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokendepth.adapters.load import Loaded, load
from tokendepth.depth.registry import POLICIES
from tokendepth.depth.token_selective import TokenSelectiveConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import stack
from tokendepth.training.budget import Budgeted
from tokendepth.training.distil import Distilled
from tokendepth.training.optimise import OptimizerConfig
from tokendepth.training.recipe import Recipe, changed
from tokendepth.training.result import Trained
from tokendepth.training.train import TrainOptions, train

STARTS = {"token_selective": TokenSelectiveConfig(normed=True)}
"""Where a policy's own defaults are for models that are trained from nothing."""


@dataclass(frozen=True, kw_only=True)
class RetrofitOptions:
    """What to give the model, and at what price."""

    policy: str = "token_selective"
    """One that learns: its short name, or package.module:Class of a config of your own."""
    share: float = 0.8
    """Of all token-layers: the budget; above 0, at most 1."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recipe by their path, such as `steps` or `policy.threshold`."""


def retrofit(
    model: str | Path | Loaded,
    data: str | Sequence[str],
    out: Path | str | None = None,
    *,
    retrofit_options: RetrofitOptions | None = None,
    device: str | None = None,
    options: TrainOptions | None = None,
) -> Trained:
    """Train a policy in a pretrained model whose own weights stay as they are.

    The run evaluates, generates, benchmarks and goes on as any other.

    Args:
        model: what `tokendepth.load` takes, of a family with a decoder here; or what it returned.
        data: a named corpus, or files and patterns; its next tokens are not learned.
        out: the run's folder, which must not be there; `runs/RECIPE-seedN` by default.
        retrofit_options: the policy and its budget.
        device: the CPU unless named.
        options: what does not change what is learned.

    Raises:
        ValueError: a family without a decoder here, a policy without weights or without a gradient
            for the budget, and as `train`.
    """
    options = options or TrainOptions()
    loaded = model if isinstance(model, Loaded) else load(model, say=options.say)
    name = None if isinstance(model, Loaded) else str(model)
    recipe = retrofit_recipe(loaded, retrofit_options, name=name)
    return train(recipe, data, out, device=device, options=options, base=loaded)


def retrofit_recipe(
    base: Loaded, options: RetrofitOptions | None = None, *, name: str | None = None
) -> Recipe:
    """The recipe of a retrofit.

    Args:
        base: the model.
        options: the policy, its budget, and what else is changed.
        name: what `load` takes for it; its title unless given.

    Raises:
        ValueError: an unknown policy or field.
    """
    options, decoder = options or RetrofitOptions(), base.decoder
    name = name or base.title
    own = isinstance(base.model, Decoder)
    limit = decoder.config.max_positions
    recipe = Recipe(
        recipe=f"retrofit_{Path(name).name}_{options.policy.rpartition(':')[2]}",
        base=name,
        decoder=dataclasses.replace(decoder.config, dropout=0.0),
        schedule=decoder.schedule if own else stack(decoder.config.num_blocks),
        policy=STARTS.get(options.policy) or POLICIES.find(options.policy)(),
        objective=Distilled(budget=Budgeted(share=options.share, price=5.0, begin=0.0, end=1.0)),
        optimizer=OptimizerConfig(
            learning_rate=5e-4, final_learning_rate=5e-5, warmup_steps=10, weight_decay=0.0
        ),
        tokenizer="of the base",
        window=min(128, limit or 128),
        order="random",
        batch=4,
        steps=200,
        checkpoint_every=50,
        evaluate_every=0,
        evaluate_tokens=2048,
        evaluate_batch=4,
    )
    return changed(recipe, options.changes) if options.changes else recipe
