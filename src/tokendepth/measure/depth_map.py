"""The result of a map: how many blocks each token of a text needs before it settles."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from tokendepth.files import write_aside
from tokendepth.measure.settling import DEFAULT_THRESHOLDS, Rule
from tokendepth.measure.statistics import Estimate, mean_over_tokens
from tokendepth.result import Result
from tokendepth.text.token_types import TOKEN_TYPES, TokenType

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class DocumentFacts:
    """What was mapped of one document."""

    name: str
    num_tokens: int
    num_dropped: int
    window_starts: tuple[int, ...]
    """Index of the first token of each window; one window unless the text was too long."""


@dataclass(frozen=True, kw_only=True)
class TypeRow:
    """Depth of the tokens of one type."""

    type: TokenType
    num_tokens: int
    mean_depth: Estimate
    median_depth: float
    share_unsettled: float


@dataclass(frozen=True, kw_only=True)
class RuleRow:
    """Depth of the same tokens under one rule."""

    rule: Rule
    threshold: float | None
    mean_depth: float
    median_depth: float
    share_unsettled: float


@dataclass(frozen=True, kw_only=True)
class DepthMap(Result):
    """The depth of every token, with what it was read from. Arrays are in reading order."""

    model: str
    num_layers: int
    rule: Rule
    threshold: float | None
    documents: tuple[DocumentFacts, ...]
    document: Int[np.ndarray, " token"]
    index: Int[np.ndarray, " token"]
    window: Int[np.ndarray, " token"]
    ids: Int[np.ndarray, " token"]
    texts: tuple[str, ...]
    types: tuple[TokenType, ...]
    counted: Bool[np.ndarray, " token"]
    """In the statistics: not special and, unless included, not the first of its window."""
    depths: Mapping[Rule, Int[np.ndarray, " token"]]
    """Settling depth under every rule: the chosen one at its threshold, the others at theirs."""
    unsettled_under: Mapping[Rule, Bool[np.ndarray, " token"]]
    entropy: Float[np.ndarray, "token state"]
    kl: Float[np.ndarray, "token state"]
    top_ids: Int[np.ndarray, "token state rank"]
    top_probabilities: Float[np.ndarray, "token state rank"]
    top_texts: Mapping[int, str]
    measured: Mapping[str, Any]
    """How: versions, weights, dtype, device, special tokens, options."""
    complete: bool = True
    """False after an interruption: the windows done until then."""

    @property
    def num_tokens(self) -> int:
        """Tokens mapped, counted or not."""
        return len(self.ids)

    @property
    def depth(self) -> Int[np.ndarray, " token"]:
        """Settling depth of each token under the chosen rule, 0..L."""
        return self.depths[self.rule]

    @property
    def unsettled(self) -> Bool[np.ndarray, " token"]:
        """True where the chosen rule does not hold even at L."""
        return self.unsettled_under[self.rule]

    @cached_property
    def mean_depth(self) -> Estimate | None:
        """Mean over the counted tokens; None where there are none."""
        return self._mean(self.depth, self.counted)

    @property
    def median_depth(self) -> float | None:
        """Median over the counted tokens; None where there are none."""
        return float(np.median(self.depth[self.counted])) if self.counted.any() else None

    @property
    def share_unsettled(self) -> float | None:
        """Share of the counted tokens for which the rule does not hold even at L."""
        return float(self.unsettled[self.counted].mean()) if self.counted.any() else None

    @property
    def histogram(self) -> Int[np.ndarray, " state"]:
        """How many counted tokens have each depth 0..L."""
        return np.bincount(self.depth[self.counted], minlength=self.num_layers + 1)

    @cached_property
    def by_type(self) -> tuple[TypeRow, ...]:
        """One row for each token type that has counted tokens."""
        kinds = np.array(self.types, dtype=object)
        rows = []
        for kind in TOKEN_TYPES:
            chosen = self.counted & (kinds == kind)
            mean = self._mean(self.depth, chosen)
            if mean is not None:
                rows.append(
                    TypeRow(
                        type=kind,
                        num_tokens=int(chosen.sum()),
                        mean_depth=mean,
                        median_depth=float(np.median(self.depth[chosen])),
                        share_unsettled=float(self.unsettled[chosen].mean()),
                    )
                )
        return tuple(rows)

    @property
    def by_rule(self) -> tuple[RuleRow, ...]:
        """The same tokens under every rule, since a depth is only as meaningful as its rule."""
        if not self.counted.any():
            return ()
        return tuple(
            RuleRow(
                rule=rule,
                threshold=self.threshold if rule == self.rule else DEFAULT_THRESHOLDS[rule],
                mean_depth=float(depth[self.counted].mean()),
                median_depth=float(np.median(depth[self.counted])),
                share_unsettled=float(self.unsettled_under[rule][self.counted].mean()),
            )
            for rule, depth in self.depths.items()
        )

    def _mean(self, values: np.ndarray, chosen: np.ndarray) -> Estimate | None:
        if not chosen.any():
            return None
        return mean_over_tokens(values[chosen].astype(float), self.document[chosen])

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary a token, as the JSON lines hold it; `kl` and `entropy` have L+1 values."""
        for at in range(self.num_tokens):
            yield {
                "document": int(self.document[at]),
                "index": int(self.index[at]),
                "id": int(self.ids[at]),
                "text": self.texts[at],
                "type": self.types[at],
                "depth": int(self.depth[at]),
                "unsettled": bool(self.unsettled[at]),
                "entropy": _rounded(self.entropy[at]),
                "kl": _rounded(self.kl[at]),
                "window": int(self.window[at]),
                "counted": bool(self.counted[at]),
            }

    def summary(self) -> dict[str, Any]:
        """The result without its tokens: statistics and how they were measured."""
        return {
            "model": self.model,
            "num_layers": self.num_layers,
            "num_tokens": self.num_tokens,
            "num_counted": int(self.counted.sum()),
            "rule": self.rule,
            "threshold": self.threshold,
            "mean_depth": None if self.mean_depth is None else self.mean_depth.value,
            "median_depth": self.median_depth,
            "share_unsettled": self.share_unsettled,
            "complete": self.complete,
        }

    def to_json(self) -> str:
        """Statistics, intervals, histogram, documents and measurement as one JSON object."""
        mean = self.mean_depth
        return json.dumps(
            {
                **self.summary(),
                "mean_depth_interval": None if mean is None else [mean.low, mean.high],
                "histogram": self.histogram.tolist(),
                "by_type": [dataclasses.asdict(row) for row in self.by_type],
                "by_rule": [dataclasses.asdict(row) for row in self.by_rule],
                "documents": [dataclasses.asdict(facts) for facts in self.documents],
                "measured": dict(self.measured),
            },
            allow_nan=False,
        )

    def table(self) -> "Table":
        """Depth by token type, for the terminal and for notebooks."""
        from tokendepth.reporting.table import type_table

        return type_table(self)

    def plot(self) -> "Figure":
        """Histogram of depths, and distance and entropy by state."""
        from tokendepth.reporting.figures import depth_figure

        return depth_figure(self)

    def page(self) -> str:
        """A self-contained HTML page."""
        from tokendepth.reporting.html import depth_page

        return depth_page(self)

    def write_jsonl(self, path: Path) -> None:
        """Write one row a token; an existing file is replaced only when the new one is whole."""
        write_aside(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows()))


def _rounded(values: np.ndarray) -> list[float]:
    """Seven significant digits, all that float32 holds."""
    return [float(f"{value:.7g}") for value in values]
