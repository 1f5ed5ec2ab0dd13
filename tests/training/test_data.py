"""Windows are a function of seed and number; every target is read once an epoch."""

import numpy as np
import pytest
import torch

from tokendepth.training.data import Windows


def test_shuffled_windows_tile_the_text_once_an_epoch():
    ids = np.arange(100, 153, dtype=np.int32)  # 52 targets: 6 windows of 8 and one of 4
    windows = Windows(ids, length=8, batch=2, order="shuffled", seed=1)
    assert windows.num_windows == 7
    batches = [windows.get(number) for number in range(7)]  # two epochs
    rows = [
        (batch.inputs[row][valid].tolist(), batch.targets[row][valid].tolist())
        for batch in batches
        for row, valid in enumerate(batch.valid)
    ]
    for epoch in (rows[:7], rows[7:]):
        targets = [one for _, some in epoch for one in some]
        assert sorted(targets) == list(range(101, 153))
        assert all(target == read + 1 for some in epoch for read, target in zip(*some, strict=True))
        assert sorted(len(some) for some, _ in epoch) == [4] + [8] * 6
    assert rows[:7] != rows[7:]
    keys = torch.cat([batch.row_keys for batch in batches])
    assert keys.tolist() == list(range(14))
    assert all((batch.mask is None) == bool(batch.valid.all()) for batch in batches)


def test_random_windows_begin_anywhere():
    ids = np.arange(30, dtype=np.int32)
    windows = Windows(ids, length=4, batch=16, order="random", seed=1)
    starts = np.concatenate([windows.starts(number) for number in range(60)])
    assert set(starts) == set(range(26))
    batch = windows.get(3)
    assert batch.inputs[:, 0].tolist() == windows.starts(3).tolist()
    assert batch.valid.all()
    assert torch.equal(batch.targets, batch.inputs + 1)


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_a_batch_does_not_depend_on_those_before(order):
    ids = np.arange(200, dtype=np.int32)

    def fresh(seed=3):
        return Windows(ids, length=8, batch=3, order=order, seed=seed)

    straight = fresh()
    all_of_them = [straight.get(number).inputs for number in range(40)]
    for number in (37, 0, 12):
        assert torch.equal(fresh().get(number).inputs, all_of_them[number])
    assert not torch.equal(fresh(seed=4).get(12).inputs, all_of_them[12])


def test_a_text_shorter_than_a_window_is_refused():
    ids = np.arange(8, dtype=np.int32)
    with pytest.raises(ValueError, match="8 tokens, fewer than one window of 8 and its last"):
        Windows(ids, length=8, batch=2, order="shuffled", seed=1)
    assert Windows(np.arange(9, dtype=np.int32), 8, 1, "random", 1).get(0).valid.all()
