"""Recipes by name and path, what options replace, and that all of them fit together."""

import json

import pytest
import torch

from tests.training.toys import noisy, tiny
from tokendepth.recipes.named import RECIPES, recipe_named
from tokendepth.training.recipe import Recipe, changed, parse_changes, read_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_whole(name):
    recipe = recipe_named(name)
    assert recipe.recipe == name
    assert read_recipe(json.loads(recipe.to_json())) == recipe
    for word in ("Command:", f"train {name} --data", "Hardware:", "Expected:"):
        assert word in RECIPES[name].__doc__
    decoder = recipe.initial.build(recipe.model, 0)
    ids = torch.zeros(1, min(recipe.window, 128), dtype=torch.long)
    assert decoder(ids).logits.shape == (*ids.shape, recipe.decoder.vocab_size)
    assert recipe.decoder.vocab_size == 65 or recipe.tokenizer != "characters"


def test_the_published_baseline_has_the_published_size():
    recipe = recipe_named("dense_shakespeare")
    decoder = recipe.initial.build(recipe.model, 0)
    assert sum(one.numel() for one in decoder.parameters()) == 4_782_336
    recipe = recipe_named("tsa_shakespeare_published")
    decoder = recipe.initial.build(recipe.model, 0)
    assert sum(one.numel() for one in decoder.parameters()) == 4_864_901


def test_one_of_a_users_own_is_found_by_its_path():
    recipe = recipe_named("tests.training.toys:noisy")
    assert recipe == noisy()
    again = read_recipe(json.loads(recipe.to_json()))
    assert again == recipe
    assert json.loads(recipe.to_json())["policy"]["kind"] == "tests.training.toys:GateConfig"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dense_tyni", "recipe: got 'dense_tyni'.*did you mean dense_tiny"),
        ("no.such:thing", "No module named 'no'"),
        ("tests.training.toys:nothing", "has no 'nothing'"),
        ("builtins:dict", "gives a dict, not a Recipe"),
    ],
)
def test_a_recipe_that_does_not_exist(name, said):
    with pytest.raises(ValueError, match=said):
        recipe_named(name)


def test_options_replace_fields_by_path():
    changes = parse_changes(
        ["decoder.dropout=0.2", "optimizer.clip=null", "tokenizer=bytes", "evaluate-every=7"]
    )
    recipe = changed(tiny(), changes | {"seed": 3})
    assert (recipe.decoder.dropout, recipe.optimizer.clip) == (0.2, None)
    assert (recipe.tokenizer, recipe.evaluate_every, recipe.seed) == ("bytes", 7, 3)
    assert recipe.changes == (
        "decoder.dropout=0.2", "evaluate_every=7", "optimizer.clip=null", 'tokenizer="bytes"',
    )  # fmt: skip
    own = changed(noisy(), {"policy.shift": 0.5, "objective.penalty": 1})
    assert (own.policy.shift, own.objective.penalty) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("stpes=4", "config: unknown field 'stpes'; did you mean steps"),
        ("steps=0", "steps: got 0; it must be at least 1"),
        ("steps=many", "config.steps: got 'many'; it must be a whole number"),
        ("optimizer.learning_rte=1", "unknown field 'learning_rte'; did you mean learning_rate"),
        ("optimiser.clip=1", "'optimiser' holds no fields"),
        ("decoder.dropout", "set: got 'decoder.dropout'; write field=value"),
        ("decoder.dropout=1.5", "dropout: got 1.5"),
        ("evaluate_tokens=0", "evaluate_tokens: got 0"),
        ("decoder.max_positions=8", "window: got 16; the decoder has 8 positions"),
        ('objective={"kind": "cross_entrpy"}', "got 'cross_entrpy'.*did you mean cross_entropy"),
        ('policy={"kind": "random_keep", "share": 2.0}', ""),
    ],
)
def test_a_change_that_does_not_fit_is_named(change, said):
    if said:
        with pytest.raises(ValueError, match=said):
            changed(tiny(), parse_changes([change]))
    else:  # a policy checks itself when it is built
        recipe = changed(tiny(), parse_changes([change]))
        with pytest.raises(ValueError, match="share: got 2.0"):
            recipe.initial.build(recipe.model, 0)


def test_a_recipe_is_frozen_and_complete():
    assert isinstance(hash(tiny().optimizer), int)
    with pytest.raises(TypeError, match="required"):
        Recipe(recipe="x")
