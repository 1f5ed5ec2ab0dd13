"""What every measurement returns: a frozen result that draws itself."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokendepth.files import write_aside

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


class Result(ABC):
    """The interface of results; drawing is loaded when asked for."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """The few numbers that a command prints as its last line."""

    @abstractmethod
    def to_json(self) -> str:
        """Everything, with how it was measured, as one JSON object."""

    @abstractmethod
    def table(self) -> "Table":
        """For the terminal and for notebooks."""

    @abstractmethod
    def plot(self) -> "Figure":
        """The figure of the page."""

    @abstractmethod
    def page(self) -> str:
        """A self-contained HTML page."""

    def _repr_html_(self) -> str:
        from tokendepth.reporting.page import framed

        return framed(self.page())

    def write_html(self, path: Path) -> None:
        """Write the page; an existing file is replaced only when the new one is whole."""
        write_aside(path, [self.page()])

    def write_json(self, path: Path) -> None:
        """Write the JSON object, likewise."""
        write_aside(path, [self.to_json() + "\n"])
