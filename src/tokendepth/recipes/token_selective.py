"""Token-selective attention: trained so that its gates can be trusted when hard, and as published.

The published recipe trains soft gates under a price on their mean; they damp rather than select,
and the loss rises once they are rounded. Ours learns under the hard choice itself, with
straight-through gradients, and a hinge on the executed share instead of a price.
"""

import dataclasses

from tokendepth.depth.token_selective import TokenSelectiveConfig
from tokendepth.models.schedule import stack
from tokendepth.recipes.dense import dense_shakespeare, dense_shakespeare_small, gpt
from tokendepth.text.tasks import TASKS
from tokendepth.training.budget import Budgeted
from tokendepth.training.initial import Initial
from tokendepth.training.objective import CrossEntropy
from tokendepth.training.optimise import OptimizerConfig
from tokendepth.training.recipe import Recipe

SHAKESPEARE_SHARE = 0.79
"""Of token-layers; a hinge holds a little above it."""
COPY_SHARE, SORT_SHARE = 0.45, 0.75


def tsa_shakespeare() -> Recipe:
    """`dense_shakespeare` with routers, straight-through under a budget; 4,864,901 weights.

    Command: `tokendepth train tsa_shakespeare --data tinyshakespeare`. Hardware: hours on two
    cores, minutes on a GPU. Expected: not yet measured.
    """
    return _budgeted(dense_shakespeare(), "tsa_shakespeare", SHAKESPEARE_SHARE)


def tsa_shakespeare_small() -> Recipe:
    """`dense_shakespeare_small` with routers, straight-through under a budget.

    Command: `tokendepth train tsa_shakespeare_small --data tinyshakespeare`. Hardware: two cores, a
    few minutes. Expected: see docs/token-selective.md.
    """
    return _budgeted(dense_shakespeare_small(), "tsa_shakespeare_small", SHAKESPEARE_SHARE)


def tsa_shakespeare_published() -> Recipe:
    """The published recipe: soft gates, a price of 0.001 on their mean.

    Command: `tokendepth train tsa_shakespeare_published --data tinyshakespeare`. Hardware: as
    `tsa_shakespeare`. Expected: published soft loss 1.4482 on random batches, alpha 0.726.
    """
    return _published(dense_shakespeare(), "tsa_shakespeare_published", 0.001)


def tsa_shakespeare_published_small() -> Recipe:
    """The published recipe at width 128.

    Command: `tokendepth train tsa_shakespeare_published_small --data tinyshakespeare`. Hardware:
    two cores, a few minutes. Expected: see docs/token-selective.md.
    """
    return _published(dense_shakespeare_small(), "tsa_shakespeare_published_small", 0.001)


def dense_copy() -> Recipe:
    """Copy ten letters: the baseline of `tsa_copy`.

    Command: `tokendepth train dense_copy --data copy`. Hardware: an hour on two cores. Expected:
    accuracy 1.0.
    """
    return _task("dense_copy", "copy", steps=10_000)


def dense_copy_small() -> Recipe:
    """The same in 1,500 steps of 64. Command: `tokendepth train dense_copy_small --data copy`.

    Hardware: two cores, minutes. Expected: not yet measured.
    """
    return _task("dense_copy_small", "copy", steps=1500)


def dense_sort() -> Recipe:
    """Sort ten letters: the baseline of `tsa_sort`.

    Command: `tokendepth train dense_sort --data sort`. Hardware: an hour on two cores. Expected:
    published accuracy 0.9915.
    """
    return _task("dense_sort", "sort", steps=10_000)


def dense_sort_small() -> Recipe:
    """The same in 1,500 steps of 64. Command: `tokendepth train dense_sort_small --data sort`.

    Hardware: two cores, minutes. Expected: not yet measured.
    """
    return _task("dense_sort_small", "sort", steps=1500)


