"""The texts that `--data` can name: named corpora, files, data sets of the hub; always in parts."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from tokendepth.configs import nearest
from tokendepth.text.documents import check_text, read_text
from tokendepth.text.fetch import NAMED_TEXTS, fetched
from tokendepth.text.tasks import TASKS

Part = Literal["train", "validation", "test", "all"]
PARTS: tuple[Part, ...] = get_args(Part)
HUB = "hub:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares of a text, in its order: the beginning trains, the end tests."""

    train: float = 0.8
    validation: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.train, self.validation, self.test)
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise ValueError(f"split: got {shares}; shares are at least 0 and sum to 1")
        if self.train == 0:
            raise ValueError("split: train is 0; something must be left to train on")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A text in three parts that do not overlap."""

    name: str
    train: str
    validation: str
    test: str

    def part(self, name: Part) -> str:
        """One of the parts, or all of them."""
        if name == "all":
            return self.train + self.validation + self.test
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the parts and where they end."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()


def open_corpus(
    data: Sequence[str], split: Split | None = None, say: Callable[[str], None] = lambda _: None
) -> Corpus:
    """What `--data` names, in parts.

    Args:
        data: a named corpus (`pydoc`, `tinyshakespeare`, …), files or globs (joined in the order
            given), or `hub:owner/name`.
        split: shares of texts that do not come in parts.
        say: told in words what is being fetched.

    Raises:
        ValueError: nothing, several where only files can be, an unknown name, an empty text.
        FetchError: a named corpus that is neither here nor can be fetched.
    """
    split, name = split or Split(), " ".join(data)
    parts = _source(data)(say)
    check_text(name, parts[0])
    train, validation, test = parts if len(parts) == 3 else cut(parts[0], split)
    return Corpus(name=name, train=train, validation=validation, test=test)


def open_part(
    data: Sequence[str],
    part: Part,
    split: Split | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """One part alone; of a corpus that comes in files of parts, the others are not needed.

    Raises:
        ValueError, FetchError: as `open_corpus`.
    """
    named = NAMED_TEXTS.get(data[0]) if len(data) == 1 and not Path(data[0]).is_file() else None
    if named is not None and len(named.files) == 3 and part != "all":
        return fetched(named.files[PARTS.index(part)], say)
    return open_corpus(data, split, say).part(part)


def _source(data: Sequence[str]) -> Callable[[Callable[[str], None]], tuple[str, ...]]:
    """What makes the parts that `--data` names."""
    if not data:
        raise ValueError(f"data: got none; name a text file or one of {', '.join(CORPORA)}")
    if len(data) == 1 and data[0] in CORPORA and not Path(data[0]).is_file():
        return CORPORA[data[0]]
    if len(data) == 1 and data[0].startswith(HUB):
        from tokendepth.text.hub import hub_parts

        return lambda say: hub_parts(data[0].removeprefix(HUB))
    for one in data:
        if not (set("*?[") & set(one) or Path(one).expanduser().exists()):
            raise ValueError(
                f"data: got {one!r}, which is neither a file here nor one of "
                f"{', '.join(CORPORA)}{nearest(one, CORPORA)}"
            )
    return lambda say: ("".join(text for _, text in file_texts(data)),)


def file_texts(given: Sequence[str | Path]) -> list[tuple[str, str]]:
    """Names and texts of files; a pattern with `*`, `?` or `[` stands for those it fits, sorted.

    Raises:
        ValueError: a pattern that fits no file, or a file that is no text.
    """
    paths: list[Path] = []
    for one in map(str, given):
        path = Path(one).expanduser()
        if path.exists() or not set("*?[") & set(one):
            paths.append(path)
            continue
        root = Path(path.anchor) if path.is_absolute() else Path()
        pattern = str(path.relative_to(path.anchor)) if path.is_absolute() else str(path)
        fits = sorted(found for found in root.glob(pattern) if found.is_file())
        if not fits:
            raise ValueError(f"file: no file fits {one!r}; quote the pattern and look at the path")
        paths += fits
    _check_distinct(paths)
    return [(str(path), read_text(path)) for path in paths]


def _check_distinct(paths: Sequence[Path]) -> None:
    """Raise a `ValueError` for a file named twice: a part could hold what another holds."""
    whole = [path.resolve() for path in paths]
    twice = sorted(str(path) for path in set(whole) if whole.count(path) > 1)
    if twice:
        raise ValueError(f"file: {twice[0]} is named twice; name each file once")


def cut(text: str, split: Split) -> tuple[str, str, str]:
    """Three parts that join to the text; their ends are rounded to a character."""
    first = round(len(text) * split.train)
    second = len(text) if split.test == 0 else round(len(text) * (split.train + split.validation))
    return text[:first], text[first:second], text[second:]


def _pydoc(say: Callable[[str], None]) -> tuple[str, ...]:
    """The English of Python's documentation topics; it differs between versions of Python."""
    del say
    from pydoc_data.topics import topics

    return ("\n".join(topics[name] for name in sorted(topics)),)


def _named(name: str) -> Callable[[Callable[[str], None]], tuple[str, ...]]:
    def parts(say: Callable[[str], None]) -> tuple[str, ...]:
        texts = tuple(fetched(one, say) for one in NAMED_TEXTS[name].files)
        sizes = NAMED_TEXTS[name].sizes
        if not sizes:
            return texts
        first, second = sizes[0], sizes[0] + sizes[1]
        return texts[0][:first], texts[0][first:second], texts[0][second:]

    return parts


def _task(name: str) -> Callable[[Callable[[str], None]], tuple[str, ...]]:
    return lambda say: TASKS[name].parts()


CORPORA = {
    "pydoc": _pydoc,
    **{name: _named(name) for name in NAMED_TEXTS},
    **{name: _task(name) for name in TASKS},
}
"""Each name and what makes its parts: one text, or train, validation and test."""
