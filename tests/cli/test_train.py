"""`train` from end to end: trained, stopped, resumed, evaluated, compared; and every bad input."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.cli.commands import last
from tests.training.toys import TEXT
from tokendepth.cli.main import main
from tokendepth.training.run import locked, open_run
from tokendepth.training.track import read_metrics

TINY = "tests.training.toys:tiny"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(before)


@pytest.fixture
def trained(run, folder):
    """A run of ten steps, in runs/one."""
    assert run("train", TINY, "--data", "text.txt", "--out", "runs/one")[0] == 0
    return folder / "runs" / "one"


def test_train_evaluate_benchmark_and_compare(run, folder):
    for seed in (0, 1):
        for recipe in (TINY, "tests.training.toys:noisy"):
            given = ("--data", "text.txt", "--seed", seed, "--steps", 4)
            code, out, err = run("train", recipe, *given, "--out", f"runs/{recipe[-5:]}{seed}")
            assert code == 0
            line = last(out)
            assert {"run", "steps", "loss", "tokens_per_second"} <= set(line)
            assert line["steps"] == 4
            assert line["tokens_per_second"] > 0
    code, out, _ = run("evaluate", "runs/noisy0", "--length", 16)
    assert code == 0
    line = last(out)
    assert line["data"] == f"{folder / 'text.txt'} (validation)"
    assert {"loss_soft", "loss_hard"} <= set(line)
    run_of_it = open_run("runs/noisy0")
    assert line["num_tokens"] == len(run_of_it.corpus().validation) - 1
    code, out, _ = run("benchmark", "runs/noisy0", "--batch", 2, "--length", 8, "--seconds", 0.01,
                       "--phase", "prefill")  # fmt: skip
    assert code == 0
    assert last(out)["policy"] == "UpdateGate"
    runs = sorted(str(one) for one in (folder / "runs").iterdir())
    timing = ("--seconds", 0.01, "--timed-length", 8)
    code, out, err = run("compare", *runs, "--length", 16, *timing)
    assert code == 0, err
    line = last(out)
    assert line["baseline"] == "tiny steps=4"
    assert [row["seed"] for row in line["rows"]] == [0, 1, 0, 1]
    assert line["data"] == f"{folder / 'text.txt'} (validation)"
    code, out, _ = run("evaluate", "runs/noisy0", "--data", "text.txt", "--part", "test")
    assert (code, last(out)["data"]) == (0, "text.txt (test)")


@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_a_run_goes_on_with_a_text(run, tokenizer):
    run("train", TINY, "--data", "text.txt", "--out", "one", "--set", f"tokenizer={tokenizer}")
    code, out, err = run("generate", "one", "--prompt", "7 is not ", "--max-new-tokens", 6)
    assert code == 0, err
    assert isinstance(last(out), dict)


def test_loss_is_what_evaluate_finds(run):
    given = ("--set", "evaluate_tokens=null")
    _, out, _ = run("train", TINY, "--data", "text.txt", "--out", "one", *given)
    _, found, _ = run("evaluate", "one", "--length", 16)
    assert last(found)["loss"] == pytest.approx(last(out)["loss"], rel=1e-6)


def test_the_run_holds_what_it_was_made_from(trained):
    manifest = json.loads((trained / "manifest.json").read_text())
    for name in ("tokendepth", "torch", "command", "seed", "data", "fingerprint", "threads"):
        assert manifest[name] not in (None, "")
    assert json.loads((trained / "config.json").read_text())["decoder"]["width"] == 16
    rows = read_metrics(trained)
    assert [row["step"] for row in rows] == [*range(1, 11), 10]
    assert {"loss", "cross_entropy", "learning_rate", "gradient_norm", "seconds"} <= set(rows[0])
    suffixes = {file.suffix for file in trained.rglob("*") if file.is_file()}
    assert suffixes <= {".json", ".jsonl", ".safetensors", ""}  # no pickle


def test_default_folder_and_list(run, folder):
    assert run("train", "dense_tiny", "--data", "text.txt", "--steps", 1, "--seed", 7)[0] == 0
    assert (folder / "runs" / "dense_tiny-seed7" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dense_tyni", "--data", "text.txt"), "did you mean dense_tiny"),
        (("--data", "text.txt"), "recipe: got none; for example"),
        ((TINY,), "data: got none"),
        ((TINY, "--data", "text.txt", "--steps", "0"), "steps: got 0; it must be at least 1"),
        ((TINY, "--data", "text.txt", "--set", "stpes=3"), "did you mean steps"),
        ((TINY, "--data", "none.txt"), "'none.txt', which is neither a file here nor one of"),
        ((TINY, "--data", "text.txt", "--set", "window=3000"), "fewer than one window of 3000"),
        ((TINY, "--data", "text.txt", "--out", "."), "is there already; go on with --resume"),
        ((TINY, "--data", "text.txt", "--device", "cuda:7"), "device: got 'cuda:7'"),
        ((TINY, "--data", "text.txt", "--set", "window=8", "--set=batch=2"), "set: given twice"),
        (("--resume", "none"), "none has no manifest.json"),
        ((TINY, "--resume", "none"), "a run goes on with its own recipe and text"),
        (("--resume", "none", "--seed", "3"), "a run goes on with its own recipe and text"),
        (("--resume", "none", "--data", "text.txt"), "a run goes on with its own recipe"),
        ((TINY, "--data", "text.txt", "--set", "split.train=0.95", "split.validation=0.05",
          "split.test=0.0", "window=8", "evaluate_tokens=1", "tokenizer=no/such/folder"),
         "allowed are characters, bytes, or a folder"),
    ],
)  # fmt: skip
def test_wrong_use_is_named_and_ends_with_2(run, folder, arguments, said):
    code, out, err = run("train", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert not (folder / "runs").exists()


def test_a_misspelt_option_names_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", TINY, "--data", "text.txt", "--stesp", "3"])
    assert ended.value.code == 2
    assert "--steps" in capsys.readouterr().err


def damage(trained, how):
    """What may have become of a run; the code and the words of the error."""
    checkpoint = open_run(trained).checkpoint
    if how == "weights cut in half":
        file = checkpoint / "model.safetensors"
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        return 1, "model.safetensors is damaged"
    if how == "newer":
        edit(trained / "manifest.json", format=2)
        return 2, "run: format 2 is newer than 1"
    if how == "newer checkpoint":
        edit(checkpoint / "state.json", format=2)
        return 2, "checkpoint: format 2 is newer"
    if how == "misspelt key":
        config = json.loads((trained / "config.json").read_text())
        config["bacth"] = config.pop("batch")
        (trained / "config.json").write_text(json.dumps(config))
        return 2, "config: unknown field 'bacth'; did you mean batch"
    if how == "another shape":
        config = json.loads((trained / "config.json").read_text())
        config["decoder"]["inner_width"] = 48
        (trained / "config.json").write_text(json.dumps(config))
        return 2, "config.json describes another model than step-00000010 holds"
    if how == "another vocabulary":
        edit(trained / "tokenizer" / "tokendepth.json", characters="abc")
        return 2, "vocabulary: the tokenizer has 3 tokens"
    if how == "another text":
        (trained.parent.parent / "text.txt").write_text(TEXT + "more")
        return 2, "has changed since"
    assert how == "no text"
    (trained.parent.parent / "text.txt").unlink()
    return 2, "which is neither a file here"


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    "how",
    [
        "weights cut in half", "newer", "newer checkpoint", "misspelt key", "another shape",
        "another vocabulary", "another text", "no text",
    ],
)  # fmt: skip
def test_a_run_that_is_not_whole_is_named(run, trained, how):
    code, said = damage(trained, how)
    found, out, err = run("train", "--resume", trained)
    assert (found, out) == (code, "")
    assert said in err
    if how not in ("newer checkpoint",):
        assert run("evaluate", trained)[0] == code


def test_a_text_with_a_character_that_the_run_lacks(run, trained, folder):
    (folder / "other.txt").write_text("Ωhm's law")
    code, _, err = run("evaluate", trained, "--file", "other.txt")
    assert code == 2
    assert "the character 'Ω' (number 0) is not among the" in err


def test_a_run_in_use_is_left_alone(run, trained):
    with locked(trained):
        done = subprocess.run(
            [sys.executable, "-m", "tokendepth", "train", "--resume", str(trained)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "is in use: another process trains it" in " ".join(done.stderr.split())


def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(run, folder):
    code, out, err = run(
        "train", TINY, "--data", "text.txt", "--out", "one", "--set", "optimizer.clip=null",
        "optimizer.learning_rate=1e30", "optimizer.final_learning_rate=1e30",
        "--checkpoint-every", 1,
    )  # fmt: skip
    assert (code, out) == (1, "")
    assert "step 2" in err
    assert "checkpoint" in err
    assert (folder / "one" / "checkpoints").is_dir()
    assert open_run("one").checkpoint.is_dir()


def test_ctrl_c_saves_and_the_run_goes_on(run, folder):
    _, whole, _ = run("train", TINY, "--data", "text.txt", "--out", "whole", "--steps", 60)

    def interrupt():
        while not (folder / "one" / "metrics.jsonl").is_file():
            time.sleep(0.005)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    code, out, err = run("train", TINY, "--data", "text.txt", "--out", "one", "--steps", 60)
    assert code == 130
    line = last(out)
    assert line["finished"] is False
    assert line["steps"] < 60
    assert "tokendepth train --resume one" in err
    assert open_run("one").checkpoint.name == f"step-{line['steps']:08d}"
    code, out, _ = run("train", "--resume", "one")
    assert code == 0
    assert last(out)["loss"] == last(whole)["loss"]


def test_one_of_your_own_as_the_docs_have_it(folder):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    (block,) = re.findall(r"^```python mine.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (folder / "mine.py").write_text(block)
    script = Path(sys.executable).parent / "tokendepth"
    for arguments in (
        ["train", "mine:gated", "--data", "text.txt", "--steps", "4", "--out", "one",
         "--set", "policy.shift=0.5"],
        ["evaluate", "one"],
    ):  # fmt: skip
        done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    line = last(done.stdout)
    assert {"loss_soft", "loss_hard"} <= set(line)
    assert line["causal"] is True


def test_compare_takes_no_text_that_one_of_the_runs_has_learned(run, folder):
    given = ("--data", "text.txt", "--steps", 2)
    run("train", TINY, *given, "--out", "one")
    run("train", TINY, *given, "--seed", 1, "--set", "split.train=0.9", "split.validation=0.1",
        "split.test=0.0", "--out", "two")  # fmt: skip
    code, _, err = run("compare", "one", "two", "--seconds", 0.01)
    assert code == 2
    assert "two was trained on another text, or on another part of it, than one" in err
    assert "--file" in err
    code, _, _ = run("compare", "one", "two", "--file", "text.txt", "--seconds", 0.01)
    assert code == 0


def test_compare_refuses_two_runs_that_would_be_one(run, folder):
    for out in ("one", "two"):
        run("train", TINY, "--data", "text.txt", "--steps", 2, "--out", out)
    code, _, err = run("compare", "one", "two", "--seconds", 0.01)
    assert code == 2
    assert "one and two are both" in err
    assert "seed 0" in err


def test_a_run_is_read_as_it_was_trained(run, trained):
    plain = last(run("evaluate", trained, "--data", "text.txt")[1])
    given = last(run("evaluate", trained, "--data", "text.txt", "--length", 16)[1])
    longer = last(run("evaluate", trained, "--data", "text.txt", "--length", 40)[1])
    assert plain["loss"] == given["loss"] != longer["loss"]


def test_sizes_are_for_a_synthetic_model_alone(run, trained):
    code, _, err = run("benchmark", trained, "--width", 64)
    assert code == 2
    assert "width:" in err
    assert "give it with --synthetic alone" in err
