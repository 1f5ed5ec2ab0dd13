"""Data sets of the hub as text in parts; needs the `data` extra."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

_PARTS = (("train",), ("validation", "valid", "dev"), ("test",))


def hub_parts(name: str) -> tuple[str, ...]:
    """The text of a data set: its train part alone, or train, validation and test.

    Where one of the last two is missing, the last tenth of the train part stands for it.

    Args:
        name: `owner/name`, `owner/name:config`, with `#column` where texts are not under `text`.

    Raises:
        ValueError: the extra is not installed, or the data set has no such column or no train part.
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
    if found[0] is None:
        raise ValueError(f"data: {path} has no train part; it has {', '.join(loaded)}")
    texts = [None if part is None else _joined(part[column]) for part in found]
    train, others = texts[0] or "", texts[1:]
    if others == [None, None]:
        return (train,)
    for number, other in enumerate(others):
        if other is None:
            kept = len(train) - len(train) // 10
            train, others[number] = train[:kept], train[kept:]
    return (train, *(other or "" for other in others))


def _joined(texts: Iterable[str]) -> str:
    return "".join(_line(text) for text in texts)


def _line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
