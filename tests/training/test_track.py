"""Metrics as rows; what a kill has cut or what is done again is left out; tensorboard if wanted."""

import sys
import types

import pytest

from tests.training.toys import tiny
from tokendepth.training.track import Tracker, read_metrics
from tokendepth.training.train import TrainOptions, train


def test_rows_are_there_at_once_and_a_cut_one_is_left_out(tmp_path):
    assert read_metrics(tmp_path) == []
    with Tracker(tmp_path) as tracker:
        for step in (1, 2, 3):
            tracker.add(step, {"loss": 1.0 / step})
        assert len(read_metrics(tmp_path)) == 3
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text() + '{"step": 4, "lo')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    with Tracker(tmp_path, step=2) as tracker:
        tracker.add(3, {"loss": 9.0})
    assert [row["loss"] for row in read_metrics(tmp_path)] == [1.0, 0.5, 9.0]


def test_tensorboard_gets_the_same_rows(tmp_path, text, monkeypatch):
    seen, made = [], []

    class Writer:
        def __init__(self, folder, purge_step):
            made.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            seen.append((step, name, value))

        def flush(self):
            seen.append("flushed")

        def close(self):
            seen.append("closed")

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    options = TrainOptions(tensorboard=True)
    train(tiny(steps=2), text, tmp_path / "run", options=options)
    assert made == [(str(tmp_path / "run" / "tensorboard"), 1)]
    rows = [
        (row["step"], name, value)
        for row in read_metrics(tmp_path / "run")
        for name, value in row.items()
        if name != "step"
    ]
    assert [one for one in seen if not isinstance(one, str)] == rows
    assert seen[-1] == "closed"


def test_tensorboard_itself(tmp_path):
    pytest.importorskip("tensorboard", reason="the track extra is not installed")
    with Tracker(tmp_path, tensorboard=True) as tracker:
        tracker.add(1, {"loss": 0.5})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(1, 0.5)]


def test_without_tensorboard_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'tokendepth\[track\]'"):
        Tracker(tmp_path, tensorboard=True)
    assert not list(tmp_path.iterdir())


def test_a_result_draws_itself(tmp_path, text):
    result = train(tiny(steps=4, evaluate_every=2), text, tmp_path / "run")
    assert result.table().row_count == 2
    assert "How training went" in result.page()
    assert result.plot().axes[0].get_ylabel() == "nats a token"
    result.write_html(tmp_path / "page.html")
    result.write_json(tmp_path / "result.json")
