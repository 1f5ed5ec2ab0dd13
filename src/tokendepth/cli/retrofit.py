"""`tokendepth retrofit`: a policy for a pretrained model, whose own weights stay as they are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from tyro.conf import Positional

from tokendepth.cli.place import quiet_transformers
from tokendepth.cli.progress import progress
from tokendepth.cli.train import finish_training, stoppable


@dataclass(frozen=True, kw_only=True)
class RetrofitCommand:
    """Train a policy in a pretrained model; `train --resume` goes on with it."""

    model: Positional[str] = "smollm2"
    """A name of `tokendepth list`, a folder, a hub name, or a run of a dense model."""
    data: tuple[str, ...] = ()
    """A named corpus of `tokendepth list`, text files or patterns, or hub:owner/name."""
    policy: str = "token_selective"
    """One that learns, or package.module:Class of a config of your own."""
    share: float = 0.8
    """Of all token-layers: the budget."""
    out: Path | None = None
    """The run's folder; runs/RECIPE-seedN unless given."""
    steps: int | None = None
    """200 unless given."""
    seed: int | None = None
    """Of the policy's weights and the order of the text."""
    set: tuple[str, ...] = ()
    """Any other field of the recipe by its path, such as --set window=256 policy.threshold=0.6."""
    device: str | None = None
    """cpu, cuda, cuda:N or mps; the CPU unless given."""

    def run(self) -> int:
        """Train, print and write. Returns the exit code."""
        from tokendepth.training.recipe import parse_changes
        from tokendepth.training.retrofit import RetrofitOptions, retrofit
        from tokendepth.training.train import TrainOptions

        given: dict[str, Any] = {"steps": self.steps, "seed": self.seed}
        changes = {name: value for name, value in given.items() if value is not None}
        made = RetrofitOptions(
            policy=self.policy, share=self.share, changes=changes | parse_changes(self.set)
        )
        quiet_transformers()
        errors = Console(stderr=True, highlight=False)
        with stoppable(errors) as should_stop, progress(errors, "training", "tokens") as told:
            options = TrainOptions(
                say=lambda message: errors.print(message, markup=False),
                on_progress=told,
                should_stop=should_stop,
            )
            result = retrofit(
                self.model,
                self.data,
                self.out,
                retrofit_options=made,
                device=self.device,
                options=options,
            )
        finish_training(result, errors)
        return 0 if result.finished else 130
