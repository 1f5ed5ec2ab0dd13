"""Scored tokens by the type of the predicted token, and by how much was read before it."""

from collections.abc import Sequence

import numpy as np

from tokendepth.adapters.load import Loaded
from tokendepth.evaluation.loss import TokenScores
from tokendepth.evaluation.passages import Passage
from tokendepth.evaluation.result import GroupRow
from tokendepth.text.documents import Document
from tokendepth.text.pieces import Pieces
from tokendepth.text.token_types import TOKEN_TYPES, token_type


def by_position(scores: TokenScores) -> tuple[GroupRow, ...]:
    """Groups that double in size: 1 token read before, 2 to 3, 4 to 7 and so on."""
    buckets = np.floor(np.log2(scores.position + 1)).astype(int)
    return tuple(
        _group(_bucket_name(int(one)), scores, buckets == one) for one in np.unique(buckets)
    )


class TextFacts:
    """Type and number of bytes of every token of the documents."""

    def __init__(self, documents: Sequence[Document], loaded: Loaded) -> None:
        pieces = Pieces(loaded.tokenizer)
        self.types, self.sizes = [], []
        for document in documents:
            texts = pieces.texts(document.ids + document.following)[: len(document.ids)]
            pairs = zip(texts, document.is_special, strict=True)
            kinds = [token_type(text, special=special) for text, special in pairs]
            self.types.append(np.array(kinds, dtype=object))
            self.sizes.append(np.array([len(text.encode()) for text in texts]))

    def num_bytes(self, given: Sequence[Passage]) -> int:
        """Of all scored tokens."""
        return sum(
            int(self.sizes[passage.document][index].sum())
            for passage in given
            for index in [_scored_indices(passage)]
        )

    def by_type(self, scores: TokenScores, given: Sequence[Passage]) -> tuple[GroupRow, ...]:
        """One group a token type that was scored."""
        kinds = self._kinds(scores, given)
        return tuple(
            _group(kind, scores, kinds == kind) for kind in TOKEN_TYPES if (kinds == kind).any()
        )

    def _kinds(self, scores: TokenScores, given: Sequence[Passage]) -> np.ndarray:
        documents = np.array([passage.document for passage in given])[scores.passage]
        kinds = np.empty(len(documents), dtype=object)
        for number, types in enumerate(self.types):
            mine = documents == number
            kinds[mine] = types[scores.index[mine]]
        return kinds


def _scored_indices(passage: Passage) -> np.ndarray:
    at = np.flatnonzero(passage.scored)
    return passage.first - passage.num_repeated + 1 + at


def _group(name: str, scores: TokenScores, chosen: np.ndarray) -> GroupRow:
    return GroupRow(
        group=name,
        num_tokens=int(chosen.sum()),
        loss=float(scores.nats[chosen].mean()),
        executed_share=float(scores.executed[chosen].mean()) / scores.cost.layers,
        alpha=_finite(float(scores.gate[chosen].mean())),
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _bucket_name(power: int) -> str:
    """Positions 2^k - 1 up to 2^(k+1) - 2, from 0: one more token was read."""
    first, last = 2**power, 2 ** (power + 1) - 1
    return str(first) if first == last else f"{first} to {last}"
