"""`tokendepth list`: what can be named on the command line."""

import json
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List the models and rules that have a name."""

    def run(self) -> int:
        """Print both tables. Returns the exit code."""
        from tokendepth.measure.settling import DEFAULT_THRESHOLDS, MEANINGS, RULES
        from tokendepth.models.named import NAMED_MODELS, named_path

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
        rules = Table("rule", "threshold", "settled when", title="Rules (--rule)")
        rules.box = box.SIMPLE_HEAD
        for rule in RULES:
            threshold = DEFAULT_THRESHOLDS[rule]
            rules.add_row(rule, "-" if threshold is None else f"{threshold:g}", MEANINGS[rule])
        console.print(rules)
        print(json.dumps({"models": list(NAMED_MODELS), "rules": list(RULES)}))
        return 0
