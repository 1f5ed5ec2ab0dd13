"""`retrofit` from the command line: a run, what it says, and wrong use."""

from tests.cli.commands import last
from tests.training.toys import TEXT

SET = ("window=16", "batch=2", "evaluate_tokens=40")


def test_a_retrofit_and_what_is_done_with_it(run, tmp_path, monkeypatch, model_folder):
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    given = ("retrofit", model_folder, "--data", "text.txt", "--steps", 2, "--seed", 3)
    code, out, err = run(*given, "--share", 0.7, "--set", *SET)
    assert code == 0, err
    line = last(out)
    assert line["steps"] == 2
    assert line["finished"]
    made = f"retrofit_{model_folder.name}_token_selective-seed3"
    assert line["run"].endswith(made)
    code, out, err = run("evaluate", f"runs/{made}", "--limit", 40)
    assert code == 0, err
    assert last(out)["causal"]
    code, out, err = run(*given, "--set", *SET)
    assert code == 2
    assert "is there already" in err


def test_wrong_use_of_retrofit(run, tmp_path, model_folder):
    (tmp_path / "text.txt").write_text(TEXT)
    text = ("--data", tmp_path / "text.txt", "--out", tmp_path / "run")
    for given, said in (
        (("retrofit", "smolm2", *text), "model: got 'smolm2'"),
        (("retrofit", model_folder, "--policy", "dense", *text), "policy: Dense has no weights"),
        (("retrofit", model_folder, "--share", 0, *text), "share: got 0.0"),
        (("retrofit", model_folder, "--set", "polcy.inner=3", *text), "'polcy' holds no fields"),
    ):
        code, _, err = run(*given)
        assert (code, said in err) == (2, True), err
    assert not (tmp_path / "run").exists()
