"""Who takes part in a comparison: a run with its group and seed, or any other model."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokendepth.adapters.load import load
from tokendepth.comparison.compare import Entrant
from tokendepth.text.documents import Document


def entrant(
    name: str, documents: Callable[[Any], Sequence[Document]], device: str | None = None
) -> Entrant:
    """A model by run folder, name or hub name, with the text as its tokens.

    Args:
        name: what `load` takes.
        documents: from the model's tokenizer to the text.
        device: the CPU unless named.
    """
    loaded = load(name, device=device)
    folder = Path(name).expanduser()
    if not (folder / "manifest.json").is_file():
        return Entrant(name=name, loaded=loaded, documents=documents(loaded.tokenizer))
    group, seed = group_and_seed(folder)
    return Entrant(
        name=folder.name,
        loaded=loaded,
        documents=documents(loaded.tokenizer),
        folder=folder,
        group=group,
        seed=seed,
    )


def group_and_seed(folder: Path) -> tuple[str, int | None]:
    """Of a run folder: its resolved config without the seed, in a short name, and the seed.

    Raises:
        ValueError: a folder without a config.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"runs: {folder} has no config.json; name a folder that `train` has made")
    config = json.loads(file.read_text())
    seed = config.pop("seed", None)
    label = config.get("recipe") or config.get("name") or folder.name
    return str(label), seed
