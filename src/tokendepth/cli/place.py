"""Where a model runs and in which numbers: the same options in every command that loads one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from tokendepth.adapters.huggingface import Parts
    from tokendepth.adapters.load import Loaded


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the model runs."""

    dtype: str = "float32"
    """float32, bfloat16, float16, float64, or auto: what a short measurement finds faster."""
    device: str = "cpu"
    """cpu, cuda, cuda:N or mps."""

    def load(self, model: str, errors: Console, parts: "Parts | None" = None) -> "Loaded":
        """Load a model, and say on the console what takes long.

        Args:
            model: what `tokendepth.load` takes.
            errors: of standard error.
            parts: where blocks and norms lie, if structure does not tell.
        """
        from tokendepth.adapters.load import load

        quiet_transformers()
        return load(
            model,
            self.dtype,
            self.device,
            parts=parts,
            say=lambda message: errors.print(message, markup=False),
        )


def quiet_transformers() -> None:
    """Keep bars and advice of transformers off the terminal; errors are raised all the same."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
