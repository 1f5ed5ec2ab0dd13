"""Characters, bytes, or a tokenizer of transformers; saved with a run as JSON.

Our two speak the part of transformers' interface that this package uses, so that the rest of it
need not know which kind it has.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np
from jaxtyping import Int

from tokendepth.files import read_json, without_format, write_aside

FILE, FORMAT = "tokendepth.json", 1


class CharacterTokenizer:
    """One token a character of a given alphabet, in its order.

    Args:
        characters: the alphabet, each character once.
    """

    kind = "characters"
    chat_template: str | None = None

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = tuple(characters)
        if not self.characters or len(set(self.characters)) < len(self.characters):
            raise ValueError("characters: an alphabet needs at least one character, each once")
        if any(len(one) != 1 for one in self.characters):
            raise ValueError("characters: each entry of an alphabet is one character")
        self.all_special_ids: tuple[int, ...] = ()
        self.added_tokens_decoder: Mapping[int, Any] = {}
        points = np.array([ord(one) for one in self.characters])
        self._id_of = np.full(points.max() + 2, -1, dtype=np.int32)
        self._id_of[points] = np.arange(len(points))

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Int[np.ndarray, " token"]:
        """Ids of a text.

        Raises:
            ValueError: a character outside the alphabet, by name.
        """
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        ids = self._id_of[np.minimum(points, len(self._id_of) - 1)]
        if (ids < 0).any():
            at = int(np.argmax(ids < 0))
            raise ValueError(
                f"text: the character {text[at]!r} (number {at}) is not among the "
                f"{len(self)} that this tokenizer was made from; take a text of the same "
                "alphabet, or train with tokenizer=bytes, which reads every text"
            )
        return ids

    def decode(self, ids: Iterable[SupportsInt], **options: object) -> str:
        """The text of ids."""
        del options
        return "".join(self.characters[int(one)] for one in ids)

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """Ids as transformers gives them."""
        del options  # there are no special tokens to add and nothing to warn of
        return {"input_ids": self.encode(text).tolist()}

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        """The character, or None for an id that has none."""
        return self.characters[token_id] if 0 <= token_id < len(self) else None

    def convert_tokens_to_string(self, pieces: Sequence[str]) -> str:
        """The pieces joined."""
        return "".join(pieces)

    def facts(self) -> dict[str, Any]:
        """What a file must hold to make it again."""
        return {"characters": "".join(self.characters)}


class ByteTokenizer:
    """One token a byte of UTF-8: 256 of them, and every text can be read."""

    kind = "bytes"
    chat_template: str | None = None

    def __init__(self) -> None:
        self.all_special_ids: tuple[int, ...] = ()
        self.added_tokens_decoder: Mapping[int, Any] = {}

    def __len__(self) -> int:
        return 256

    def encode(self, text: str) -> Int[np.ndarray, " token"]:
        """Ids of a text."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: Iterable[SupportsInt], **options: object) -> str:
        """The text of ids; bytes that are no character become U+FFFD."""
        del options
        return bytes(int(one) for one in ids).decode(errors="replace")

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """Ids as transformers gives them."""
        del options  # there are no special tokens to add and nothing to warn of
        return {"input_ids": self.encode(text).tolist()}

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        """The byte as SentencePiece spells it, or None for an id that has none."""
        return f"<0x{token_id:02X}>" if 0 <= token_id < 256 else None

    def convert_tokens_to_string(self, pieces: Sequence[str]) -> str:
        """The pieces joined."""
        return self.decode([int(piece[3:5], 16) for piece in pieces])

    def facts(self) -> dict[str, Any]:
        """What a file must hold to make it again: nothing."""
        return {}


def make_tokenizer(name: str, text: str) -> Any:
    """A tokenizer for training.

    Args:
        name: `characters` (the alphabet of the text, sorted), `bytes`, or a folder or hub name of
            a tokenizer of transformers.
        text: all of the corpus, so that validation has no unknown character.

    Raises:
        ValueError: neither of these.
    """
    if name == CharacterTokenizer.kind:
        points = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))
        return CharacterTokenizer([chr(one) for one in points])
    return ByteTokenizer() if name == ByteTokenizer.kind else _from_transformers(name)


def encode_text(tokenizer: Any, text: str) -> Int[np.ndarray, " token"]:
    """The ids of a long text, without special tokens."""
    if isinstance(tokenizer, (CharacterTokenizer, ByteTokenizer)):
        return tokenizer.encode(text)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return np.array(ids, dtype=np.int32)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write it as JSON, ours in one file, those of transformers in theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(tokenizer, (CharacterTokenizer, ByteTokenizer)):
        given = {"format": FORMAT, "kind": tokenizer.kind, **tokenizer.facts()}
        write_aside(folder / FILE, [json.dumps(given, indent=2) + "\n"])
    else:
        tokenizer.save_pretrained(folder)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer that `save_tokenizer` has written.

    Raises:
        ValueError: no such folder, a newer format, an unknown kind or field.
        DamagedError: a file that is not what it should be.
    """
    file = folder / FILE
    if not file.is_file():
        return _from_transformers(str(folder))
    given = without_format(read_json(file, "tokenizer"), FORMAT, "tokenizer")
    wanted = {"kind"} | ({"characters"} if given.get("kind") == "characters" else set())
    if set(given) != wanted:
        raise ValueError(f"tokenizer: {file} has the fields {sorted(given)}, not {sorted(wanted)}")
    if given["kind"] == CharacterTokenizer.kind:
        return CharacterTokenizer(given["characters"])
    if given["kind"] == ByteTokenizer.kind:
        return ByteTokenizer()
    raise ValueError(
        f"tokenizer: {file} is of kind {given['kind']!r}; allowed are characters, bytes"
    )


def _from_transformers(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"tokenizer: got {name!r}; allowed are characters, bytes, or a folder or hub name of a "
            f"tokenizer of transformers ({str(error).splitlines()[0]})"
        ) from error
