"""Checkpoints that a kill or a full disk cannot tear, as safetensors and JSON.

A checkpoint is a folder. It is written under another name, every file and the folder itself are
synced, and only then is it renamed; the one before is removed after that. So at any moment there
is a complete one, and whatever was left half-made is removed when the run is next opened.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from tokendepth import files
from tokendepth.configs import read
from tokendepth.errors import NonFiniteError
from tokendepth.files import read_json, without_format
from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import (
    MODEL_FILE,
    WEIGHTS_FILE,
    ModelConfig,
    load_weights,
    read_tensors,
    unique_tensors,
    write_model_config,
    write_tensors,
)
from tokendepth.numerics import all_finite
from tokendepth.training.optimise import optimizer_tensors, restore_optimizer

FORMAT = 1
OPTIMIZER_FILE, GENERATORS_FILE, STATE_FILE = (
    "optimizer.safetensors",
    "generators.safetensors",
    "state.json",
)
PARTIAL = ".partial-"


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far training is."""

    step: int = 0
    """Steps done."""
    batches: int = 0
    """Micro-batches read: where the data goes on."""
    tokens: int = 0
    """Targets trained on."""


@dataclass(kw_only=True)
class Live:
    """What changes while training runs, and all that a checkpoint must bring back."""

    config: ModelConfig
    decoder: Decoder
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    """The stream of training's own draws."""
    position: Position


def save_checkpoint(run: Path, live: Live) -> Path:
    """Write a checkpoint into a run, and remove the one before.

    Raises:
        OSError: the disk is full; the checkpoint before is unchanged.
        NonFiniteError: a weight is NaN or infinite; likewise.
    """
    _check_finite(live)
    folder = run / "checkpoints"
    folder.mkdir(exist_ok=True)
    made = folder / f"step-{live.position.step:08d}"
    aside = folder / f"{PARTIAL}{made.name}"
    if not made.exists():  # else it is the same step again, and so the same checkpoint
        try:
            _write(aside, live)
            files.rename(aside, made)
            files.sync(folder)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise OSError(
                f"{made}: the checkpoint could not be written: {error}. Make room, and "
                + (
                    "start again: nothing was saved before."
                    if live.position.step == 0
                    else "resume; the one before is unchanged."
                )
            ) from error
    for one in [one for one in folder.glob("step-*") if one != made]:
        # Renamed first: a kill half-way through must not leave a torn one under a good name.
        gone = folder / f"{PARTIAL}{one.name}"
        files.rename(one, gone)
        shutil.rmtree(gone)
    return made


def remove_partial(run: Path) -> None:
    """What an interrupted save has left; only while the run is locked."""
    for one in (run / "checkpoints").glob(f"{PARTIAL}*"):
        shutil.rmtree(one)


def restore(folder: Path, live: Live) -> None:
    """Bring weights, optimizer, generators and position to where a checkpoint was written.

    Raises:
        ValueError: of a newer version, or of another shape.
        DamagedError: a file that is cut or not what it should be.
    """
    given = without_format(read_json(folder / STATE_FILE, "checkpoint"), FORMAT, "checkpoint")
    num_tensors = given.pop("optimizer_tensors", None)
    position = read(Position, given, "checkpoint")
    memory = read_tensors(folder / OPTIMIZER_FILE)
    if len(memory) != num_tensors:
        raise ValueError(
            f"optimizer: {folder / OPTIMIZER_FILE} holds {len(memory)} tensors, {STATE_FILE} says "
            f"{num_tensors}; both must come from the same checkpoint"
        )
    load_weights(live.decoder, folder / WEIGHTS_FILE)
    restore_optimizer(live.optimizer, live.decoder, memory)
    _restore_generators(live, read_tensors(folder / GENERATORS_FILE))
    live.position = position


def _write(folder: Path, live: Live) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / MODEL_FILE).write_text(write_model_config(live.config))
    tensors: Mapping[str, Mapping[str, Tensor]] = {
        WEIGHTS_FILE: unique_tensors(live.decoder),
        OPTIMIZER_FILE: optimizer_tensors(live.optimizer, live.decoder),
        GENERATORS_FILE: _generators(live),
    }
    for name, some in tensors.items():
        write_tensors(folder / name, some)
    state = {"format": FORMAT, **asdict(live.position)}
    state["optimizer_tensors"] = len(tensors[OPTIMIZER_FILE])
    (folder / STATE_FILE).write_text(json.dumps(state, indent=2) + "\n")
    for name in (MODEL_FILE, *tensors, STATE_FILE):
        files.sync(folder / name)
    files.sync(folder)


def _generators(live: Live) -> dict[str, Tensor]:
    states = {"global": torch.get_rng_state(), "training": live.generator.get_state()}
    if _on_gpu(live):
        states["cuda"] = torch.cuda.get_rng_state(live.decoder.embedding.weight.device)
    return states


def _restore_generators(live: Live, states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["global"])
    live.generator.set_state(states["training"])
    if _on_gpu(live) and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], live.decoder.embedding.weight.device)


def _on_gpu(live: Live) -> bool:
    return live.decoder.embedding.weight.device.type == "cuda"


def _check_finite(live: Live) -> None:
    for name, weight in live.decoder.named_parameters():
        if not all_finite(weight):
            raise NonFiniteError(
                f"{name} ({weight.dtype}) is not finite after step {live.position.step}; nothing "
                "was saved, the checkpoint before is unchanged. Lower the learning rate."
            )
