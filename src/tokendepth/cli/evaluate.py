"""`tokendepth evaluate`: how well a model predicts a text, and how deep it goes for that."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional

from tokendepth.cli.documents import TextOptions
from tokendepth.cli.place import Place
from tokendepth.cli.progress import progress
from tokendepth.cli.results import check_outputs, finish
from tokendepth.evaluation.evaluate import EvaluateOptions
from tokendepth.evaluation.halt_options import HaltOptions


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Probe a model for causality, then score every token of a text under each routing."""

    model: Positional[str] = "smollm2"
    """A run, a name of `tokendepth list`, a folder, or a hub name."""
    text: Annotated[TextOptions, OmitArgPrefixes] = field(default_factory=TextOptions)
    evaluate: Annotated[EvaluateOptions, OmitArgPrefixes] = field(default_factory=EvaluateOptions)
    halting: Annotated[HaltOptions, OmitArgPrefixes] = field(default_factory=HaltOptions)
    place: Annotated[Place, OmitArgPrefixes] = field(default_factory=Place)
    html: Path | None = None
    """Where to write the page; none unless given."""
    json: Path | None = None
    """Where to write the whole result; none unless given."""

    def run(self) -> int:
        """Evaluate, print and write. Returns the exit code."""
        from tokendepth.evaluation.evaluate import evaluate
        from tokendepth.evaluation.halting import evaluate_halting

        self.evaluate.check()
        self.halting.check()
        check_outputs(self.html, self.json)
        errors = Console(stderr=True, highlight=False)
        names, texts = self.text.texts([self.model], lambda told: errors.print(told, markup=False))
        loaded = self.place.load(self.model, errors)
        given = {"names": names, **vars(self.evaluate)}
        if self.halting.halt is None:
            with progress(errors, "evaluating", "tokens") as on_progress:
                result = evaluate(texts, loaded, on_progress=on_progress, **given)
        else:
            with progress(errors, "calibrating", "passes") as on_progress:
                result = evaluate_halting(
                    texts, loaded, self.halting, on_progress=on_progress, **given
                )
        finish(result, self.html, self.json)
        return 0
