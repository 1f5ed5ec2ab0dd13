"""What tokens read as: whole characters, nothing lost, nothing doubled."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tokendepth.text.pieces import Pieces, join_bytes, visible

TEXTS = [
    "To be, or not to be",
    "smile 🙂🙃 now",
    "family 👨\u200d👩\u200d👧 and e\u0301",
    "naïve café – “quoted”\n\ttab\r\n",
    "漢字 и кириллица",
    " leading and trailing ",
]


@given(st.text(min_size=1), st.lists(st.integers(0, 60)))
def test_text_cut_anywhere_joins_to_itself(text: str, cuts: list[int]) -> None:
    raw = text.encode("utf-8", "ignore")
    bounds = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    pieces = [raw[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]
    texts = join_bytes(pieces)
    assert len(texts) == len(pieces)
    assert "".join(texts) == raw.decode()


def test_a_character_stands_whole_on_its_first_piece() -> None:
    smile = "🙂".encode()
    pieces = [b"a" + smile[:1], smile[1:2], smile[2:3], smile[3:] + b"b"]
    assert join_bytes(pieces) == ["a🙂", "", "", "b"]


@given(st.lists(st.binary(max_size=5), max_size=6))
def test_bytes_that_are_no_character_are_shown_and_never_dropped(pieces: list[bytes]) -> None:
    shown = "".join(join_bytes(pieces))
    restored = b"".join(pieces).decode("utf-8", "surrogateescape")
    escaped = "".join(
        f"<0x{ord(char) - 0xDC00:02X}>" if 0xDC80 <= ord(char) <= 0xDCFF else char
        for char in restored
    )
    assert shown == escaped


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x80", "<0x80>"),
        (b"\xe2\x82", "<0xE2><0x82>"),
        (b"\xc0\xaf", "<0xC0><0xAF>"),  # an overlong slash
        (b"\xed\xa0\x80", "<0xED><0xA0><0x80>"),  # a surrogate
        (b"\xf5\x80\x80\x80", "<0xF5><0x80><0x80><0x80>"),
        (b"a\xffb", "a<0xFF>b"),
    ],
)
def test_invalid_utf8(raw: bytes, shown: str) -> None:
    assert join_bytes([raw]) == [shown]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_tokens_join_to_the_source(text: str, tokenizer: Any) -> None:
    ids = tokenizer(text)["input_ids"]
    assert "".join(Pieces(tokenizer).texts(ids)) == text


def test_an_emoji_over_four_byte_level_tokens(tokenizer: Any) -> None:
    ids = tokenizer("🙂!")["input_ids"]
    assert len(ids) == 5
    pieces = Pieces(tokenizer)
    assert pieces.texts(ids) == ["🙂", "", "", "", "!"]
    assert pieces.alone(ids[0]) == "<0xF0>"


def test_control_tokens_and_rows_without_a_token_read_as_themselves(tokenizer: Any) -> None:
    pieces = Pieces(tokenizer)
    assert pieces.alone(tokenizer.bos_token_id) == "<|im_start|>"
    assert pieces.alone(319) == "<319>"


@pytest.mark.parametrize("word", ["<tool>", "two words", "café", "🙂🙂"])
def test_a_token_added_later_reads_as_it_was_given(word: str, tokenizer: Any) -> None:
    more = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer.from_str(
        tokenizer.backend_tokenizer.to_str()
    ))  # fmt: skip
    more.add_tokens([word])
    ids = more(f"a{word}b")["input_ids"]
    assert len(ids) == 3
    assert Pieces(more).texts(ids) == ["a", word, "b"]


def _sentence_piece() -> Any:
    """In the manner of Llama 2: a visible space, bytes for what has no token."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, "▁t"]
    bpe = models.BPE(
        {token: at for at, token in enumerate(tokens)},
        [("▁", "t")],
        byte_fallback=True,
        unk_token="<unk>",
    )
    backend = Tokenizer(bpe)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")


@pytest.mark.parametrize("text", TEXTS)
def test_sentence_piece_tokens_join_to_the_source_after_a_space(text: str) -> None:
    tokenizer = _sentence_piece()
    ids = tokenizer(text)["input_ids"]
    assert "".join(Pieces(tokenizer).texts(ids)) == f" {text}"


def test_sentence_piece_bytes_are_whole_characters() -> None:
    tokenizer = _sentence_piece()
    ids = tokenizer("t🙂")["input_ids"]
    assert Pieces(tokenizer).texts(ids) == [" t", "🙂", "", "", ""]


def test_word_pieces_show_their_spaces() -> None:
    tokens = ["[UNK]", "the", "walk", "##ing", "##s", "."]
    backend = Tokenizer(
        models.WordPiece({token: at for at, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    ids = tokenizer("the walkings.")["input_ids"]
    assert Pieces(tokenizer).texts(ids) == [" the", " walk", "ing", "s", " ."]


def test_visible_marks() -> None:
    assert visible("a b\n\t\r") == "a·b⏎⇥␍"
    assert visible("\u200b\x00é🙂") == "⟨U+200B⟩⟨U+0000⟩é🙂"
