"""Round trips, what is saved, and what an alphabet lacks."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendepth.errors import DamagedError
from tokendepth.text.documents import tokenize
from tokendepth.text.pieces import Pieces
from tokendepth.text.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    encode_text,
    load_tokenizer,
    make_tokenizer,
    save_tokenizer,
)

TEXT = "To be, or not to be?\nNaïve 🙂 – 42."


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
@settings(max_examples=40, deadline=None)
def test_every_text_goes_there_and_back(text):
    for name in ("characters", "bytes"):
        tokenizer = make_tokenizer(name, text)
        ids = encode_text(tokenizer, text)
        assert tokenizer.decode(ids) == text
        assert len(ids) == (len(text) if name == "characters" else len(text.encode()))
        assert 0 <= ids.min() <= ids.max() < len(tokenizer)


def test_the_alphabet_is_sorted_and_its_own():
    tokenizer = make_tokenizer("characters", TEXT)
    assert list(tokenizer.characters) == sorted(set(TEXT))
    assert encode_text(tokenizer, "be").tolist() == [tokenizer.characters.index(c) for c in "be"]
    with pytest.raises(ValueError, match=r"the character 'z' \(number 2\) is not among the"):
        tokenizer.encode("bez")
    with pytest.raises(ValueError, match="'\U0001f643'"):
        tokenizer.encode("b\U0001f643")


@pytest.mark.parametrize("name", ["characters", "bytes"])
def test_saved_and_loaded(name, tmp_path):
    tokenizer = make_tokenizer(name, TEXT)
    save_tokenizer(tokenizer, tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is type(tokenizer)
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]


def test_one_of_transformers_is_saved_as_it_saves_itself(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path)
    again = load_tokenizer(tmp_path)
    assert encode_text(again, TEXT).tolist() == tokenizer(TEXT)["input_ids"]
    made = make_tokenizer(str(tmp_path), "")
    assert made.decode(encode_text(made, TEXT)) == TEXT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "words"}, "has the fields|kind 'words'; allowed are characters, bytes"),
        ({"format": 9}, "tokenizer: format 9 is newer than 1"),
        ({"charcters": "ab"}, "has the fields"),
        ({"characters": "aab"}, "each once"),
        ({"characters": ""}, "at least one character"),
    ],
)
def test_another_file_is_refused(change, said, tmp_path):
    save_tokenizer(make_tokenizer("characters", TEXT), tmp_path)
    file = tmp_path / "tokendepth.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=said):
        load_tokenizer(tmp_path)


def test_a_cut_file_and_an_unknown_name(tmp_path):
    save_tokenizer(ByteTokenizer(), tmp_path)
    (tmp_path / "tokendepth.json").write_text('{"format": 1, "ki')
    with pytest.raises(DamagedError, match="tokendepth.json is damaged"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="tokenizer: got 'charaters'; allowed are characters, by"):
        make_tokenizer("charaters", TEXT)


@pytest.mark.parametrize("name", ["characters", "bytes"])
def test_the_rest_of_the_package_reads_with_it(name):
    tokenizer = make_tokenizer(name, TEXT)
    document = tokenize("text", TEXT, tokenizer, limit=20)
    assert document.num_prefix == 0
    assert not any(document.is_special)
    pieces = Pieces(tokenizer)
    full = tokenize("text", TEXT, tokenizer)
    assert "".join(pieces.texts(full.ids)) == TEXT
    assert b"".join(pieces.raw(one) for one in full.ids) == TEXT.encode()
    assert pieces.raw(1000) == b"<1000>"


def test_one_entry_is_one_character():
    with pytest.raises(ValueError, match="one character"):
        CharacterTokenizer(["ab"])
