"""What each token of a sequence reads as: its characters, not its bytes.

Byte-level tokenizers cut a character such as an emoji into several tokens, none of which decodes on
its own. Here every character stands whole on the token that holds its first byte, and the tokens
that hold the rest read as nothing, so that the texts of a sequence join to the text it came from.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tokendepth.text.tokenizers import ByteTokenizer

WORD_START = "\u2581"  # SentencePiece's visible space
_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


class Pieces:
    """The bytes and characters behind the token ids of one tokenizer.

    Args:
        tokenizer: a tokenizer of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._plain = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        self._to_bytes = _reader(tokenizer)

    def raw(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one token; not always whole characters."""
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        if piece is None:  # a row of the embedding that the tokenizer has no token for
            return f"<{token_id}>".encode()
        if token_id in self._plain:  # spelled as they are, not in the alphabet of the pieces
            return piece.encode()
        return self._to_bytes(piece)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The characters of each token of a sequence: whole ones, each on its first token."""
        return join_bytes([self.raw(int(token_id)) for token_id in ids])

    def alone(self, token_id: int) -> str:
        """One token by itself, as for a prediction; bytes that are no character as `<0xE2>`."""
        return self.texts([token_id])[0]


def join_bytes(pieces: Sequence[bytes]) -> list[str]:
    """Assign every UTF-8 character of the joined pieces to the piece with its first byte.

    Bytes that belong to no character become `<0xE2>`; nothing is dropped.
    """
    joined = b"".join(pieces)
    owner = [index for index, piece in enumerate(pieces) for _ in piece]
    texts = [""] * len(pieces)
    position = 0
    while position < len(joined):
        length = _character_length(joined[position])
        try:
            shown = joined[position : position + length].decode("utf-8")
        except UnicodeDecodeError:
            shown, length = f"<0x{joined[position]:02X}>", 1
        texts[owner[position]] += shown
        position += length
    return texts


def visible(text: str) -> str:
    """The text with marks for spaces and line ends, and code points for what cannot be seen."""
    return "".join(_MARKS.get(char) or _shown(char) for char in text)


def _shown(char: str) -> str:
    return char if char.isprintable() else f"⟨U+{ord(char):04X}⟩"


def _character_length(first_byte: int) -> int:
    """Bytes of the UTF-8 character that begins with `first_byte`; 1 where none does."""
    if first_byte >= 0xF0:
        return 4
    if first_byte >= 0xE0:
        return 3
    return 2 if first_byte >= 0xC0 else 1


def _reader(tokenizer: Any) -> Callable[[str], bytes]:
    """How this tokenizer's pieces spell bytes, told by its decoder."""
    if isinstance(tokenizer, ByteTokenizer):
        return _from_sentence_piece
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = backend.decoder if backend is not None else None
    spelled = decoder.__getstate__().decode() if decoder is not None else ""
    if "ByteLevel" in spelled:
        return _from_byte_alphabet
    if "WordPiece" in spelled:
        return lambda piece: (piece[2:] if piece.startswith("##") else f" {piece}").encode()
    if "Metaspace" in spelled or WORD_START in spelled or "ByteFallback" in spelled:
        return _from_sentence_piece
    return lambda piece: tokenizer.convert_tokens_to_string([piece]).encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes.

    Printable Latin-1 characters stand for themselves; the others, in order, for 256 and up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, shifted = {}, 0
    for byte in range(256):
        if byte in printable:
            alphabet[chr(byte)] = byte
        else:
            alphabet[chr(256 + shifted)] = byte
            shifted += 1
    return alphabet


_BYTES = _byte_alphabet()


def _from_byte_alphabet(piece: str) -> bytes:
    if all(char in _BYTES for char in piece):
        return bytes(_BYTES[char] for char in piece)
    return piece.encode()  # a control token that the tokenizer does not mark as one


def _from_sentence_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(WORD_START, " ").encode()
