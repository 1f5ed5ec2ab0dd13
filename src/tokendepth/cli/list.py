"""`tokendepth list`: what can be named on the command line."""

import json
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List the models, recipes, corpora and rules that have a name."""

    def run(self) -> int:
        """Print the tables. Returns the exit code."""
        from tokendepth.measure.settling import DEFAULT_THRESHOLDS, MEANINGS, RULES
        from tokendepth.models.named import NAMED_MODELS, named_path
        from tokendepth.recipes.named import RECIPES
        from tokendepth.text.corpora import CORPORA

        console = Console(highlight=False)
        models = Table("model", "what", "kept in", title="Models (--model)", box=box.SIMPLE_HEAD)
        for name, model in NAMED_MODELS.items():
            folder = named_path(name)
            kept = str(folder) if folder.is_dir() else "fetched on first use (93 MB)"
            models.add_row(name, model.title, kept)
        console.print(models)
        console.print(
            "Any folder in the layout of transformers, and any causal language model on the hub "
            "(owner/name), can be named too.\n"
        )
        console.print(_recipes())
        console.print(_corpora())
        rules = Table("rule", "threshold", "settled when", title="Rules (--rule)")
        rules.box = box.SIMPLE_HEAD
        for rule in RULES:
            threshold = DEFAULT_THRESHOLDS[rule]
            rules.add_row(rule, "-" if threshold is None else f"{threshold:g}", MEANINGS[rule])
        console.print(rules)
        names = {"models": NAMED_MODELS, "recipes": RECIPES, "corpora": CORPORA, "rules": RULES}
        print(json.dumps({what: list(known) for what, known in names.items()}))
        return 0


def _recipes() -> Table:
    from tokendepth.recipes.named import RECIPES

    table = Table("recipe", "what", title="Recipes (train)", box=box.SIMPLE_HEAD)
    for name, made in RECIPES.items():
        table.add_row(name, (made.__doc__ or "").strip().splitlines()[0])
    return table


def _corpora() -> Table:
    from tokendepth.text.fetch import NAMED_TEXTS

    table = Table("corpus", "what", "from", title="Corpora (--data)", box=box.SIMPLE_HEAD)
    table.add_row("pydoc", "the English of Python's own documentation topics", "Python")
    for name, text in NAMED_TEXTS.items():
        size = sum(file.megabytes for file in text.files)
        table.add_row(name, text.what, f"$TOKENDEPTH_DATA, or fetched ({size:g} MB)")
    return table
