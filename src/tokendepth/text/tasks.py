"""Toy tasks as texts: copy or sort a row of letters.

A sequence is `<letters=answer>`, all of one length, so that windows of that length hold one
sequence each; what comes before the answer cannot be predicted and is left out of losses by
`skip`. Sequences are drawn with a fixed seed, the same on every machine.
"""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

SYMBOLS = string.ascii_uppercase + "ab"
"""The 28 that are left of the published vocabulary of 32 after its four control tokens."""


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of sequence."""

    what: str
    answer: Callable[[str], str]
    letters: int = 10
    sequences: tuple[int, int, int] = (50_000, 1_000, 1_000)
    """In train, validation and test."""

    @property
    def length(self) -> int:
        """Characters of a sequence: the window to train with."""
        return 2 * self.letters + 3

    @property
    def skip(self) -> int:
        """Targets before the answer."""
        return self.letters + 1

    def parts(self) -> tuple[str, str, str]:
        """Train, validation and test."""
        draws = random.Random(f"{self.what} {self.letters}")
        train, validation, test = (
            "".join(self._sequence(draws) for _ in range(count)) for count in self.sequences
        )
        return train, validation, test

    def _sequence(self, draws: random.Random) -> str:
        letters = "".join(draws.choices(SYMBOLS, k=self.letters))
        return f"<{letters}={self.answer(letters)}>"


def _same(letters: str) -> str:
    return letters


def _sorted(letters: str) -> str:
    return "".join(sorted(letters))


TASKS = {
    "copy": Task("copy", _same),
    "sort": Task("sort", _sorted),
    "copy20": Task("copy", _same, letters=20),
    "sort20": Task("sort", _sorted, letters=20),
}
"""By the name that `--data` takes; the paper says length 10, its code has 20."""
