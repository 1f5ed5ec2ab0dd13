"""Data sets of the hub as text in parts; needs the `data` extra."""

from importlib import import_module
from typing import Any

_PARTS = (("train",), ("validation", "valid", "dev"), ("test",))


def hub_parts(name: str) -> tuple[str, ...]:
    """The text of a data set: one part, or train, validation and test where it has all three.

    Args:
        name: `owner/name`, `owner/name:config`, with `#column` where texts are not under `text`.

    Raises:
        ValueError: the extra is not installed, or the data set has no such column.
    """
    try:
        datasets: Any = import_module("datasets")
    except ModuleNotFoundError:
        raise ValueError(
            "data: sets of the hub need the data extra; install it with "
            "pip install 'tokendepth[data]'"
        ) from None
    path, _, column = name.partition("#")
    path, _, config = path.partition(":")
    loaded: Any = datasets.load_dataset(path, config or None)
    found = [next((loaded[one] for one in names if one in loaded), None) for names in _PARTS]
    column = column or "text"
    for part in found:
        if part is not None and column not in part.column_names:
            raise ValueError(
                f"data: {path} has no column {column!r}; it has {', '.join(part.column_names)}; "
                f"name one as hub:{path}#COLUMN"
            )
    texts = ["".join(_line(one) for one in part[column]) for part in found if part is not None]
    if not texts:
        raise ValueError(f"data: {path} has no train part; it has {', '.join(loaded)}")
    return tuple(texts) if len(texts) == 3 else ("".join(texts),)


def _line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
