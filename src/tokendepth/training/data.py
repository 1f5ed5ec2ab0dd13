"""Windows of a text in the order of training: a function of seed and batch number alone.

Nothing is remembered but the number of the next batch, so a resumed run reads what the unbroken
one would have read.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Int

from tokendepth.training.objective import Batch

Order = Literal["shuffled", "random"]


class Windows:
    """Batches of windows.

    `shuffled`: windows that tile the text, all of them once an epoch in an order of its own; the
    last one may be shorter. `random`: windows that begin anywhere, drawn uniformly.

    Args:
        ids: of the training text.
        length: tokens that the model reads at once.
        batch: windows in a batch.
        order: see above.
        seed: of the order.
        skip: targets at the beginning of each window that are not learned.

    Raises:
        ValueError: a text shorter than one window and its last target.
    """

    def __init__(
        self,
        ids: Int[np.ndarray, " token"],
        length: int,
        batch: int,
        order: Order,
        seed: int,
        skip: int = 0,
    ) -> None:
        if len(ids) < length + 1:
            raise ValueError(
                f"data: the training part has {len(ids)} tokens, fewer than one window of {length} "
                "and its last target; take a longer text or a smaller window"
            )
        self.ids, self.length, self.batch, self.order, self.seed = ids, length, batch, order, seed
        self.skip = skip
        self.num_windows = -(-(len(ids) - 1) // length)
        """That tile the text."""
        self._epoch: tuple[int, np.ndarray] | None = None

    def starts(self, number: int) -> Int[np.ndarray, " batch"]:
        """Where in the text the windows of a batch begin."""
        if self.order == "random":
            draws = np.random.default_rng((self.seed, number))
            return draws.integers(0, len(self.ids) - self.length, size=self.batch)
        wanted = range(number * self.batch, (number + 1) * self.batch)
        found = [self._order_of(one // self.num_windows)[one % self.num_windows] for one in wanted]
        return np.array(found) * self.length

    def get(self, number: int) -> Batch:
        """A batch by its number, from 0."""
        starts = self.starts(number)
        # Reading past the end repeats the last token, which `valid` then leaves out.
        places = starts[:, None] + np.arange(self.length + 1)
        valid = places[:, 1:] < len(self.ids)
        rows = torch.from_numpy(self.ids[np.minimum(places, len(self.ids) - 1)].astype(np.int64))
        learned = valid & (np.arange(self.length) >= self.skip) if self.skip else None
        return Batch(
            inputs=rows[:, :-1],
            targets=rows[:, 1:],
            valid=torch.from_numpy(valid),
            learned=None if learned is None else torch.from_numpy(learned),
            row_keys=number * self.batch + torch.arange(self.batch),
        )

    def _order_of(self, epoch: int) -> np.ndarray:
        if self._epoch is None or self._epoch[0] != epoch:
            draws = np.random.default_rng((self.seed, epoch))
            self._epoch = (epoch, draws.permutation(self.num_windows))
        return self._epoch[1]
