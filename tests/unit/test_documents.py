"""Texts to tokens, and tokens to windows."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokendepth.text.documents import Document, read_text, tokenize, windows


def _document(length: int, prefix: int, name: str = "one") -> Document:
    prefix = min(prefix, length)
    special = tuple(at < prefix for at in range(length))
    return Document(name=name, ids=tuple(range(length)), is_special=special, num_prefix=prefix)


@given(
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 3)), min_size=1, max_size=4),
    st.integers(4, 20),
)
def test_windows_cover_every_token_once(shapes: list[tuple[int, int]], positions: int) -> None:
    documents = [_document(length, prefix) for length, prefix in shapes]
    cut = list(windows(documents, positions))
    for number, document in enumerate(documents):
        mine = [window for window in cut if window.document == number]
        assert [window.index for window in mine] == list(range(len(mine)))
        new = [window.ids[window.num_repeated :] for window in mine]
        assert sum(new, ()) == document.ids, "no overlap, no gap, in order"
        prefix = document.ids[: document.num_prefix]
        for window, fresh in zip(mine, new, strict=True):
            assert len(window.ids) <= positions
            assert window.ids[: len(prefix)] == prefix, "each window begins with the prefix"
            assert document.ids[window.first] == fresh[0]
        assert len(mine) == 1 or all(len(window.ids) == positions for window in mine[:-1])


def test_a_model_without_a_limit_takes_a_document_whole() -> None:
    (window,) = windows([_document(5000, 1)], None)
    assert len(window.ids) == 5000
    assert window.num_repeated == 0


def test_a_prefix_that_fills_the_model_is_an_error() -> None:
    with pytest.raises(ValueError, match="^model: 3 positions leave no room after the 3 tokens"):
        list(windows([_document(9, 3)], 3))


def test_a_text_without_special_tokens(tokenizer: Any) -> None:
    document = tokenize("one", "the end", tokenizer)
    assert document.ids == tuple(tokenizer("the end")["input_ids"])
    assert not any(document.is_special)
    assert (document.num_prefix, document.num_dropped) == (0, 0)


def test_the_tokenizers_own_prefix_is_special(tokenizer_with_bos: Any) -> None:
    document = tokenize("one", "the end", tokenizer_with_bos)
    assert document.ids[0] == tokenizer_with_bos.bos_token_id
    assert document.is_special == (True, *[False] * (len(document.ids) - 1))
    assert document.num_prefix == 1


def test_control_tokens_inside_a_text_are_special(tokenizer: Any) -> None:
    document = tokenize("one", "a<|im_end|>b", tokenizer)
    assert document.is_special == (False, True, False)


def test_a_limit_drops_the_rest_and_counts_it(tokenizer_with_bos: Any) -> None:
    whole = tokenize("one", "the question", tokenizer_with_bos)
    cut = tokenize("one", "the question", tokenizer_with_bos, limit=2)
    assert cut.ids == whole.ids[:2]
    assert cut.is_special == whole.is_special[:2]
    assert cut.num_dropped == len(whole.ids) - 2 > 0
    assert tokenize("one", "the question", tokenizer_with_bos, limit=500) == whole


@pytest.mark.parametrize("text", ["hi", "user", "<|im_end|>?", "assistant\n", "🙂"])
def test_a_chat_marks_the_template_and_leaves_the_message(text: str, tokenizer: Any) -> None:
    document = tokenize("one", text, tokenizer, chat=True)
    rendered = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(document.ids) == rendered
    control = set(tokenizer.all_special_ids)
    message = [
        token for token, mark in zip(document.ids, document.is_special, strict=True) if not mark
    ]
    expected = [token for token in tokenizer(text)["input_ids"] if token not in control]
    assert message == expected


def test_a_chat_doubles_no_token_before_the_text(tokenizer_with_bos: Any) -> None:
    document = tokenize("one", "hi", tokenizer_with_bos, chat=True)
    begin = tokenizer_with_bos.bos_token_id
    assert document.ids[0] == begin
    assert document.ids[1] != begin


def test_a_chat_needs_a_template(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match="^chat: this tokenizer has no chat template"):
        tokenize("one", "hi", tokenizer, chat=True)


def test_a_template_that_repeats_the_message_is_refused(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = "{{ messages[0]['content'] }} {{ messages[0]['content'] }}"
    monkeypatch.setattr(tokenizer, "chat_template", twice)
    with pytest.raises(ValueError, match="^chat: the template uses the message 2 times"):
        tokenize("one", "hi", tokenizer, chat=True)


def test_an_empty_text_is_named(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="^text: two is empty; give at least one character"):
        tokenize("two", "", tokenizer)


def test_files_are_read_as_utf8_without_their_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\n")
    assert read_text(path) == "naïve\r\n"


def test_a_file_that_is_not_utf8_names_byte_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ValueError, match=r"^file: .*latin.txt is not UTF-8: byte 0xE9 at offset 3"):
        read_text(path)


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^file: .*none.txt: No such file"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="^file: .*[Dd]irectory"):
        read_text(tmp_path)
