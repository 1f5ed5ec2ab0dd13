"""A step of the loop against the bare forward, backward and optimizer step on the same batch.

python benchmarks/training_step.py
"""

import argparse
import dataclasses

import torch
from torch.nn import functional

from rows import ratios, row
from tokendepth.recipes.named import recipe_named
from tokendepth.training.checkpoint import Live, Position
from tokendepth.training.data import Windows
from tokendepth.training.loop import Training, one_step
from tokendepth.training.recipe import Recipe


def live(recipe: Recipe) -> Live:
    decoder = recipe.initial.build(recipe.model, 0).train()
    return Live(
        config=recipe.model,
        decoder=decoder,
        optimizer=recipe.optimizer.build(decoder),
        generator=torch.Generator().manual_seed(0),
        position=Position(),
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--recipe", default="dense_shakespeare")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--seconds", type=float, default=60.0)
    given = options.parse_args()
    recipe = dataclasses.replace(recipe_named(given.recipe), batch=given.batch, steps=10**9)
    ids = torch.randint(65, (100_000,), generator=torch.Generator().manual_seed(0)).numpy()
    windows = Windows(ids, recipe.window, recipe.batch, recipe.order, 0)
    training = Training(recipe=recipe, windows=windows, live=live(recipe))
    bare, batch = live(recipe), windows.get(0)

    def bare_step() -> None:
        logits = bare.decoder(batch.inputs).logits
        functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        bare.optimizer.step()
        bare.optimizer.zero_grad()

    values = ratios({"loop": lambda: one_step(training), "bare": bare_step}, given.seconds)
    row(
        "step of the loop / bare forward, backward and step",
        values,
        recipe=given.recipe,
        width=recipe.decoder.width,
        batch=given.batch,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
