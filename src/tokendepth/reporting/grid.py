"""A table as rows of text: printed by rich in the terminal and by a template on a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells as they are shown; the first `num_left` columns hold words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str = ""
    num_left: int = 1
    narrow: tuple[str, ...] = ()
    """Columns that a terminal has room for; all unless given. A page shows all."""

    def table(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, caption=self.caption or None, box=box.SIMPLE_HEAD)
        shown = [
            at for at, name in enumerate(self.columns) if name in (self.narrow or self.columns)
        ]
        for at in shown:
            table.add_column(self.columns[at], justify="left" if at < self.num_left else "right")
        for row in self.rows:
            table.add_row(*(row[at] for at in shown))
        return table


def count(number: int | float) -> str:
    """A large number in three digits, with a unit: 1.23 M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def seconds(value: float) -> str:
    """A time in three digits, in seconds or milliseconds."""
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
