"""Find a recipe: ours by name, a user's own by dotted path."""

from collections.abc import Callable

from tokendepth.configs import imported, nearest
from tokendepth.recipes import baselines, dense, depth_recurrent, token_selective
from tokendepth.training.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    made.__name__: made
    for made in (
        dense.dense_tiny,
        dense.dense_shakespeare,
        dense.dense_shakespeare_small,
        dense.dense_shakespeare_shallow_small,
        dense.nanogpt_shakespeare_cpu,
        baselines.early_exit_shakespeare,
        baselines.early_exit_shakespeare_small,
        baselines.mod_shakespeare,
        baselines.mod_shakespeare_small,
        depth_recurrent.recurrent_small,
        depth_recurrent.recurrent_fixed_small,
        depth_recurrent.recurrent_135m,
        token_selective.dense_copy,
        token_selective.dense_copy_small,
        token_selective.dense_sort,
        token_selective.dense_sort_small,
        token_selective.tsa_shakespeare,
        token_selective.tsa_shakespeare_small,
        token_selective.tsa_shakespeare_published,
        token_selective.tsa_shakespeare_published_small,
        token_selective.tsa_copy,
        token_selective.tsa_copy_small,
        token_selective.tsa_copy_published,
        token_selective.tsa_copy_published_small,
        token_selective.tsa_sort,
        token_selective.tsa_sort_small,
        token_selective.tsa_sort_published,
        token_selective.tsa_sort_published_small,
    )
}
"""The recipes that have a name: the one place to add a new one."""


def recipe_named(name: str) -> Recipe:
    """A recipe by its name, or by `package.module:function`.

    Raises:
        ValueError: neither, naming the nearest; or a function that gives no recipe.
    """
    if ":" in name:
        made = imported(name, "recipe")()
        if not isinstance(made, Recipe):
            raise ValueError(f"recipe: {name} gives a {type(made).__name__}, not a Recipe")
        return made
    if name not in RECIPES:
        raise ValueError(
            f"recipe: got {name!r}; known are {', '.join(RECIPES)}{nearest(name, RECIPES)}. A "
            "function of your own is named as package.module:function"
        )
    return RECIPES[name]()
