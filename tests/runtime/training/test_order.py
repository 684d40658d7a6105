"""The order of rows: every epoch has each row once, in an order that the seed and the epoch decide alone."""

from __future__ import annotations

import numpy as np
import pytest

from dispatcher.runtime.training.order import rows_at


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 16, 17, 1000, 65_537])
def test_every_epoch_has_each_row_once(rows: int) -> None:
    found = rows_at(np.arange(3 * rows), rows, seed=7).reshape(3, rows)
    for epoch in found:
        assert sorted(epoch.tolist()) == list(range(rows))
    if rows > 4:
        assert found[0].tolist() != found[1].tolist()


def test_any_place_is_computed_by_itself() -> None:
    whole = rows_at(np.arange(250), 100, seed=3)
    assert [int(rows_at(np.array([place]), 100, seed=3)[0]) for place in range(250)] == whole.tolist()


def test_the_seed_decides() -> None:
    one, same, other = (rows_at(np.arange(50), 50, seed).tolist() for seed in (1, 1, 2))
    assert one == same != other


def test_all_places_are_equally_likely() -> None:
    counts = np.zeros((8, 8))
    for seed in range(2000):
        counts[np.arange(8), rows_at(np.arange(8), 8, seed)] += 1
    # 250 expected, with a standard deviation of 15.
    assert counts.min() > 250 - 6 * 15
    assert counts.max() < 250 + 6 * 15


def test_a_billion_rows_need_no_table() -> None:
    rows = 10**9 + 7
    found = rows_at(np.arange(4 * rows - 64, 4 * rows + 64), rows, seed=0)
    assert ((found >= 0) & (found < rows)).all()
    assert len(set(found[:64].tolist())) == 64
