"""`tokendepth compare`: runs side by side, by loss against layers, FLOPs and seconds."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional

from tokendepth.cli.documents import TextOptions
from tokendepth.cli.place import quiet_transformers
from tokendepth.cli.progress import progress
from tokendepth.cli.results import check_outputs, finish
from tokendepth.comparison.compare import CompareOptions


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Score runs on one text, time them in the same rounds, and plot loss against depth."""

    runs: Positional[tuple[str, ...]]
    """Run folders, or other models; at least two."""
    text: Annotated[TextOptions, OmitArgPrefixes] = field(default_factory=TextOptions)
    compare: Annotated[CompareOptions, OmitArgPrefixes] = field(default_factory=CompareOptions)
    device: str = "cpu"
    """cpu, cuda, cuda:N or mps."""
    html: Path = Path("comparison.html")
    """Where to write the page."""
    json: Path | None = None
    """Where to write the whole result; none unless given."""

    def run(self) -> int:
        """Compare, print and write. Returns the exit code."""
        from tokendepth.comparison.runs import compare

        self.compare.check()
        check_outputs(self.html, self.json)
        errors = Console(stderr=True, highlight=False)
        names, texts = self.text.texts(self.runs, lambda told: errors.print(told, markup=False))
        quiet_transformers()
        with progress(errors, "evaluating", "tokens") as on_progress:
            result = compare(
                self.runs,
                texts,
                names=names,
                device=self.device,
                on_progress=on_progress,
                **vars(self.compare),
            )
        plot = self.html.expanduser().resolve().with_suffix(".svg")
        result.plot().savefig(plot)
        finish(result, self.html, self.json, plot=str(plot))
        return 0
