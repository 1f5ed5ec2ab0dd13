"""A save that is cut anywhere, by a kill or by the disk, leaves a run that goes on."""

import json
import os
import resource
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.training.toys import noisy
from tokendepth import files
from tokendepth.errors import DamagedError, NonFiniteError
from tokendepth.models import saved
from tokendepth.models.saved import newest_checkpoint, read_tensors
from tokendepth.training import checkpoint
from tokendepth.training.checkpoint import (
    PARTIAL,
    Position,
    remove_partial,
    restore,
    save_checkpoint,
)
from tokendepth.training.train import TrainOptions, _live, train

POINTS = (
    (checkpoint, "write_tensors"),
    (Path, "write_text"),
    (files, "sync"),
    (files, "rename"),
    (shutil, "rmtree"),
)


@pytest.fixture
def live():
    """A model with an optimizer that has stepped, at step 5."""
    recipe = noisy()
    made = _live(dataclass_with_vocabulary(recipe), torch.device("cpu"))
    made.position = Position(step=5, batches=5, tokens=320)
    sum((one**2).sum() for one in made.decoder.parameters()).backward()
    made.optimizer.step()
    return made


def dataclass_with_vocabulary(recipe):
    from tokendepth.training.recipe import with_vocabulary

    return with_vocabulary(recipe, 30)


def moved_on(live):
    """The same one step later, weights and all."""
    live.optimizer.step()
    live.position = Position(step=6, batches=6, tokens=384)


def in_a_child(work):
    """Run it in a process of its own, which may be killed; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def kill_at(count, patch, *, after, torn=False):
    """Kill this process at the count-th write, sync, rename or removal of a save."""
    left = [count]

    def wrapped(original, writes):
        def call(*given, **options):
            left[0] -= 1
            if left[0] == 0 and torn and writes:  # half a file is there
                given[0].write_bytes(b"half of a fi")
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*given, **options)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for owner, name in POINTS:
        patch.setattr(owner, name, wrapped(getattr(owner, name), name.startswith("write")))
    return left


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_between_any_two_operations_of_a_save(live, tmp_path, monkeypatch, after):
    survived, count = [], 0
    while True:
        count += 1
        run = tmp_path / f"{count}"
        run.mkdir()
        save_checkpoint(run, live)
        given = (live, run, monkeypatch, count, after)
        killed = in_a_child(partial(kill_during_the_next_save, *given))
        if not killed:
            break
        assert killed == signal.SIGKILL
        found = newest_checkpoint(run)
        assert found is not None
        again = _live(dataclass_with_vocabulary(noisy()), torch.device("cpu"))
        with torch.random.fork_rng():
            restore(found, again)
        survived.append(again.position.step)
        remove_partial(run)
        assert not list(run.glob(f"checkpoints/{PARTIAL}*"))
        save_checkpoint(run, again)  # and it can be saved on from there
    assert sorted(survived) == survived  # the old one until the new one is whole
    assert set(survived) == {5, 6}
    assert count > 15  # writes, syncs, renames and removals


def kill_during_the_next_save(live, run, patch, count, after):
    kill_at(count, patch, after=after, torn=not after)
    moved_on(live)
    save_checkpoint(run, live)


def test_a_full_disk_leaves_the_checkpoint_before(live, tmp_path):
    save_checkpoint(tmp_path, live)

    def fill():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
        moved_on(live)
        try:
            save_checkpoint(tmp_path, live)
        except OSError as error:
            words = ("could not be written", "Make room, and resume", "one before is unchanged")
            os._exit(0 if all(word in str(error) for word in words) else 3)
        os._exit(4)

    assert in_a_child(fill) == 0
    assert [one.name for one in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]


def test_weights_that_are_not_finite_are_not_saved(live, tmp_path):
    save_checkpoint(tmp_path, live)
    moved_on(live)
    with torch.no_grad():
        live.decoder.final_norm.weight[0] = float("inf")
    with pytest.raises(NonFiniteError, match="final_norm.weight.*after step 6"):
        save_checkpoint(tmp_path, live)
    assert newest_checkpoint(tmp_path).name == "step-00000005"


@pytest.mark.parametrize("name", ["model", "optimizer", "generators"])
def test_a_file_cut_in_half_is_named(live, tmp_path, name):
    file = save_checkpoint(tmp_path, live) / f"{name}.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with torch.random.fork_rng(), pytest.raises(DamagedError, match=f"{name}.safetensors is dam"):
        restore(newest_checkpoint(tmp_path), live)


def test_a_state_cut_in_half_is_named(live, tmp_path):
    file = save_checkpoint(tmp_path, live) / "state.json"
    file.write_text(file.read_text()[:20])
    with pytest.raises(DamagedError, match=r"state.json is damaged"):
        restore(newest_checkpoint(tmp_path), live)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 99}, "format 99 is newer than 1"),
        ({"format": None}, "format is missing"),
        ({"stpe": 3}, "unknown field 'stpe'; did you mean step"),
        ({"step": "many"}, "checkpoint.step: got 'many'; it must be a whole number"),
    ],
)
def test_another_state_is_refused(live, tmp_path, change, said):
    file = save_checkpoint(tmp_path, live) / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=said):
        restore(newest_checkpoint(tmp_path), live)


def test_another_shape_is_refused(live, tmp_path):
    folder = save_checkpoint(tmp_path, live)
    weights = read_tensors(folder / "model.safetensors")
    weights["blocks.1.feed_forward.up.weight"] = torch.zeros(33, 16)
    saved.write_tensors(folder / "model.safetensors", weights)
    with pytest.raises(ValueError, match=r"feed_forward.up.weight .*has shape \(33, 16\)"):
        restore(folder, live)


def test_another_optimizer_is_refused(live, tmp_path):
    folder = save_checkpoint(tmp_path, live)
    memory = read_tensors(folder / "optimizer.safetensors")
    first = min(memory)
    other = {**memory, "no.weight/exp_avg": memory[first]}
    flat = {**memory, first: torch.tensor(0.5)}
    changes = (
        (
            {"no.weight/exp_avg" if key == first else key: other[key] for key in memory},
            "has no.wei",
        ),
        ({**flat}, r"of shape \(\)"),
        (
            {key: value for key, value in memory.items() if key != first},
            r"holds \d+ tensors, state",
        ),
    )
    for change, said in changes:
        saved.write_tensors(folder / "optimizer.safetensors", change)
        with pytest.raises(ValueError, match=said):
            restore(folder, live)


def test_a_full_disk_ends_the_run_and_room_lets_it_go_on(text, tmp_path, monkeypatch):
    from tokendepth.training.train import resume

    whole = train(noisy(), text, tmp_path / "whole")
    real = checkpoint.write_tensors
    saves = iter(range(100))

    def full(file, tensors):
        if next(saves) >= 4:  # three tensors' files of step 0, one of step 5
            raise OSError(28, "No space left on device")
        real(file, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        with pytest.raises(OSError, match="could not be written.*No space left"):
            train(noisy(), text, tmp_path / "run", options=TrainOptions())
    assert newest_checkpoint(tmp_path / "run").name == "step-00000000"
    assert resume(tmp_path / "run").loss == whole.loss
