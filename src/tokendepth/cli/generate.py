"""`tokendepth generate`: continue texts, and say how deep each new token went."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional

from tokendepth.cli.place import Place
from tokendepth.cli.progress import progress
from tokendepth.cli.results import check_outputs, finish
from tokendepth.engine.decode import GenerateOptions

if TYPE_CHECKING:
    from tokendepth.adapters.load import Loaded
    from tokendepth.engine.generation import Generation


@dataclass(frozen=True, kw_only=True)
class GenerateCommand:
    """Continue one text or several, with the depth and confidence of every new token."""

    model: Positional[str] = "smollm2"
    """A run, a name of `tokendepth list`, a folder, or a hub name."""
    prompt: tuple[str, ...] = ()
    """Texts to continue, each in quotes."""
    file: tuple[Path, ...] = ()
    """UTF-8 text files to continue, after the prompts."""
    chat: bool = False
    """Wrap each prompt in the model's chat template, as a message of the user."""
    generate: Annotated[GenerateOptions, OmitArgPrefixes] = field(default_factory=GenerateOptions)
    place: Annotated[Place, OmitArgPrefixes] = field(default_factory=Place)
    html: Path | None = None
    """Where to write a page with texts, depths and confidences; none unless given."""
    json: Path | None = None
    """Where to write the whole result; none unless given."""

    def run(self) -> int:
        """Generate, print and write. Returns the exit code."""
        prompts = self._prompts()
        self.generate.check(len(prompts))
        check_outputs(self.html, self.json)
        errors = Console(stderr=True, highlight=False)
        loaded = self.place.load(self.model, errors)
        result = self._generated(prompts, loaded, errors)
        finish(result, self.html, self.json)
        return 0

    def _generated(self, prompts: list[str], loaded: "Loaded", errors: Console) -> "Generation":
        """A single text is shown while it grows; several are shown when they are done."""
        from tokendepth.engine.generate import generate

        options = {"chat": self.chat, **vars(self.generate)}
        if len(prompts) == 1 and self.generate.beams == 1:
            sys.stdout.write(prompts[0])
            result = generate(prompts, loaded, on_text=_show, **options)
            sys.stdout.write("\n\n")
            return result
        with progress(errors, "generating", "steps") as on_step:
            result = generate(prompts, loaded, on_step=on_step, **options)
        for one in result.continuations:
            sys.stdout.write(f"{one.prompt}{one.text}\n\n")
        return result

    def _prompts(self) -> list[str]:
        from tokendepth.text.documents import check_text, read_text

        if not self.prompt and not self.file:
            raise ValueError(
                "prompt: got none; give a text to continue, for example\n"
                '  tokendepth generate --prompt "Once upon a time"'
            )
        named = [(f"prompt {number}", text) for number, text in enumerate(self.prompt, 1)]
        named += [(str(path), read_text(path)) for path in self.file]
        for name, text in named:
            check_text(name, text)
        return [text for _, text in named]


def _show(row: int, text: str) -> None:
    del row
    sys.stdout.write(text)
    sys.stdout.flush()
