"""Rows of a study: one line of JSON an arm and seed, written whole or not at all."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from study_arms import Arm
from tokendepth.files import write_aside
from tokendepth.training.recipe import Recipe, changed

FOLDER = Path(__file__).parent / "results"


def trained_key(arm: Arm) -> str:
    """Of what is trained, the seed apart.

    Fields that stand at their defaults are left out: one more of them makes no other arm.
    """
    return _digest(arm.data, _told(dataclasses.replace(arm.recipe, seed=0)))


def row_key(arm: Arm, limit: int | None) -> str:
    """Of what is trained and how it is scored."""
    return _digest(trained_key(arm), [dict(one) for one in arm.sweep], arm.controls, limit)


def with_changes(arm: Arm, changes: Mapping[str, Any]) -> Arm:
    """The arm with more fields of its recipe replaced."""
    recipe: Recipe = changed(arm.recipe, changes) if changes else arm.recipe
    return dataclasses.replace(arm, recipe=recipe)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """All rows; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def add_row(file: Path, row: Mapping[str, Any], lock: Path) -> None:
    """Put a row at the end, whatever other processes add at the same time."""
    with FileLock(lock):
        before = file.read_text() if file.is_file() else ""
        write_aside(file, [before, json.dumps(row, allow_nan=False), "\n"])


def found(rows: Sequence[Mapping[str, Any]], key: str, seed: int) -> Mapping[str, Any] | None:
    """The row of these settings and this seed."""
    return next((row for row in rows if row["key"] == key and row["seed"] == seed), None)


def _told(value: Any) -> Any:
    """A config as its kind and the fields that are not at their defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            one.name: _told(getattr(value, one.name))
            for one in dataclasses.fields(value)
            if getattr(value, one.name) != _default(one)
        }
        return [type(value).__name__, fields]
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


def _default(one: "dataclasses.Field[Any]") -> Any:
    made = one.default_factory
    return one.default if made is dataclasses.MISSING else made()


def _digest(*what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
