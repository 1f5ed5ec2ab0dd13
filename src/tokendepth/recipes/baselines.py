"""Early exit and mixture-of-depths, on the models and steps of the dense baselines."""

import dataclasses

from tokendepth.depth.early_exit import EarlyExitConfig
from tokendepth.depth.mixture_of_depths import MixtureOfDepthsConfig
from tokendepth.models.schedule import stack
from tokendepth.recipes.dense import dense_shakespeare, dense_shakespeare_small
from tokendepth.training.exits import ExitLosses
from tokendepth.training.objective import CrossEntropy
from tokendepth.training.recipe import Recipe

CAPACITY = 0.58
"""With three of six blocks routed, 0.79 of all token-layers: the budget of `tsa_shakespeare`."""


def early_exit_shakespeare() -> Recipe:
    """`dense_shakespeare` with an exit after each block from the second on.

    Command: `tokendepth train early_exit_shakespeare --data tinyshakespeare`. Hardware: hours on
    two cores, minutes on a GPU. Expected: published 1.4450 without exits, on random batches.
    """
    return _exits(dense_shakespeare(), "early_exit_shakespeare")


def early_exit_shakespeare_small() -> Recipe:
    """`dense_shakespeare_small` with an exit after each block from the second on.

    Command: `tokendepth train early_exit_shakespeare_small --data tinyshakespeare`. Hardware: two
    cores, a few minutes. Expected: not yet measured.
    """
    return _exits(dense_shakespeare_small(), "early_exit_shakespeare_small")


def mod_shakespeare() -> Recipe:
    """`dense_shakespeare` with every other block routed to 0.58 of the tokens of a sequence.

    Command: `tokendepth train mod_shakespeare --data tinyshakespeare`. Hardware: hours on two
    cores, minutes on a GPU. Expected: not yet measured. The published capacity is 0.125:
    `--set policy.capacity=0.125`.
    """
    return _mixture(dense_shakespeare(), "mod_shakespeare")


def mod_shakespeare_small() -> Recipe:
    """`dense_shakespeare_small` with every other block routed to 0.58 of the tokens.

    Command: `tokendepth train mod_shakespeare_small --data tinyshakespeare`. Hardware: two cores, a
    few minutes. Expected: not yet measured.
    """
    return _mixture(dense_shakespeare_small(), "mod_shakespeare_small")


def _exits(dense: Recipe, name: str) -> Recipe:
    return dataclasses.replace(dense, recipe=name, policy=EarlyExitConfig(), objective=ExitLosses())


def _mixture(dense: Recipe, name: str) -> Recipe:
    """Rows that pass by have no keys in the block, as published."""
    return dataclasses.replace(
        dense,
        recipe=name,
        decoder=dataclasses.replace(dense.decoder, key_value_rule="kept"),
        schedule=stack(dense.decoder.num_blocks, every=2),
        policy=MixtureOfDepthsConfig(capacity=CAPACITY),
        objective=CrossEntropy(penalties={"predictor": 0.1}, routing="top_k"),
    )
