"""The texts that a command was given."""

from collections.abc import Sequence
from pathlib import Path


def texts_of(files: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Names and texts of files, all of them read before any work is done.

    Raises:
        ValueError: none given, or one that is no text.
    """
    from tokendepth.text.documents import check_text, read_text

    if not files:
        raise ValueError("file: got none; name at least one UTF-8 text, such as --file book.txt")
    texts = [read_text(path) for path in files]
    for path, text in zip(files, texts, strict=True):
        check_text(str(path), text)
    return [str(path) for path in files], texts
