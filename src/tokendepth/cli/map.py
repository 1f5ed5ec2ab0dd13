"""`tokendepth map`: each token of a text, coloured by the depth it needs."""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional

from tokendepth.adapters.huggingface import Parts
from tokendepth.cli.documents import TextOptions
from tokendepth.cli.place import Place
from tokendepth.cli.progress import progress
from tokendepth.measure.mapping import MapOptions

if TYPE_CHECKING:
    from tokendepth.measure.depth_map import DepthMap


@dataclass(frozen=True, kw_only=True)
class MapCommand:
    """Print a text with each token coloured by the depth it needs, and write a page about it."""

    text: Positional[tuple[str, ...]] = ()
    """The text to map; several, each in quotes, are several documents."""
    source: Annotated[TextOptions, OmitArgPrefixes] = field(default_factory=TextOptions)
    model: str = "smollm2"
    """A name of `tokendepth list`, a folder, or a hub name such as openai-community/gpt2."""
    measure: Annotated[MapOptions, OmitArgPrefixes] = field(default_factory=MapOptions)
    place: Annotated[Place, OmitArgPrefixes] = field(default_factory=Place)
    html: Path | None = None
    """Where to write the page; in this folder, named after text and options, unless given."""
    jsonl: Path | None = None
    """Where to write one JSON row a token; beside the page unless given."""
    parts: Parts = field(default_factory=Parts)

    def run(self) -> int:
        """Map, print and write. Returns the exit code."""
        from tokendepth.files import check_writable
        from tokendepth.measure.mapping import MapInterrupted, map

        self.measure.check()
        names, texts = self._documents()
        html, jsonl = self._outputs(texts)
        self._check_outputs(html, jsonl, names if self.source.file else ())
        check_writable(html, "html")
        check_writable(jsonl, "jsonl")
        errors = Console(stderr=True, highlight=False)
        loaded = self.place.load(self.model, errors, self.parts)
        code, partial = 0, jsonl.with_name(f"{jsonl.name}.partial")
        try:
            with progress(errors, "mapping", "tokens") as on_progress:
                result = map(
                    texts,
                    loaded,
                    names=names,
                    on_progress=on_progress,
                    resume=partial,
                    **vars(self.measure),
                )
        except MapInterrupted as interruption:
            if interruption.result is None:
                raise
            result, code = interruption.result, 130
            errors.print(
                "interrupted: what is done is kept; the same command again goes on from there"
            )
        result.write_jsonl(jsonl)
        result.write_html(html)
        if result.complete:
            partial.unlink(missing_ok=True)
        _show(result, html)
        keys = ("model", "num_layers", "num_tokens", "num_counted", "rule", "threshold")
        keys += ("mean_depth", "median_depth", "share_unsettled", "complete")
        line = {key: result.summary()[key] for key in keys}
        print(json.dumps({**line, "html": str(html), "jsonl": str(jsonl)}))
        return code

    def _documents(self) -> tuple[list[str], list[str]]:
        """Names and texts, all of them read before any work is done."""
        from tokendepth.text.documents import check_text

        if bool(self.text) == self.source.given():
            raise ValueError(
                "text: give either a text or --file FILE..., and not both; for example\n"
                '  tokendepth map "To be, or not to be"'
            )
        if self.source.given():
            return self.source.texts([self.model])
        names, texts = [f"text {n}" for n in range(1, len(self.text) + 1)], list(self.text)
        for name, text in zip(names, texts, strict=True):
            check_text(name, text)
        return names, texts

    def _check_outputs(self, html: Path, jsonl: Path, files: Sequence[str]) -> None:
        """Neither output may be the other, or a text that was given."""
        given = {Path(file).resolve() for file in files}
        for option, path in (("html", html), ("jsonl", jsonl)):
            if path in given:
                raise ValueError(f"{option}: {path} is one of the texts to map; name another file")
        if html == jsonl:
            raise ValueError(f"jsonl: {jsonl} is the page's name too; give --jsonl another name")

    def _outputs(self, texts: list[str]) -> tuple[Path, Path]:
        """Absolute paths. The default name tells apart texts, models and options."""
        what = repr((texts, self.model, self.place.dtype, astuple(self.measure)))
        stem = f"depth-map-{hashlib.sha256(what.encode()).hexdigest()[:8]}"
        html = (self.html or Path(f"{stem}.html")).expanduser().resolve()
        jsonl = self.jsonl or html.with_suffix(".jsonl")
        return html, jsonl.expanduser().resolve()


def _show(result: "DepthMap", html: Path) -> None:
    from tokendepth.reporting.table import rule_table, type_table
    from tokendepth.reporting.terminal import coloured_text, legend, notes

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    colour = console.is_terminal and console.color_system is not None
    console.print(coloured_text(result, width=min(console.width, 100), colour=colour))
    console.print()
    console.print(legend(result, colour=colour))
    console.print(type_table(result))
    console.print(rule_table(result))
    for note in notes(result):
        console.print(f"- {note}", markup=False, style="dim")
    console.print(f"\nPage: {html}", markup=False)
