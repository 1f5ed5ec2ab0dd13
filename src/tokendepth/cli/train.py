"""`tokendepth train`: a recipe on a text, or a run from where it was."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from tyro.conf import Positional

from tokendepth.cli.progress import progress

if TYPE_CHECKING:
    from tokendepth.training.recipe import Recipe
    from tokendepth.training.result import Trained

_FIELDS = {"learning_rate": "optimizer.learning_rate"}
"""Options whose field of the recipe has another path."""


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train a recipe on a text, or go on with a run that was stopped or killed."""

    recipe: Positional[str | None] = None
    """A name of `tokendepth list`, or a function of your own as package.module:function."""
    data: tuple[str, ...] = ()
    """A named corpus of `tokendepth list`, text files or patterns, or hub:owner/name."""
    out: Path | None = None
    """The run's folder; runs/RECIPE-seedN unless given."""
    resume: Path | None = None
    """Go on with this run instead; it knows its recipe and its text."""
    steps: int | None = None
    """Instead of the recipe's, as all that follow."""
    seed: int | None = None
    """Of weights, data order, dropout and draws."""
    learning_rate: float | None = None
    """At its highest."""
    batch: int | None = None
    """Windows in a micro-batch."""
    accumulate: int | None = None
    """Micro-batches in a step."""
    precision: Literal["float32", "bfloat16"] | None = None
    """bfloat16: products under autocast."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; a kill loses at most so many."""
    evaluate_every: int | None = None
    """Steps between passes over the validation text; 0 for the end alone."""
    set: tuple[str, ...] = ()
    """Any other field by its path, such as --set decoder.dropout=0.2 window=64."""
    device: str | None = None
    """cpu, cuda, cuda:N or mps; the CPU, or where the run was, unless given."""
    tensorboard: bool = False
    """Write events for tensorboard into the run as well; needs the track extra."""

    def run(self) -> int:
        """Train, print and write. Returns the exit code."""
        from tokendepth.training.train import TrainOptions, resume, train

        recipe = self._recipe()
        errors = Console(stderr=True, highlight=False)
        with stoppable(errors) as should_stop, progress(errors, "training", "tokens") as told:
            options = TrainOptions(
                tensorboard=self.tensorboard,
                say=lambda message: errors.print(message, markup=False),
                on_progress=told,
                should_stop=should_stop,
            )
            if recipe is None:
                assert self.resume is not None
                result = resume(self.resume, device=self.device, options=options)
            else:
                result = train(recipe, self.data, self.out, device=self.device, options=options)
        finish_training(result, errors)
        return 0 if result.finished else 130

    def _recipe(self) -> "Recipe | None":
        """The recipe with what options replace in it; None for a run that goes on."""
        from tokendepth.recipes.named import recipe_named
        from tokendepth.training.recipe import changed, parse_changes

        changes = self._changes() | parse_changes(self.set)
        if self.resume is not None:
            if self.recipe or self.data or self.out or changes:
                raise ValueError(
                    "resume: a run goes on with its own recipe and text; leave all but --resume, "
                    "--device and --tensorboard out, or start another run"
                )
            return None
        if self.recipe is None:
            raise ValueError(
                "recipe: got none; for example: tokendepth train dense_tiny --data pydoc"
            )
        return changed(recipe_named(self.recipe), changes)

    def _changes(self) -> dict[str, Any]:
        names = (
            "steps", "seed", "learning_rate", "batch", "accumulate", "precision",
            "checkpoint_every", "evaluate_every",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names}
        return {
            _FIELDS.get(name, name): value for name, value in given.items() if value is not None
        }


@contextmanager
def stoppable(errors: Console) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks for a stop after the step; the second is an interrupt as ever."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        del frame
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        errors.print("stopping after this step, and saving; Ctrl-C again to leave at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def finish_training(result: "Trained", errors: Console) -> None:
    """Print the table, how to go on with a run that was stopped, and one line of JSON."""
    Console(highlight=False).print(result.table())
    if not result.finished:
        errors.print(
            f"stopped after step {result.steps}; go on with: "
            f"tokendepth train --resume {result.run}",
            markup=False,
            soft_wrap=True,
        )
    print(json.dumps(result.summary(), allow_nan=False))
