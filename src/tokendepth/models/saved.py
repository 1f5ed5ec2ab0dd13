"""A decoder in a folder: what it is made of as JSON, its weights as safetensors, nothing else.

Reading a model whose policy is a user's own imports the module that it names; otherwise nothing
of a folder is run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tokendepth.configs import Families, read, write
from tokendepth.depth.base import PolicyConfig
from tokendepth.depth.registry import POLICIES
from tokendepth.errors import DamagedError
from tokendepth.files import read_json, without_format
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.types import Schedule

FORMAT = 1
"""Of the folder; raised when an older program could no longer read it."""
MODEL_FILE, WEIGHTS_FILE = "model.json", "model.safetensors"
_FAMILIES: Families = {PolicyConfig: POLICIES}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """All that makes a decoder but its weights."""

    decoder: DecoderConfig
    schedule: Schedule
    policy: PolicyConfig

    def build(self) -> Decoder:
        """The decoder, with weights drawn from torch's global generator."""
        decoder = Decoder(self.decoder, self.schedule)
        policy = self.policy.build(decoder)
        policy.config = self.policy
        decoder.policy = policy
        return decoder


def model_config(decoder: Decoder) -> ModelConfig:
    """What a decoder is made of.

    Raises:
        ValueError: a policy without a config.
    """
    policy = decoder.policy
    if policy.config is None:
        raise ValueError(
            f"policy: this {type(policy).__name__} has no config to be saved with; build it from a "
            "frozen dataclass with build(host), or set policy.config to one"
        )
    return ModelConfig(decoder=decoder.config, schedule=decoder.schedule, policy=policy.config)


def write_model_config(config: ModelConfig) -> str:
    """As the text of `model.json`."""
    return json.dumps({"format": FORMAT, **write(config, _FAMILIES)}, indent=2) + "\n"


def save_model(decoder: Decoder, folder: Path | str) -> None:
    """Write a decoder, its schedule and its policy; weights that are shared are written once.

    Raises:
        ValueError: a policy without a config.
    """
    text = write_model_config(model_config(decoder))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(decoder, folder / WEIGHTS_FILE)
    (folder / MODEL_FILE).write_text(text)


def read_model_config(folder: Path | str) -> ModelConfig:
    """What a saved decoder is made of.

    Raises:
        ValueError: no such file, a newer format, an unknown field.
        DamagedError: not JSON.
    """
    given = read_json(Path(folder) / MODEL_FILE, "model")
    return read(ModelConfig, without_format(given, FORMAT, "model"), "model", _FAMILIES)


def load_model(folder: Path | str) -> Decoder:
    """The decoder that `save_model` has written, in evaluation mode and the dtype it was saved in.

    Raises:
        ValueError: a newer format, an unknown field, or weights that do not fit.
        DamagedError: a file that is cut or not what it should be.
    """
    folder = Path(folder)
    config = read_model_config(folder)
    with torch.random.fork_rng(devices=[]):
        decoder = config.build()
    load_weights(decoder, folder / WEIGHTS_FILE)
    return decoder.eval()


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run; None where there is none."""
    found = sorted(run.glob("checkpoints/step-*"))
    return found[-1] if found else None


def unique_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, shared ones under their first name."""
    every = module.state_dict(keep_vars=True)
    first = {id(value): name for name, value in reversed(every.items())}
    return {name: value.detach() for name, value in every.items() if first[id(value)] == name}


def save_weights(module: nn.Module, file: Path) -> None:
    """Write the weights alone."""
    write_tensors(file, unique_tensors(module))


def load_weights(module: nn.Module, file: Path) -> None:
    """Take the weights that `save_weights` has written for a module of the same shape.

    Floating-point weights of the module change to the dtype of the stored ones.

    Raises:
        ValueError: unknown or missing names, or other shapes.
        DamagedError: a file that is cut or no safetensors.
    """
    stored, mine = read_tensors(file), unique_tensors(module)
    check_names(stored, mine, str(file))
    dtypes = {value.dtype for value in stored.values() if value.is_floating_point()}
    if len(dtypes) == 1:
        module.to(dtypes.pop())
    module.load_state_dict(stored, strict=False)


def check_names(stored: Mapping[str, Tensor], mine: Mapping[str, Tensor], where: str) -> None:
    """Raise a `ValueError` when stored tensors are not those wanted, by name or by shape."""
    if set(stored) != set(mine):
        raise ValueError(
            f"weights: {where} has unknown {sorted(set(stored) - set(mine))} and lacks "
            f"{sorted(set(mine) - set(stored))}; schedule and policy must be those it was saved "
            "with"
        )
    for name, value in mine.items():
        if stored[name].shape != value.shape:
            raise ValueError(
                f"weights: {name} in {where} has shape {tuple(stored[name].shape)}; the config "
                f"makes it {tuple(value.shape)}, so one of the two was changed"
            )


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors.

    Raises:
        OSError: the disk is full or the folder is missing.
    """
    try:
        save_file({name: value.contiguous() for name, value in tensors.items()}, file)
    except SafetensorError as error:
        raise OSError(f"{file}: could not be written: {error}") from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file.

    Raises:
        ValueError: no such file.
        DamagedError: it is cut or no safetensors.
    """
    if not file.is_file():
        raise ValueError(f"weights: there is no {file}")
    try:
        with safe_open(file, framework="pt"):  # a cut file is noticed before it is read
            pass
        return load_file(file)
    except SafetensorError as error:
        raise DamagedError(f"{file} is damaged: {error}. Take another copy of it.") from error
