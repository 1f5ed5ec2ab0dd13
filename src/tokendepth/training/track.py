"""Metrics of a run: JSON lines, and tensorboard where that extra is wanted."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tokendepth.files import write_aside

FILE = "metrics.jsonl"


class Tracker:
    """Appends rows to the run's metrics, and writes them to tensorboard too if asked.

    Args:
        run: the run's folder; rows after `step` are dropped, since those steps are done again.
        step: where training goes on.
        tensorboard: write events into `run/tensorboard` as well.

    Raises:
        ValueError: tensorboard is wanted and not installed.
    """

    def __init__(self, run: Path, step: int = 0, *, tensorboard: bool = False) -> None:
        self._writer = _writer(run, step) if tensorboard else None
        file = run / FILE
        if file.is_file():
            kept = [row for row in read_metrics(run) if row["step"] <= step]
            write_aside(file, [json.dumps(row) + "\n" for row in kept])
        self._stream = file.open("a", encoding="utf-8", buffering=1)  # a row is seen at once

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """One row."""
        self._stream.write(json.dumps({"step": step, **values}) + "\n")
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Hand events to the system; rows are there already."""
        if self._writer is not None:
            self._writer.flush()

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stream.close()
        if self._writer is not None:
            self._writer.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All whole rows of a run, in the order of steps; a line that a kill has cut is left out."""
    file, rows = run / FILE, []
    if not file.is_file():
        return rows
    for line in file.read_text("utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def _writer(run: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise ValueError(
            "tensorboard: it is not installed; install it with pip install 'tokendepth[track]', or "
            "leave --tensorboard out: metrics.jsonl has the same rows"
        ) from None
    return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
