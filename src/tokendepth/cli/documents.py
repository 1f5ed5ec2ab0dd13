"""The texts that a command was given: `--file` and `--data` mean the same in all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokendepth.text.corpora import Part

if TYPE_CHECKING:
    from tokendepth.training.run import Run


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Which text."""

    file: tuple[Path, ...] = ()
    """UTF-8 text files, or patterns in quotes; each file is a document."""
    data: tuple[str, ...] = ()
    """A named corpus of `tokendepth list`, or files as one text; one part of it is taken. A run
    has its own text unless one is given."""
    part: Part = "validation"
    """Of --data: train, validation, test or all, by the run's own split."""

    def given(self) -> bool:
        """True when a text was named."""
        return bool(self.file or self.data)

    def check(self) -> None:
        """Raise a `ValueError` when both were named, before any work is done."""
        if self.file and self.data:
            raise ValueError("data: give either --file or --data, and not both")

    def texts(
        self, models: Sequence[str], say: Callable[[str], None] = lambda _: None
    ) -> tuple[list[str], list[str]]:
        """Names and texts, read before any work is done.

        Args:
            models: run folders and other models; the first run's split and text are taken.
            say: told in words what is being fetched.

        Raises:
            ValueError: none given and no run that has one, or one that is no text.
        """
        from tokendepth.text.corpora import open_part
        from tokendepth.training.run import open_run

        self.check()
        if self.file:
            return texts_of(self.file)
        runs = [one for one in models if is_run(one)]
        opened = [open_run(one) for one in runs]
        run = opened[0] if opened else None
        if not self.data or any(self.data == one.manifest.data for one in opened):
            _check_same_text(opened)
        if not self.data and run is None:
            return texts_of(())
        if self.data:
            text = open_part(self.data, self.part, run.recipe.split if run else None, say)
            name = " ".join(self.data)
        else:
            assert run is not None
            corpus = run.corpus(say)
            text, name = corpus.part(self.part), corpus.name
        return [f"{name} ({self.part})"], [text]


def _check_same_text(runs: "Sequence[Run]") -> None:
    """Raise a `ValueError` when one run may have trained on what another has left out."""
    for run in runs[1:]:
        if run.manifest.fingerprint != runs[0].manifest.fingerprint:
            raise ValueError(
                f"runs: {run.folder} was trained on another text, or on another part of it, than "
                f"{runs[0].folder}; name a text that neither has seen with --file"
            )


def is_run(model: str) -> bool:
    """True for a folder that `train` has made."""
    return (Path(model).expanduser() / "manifest.json").is_file()


def texts_of(files: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Names and texts of files, all of them read before any work is done.

    Raises:
        ValueError: none given, or one that is no text.
    """
    from tokendepth.text.corpora import file_texts
    from tokendepth.text.documents import check_text

    if not files:
        raise ValueError("file: got none; name at least one UTF-8 text, such as --file book.txt")
    found = file_texts(files)
    for name, text in found:
        check_text(name, text)
    return [name for name, _ in found], [text for _, text in found]
