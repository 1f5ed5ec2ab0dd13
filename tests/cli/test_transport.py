"""`tokendepth transport` from end to end on a tiny saved model."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.commands import last
from tokendepth.cli.progress import progress_of
from tokendepth.measure import transport as module

TEXT = "The question is: that the thing is done? To be, or not to be, of that he is king.\n"
SMALL = ("--n", "4", "--seeds", "1", "--sliced", "10", "--directions", "4", "--window", "32")


@pytest.fixture
def given(model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT * 4)
    return ("transport", "--model", model_folder, "--data", "text.txt", "--part", "all", *SMALL)


def test_one_text_from_end_to_end(run, given):
    code, out, _ = run(*given, "--out", "found", "--final-norm", "--blocks", "1-3")
    line = last(out)
    assert code == 0
    assert line["complete"]
    layers = [each["layer"] for each in line["transitions"]]
    assert layers == ["0-1", "1-2", "2-3", "3-4", "3-4 normed", "1-3"]
    assert Path(line["html"]).read_text("utf-8").count("3-4 normed") >= 1
    assert Path(line["json"]).name == "transport.json"
    assert "not optimal" in out or "n.r." in out or "optimal" in out


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(run, given, monkeypatch):
    real, calls = module.measure_transition, []

    def third_is_interrupted(*args, **options):
        calls.append(options["layers"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(module, "measure_transition", third_is_interrupted)
    code, out, err = run(*given)
    assert code == 130
    assert "the same command again goes on" in err
    assert [each["layer"] for each in last(out)["transitions"]] == ["0-1", "1-2"]
    assert not last(out)["complete"]
    monkeypatch.setattr(module, "see", None)  # the model must not run again
    code, out, _ = run(*given)
    assert code == 0
    assert calls[3:] == [(2, 3), (3, 4)]
    assert len(last(out)["transitions"]) == 4


def test_ctrl_c_while_the_text_is_read_leaves_nothing_to_show(run, given, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "see", interrupted)
    code, out, err = run(*given)
    assert (code, out) == (130, "")
    assert "interrupted" in err


def test_a_file_in_the_way_is_named_before_anything_is_loaded(run, given):
    Path("taken").write_text("")
    code, _, err = run(*given, "--out", "taken")
    assert code == 2
    assert "is a file; name a folder" in err


def test_one_bar_at_a_time():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    stages = {"tokens": ("reading", "tokens"), "moves": ("measuring", "moves")}
    with progress_of(console, stages) as tell:
        tell("tokens", 5, 10)
        tell("moves", 0, 3)
        time.sleep(0.3)  # it is drawn ten times a second
        console.file.seek(0)
        console.file.truncate()
        tell("moves", 2, 3)
        time.sleep(0.3)
        shown = console.file.getvalue()
    assert "measuring" in shown
    assert "2/3" in shown
    assert "reading" not in shown
