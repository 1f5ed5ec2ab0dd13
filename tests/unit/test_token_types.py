"""The type of a token, from its own characters."""

import pytest

from tokendepth.text.token_types import TOKEN_TYPES, token_type

TABLE = {
    "whitespace": [" ", "\n", "\t\n  ", "\u00a0", "\r\n"],
    "punctuation": [".", ",", " (", "...", "—", "“", " $", "🙂", "_", "##"],
    "digit": ["7", " 42", "1,000", "3.14", "²", "٣"],
    "function word": [" the", "The", " of", " And", "'s", "’re", "'t", " THE", "I", " not"],
    "content word": [" king", "King", " Água", "漢字", " question", "(word", "2nd"],
    "subword continuation": ["ing", "tion", "é", "", "s", "ed,", "the"],
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in TABLE.items() for text in texts]
)
def test_type_of(kind: str, text: str) -> None:
    assert token_type(text) == kind


@pytest.mark.parametrize("text", ["<|im_start|>", " the", "", "\n", "7"])
def test_a_token_marked_special_is_special(text: str) -> None:
    assert token_type(text, special=True) == "special"


def test_every_type_of_the_table_is_known() -> None:
    assert {*TABLE, "special"} == set(TOKEN_TYPES)
