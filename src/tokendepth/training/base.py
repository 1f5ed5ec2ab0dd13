"""A model from elsewhere as what a policy is trained in: its weights stay as they are."""

from dataclasses import replace

import torch

from tokendepth.adapters.load import Loaded
from tokendepth.models.decoder import Decoder
from tokendepth.numerics import derived_seed
from tokendepth.training.recipe import Recipe


def on_base(recipe: Recipe, base: Loaded) -> Decoder:
    """The base's weights under the recipe's schedule, with its policy as that starts.

    The base is not changed. Its dropout, if it has any, is left behind.

    Raises:
        ValueError: another config than the recipe's.
    """
    source = base.decoder
    if replace(source.config, dropout=0.0) != recipe.decoder:
        raise ValueError(
            f"base: {base.title} has another config than decoder in the recipe; make the recipe "
            "with retrofit_recipe, from the same model"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(recipe.seed, "modules"))
        decoder = Decoder(recipe.decoder, recipe.schedule)
        policy = recipe.policy.build(decoder)
    weights = {
        name: value for name, value in source.state_dict().items() if not name.startswith("policy.")
    }
    policy.config = recipe.policy
    decoder.load_state_dict(weights)
    decoder.policy = policy
    return decoder


def freeze(decoder: Decoder) -> None:
    """Leave gradients to the policy's weights alone.

    Raises:
        ValueError: a policy without weights.
    """
    own = {id(one) for one in decoder.policy.parameters()}
    if not own:
        raise ValueError(
            f"policy: {type(decoder.policy).__name__} has no weights, so that there is nothing to "
            "train with a base; take one that learns, such as token_selective"
        )
    for parameter in decoder.parameters():
        parameter.requires_grad_(id(parameter) in own)
