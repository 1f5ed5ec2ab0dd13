"""Documents cut into passages, so that every token but the first is predicted exactly once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokendepth.text.documents import Document


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Tokens `first` to `first + len(ids) - 1` of a document, after the tokenizer's own prefix.

    The model reads all but the last and predicts all but the first.
    """

    document: int
    first: int
    ids: tuple[int, ...]
    num_repeated: int
    """Prefix tokens in front that are repeated from the start of the document."""
    scored: tuple[bool, ...]
    """Of the targets, `ids[1:]`: false for control tokens and for what is only repeated."""


def passages(documents: Sequence[Document], length: int, *, skip: int = 0) -> Iterator[Passage]:
    """Passages of `length` inputs; neighbours share one token, a target here and an input there.

    The first `skip` targets of each passage are not scored: the question of a task.

    Raises:
        ValueError: a length below 1, or one that the prefix fills.
    """
    if length < 1:
        raise ValueError(f"length: got {length}; a passage needs at least 1 token")
    for number, document in enumerate(documents):
        prefix = document.ids[: document.num_prefix]
        if len(prefix) >= length:
            raise ValueError(
                f"length: got {length}; the tokenizer puts {len(prefix)} tokens before every text, "
                "so it must be larger"
            )
        start = 0
        while start + 1 < len(document.ids):
            repeated = prefix if start else ()
            stop = start + length - len(repeated) + 1
            body = document.ids[start:stop]
            marks = document.is_special[start:stop]
            yield Passage(
                document=number,
                first=start,
                ids=repeated + body,
                num_repeated=len(repeated),
                scored=(False,) * len(repeated)
                + tuple(not mark and at >= skip for at, mark in enumerate(marks[1:])),
            )
            start = stop - 1
