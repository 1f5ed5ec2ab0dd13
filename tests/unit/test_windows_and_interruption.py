"""Long documents in windows; Ctrl-C keeps what is done, and the same map goes on from there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokendepth
from tokendepth.measure.lens import Lens

LONG = "that is the question of the thing " * 20
SHORT = "to be"


@contextmanager
def _stop_after(batches: int) -> Iterator[list[int]]:
    """Ctrl-C when so many batches were read; yields a list with one item for each of them."""
    read, done = Lens.read, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        if len(done) == batches:
            raise KeyboardInterrupt
        done.append(1)
        return read(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lens, "read", counted)
        yield done


def _interrupt(batches: int, texts: list[str], loaded: Any, **options: Any) -> Any:
    """Run a map that is interrupted after so many batches; what it kept."""
    with _stop_after(batches), pytest.raises(tokendepth.MapInterrupted) as caught:
        tokendepth.map(texts, loaded, batch=1, **options)
    return caught.value.result


def test_a_long_document_is_cut_and_the_result_says_where(llama: Any) -> None:
    result = tokendepth.map([LONG, SHORT], llama)
    length = len(llama.tokenizer(LONG)["input_ids"])
    starts = tuple(range(0, length, 64))
    assert len(starts) > 2
    assert result.documents[0].window_starts == starts
    assert result.documents[0].num_tokens == length
    assert result.documents[1].window_starts == (0,)
    mine = result.document == 0
    assert result.index[mine].tolist() == list(range(length))
    assert (result.window[mine] == result.index[mine] // 64).all()
    assert (result.counted[mine] == (result.index[mine] % 64 > 0)).all(), "no first of a window"
    assert "cut into windows" in result.page()


def test_each_window_is_read_alone(llama: Any) -> None:
    result = tokendepth.map(LONG, llama)
    ids = torch.tensor([llama.tokenizer(LONG)["input_ids"][64:128]])
    lens = tokendepth.Lens(llama.view)
    read = lens.read(tokendepth.capture(llama.view, ids), torch.ones_like(ids).bool())
    np.testing.assert_allclose(result.kl[64:128], read.kl_last.T, atol=1e-4)


def test_a_repeated_prefix_is_read_but_not_listed_twice(
    shared_model: Callable[[str], Any], tokenizer_with_bos: Any
) -> None:
    loaded = tokendepth.Loaded(
        title="with a beginning", model=shared_model("Llama"), tokenizer=tokenizer_with_bos
    )
    result = tokendepth.map(LONG, loaded)
    ids = tokenizer_with_bos(LONG)["input_ids"]
    assert result.ids.tolist() == ids
    assert result.documents[0].window_starts[:3] == (0, 64, 127)
    assert result.counted.tolist() == [False] + [True] * (len(ids) - 1)
    second = torch.tensor([[ids[0], *ids[64:127]]])
    read = tokendepth.Lens(loaded.view).read(
        tokendepth.capture(loaded.view, second), torch.ones_like(second).bool()
    )
    np.testing.assert_allclose(result.kl[64:127], read.kl_last.T[1:], atol=1e-4)


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_the_batch_size_changes_no_number(batch: int, llama: Any) -> None:
    told: list[tuple[int, int]] = []
    texts = [LONG, SHORT, "king"]
    result = tokendepth.map(
        texts, llama, batch=batch, on_progress=lambda done, total: told.append((done, total))
    )
    default = tokendepth.map(texts, llama)
    np.testing.assert_allclose(result.kl, default.kl, atol=1e-4)
    assert told[-1] == (result.num_tokens, result.num_tokens)
    assert len(told) == -(-len(set(zip(result.document, result.window, strict=True))) // batch)


def test_states_held_at_a_time_are_limited(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokendepth.measure.mapping.STATE_BYTES", 2 * 64 * 5 * 32 * 4)
    told: list[int] = []
    tokendepth.map([LONG] * 2, llama, on_progress=lambda done, total: told.append(done))
    assert max(np.diff([0, *told])) <= 128


def test_an_interrupted_map_keeps_what_is_done(llama: Any) -> None:
    partial = _interrupt(1, [SHORT, LONG], llama)
    assert not partial.complete
    assert "".join(partial.texts) == SHORT
    assert partial.documents[1].num_tokens == 0
    assert "Interrupted" in partial.page()
    assert partial.summary()["complete"] is False


def test_an_interruption_before_the_first_batch_has_no_result(llama: Any) -> None:
    assert _interrupt(0, [SHORT, LONG], llama) is None


def test_the_same_map_goes_on_where_it_was_interrupted(llama: Any, tmp_path: Path) -> None:
    path, texts = tmp_path / "a.partial", [SHORT, LONG]
    whole = tokendepth.map(texts, llama, batch=1)
    _interrupt(2, texts, llama, resume=path)
    assert path.is_file()
    with _stop_after(1000) as done:
        resumed = tokendepth.map(texts, llama, batch=1, resume=path)
    assert resumed.complete
    assert len(done) == len(whole.documents[1].window_starts) + 1 - 2
    assert (resumed.kl == whole.kl).all()
    assert resumed.texts == whole.texts
    assert path.is_file(), "the caller removes it, once the result is written"


def test_a_failure_in_the_middle_keeps_what_is_done(llama: Any, tmp_path: Path) -> None:
    path, read = tmp_path / "a.partial", Lens.read
    calls: list[int] = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise tokendepth.NonFiniteError("planted")
        return read(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lens, "read", failing)
        with pytest.raises(tokendepth.NonFiniteError, match="planted"):
            tokendepth.map([SHORT, LONG], llama, batch=1, resume=path)
    with _stop_after(1000) as done:
        whole = tokendepth.map([SHORT, LONG], llama, batch=1, resume=path)
    assert whole.complete
    assert len(done) == len(whole.documents[1].window_starts)


def test_a_limit_inside_a_character_shows_it_whole(llama: Any) -> None:
    text = "ok 🙂"
    ids = llama.tokenizer(text)["input_ids"]
    whole = tokendepth.map(text, llama)
    for limit in range(1, len(ids)):
        assert tokendepth.map(text, llama, limit=limit).texts == whole.texts[:limit]


def test_a_second_interruption_keeps_both_parts(llama: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.partial"
    _interrupt(1, [LONG], llama, resume=path)
    second = _interrupt(1, [LONG], llama, resume=path)
    assert second.documents[0].window_starts == (0, 64)
    assert second.ids.tolist() == llama.tokenizer(LONG)["input_ids"][:128]


def test_another_rule_reads_nothing_again(llama: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.partial"
    _interrupt(1, [SHORT, LONG], llama, resume=path)
    with _stop_after(1000) as done:
        resumed = tokendepth.map([SHORT, LONG], llama, batch=1, resume=path, rule="argmax")
    plain = tokendepth.map([SHORT, LONG], llama, rule="argmax")
    assert len(done) == len(plain.documents[1].window_starts)
    assert (resumed.depth == plain.depth).all()


@pytest.mark.parametrize("change", ["text", "top_k", "weights", "torn"])
def test_what_belongs_to_another_map_is_not_used(
    change: str, llama: Any, make_model: Callable[..., Any], tmp_path: Path
) -> None:
    path, texts, options, loaded = tmp_path / "a.partial", [SHORT, LONG], {}, llama
    _interrupt(1, texts, llama, resume=path)
    if change == "torn":
        path.write_bytes(path.read_bytes()[:50])
    elif change == "text":
        texts = ["king", LONG]
    elif change == "top_k":
        options = {"top_k": 2}
    else:
        model = make_model("Llama", tie_word_embeddings=True)
        loaded = tokendepth.Loaded(title="other", model=model, tokenizer=llama.tokenizer)
    with _stop_after(1000) as done:
        resumed = tokendepth.map(texts, loaded, batch=1, resume=path, **options)
    plain = tokendepth.map(texts, loaded, batch=1, **options)
    assert len(done) == 1 + len(plain.documents[1].window_starts)
    assert (resumed.kl == plain.kl).all()
    assert resumed.top_ids.shape == plain.top_ids.shape
