"""Who takes part in a comparison: a run with its group and seed, or any other model."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokendepth.adapters.load import load
from tokendepth.comparison.compare import CompareOptions, Entrant, compare_entrants
from tokendepth.comparison.result import Comparison
from tokendepth.evaluation.loss import OnProgress
from tokendepth.text.documents import Document, tokenize_all


def compare(
    runs: Sequence[str | Path],
    texts: str | Sequence[str],
    *,
    names: Sequence[str] | None = None,
    device: str | None = None,
    on_progress: OnProgress = lambda done, total: None,
    **options: Any,
) -> Comparison:
    """Score runs on the same texts, time them in the same rounds, and pair them by seed.

    Args:
        runs: run folders, or other models that `tokendepth.load` takes; at least two.
        texts: one text, or several documents.
        names: what to call the documents.
        device: the CPU unless named.
        on_progress: told (tokens done, tokens in all) after each batch.
        options: the fields of `CompareOptions`.

    Raises:
        ValueError: fewer than two runs, or runs with different tokenizers.
        CausalityError: a policy says it is causal and is not.
    """
    given = CompareOptions(**options)
    given.check()
    made = [
        entrant(str(run), lambda tokenizer: tokenize_all(texts, tokenizer, names), device)
        for run in runs
    ]
    data = ", ".join(document.name for document in made[0].documents) if made else ""
    return compare_entrants(made, given, data=data, on_progress=on_progress)


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
    """Of a run folder: its recipe with what was changed in it, the seed apart, and the seed.

    Raises:
        ValueError: a folder without a config.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"runs: {folder} has no config.json; name a folder that `train` has made")
    config = json.loads(file.read_text())
    label = config.get("recipe") or folder.name
    return " ".join([str(label), *config.get("changes", [])]), config.get("seed")
