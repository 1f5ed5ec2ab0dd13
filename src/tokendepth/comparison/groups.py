"""Which runs are compared as one: those that differ in their seed alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokendepth.files import read_json

BESIDE = ("recipe", "seed", "changes", "checkpoint_every", "evaluate_every", "evaluate_batch")
"""Fields of a recipe that do not change what is learned, but for the luck of the seed."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a run was made from."""

    label: str
    """The recipe, and what was changed in it."""
    seed: int | None
    settings: Mapping[str, str]
    """Every other value by its path, and the text."""


def origin(folder: Path) -> Origin:
    """Of a run folder.

    Raises:
        ValueError: a folder without a config.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"runs: {folder} has no config.json; name a folder that `train` has made")
    config = read_json(file, "run")
    changes = [
        change for change in config.get("changes", []) if change.partition("=")[0] not in BESIDE
    ]
    kept = {name: value for name, value in config.items() if name not in BESIDE}
    text = read_json(folder / "manifest.json", "run").get("fingerprint", "")
    return Origin(
        label=" ".join([str(config.get("recipe") or folder.name), *changes]),
        seed=config.get("seed"),
        settings=dict(_flat("", kept)) | {"text": str(text)[:8]},
    )


def name_groups(origins: Sequence[Origin]) -> list[str]:
    """A name for each run, equal where the settings are, telling apart where they are not.

    Runs of equal settings take the label of the first of them. Where one label stands for several
    settings, each gets the values in which they differ.
    """
    first: list[Origin] = []
    place: list[int] = []
    for one in origins:
        same = [index for index, other in enumerate(first) if other.settings == one.settings]
        if not same:
            first.append(one)
        place.append(same[0] if same else len(first) - 1)
    names = [
        " ".join([one.label, *_apart(one, [two for two in first if two.label == one.label])])
        for one in first
    ]
    return [names[index] for index in place]


def _apart(one: Origin, others: Sequence[Origin]) -> list[str]:
    """Values of one that some of the others do not have."""
    return [
        f"{path}={value}"
        for path, value in one.settings.items()
        if any(other.settings.get(path) != value for other in others)
    ]


def _flat(path: str, value: Any) -> Sequence[tuple[str, str]]:
    """(path, value) of each leaf."""
    if not isinstance(value, Mapping):
        return [(path, str(value))]
    return [
        leaf
        for name, inner in value.items()
        for leaf in _flat(f"{path}.{name}" if path else name, inner)
    ]
