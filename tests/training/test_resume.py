"""A run that was stopped goes on as if it had not been, bit for bit."""

import json

import pytest
import torch

from tests.training.toys import noisy, tiny
from tokendepth.models.saved import read_tensors, unique_tensors
from tokendepth.training.checkpoint import restore
from tokendepth.training.run import open_run
from tokendepth.training.track import read_metrics
from tokendepth.training.train import TrainOptions, resume, train


def stop_after(steps):
    """Asked before each step: True once so many are done."""
    asked = iter(range(1000))
    return TrainOptions(should_stop=lambda: next(asked) >= steps)


def tensors(run):
    folder = open_run(run).checkpoint
    return {file.name: read_tensors(file) for file in folder.glob("*.safetensors")}


def losses(run):
    return [(row["step"], row["loss"]) for row in read_metrics(run) if "loss" in row]


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(value, other[file][name])
        for file, some in one.items()
        for name, value in some.items()
    )


@pytest.mark.parametrize(("order", "stops"), [("shuffled", (1, 3, 2)), ("random", (5,))])
def test_stopped_and_resumed_is_the_unbroken_run(text, tmp_path, order, stops):
    recipe = noisy(order=order, accumulate=2)
    whole = train(recipe, text, tmp_path / "whole")
    torch.rand(5)  # whatever happens to the global generator between two runs
    broken = train(recipe, text, tmp_path / "broken", options=stop_after(stops[0]))
    assert (broken.finished, broken.steps) == (False, stops[0])
    for more in stops[1:]:
        torch.rand(3)
        assert not resume(tmp_path / "broken", options=stop_after(more)).finished
    last = resume(tmp_path / "broken")
    assert (last.finished, last.steps) == (True, 10)
    assert same(tensors(tmp_path / "broken"), tensors(tmp_path / "whole"))
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    assert last.loss == whole.loss
    assert [step for step, _ in losses(tmp_path / "broken")] == list(range(1, 11))


def test_the_weights_alone_are_not_enough(text, tmp_path, monkeypatch):
    train(noisy(), text, tmp_path / "whole")
    for forgotten in ("restore_optimizer", "_restore_generators"):
        run = tmp_path / forgotten
        train(noisy(), text, run, options=stop_after(5))
        with monkeypatch.context() as patch:
            patch.setattr(f"tokendepth.training.checkpoint.{forgotten}", lambda *given: None)
            resume(run)
        assert not same(tensors(run), tensors(tmp_path / "whole"))


def test_training_leaves_the_global_generator_as_it_was(text, tmp_path):
    before = torch.get_rng_state()
    train(noisy(), text, tmp_path / "run", options=stop_after(4))
    resume(tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_differ_and_a_seed_repeats(text, tmp_path):
    made = [
        train(tiny(seed=seed), text, tmp_path / f"{number}").loss
        for number, seed in enumerate((0, 0, 1))
    ]
    assert made[0] == made[1] != made[2]


def test_a_finished_run_is_told_again(text, tmp_path):
    first = train(tiny(), text, tmp_path / "run")
    again = resume(tmp_path / "run")
    assert (again.finished, again.steps, again.loss) == (True, 10, first.loss)


def test_a_checkpoint_holds_all_that_was_trained(text, tmp_path):
    train(noisy(), text, tmp_path / "run")
    run = open_run(tmp_path / "run")
    stored = read_tensors(run.checkpoint / "model.safetensors")
    assert stored.keys() == unique_tensors(run.decoder).keys()
    assert "policy.router.weight" in stored
    assert "head.weight" not in stored  # tied: written once
    assert run.decoder.head.weight is run.decoder.embedding.weight
    assert [file.name for file in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000010"]


def test_a_restored_optimizer_steps_as_the_one_before(text, tmp_path):
    from tokendepth.training.train import _live

    train(noisy(), text, tmp_path / "run")
    run = open_run(tmp_path / "run")
    live = _live(run.recipe, torch.device("cpu"))
    with torch.random.fork_rng():
        restore(run.checkpoint, live)
    counts = {value["step"].item() for value in live.optimizer.state.values()}
    assert max(counts) == 10.0  # fewer for blocks that a random depth has left out
    assert live.position.batches == 10
    assert live.position.tokens == 10 * 4 * 16


def test_another_machine_is_said(text, tmp_path):
    train(tiny(), text, tmp_path / "run", options=stop_after(1))
    file = tmp_path / "run" / "manifest.json"
    made = json.loads(file.read_text())
    file.write_text(json.dumps(made | {"threads": made["threads"] + 1, "torch": "2.0"}))
    said = []
    resume(tmp_path / "run", options=TrainOptions(say=said.append))
    assert [line.split(":")[0] for line in said[-2:]] == [
        f"it began on {made['threads'] + 1} threads and goes on with {made['threads']} "
        f"(OMP_NUM_THREADS={made['threads'] + 1} gives as many)",
        f"it began with torch 2.0 and goes on with {torch.__version__}",
    ]
