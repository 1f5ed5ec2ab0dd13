"""`tokendepth convergence`: do the tokens of a looped model converge, and when?"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional

from tokendepth.cli.documents import TextOptions
from tokendepth.cli.place import Place
from tokendepth.cli.progress import progress
from tokendepth.cli.results import check_outputs, finish
from tokendepth.measure.convergence import ConvergenceOptions


@dataclass(frozen=True, kw_only=True)
class ConvergenceCommand:
    """Measure how predictions and states change from loop to loop, and when tokens have settled."""

    model: Positional[str]
    """A run of a looped model, or a folder that `save_model` has written."""
    text: Annotated[TextOptions, OmitArgPrefixes] = field(default_factory=TextOptions)
    measure: Annotated[ConvergenceOptions, OmitArgPrefixes] = field(
        default_factory=ConvergenceOptions
    )
    place: Annotated[Place, OmitArgPrefixes] = field(default_factory=Place)
    html: Path | None = None
    """Where to write the page; none unless given."""
    json: Path | None = None
    """Where to write the whole result; none unless given."""

    def run(self) -> int:
        """Measure, print and write. Returns the exit code."""
        from tokendepth.measure.convergence import convergence

        self.measure.check()
        check_outputs(self.html, self.json)
        errors = Console(stderr=True, highlight=False)
        names, texts = self.text.texts([self.model], lambda told: errors.print(told, markup=False))
        loaded = self.place.load(self.model, errors)
        with progress(errors, "measuring", "tokens") as on_progress:
            result = convergence(
                texts, loaded, names=names, on_progress=on_progress, **vars(self.measure)
            )
        finish(result, self.html, self.json)
        return 0
