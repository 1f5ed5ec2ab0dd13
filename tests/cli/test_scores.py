"""`evaluate`, `benchmark` and `compare` from end to end on tiny models."""

import json
from pathlib import Path

import pytest
import torch

from tests.cli.commands import last

TEXT = "The question is: that the thing is done, to be or not to be?\n" * 3


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / "text.txt").write_text(TEXT)
    (here / "short.txt").write_text("T")
    monkeypatch.chdir(here)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield here
    torch.set_num_threads(before)


def test_evaluate(run, model_folder, folder):
    code, out, _ = run(
        "evaluate", model_folder, "--file", "text.txt", "--length", 24, "--html", "e.html",
        "--json", "e.json",
    )  # fmt: skip
    assert code == 0
    line = last(out)
    assert {"loss", "bits_per_byte", "executed_share", "causal"} <= set(line)
    assert line["causal"] is True
    assert line["executed_share"] == 1
    assert json.loads((folder / "e.json").read_text())["loss"] == line["loss"]
    assert "How well it predicts" in (folder / "e.html").read_text()
    assert "executed share" in " ".join(out.split())


def test_the_batch_changes_nothing(run, model_folder):
    lines = [
        last(run("evaluate", model_folder, "--file", "text.txt", "--length", 9, "--batch", size)[1])
        for size in (1, 5)
    ]
    assert lines[0]["loss"] == pytest.approx(lines[1]["loss"], abs=1e-6)


def test_benchmark_on_random_weights(run, folder):
    code, out, err = run(
        "benchmark", "--synthetic", "--width", 16, "--layers", 3, "--batch", 1, 2, "--length", 8,
        "--alpha", 0.5, "--seconds", 0.01, "--phase", "prefill", "decode", "--html", "b.html",
    )  # fmt: skip
    assert code == 0
    rows = last(out)["rows"]
    assert [(row["phase"], row["batch"]) for row in rows[::7]] == [
        ("prefill", 1), ("prefill", 2), ("decode", 1), ("decode", 2),
    ]  # fmt: skip
    wanted = {
        "phase", "batch", "executor", "seconds", "dense_seconds", "speedup", "flops_speedup",
        "executed_share", "peak_bytes",
    }  # fmt: skip
    assert all(wanted <= set(row) for row in rows)
    assert [row["routers"] for row in rows[:7]] == [False] * 4 + [True] * 3
    assert "What skipping saves" in (folder / "b.html").read_text()
    assert "profiler" not in err


def test_benchmark_of_a_model_on_a_text(run, model_folder):
    code, out, _ = run(
        "benchmark", model_folder, "--file", "text.txt", "--batch", 2, "--length", 8,
        "--seconds", 0.01, "--phase", "train", "--executor", "gathered",
    )  # fmt: skip
    assert code == 0
    assert [row["executor"] for row in last(out)["rows"]] == ["dense", "gathered"]
    assert last(out)["policy"] == "given decisions"


def test_compare(run, model_folder, save_folder, make_model, folder):
    other = save_folder(make_model("Llama", num_hidden_layers=2), "shallow")
    code, out, _ = run(
        "compare", model_folder, other, "--file", "text.txt", "--length", 24,
        "--timed-batch", 2, "--timed-length", 8, "--seconds", 0.01,
    )  # fmt: skip
    assert code == 0
    line = last(out)
    assert [row["run"] for row in line["rows"]] == [str(model_folder), str(other)]
    assert line["rows"][1]["flops_per_token"] < line["rows"][0]["flops_per_token"]
    assert Path(line["plot"]).read_text().startswith("<?xml")
    assert (folder / "comparison.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("evaluate", "MODEL"), "file: got none; name at least one UTF-8 text"),
        (("evaluate", "MODEL", "--file", "none.txt"), "none.txt: No such file"),
        (("evaluate", "MODEL", "--file", "short.txt"), "no token can be predicted"),
        (("evaluate", "MODEL", "--file", "text.txt", "--batch", "0"), "batch: got 0"),
        (("evaluate", "MODEL", "--file", "text.txt", "--routing", "soft"), "Dense has hard"),
        (("evaluate", "MODEL", "--file", "text.txt", "--html", "no/e.html"), "html: the folder"),
        (("evaluate", "MODEL", "--html", "a", "--json", "a"), "json: a is the page's name too"),
        (("benchmark",), "model: give either a model or --synthetic"),
        (("benchmark", "MODEL", "--synthetic"), "model: give either a model or --synthetic"),
        (("benchmark", "--synthetic", "--file", "text.txt"), "file: a synthetic model has no"),
        (("benchmark", "--synthetic", "--width", "65"), "width: got 65"),
        (("benchmark", "--synthetic", "--alpha", "2"), "alpha: got 2.0"),
        (("benchmark", "--synthetic", "--batch", "0"), "a batch is at least 1"),
        (("compare", "MODEL", "--file", "text.txt"), "name at least two, each once"),
        (("compare", "MODEL", "MODEL", "--file", "text.txt"), "name at least two, each once"),
    ],
)
def test_wrong_use_is_named_and_ends_with_2(run, model_folder, arguments, said):
    code, out, err = run(*(model_folder if one == "MODEL" else one for one in arguments))
    assert code == 2
    assert out == ""
    assert said in " ".join(err.split())
