"""`tokendepth generate` and `map --generate` from end to end on a tiny saved model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokendepth.cli.main import main

KEYS = {"prompts", "texts", "tokens", "mean_depth", "tokens_per_second"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each command runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command: its exit code, what it wrote, and what it said, in one line of words."""

    def call(name: str, *arguments: str) -> tuple[int, str, str]:
        where = [str(model_folder)] if name == "generate" else ["--model", str(model_folder)]
        try:
            code = main([name, *where, *arguments])
        except SystemExit as stop:  # the option parser's own way out
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, " ".join(err.replace("│", " ").split())

    return call


def _line(called: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = called
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def test_one_prompt_is_shown_and_summed_up(run: Callable[..., Any], folder: Path) -> None:
    called = run("generate", "--prompt", "To be", "--max-new-tokens", "8", "--html", "a.html")
    line = _line(called)
    assert set(line) >= KEYS
    assert line["prompts"] == ["To be"]
    assert 1 <= line["tokens"] <= 8
    assert line["mean_depth"] == 4
    assert line["tokens_per_second"] > 0
    assert called[1].startswith("To be" + line["texts"][0])
    page = (folder / "a.html").read_text("utf-8")
    assert "What it wrote, and how deep it went" in page
    assert "<svg" in page


def test_several_prompts_and_files_with_limits_of_depth(
    run: Callable[..., Any], folder: Path
) -> None:
    (folder / "one.txt").write_text("that is the question", "utf-8")
    given = ["--prompt", "To be", "Naïve 🙂", "--file", "one.txt", "--max-new-tokens", "6"]
    line = _line(run("generate", *given, "--depth", "1", "2", "3", "--json", "all.json"))
    assert line["prompts"] == ["To be", "Naïve 🙂", "that is the question"]
    stored = json.loads((folder / "all.json").read_text("utf-8"))
    for one, text, depth in zip(stored["continuations"], line["texts"], (1, 2, 3), strict=True):
        assert one["text"] == text
        assert set(one["depths"]) == {depth}
        assert len(one["ids"]) == len(one["depths"]) == len(one["confidences"]) <= 6
    assert stored["tokens"] == line["tokens"]
    alone = _line(run("generate", "--prompt", "Naïve 🙂", "--max-new-tokens", "6", "--depth", "2"))
    assert alone["texts"] == line["texts"][1:2]


@pytest.mark.parametrize(
    "options",
    [
        ["--temperature", "0.8", "--top-k", "9", "--seed", "3"],
        ["--beams", "3", "--length-penalty", "0.5"],
        ["--chat", "--stop", "e", "--chunk", "2"],
        ["--dtype", "float64", "--executor", "dense"],
    ],
)
def test_the_same_command_writes_the_same(options: list[str], run: Callable[..., Any]) -> None:
    given = ["generate", "--prompt", "To be", "--max-new-tokens", "5", *options]
    first, second = _line(run(*given)), _line(run(*given))
    assert first["texts"] == second["texts"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "prompt: got none; give a text to continue"),
        (["--prompt", ""], "prompt 1"),
        (["--file", "none.txt"], "none.txt"),
        (["--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens: got 0"),
        (["--prompt", "a", "--depth", "1", "2"], "depth: got 2 limits for 1 prompts"),
        (["--prompt", "a", "--depth", "9"], "depth: got 9; spans of this schedule end at"),
        (["--prompt", "a", "--top-p", "0.5"], "temperature: 0 takes the most likely"),
        (["--prompt", "a", "--beams", "2", "--stop", "x"], "beams: beam search takes"),
        (["--prompt", "a", "--executor", "quick"], "--executor"),
        (["--prompt", "a", "--temperatur", "1"], "--temperature"),
        (["--prompt", "a", "--html", "none/a.html"], "html: the folder"),
    ],
)
def test_wrong_use(arguments: list[str], said: str, run: Callable[..., Any], folder: Path) -> None:
    code, out, err = run("generate", *arguments)
    assert code == 2, (out, err)
    assert said in err
    assert list(folder.iterdir()) == []


def test_a_map_goes_on_with_what_the_model_writes(run: Callable[..., Any], tokenizer: Any) -> None:
    text = "To be, or not"
    given = ["--prompt", text, "that is", "--max-new-tokens", "7", "--json", "wrote.json"]
    _line(run("generate", *given))
    wrote = json.loads(Path("wrote.json").read_text("utf-8"))["continuations"]
    for batch in ("1", "8"):
        line = _line(run("map", text, "that is", "--generate", "7", "--batch", batch))
        rows = [json.loads(row) for row in Path(line["jsonl"]).read_text("utf-8").splitlines()]
        for number, one in enumerate(wrote):
            mine = [row["id"] for row in rows if row["document"] == number]
            assert mine == [*tokenizer(one["prompt"])["input_ids"], *one["ids"]]
    code, _, err = run("map", text, "--generate", "0")
    assert code == 2
    assert "generate: got 0; it must be at least 1" in err
