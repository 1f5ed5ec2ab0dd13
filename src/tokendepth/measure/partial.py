"""Readings of the windows done so far, kept on disk when a map is interrupted."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tokendepth.measure.lens import Readings
from tokendepth.text.documents import Window


def fingerprint(weights_hash: str, view: str, windows: Sequence[Window], top_k: int) -> str:
    """Equal for two maps whose readings are interchangeable; rules and thresholds do not matter."""
    what = repr((weights_hash, view, [window.ids for window in windows], top_k))
    return hashlib.sha256(what.encode()).hexdigest()


def save_partial(path: Path, mark: str, done: Mapping[int, Readings]) -> None:
    """Keep the readings of some windows, by number.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    tensors = {
        f"{number}.{name}": value.contiguous()
        for number, readings in done.items()
        for name, value in vars(readings).items()
    }
    try:
        save_file(tensors, path, metadata={"fingerprint": mark})
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error


def load_partial(path: Path, mark: str) -> dict[int, Readings]:
    """The readings kept there, or none if there are none or they belong to another map."""
    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as stored:
            if (stored.metadata() or {}).get("fingerprint") != mark:
                return {}
            keys = list(stored.keys())
            numbers = sorted({int(key.split(".")[0]) for key in keys})
            return {
                number: Readings(
                    **{
                        field.name: stored.get_tensor(f"{number}.{field.name}")
                        for field in fields(Readings)
                    }
                )
                for number in numbers
            }
    except SafetensorError:  # torn by a kill: read those windows again
        return {}
