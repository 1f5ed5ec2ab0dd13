"""`tokendepth transport`: does a model move its token states at the cheapest cost?"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes

from tokendepth.adapters.huggingface import Parts
from tokendepth.cli.documents import TextOptions
from tokendepth.cli.place import Place
from tokendepth.cli.progress import progress_of
from tokendepth.cli.results import finish
from tokendepth.measure.transport_options import TransportOptions

STAGES = {"tokens": ("reading", "tokens"), "transitions": ("measuring", "transitions")}


@dataclass(frozen=True, kw_only=True)
class TransportCommand:
    """Compare how the layers move the cloud of token states with the optimal transport."""

    model: str = "smollm2"
    """A run, a name of `tokendepth list`, a folder, or a hub name."""
    text: Annotated[TextOptions, OmitArgPrefixes] = field(default_factory=TextOptions)
    out: Path = Path("transport")
    """Folder for the page, the result and what a second call goes on from."""
    measure: Annotated[TransportOptions, OmitArgPrefixes] = field(default_factory=TransportOptions)
    place: Annotated[Place, OmitArgPrefixes] = field(default_factory=Place)
    parts: Parts = field(default_factory=Parts)

    def run(self) -> int:
        """Measure, print and write. Returns the exit code."""
        from tokendepth.measure.transport import TransportInterrupted, transport

        self.measure.check()
        out = self.out.expanduser().resolve()
        if out.exists() and not out.is_dir():
            raise ValueError(f"out: {out} is a file; name a folder")
        errors = Console(stderr=True, highlight=False)
        names, texts = self.text.texts([self.model], lambda told: errors.print(told, markup=False))
        loaded = self.place.load(self.model, errors, self.parts)
        code = 0
        try:
            with progress_of(errors, STAGES) as tell:
                result = transport(
                    texts, loaded, names=names, resume=out, on_progress=tell, **vars(self.measure)
                )
        except TransportInterrupted as interruption:
            if interruption.result is None:
                raise
            result, code = interruption.result, 130
            errors.print(
                "interrupted: finished transitions are kept; the same command again goes on"
            )
        finish(result, out / "transport.html", out / "transport.json")
        return code
