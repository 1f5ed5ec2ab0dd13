"""Who takes part in a comparison: a run with its group and seed, or any other model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokendepth.adapters.load import load
from tokendepth.comparison.compare import CompareOptions, Entrant, compare_entrants
from tokendepth.comparison.groups import name_groups, origin
from tokendepth.comparison.more import with_more
from tokendepth.comparison.result import Comparison
from tokendepth.text.documents import Document, tokenize_all
from tokendepth.types import OnProgress


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
    made = _in_groups(
        [
            entrant(str(run), lambda tokenizer: tokenize_all(texts, tokenizer, names), device)
            for run in runs
        ]
    )
    data = ", ".join(document.name for document in made[0].documents) if made else ""
    made = with_more(made, given)
    return compare_entrants(made, given, data=data, on_progress=on_progress)


def _in_groups(entrants: Sequence[Entrant]) -> list[Entrant]:
    """The same, each run with the name of its group and its seed.

    Raises:
        ValueError: two runs of one group and seed: only one could be paired.
    """
    origins = {one.folder: origin(one.folder) for one in entrants if one.folder is not None}
    groups = dict(zip(origins, name_groups(list(origins.values())), strict=True))
    seen: dict[tuple[str, int | None], str] = {}
    made = []
    for one in entrants:
        if one.folder is not None:
            pair = groups[one.folder], origins[one.folder].seed
            if pair in seen:
                raise ValueError(
                    f"runs: {seen[pair]} and {one.name} are both {pair[0]} with seed {pair[1]}; "
                    "leave one of them out, or train it with another seed"
                )
            seen[pair] = one.name
            one = replace(one, group=pair[0], seed=pair[1])
        made.append(one)
    return made


def entrant(
    name: str, documents: Callable[[Any], Sequence[Document]], device: str | None = None
) -> Entrant:
    """A model by run folder, name or hub name, with the text as its tokens; in no group yet.

    Args:
        name: what `load` takes.
        documents: from the model's tokenizer to the text.
        device: the CPU unless named.
    """
    loaded = load(name, device=device)
    folder = Path(name).expanduser()
    if not (folder / "manifest.json").is_file():
        return Entrant(name=name, loaded=loaded, documents=documents(loaded.tokenizer))
    return Entrant(
        name=folder.name, loaded=loaded, documents=documents(loaded.tokenizer), folder=folder
    )
