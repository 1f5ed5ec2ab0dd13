"""What training gives back: where the run lies, and how it went."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokendepth.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Trained(Result):
    """A run after training; the losses are those of the last full pass over the validation text."""

    run: Path
    recipe: str
    steps: int
    finished: bool
    """False when it was stopped before its last step."""
    loss: float | None
    """Nats a token: on the validation text, under the routing that is compared, or of the last
    step where no pass has been made yet; None before the first step."""
    validation: Mapping[str, float]
    """Each routing's loss and executed share, by the names in `metrics.jsonl`."""
    tokens_per_second: float
    """Of training steps, passes and checkpoints apart."""
    rows: Sequence[Mapping[str, Any]]
    """All metrics."""
    measured: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """The last line of the command."""
        return {
            "run": str(self.run),
            "steps": self.steps,
            "loss": self.loss,
            "tokens_per_second": self.tokens_per_second,
            "finished": self.finished,
            **self.validation,
        }

    def to_json(self) -> str:
        """The summary, all metrics, and how it was made."""
        return json.dumps(
            {**self.summary(), "rows": [dict(row) for row in self.rows], **self.measured}
        )

    def table(self) -> "Table":
        """One line a validation pass."""
        from tokendepth.reporting.training import validation_grid

        return validation_grid(self).table()

    def plot(self) -> "Figure":
        """Training and validation loss by step."""
        from tokendepth.reporting.training import training_figure

        return training_figure(self)

    def page(self) -> str:
        """A self-contained HTML page."""
        from tokendepth.reporting.training import training_page

        return training_page(self)
