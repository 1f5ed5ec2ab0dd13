"""`tokendepth benchmark`: what skipping saves in seconds, beside what FLOPs promise."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional

from tokendepth.cli.documents import TextOptions, is_run
from tokendepth.cli.place import Place
from tokendepth.cli.progress import progress
from tokendepth.cli.results import check_outputs, finish
from tokendepth.engine.benchmark import BenchmarkOptions

if TYPE_CHECKING:
    from tokendepth.adapters.load import Loaded


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand:
    """Time prefill, decoding and training steps of the executors against the dense model."""

    model: Positional[str | None] = None
    """A run, a name of `tokendepth list`, a folder, or a hub name; none with --synthetic."""
    synthetic: bool = False
    """Random weights of --width and --layers instead, with given decisions."""
    width: int | None = None
    """Of the synthetic model; 256 unless given."""
    layers: int | None = None
    """Of the synthetic model; 6 unless given."""
    vocab: int | None = None
    """Of the synthetic model; 65 unless given."""
    text: Annotated[TextOptions, OmitArgPrefixes] = field(default_factory=TextOptions)
    benchmark: Annotated[BenchmarkOptions, OmitArgPrefixes] = field(
        default_factory=BenchmarkOptions
    )
    place: Annotated[Place, OmitArgPrefixes] = field(default_factory=Place)
    html: Path | None = None
    """Where to write the page; none unless given."""
    json: Path | None = None
    """Where to write the whole result; none unless given."""

    def run(self) -> int:
        """Time, print and write. Returns the exit code."""
        import torch

        from tokendepth.engine.benchmark import benchmark_on
        from tokendepth.text.documents import tokenize_all

        self.benchmark.check()
        check_outputs(self.html, self.json)
        self.text.check()
        # The profiler prints to standard error when it starts and stops.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        errors = Console(stderr=True, highlight=False)
        loaded = self._load(errors)
        ids, options = None, self.benchmark
        if self.synthetic and not options.routers:
            options = replace(options, routers=(False, True))
        if self.model is not None and (self.text.given() or is_run(self.model)):
            names, texts = self.text.texts([self.model])
            documents = tokenize_all(texts, loaded.tokenizer, names)
            ids = torch.tensor([one for document in documents for one in document.ids])
        with progress(errors, "timing", "comparisons") as on_progress:
            result = benchmark_on(loaded, options, ids=ids, on_progress=on_progress)
        finish(result, self.html, self.json)
        return 0

    def _load(self, errors: Console) -> "Loaded":
        from tokendepth.adapters.load import Loaded
        from tokendepth.engine.benchmark import synthetic
        from tokendepth.numerics import resolve_device, resolve_dtype

        if self.synthetic == (self.model is not None):
            raise ValueError(
                "model: give either a model or --synthetic, and not both; for example\n"
                "  tokendepth benchmark smollm2 --alpha 0.5\n"
                "  tokendepth benchmark --synthetic --width 256 --layers 6 --alpha 0.726"
            )
        for name in ("width", "layers", "vocab"):
            if self.model is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: {self.model} has its own; give it with --synthetic alone"
                )
        if self.model is not None:
            return self.place.load(self.model, errors)
        if self.text.given():
            raise ValueError("file: a synthetic model has no tokenizer; leave --file out")
        device = resolve_device(self.place.device)
        width, layers = self.width or 256, self.layers or 6
        decoder = synthetic(width, layers, self.vocab or 65, self.benchmark.seed)
        return Loaded(
            title=f"random weights, width {width}, {layers} layers",
            model=decoder.to(device, resolve_dtype(self.place.dtype, device)),
            tokenizer=None,
        )
