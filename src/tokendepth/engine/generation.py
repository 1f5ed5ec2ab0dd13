"""The result of generating: continuations, with the depth and confidence of every token."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tokendepth.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


class End(StrEnum):
    """Why a text ended."""

    LENGTH = "length"
    TOKEN = "stop token"
    STRING = "stop string"


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What a prompt was continued with; columns go by new token."""

    prompt: str
    text: str
    """Without the stop token or string."""
    ids: tuple[int, ...]
    """All new tokens, those that the text stopped at included."""
    pieces: tuple[str, ...]
    """What each token reads as."""
    depths: tuple[int, ...]
    """Block executions that made the logits a token was chosen from."""
    confidences: tuple[float, ...]
    """Probability that the model itself gives each token, 0 to 1."""
    end: End


@dataclass(frozen=True, kw_only=True)
class Generation(Result):
    """One continuation a prompt."""

    model: str
    policy: str
    num_layers: int
    """Block executions of the full schedule."""
    continuations: tuple[Continuation, ...]
    seconds: float
    """Prefill and decoding, of all prompts together."""
    measured: Mapping[str, Any]

    @property
    def num_tokens(self) -> int:
        """New tokens of all prompts."""
        return sum(len(one.ids) for one in self.continuations)

    @property
    def mean_depth(self) -> float:
        """Block executions a new token."""
        return sum(sum(one.depths) for one in self.continuations) / self.num_tokens

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts a second, the time to read the prompts included."""
        return self.num_tokens / self.seconds

    def summary(self) -> dict[str, Any]:
        """Prompts, texts, number of new tokens, mean depth and rate."""
        return {
            "prompts": [one.prompt for one in self.continuations],
            "texts": [one.text for one in self.continuations],
            "tokens": self.num_tokens,
            "mean_depth": round(self.mean_depth, 4),
            "tokens_per_second": round(self.tokens_per_second, 3),
        }

    def to_json(self) -> str:
        """Every field, and the summary."""
        return json.dumps({**dataclasses.asdict(self), **self.summary()}, allow_nan=False)

    def table(self) -> "Table":
        """One row a prompt."""
        from tokendepth.reporting.generation import generation_grid

        return generation_grid(self).table()

    def plot(self) -> "Figure":
        """Depth and confidence by new token."""
        from tokendepth.reporting.generation import generation_figure

        return generation_figure(self)

    def page(self) -> str:
        """Texts and figure on one page."""
        from tokendepth.reporting.generation import generation_page

        return generation_page(self)