def tsa_copy() -> Recipe:
    """`dense_copy` with routers, straight-through under a budget of 0.45.

    Command: `tokendepth train tsa_copy --data copy`. Hardware: an hour on two cores. Expected:
    published (soft gates) accuracy 1.0 at alpha 0.341; ours not yet measured.
    """
    return _budgeted(dense_copy(), "tsa_copy", COPY_SHARE)


def tsa_copy_small() -> Recipe:
    """The same in 1,500 steps of 64. Command: `tokendepth train tsa_copy_small --data copy`.

    Hardware: two cores, minutes. Expected: not yet measured.
    """
    return _budgeted(dense_copy_small(), "tsa_copy_small", COPY_SHARE)


def tsa_copy_published() -> Recipe:
    """Soft gates, a price of 0.01. Command: `tokendepth train tsa_copy_published --data copy`.

    Hardware: an hour on two cores. Expected: published accuracy 1.0 at alpha 0.341. The published
    code has length 20 and 390 steps: `--data copy20 --steps 390 --set window=43 skip=21`.
    """
    return _published(dense_copy(), "tsa_copy_published", 0.01)


def tsa_copy_published_small() -> Recipe:
    """Soft gates, 1,500 steps of 64.

    Command: `tokendepth train tsa_copy_published_small --data copy`. Hardware: two cores,
    minutes. Expected: not yet measured.
    """
    return _published(dense_copy_small(), "tsa_copy_published_small", 0.01)


def tsa_sort() -> Recipe:
    """`dense_sort` with routers, straight-through under a budget of 0.75.

    Command: `tokendepth train tsa_sort --data sort`. Hardware: an hour on two cores. Expected:
    published (soft gates) accuracy 0.9878 at alpha 0.730; ours not yet measured.
    """
    return _budgeted(dense_sort(), "tsa_sort", SORT_SHARE)


def tsa_sort_small() -> Recipe:
    """The same in 1,500 steps of 64. Command: `tokendepth train tsa_sort_small --data sort`.

    Hardware: two cores, minutes. Expected: not yet measured.
    """
    return _budgeted(dense_sort_small(), "tsa_sort_small", SORT_SHARE)


def tsa_sort_published() -> Recipe:
    """Soft gates, a price of 0.01. Command: `tokendepth train tsa_sort_published --data sort`.

    Hardware: an hour on two cores. Expected: published accuracy 0.9878 at alpha 0.730.
    """
    return _published(dense_sort(), "tsa_sort_published", 0.01)


def tsa_sort_published_small() -> Recipe:
    """Soft gates, 1,500 steps of 64.

    Command: `tokendepth train tsa_sort_published_small --data sort`. Hardware: two cores,
    minutes. Expected: not yet measured.
    """
    return _published(dense_sort_small(), "tsa_sort_published_small", 0.01)


def _budgeted(dense: Recipe, name: str, share: float) -> Recipe:
    """With routers that learn under the hard choice."""
    return dataclasses.replace(
        dense, recipe=name, policy=TokenSelectiveConfig(), objective=Budgeted(share=share)
    )


def _published(dense: Recipe, name: str, price: float) -> Recipe:
    """With soft gates, a price on their mean, and a tie that skips."""
    return dataclasses.replace(
        dense,
        recipe=name,
        policy=TokenSelectiveConfig(tie="skips"),
        objective=CrossEntropy(penalties={"depth": price}, routing="soft"),
    )


def _task(name: str, task: str, *, steps: int) -> Recipe:
    """Six blocks of width 128, a window a sequence; the answer alone is learned."""
    small = steps < 10_000
    return Recipe(
        recipe=name,
        decoder=gpt(width=128, blocks=6, heads=4, window=64, dropout=0.1),
        schedule=stack(6),
        initial=Initial(matrices=None),
        optimizer=OptimizerConfig(
            learning_rate=1e-3 if small else 3e-4,
            final_learning_rate=1e-4 if small else 3e-5,
            warmup_steps=50,
        ),
        window=TASKS[task].length,
        skip=TASKS[task].skip,
        batch=64 if small else 256,
        steps=steps,
        evaluate_every=500,
    )
