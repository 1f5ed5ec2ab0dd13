"""`tokendepth map` from end to end on a tiny saved model."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokendepth.cli.main import main

TEXT = "To be, or not to be, that is the question."
FIXED = [
    "model",
    "num_layers",
    "num_tokens",
    "rule",
    "threshold",
    "mean_depth",
    "median_depth",
    "share_unsettled",
    "html",
    "jsonl",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each command runs in a folder of its own."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def run(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run `tokendepth map` on the tiny model: its last line, with all output under "out"."""

    def call(*arguments: str) -> dict[str, Any]:
        code = main(["map", *arguments, "--model", str(model_folder)])
        out, err = capsys.readouterr()
        assert code == 0, err
        return {**json.loads(out.splitlines()[-1]), "out": out, "err": err}

    return call


def _rows(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(row) for row in Path(line["jsonl"]).read_text("utf-8").splitlines()]


def test_one_text_from_end_to_end(run: Callable[..., Any], folder: Path, tokenizer: Any) -> None:
    line = run(TEXT)
    assert set(FIXED) <= set(line)
    assert line["model"] == "tiny-llama"
    assert (line["num_layers"], line["rule"], line["threshold"]) == (4, "kl_last", 0.1)
    for path in (Path(line["html"]), Path(line["jsonl"])):
        assert path.is_absolute()
        assert path.is_file()
        assert path.parent == folder.resolve()
    rows = _rows(line)
    assert len(rows) == line["num_tokens"] == len(tokenizer(TEXT)["input_ids"])
    assert "".join(row["text"] for row in rows) == TEXT
    depths = [row["depth"] for row in rows[1:]]
    assert line["mean_depth"] == pytest.approx(sum(depths) / len(depths))
    assert sorted(path.suffix for path in folder.iterdir()) == [".html", ".jsonl"]


def test_the_terminal_shows_text_tables_and_notes(run: Callable[..., Any]) -> None:
    out = run("to be\n🙂")["out"]
    for shown in ("·be", "⏎", "🙂", "Depth by token type", "function word", "one document"):
        assert shown in out
    for note in ("Left out of the statistics", "--include-first", "depends on the read-out"):
        assert note in out
    assert "\ufffd" not in out
    assert "\x1b[" not in out, "no colour codes in a pipe"


