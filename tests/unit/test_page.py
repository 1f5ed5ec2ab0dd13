"""The page and the files: self-contained, escaped, whole."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tokendepth

NASTY = "the <b>&\"' </script><script>alert(1)</script> {{ 7 * 7 }} 🙂\nto be\n"


class _Parsed(HTMLParser):
    """Tags, attributes, and the text inside the spans of tokens."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tokens: list[str] = []
        self._token = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._token = tag == "span" and "data-at" in dict(attrs)
        if self._token:
            self.tokens.append("")

    def handle_endtag(self, tag: str) -> None:
        self._token = False

    def handle_data(self, data: str) -> None:
        if self._token:
            self.tokens[-1] += data


@pytest.fixture(scope="module")
def result(llama: Any) -> tokendepth.DepthMap:
    """A map of text that must not become markup."""
    return tokendepth.map([NASTY, "king"], llama, top_k=3, names=["<i>one</i>", "two"])


@pytest.fixture(scope="module")
def page(result: tokendepth.DepthMap) -> _Parsed:
    """Its page, parsed."""
    return _Parsed(result.page())


def _data(source: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', source, re.S)
    return json.loads(found.group(1))


def test_nothing_is_fetched_from_anywhere(page: _Parsed, result: tokendepth.DepthMap) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        for name in ("src", "href", "data", "action", "poster", "xlink:href"):
            value = attributes.get(name) or "#"
            assert value.startswith("#"), f"<{tag} {name}={value}>"
    source = result.page()
    assert not re.search(r"url\(\s*['\"]?(?!#)", source)
    assert "@import" not in source
    assert not re.search(r"\b(fetch|XMLHttpRequest|import)\s*\(", source)


def test_text_never_becomes_markup(page: _Parsed, result: tokendepth.DepthMap) -> None:
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"i"}, "a document's name is text"
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "alert(1)</script>" not in result.page()
    assert "49" not in "".join(page.tokens), "the text is no template"


def test_every_token_is_there_as_people_read_it(page: _Parsed, result: tokendepth.DepthMap) -> None:
    assert len(page.tokens) == result.num_tokens
    shown = "".join(page.tokens).replace("·", " ").replace("⏎", "\n")
    assert shown == NASTY + "king"
    assert "\ufffd" not in result.page()


def test_the_data_of_the_page_are_the_results(result: tokendepth.DepthMap) -> None:
    data = _data(result.page())
    assert data["layers"] == result.num_layers
    assert data["rule"] == result.rule
    assert [token["id"] for token in data["tokens"]] == result.ids.tolist()
    for rule, depth in result.depths.items():
        assert data["depths"][rule] == depth.tolist()
    for at, token in enumerate(data["tokens"]):
        assert token["kl"] == pytest.approx(result.kl[at].tolist(), rel=6e-3, abs=1e-9)
        assert token["top"] == result.top_ids[at].tolist()
        assert {str(one) for row in token["top"] for one in row} <= set(data["vocabulary"])


def test_colour_and_class_follow_depth(page: _Parsed, result: tokendepth.DepthMap) -> None:
    spans = [attributes for _, attributes in page.tags if "data-at" in attributes]
    colours = {
        int(depth): {
            span["style"] for span, d in zip(spans, result.depth, strict=True) if d == depth
        }
        for depth in result.depth
    }
    assert all(len(styles) == 1 for styles in colours.values()), "one colour a depth"
    assert len(set.union(*colours.values())) == len(colours), "and another for another"
    for at, span in enumerate(spans):
        assert ("out" in (span["class"] or "").split()) == (not result.counted[at])


def test_the_page_warns_about_the_lens_and_says_what_is_left_out(
    result: tokendepth.DepthMap,
) -> None:
    source = result.page()
    assert "depends on the read-out" in source
    firsts = sum(len(facts.window_starts) for facts in result.documents)
    assert f"0 special or template tokens and {firsts} first positions of a window" in source
    assert "bootstrap over 2 documents" in source


def test_a_long_page_is_cut_and_says_so(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokendepth.reporting.html.MAX_TOKENS", 10)
    parsed = tokendepth.map("the king of the question that is to be", llama)
    assert parsed.num_tokens > 10
    source = parsed.page()
    assert len(_Parsed(source).tokens) == 10
    assert "The first 10 tokens are shown" in source


def test_a_notebook_shows_the_page_in_a_frame(result: tokendepth.DepthMap) -> None:
    frame = _Parsed(result._repr_html_())
    ((tag, attributes),) = frame.tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == result.page()


def test_files_hold_what_the_result_holds(result: tokendepth.DepthMap, tmp_path: Path) -> None:
    html, jsonl = tmp_path / "a.html", tmp_path / "a.jsonl"
    result.write_html(html)
    result.write_jsonl(jsonl)
    assert html.read_text("utf-8") == result.page()
    lines = jsonl.read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == list(result.rows())
