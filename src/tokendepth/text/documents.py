"""Texts into token ids, and token ids into windows that fit the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text as token ids."""

    name: str
    ids: tuple[int, ...]
    is_special: tuple[bool, ...]
    """True for control tokens and for what a chat template added."""
    num_prefix: int = 0
    """How many ids at the start the tokenizer adds to every text, such as a beginning-of-text
    token; each window begins with them."""
    num_dropped: int = 0
    """Tokens that a limit cut off at the end."""
    following: tuple[int, ...] = ()
    """The first few of those, since a character may go on in them."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A piece of one document, short enough for the model's positions.

    `ids` may begin with tokens repeated from the document's prefix; `first` is the index in the
    document of the first token that is not repeated, and `num_repeated` says how many are.
    """

    document: int
    index: int
    first: int
    ids: tuple[int, ...]
    num_repeated: int = 0


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        ValueError: no such file, a folder, or bytes that are not UTF-8 (which, and where).
    """
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        why = f"{error.strerror}; name a text file that can be read"
        raise ValueError(f"file: {path}: {why}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"file: {path} is not UTF-8: byte 0x{raw[error.start]:02X} at offset {error.start}. "
            f"Convert it first, for example: iconv -f latin1 -t utf-8 {path.name}"
        ) from None


def check_text(name: str, text: str) -> None:
    """Raise a `ValueError` when there is nothing to read."""
    if text == "":
        raise ValueError(f"text: {name} is empty; give at least one character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text: {name} is not valid Unicode at character {error.start} ({error.reason}); give "
            "UTF-8 text"
        ) from None


def tokenize(
    name: str, text: str, tokenizer: Any, *, chat: bool = False, limit: int | None = None
) -> Document:
    """One text as a document.

    Special tokens are added as the tokenizer does by default; in a chat the template alone says
    where they stand, so that none is doubled.

    Args:
        name: what results call the document.
        text: the text; with `chat`, the one message of the user.
        tokenizer: a tokenizer of transformers.
        chat: wrap the text in the tokenizer's chat template, ready for an answer.
        limit: keep at most so many tokens, at least 1.

    Raises:
        ValueError: an empty text, or a tokenizer without a chat template.
    """
    check_text(name, text)
    if chat:
        ids, added, num_prefix = _with_template(text, tokenizer)
    else:
        ids, added, num_prefix = _with_defaults(text, tokenizer)
    if not ids:
        raise ValueError(f"text: {name} has no tokens under this tokenizer")
    control = set(tokenizer.all_special_ids)
    kept = len(ids) if limit is None else min(limit, len(ids))
    return Document(
        name=name,
        ids=tuple(ids[:kept]),
        is_special=tuple(
            mark or token in control for mark, token in zip(added[:kept], ids, strict=False)
        ),
        num_prefix=min(num_prefix, kept),
        num_dropped=len(ids) - kept,
        following=tuple(ids[kept : kept + 4]),
    )


def tokenize_all(
    texts: str | Sequence[str], tokenizer: Any, names: Sequence[str] | None = None, **options: Any
) -> list[Document]:
    """One text or several as documents, named `text 1` and so on unless named.

    Args:
        texts: one text, or several.
        tokenizer: a tokenizer of transformers.
        names: what to call them.
        options: of `tokenize`.

    Raises:
        ValueError: no texts, an empty one, or another number of names.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    if not texts:
        raise ValueError("texts: got none; give at least one text")
    if names is not None and len(names) != len(texts):
        raise ValueError(f"names: got {len(names)} for {len(texts)} texts; give one a text")
    names = names or [f"text {number}" for number in range(1, len(texts) + 1)]
    return [
        tokenize(name, text, tokenizer, **options) for name, text in zip(names, texts, strict=True)
    ]


def windows(documents: Sequence[Document], max_positions: int | None) -> Iterator[Window]:
    """Cut documents longer than the model's positions into windows that do not overlap.

    Each window begins with the prefix that the tokenizer gives every text.
    """
    for number, document in enumerate(documents):
        length = len(document.ids)
        if max_positions is None or length <= max_positions:
            yield Window(document=number, index=0, first=0, ids=document.ids)
            continue
        prefix = document.ids[: document.num_prefix]
        step = max_positions - len(prefix)
        if step < 1:
            raise ValueError(
                f"model: {max_positions} positions leave no room after the {len(prefix)} tokens "
                "that the tokenizer puts before every text"
            )
        for index, start in enumerate(range(len(prefix), length, step)):
            body = document.ids[start : start + step]
            repeated = 0 if index == 0 else len(prefix)
            yield Window(
                document=number,
                index=index,
                first=0 if index == 0 else start,
                ids=prefix + body,
                num_repeated=repeated,
            )


def _with_defaults(text: str, tokenizer: Any) -> tuple[list[int], list[bool], int]:
    plain = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    full = tokenizer(text, verbose=False)["input_ids"]
    extra = len(full) - len(plain)
    for before in range(extra + 1):
        if full[before : before + len(plain)] == plain:
            added = [True] * before + [False] * len(plain) + [True] * (extra - before)
            return full, added, before
    return full, [False] * len(full), 0  # the tokenizer's own marks still tell control tokens


def _with_template(text: str, tokenizer: Any) -> tuple[list[int], list[bool], int]:
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "chat: this tokenizer has no chat template; leave --chat out, or take an instruct model"
        )
    rendered = _render(tokenizer, text)
    sentinel = "tokendepth-message"
    around = _render(tokenizer, sentinel).split(sentinel)
    if len(around) != 2:
        raise ValueError(
            f"chat: the template uses the message {len(around) - 1} times; it must use it once for "
            "template and message to be told apart"
        )
    begin, end = len(around[0]), len(rendered) - len(around[1])
    encoded = tokenizer(
        rendered, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    added = [stop <= begin or start >= end for start, stop in encoded["offset_mapping"]]
    return encoded["input_ids"], added, 0


def _render(tokenizer: Any, message: str) -> str:
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
