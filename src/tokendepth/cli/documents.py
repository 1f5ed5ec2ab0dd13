"""The texts that a command was given, as documents of a model's tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokendepth.text.documents import Document


def documents_of(files: Sequence[Path], tokenizer: Any) -> "list[Document]":
    """Each file as a document.

    Raises:
        ValueError: none given, or one that is no text.
    """
    from tokendepth.text.documents import read_text, tokenize

    if not files:
        raise ValueError("file: got none; name at least one UTF-8 text, such as --file book.txt")
    texts = [(str(path), read_text(path)) for path in files]
    return [tokenize(name, text, tokenizer) for name, text in texts]
