"""The texts that a command was given: `--file` and `--data` mean the same in all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokendepth.text.corpora import Part


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
        run = open_run(runs[0]) if runs else None
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