def test_a_colour_terminal_shows_colours(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    line = run(TEXT)
    assert "\x1b[38;2;" in line["out"]
    assert "question" in line["out"]
    assert "mapping" in line["err"], "a bar with the rate and the time left"


def test_several_texts_are_several_documents(run: Callable[..., Any]) -> None:
    line = run("to be", "the king", "that")
    assert {row["document"] for row in _rows(line)} == {0, 1, 2}
    assert "bootstrap over 3 documents" in line["out"]


def test_files_longer_than_the_model_are_cut_into_windows(
    run: Callable[..., Any], folder: Path, tokenizer: Any
) -> None:
    long = "that is the question of the thing\n" * 20
    (folder / "long.txt").write_text(long)
    (folder / "short.txt").write_text("to be")
    line = run("--file", "long.txt", "short.txt")
    rows = _rows(line)
    mine = [row for row in rows if row["document"] == 0]
    assert "".join(row["text"] for row in mine) == long
    assert len(mine) == len(tokenizer(long)["input_ids"])
    assert [row["window"] for row in mine] == [row["index"] // 64 for row in mine]
    assert "64 positions, so cut into" in " ".join(line["out"].split())
    assert "long.txt" in Path(line["html"]).read_text("utf-8")


def test_a_chat_marks_the_template_as_special(run: Callable[..., Any], tokenizer: Any) -> None:
    line = run("to be", "--chat")
    rows = _rows(line)
    assert "".join(row["text"] for row in rows if row["type"] != "special") == "to be"
    assert "".join(row["text"] for row in rows) == (
        "<|im_start|>user\nto be<|im_end|>\n<|im_start|>assistant\n"
    )
    assert all(row["counted"] == (row["type"] != "special") for row in rows)
    assert line["num_counted"] == len(tokenizer("to be")["input_ids"])


def test_a_limit_is_per_document_and_said(run: Callable[..., Any]) -> None:
    line = run("the king of the question", "that is to be", "--limit", "3")
    rows = _rows(line)
    assert [sum(row["document"] == number for row in rows) for number in (0, 1)] == [3, 3]
    assert "Not mapped because of the limit" in line["out"]


def test_the_first_position_counts_when_asked(run: Callable[..., Any]) -> None:
    assert run(TEXT, "--include-first")["num_counted"] == run(TEXT)["num_counted"] + 1


@pytest.mark.parametrize(
    ("rule", "threshold"),
    [("kl_previous", 0.1), ("state", 0.05), ("argmax", None), ("kl_last", 0.7)],
)
def test_rule_and_threshold(run: Callable[..., Any], rule: str, threshold: float | None) -> None:
    given = ["--threshold", "0.7"] if threshold == 0.7 else []
    line = run(TEXT, "--rule", rule, *given)
    assert (line["rule"], line["threshold"]) == (rule, threshold)
    assert f"{rule} (shown)" in line["out"]


def test_files_are_moved_and_the_default_pair_stays_together(
    run: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    line = run(TEXT, "--html", "a.html")
    assert (line["html"], line["jsonl"]) == (
        str(folder.resolve() / "a.html"),
        str(folder.resolve() / "a.jsonl"),
    )
    elsewhere = tmp_path / "elsewhere.jsonl"
    line = run(TEXT, "--html", "b.html", "--jsonl", str(elsewhere))
    assert Path(line["jsonl"]) == elsewhere.resolve()
    assert sorted(path.name for path in folder.iterdir()) == ["a.html", "a.jsonl", "b.html"]


def test_other_texts_and_options_get_other_names(run: Callable[..., Any], folder: Path) -> None:
    first, again = run(TEXT), run(TEXT)
    assert first["html"] == again["html"], "the same command replaces its own result"
    run("to be")
    run(TEXT, "--rule", "state")
    assert len(list(folder.glob("*.html"))) == len(list(folder.glob("*.jsonl"))) == 3


def test_top_k_batch_dtype_and_parts(run: Callable[..., Any]) -> None:
    plain = _rows(run(TEXT))
    line = run(
        *(TEXT, "--top-k", "1", "--batch", "1", "--dtype", "float64", "--device", "cpu"),
        *("--parts.blocks", "model.layers", "--parts.final-norm", "model.norm"),
    )
    for row, other in zip(_rows(line), plain, strict=True):
        assert row["kl"] == pytest.approx(other["kl"], abs=1e-4)
    assert "float64" in Path(line["html"]).read_text("utf-8")


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    run: Callable[..., Any],
    model_folder: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tokendepth.measure.lens import Lens

    read, calls = Lens.read, []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return read(*args, **kwargs)

    monkeypatch.setattr(Lens, "read", interrupted)
    arguments = ["to be", "the king", "--batch", "1"]
    assert main(["map", *arguments, "--model", str(model_folder)]) == 130
    out, err = capsys.readouterr()
    line = json.loads(out.splitlines()[-1])
    assert "interrupted" in err
    assert not line["complete"]
    assert {row["document"] for row in _rows(line)} == {0}
    assert len(list(folder.glob("*.partial"))) == 1
    line = run(*arguments)
    assert line["complete"]
    assert len(calls) == 3, "only the second text was read again"
    assert {row["document"] for row in _rows(line)} == {0, 1}
    assert list(folder.glob("*.partial")) == []


@pytest.mark.real
def test_the_real_model_in_a_process_of_its_own(folder: Path, smollm2: Any) -> None:
    code = "from tokendepth.cli.main import entry; entry()"
    done = subprocess.run(
        [sys.executable, "-c", code, "map", TEXT, "--model", "smollm2"],
        capture_output=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    line = json.loads(done.stdout.decode("utf-8").splitlines()[-1])
    assert line["model"] == "SmolLM2-135M-Instruct (Q4_1, dequantised)"
    assert line["num_layers"] == 30
    rows = _rows(line)
    assert line["num_tokens"] == len(rows) == len(smollm2.tokenizer(TEXT)["input_ids"])
    assert "".join(row["text"] for row in rows) == TEXT
    assert 15 < line["mean_depth"] <= 30
    assert line["share_unsettled"] == 0.0
    assert Path(line["html"]).parent == folder.resolve()
