from __future__ import annotations

import itertools

import numpy as np
import pytest

from dispatcher.errors import ConfigError
from dispatcher.runtime.stream import IGNORE_INDEX, Batch, Stream, TokenWindows, epoch_batches


def windows(count=50, length=4, seed=3):
    # Token n stands at place n, so that every window is known by its first token.
    return TokenWindows(np.arange(count * length + 1), length, seed=seed)


def starts(batch):
    return (batch.inputs[:, 0] // 4).tolist()


def test_targets_are_the_next_tokens():
    batch = Stream(windows()).take(50)
    np.testing.assert_array_equal(batch.targets, batch.inputs + 1)
    assert (batch.segment_ids == 1).all()
    assert {array.dtype for array in batch} == {np.dtype(np.int32)}


def test_every_epoch_has_every_row_once_in_another_order():
    stream = Stream(windows())
    rows = list(itertools.chain.from_iterable(starts(stream.take(7)) for _ in range(15)))
    first, second = rows[:50], rows[50:100]
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert stream.position == {"epoch": 2, "row": 5, "rows": 50}


def test_a_batch_may_be_larger_than_an_epoch():
    assert sorted(starts(Stream(windows(count=3)).take(9))) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("before", [0, 1, 7, 8, 30])
def test_a_stream_that_is_put_where_another_stood_goes_on_as_that_one(before):
    one, other = Stream(windows()), Stream(windows())
    for _ in range(before):
        one.take(7)
    other.seek(one.position)
    for _ in range(10):
        np.testing.assert_array_equal(one.take(7).inputs, other.take(7).inputs)


def test_a_place_in_other_data_is_refused():
    with pytest.raises(ConfigError, match=r"the data has 10 rows in epoch 3, but the training that is resumed had 12"):
        Stream(windows(count=10)).seek({"epoch": 3, "row": 7, "rows": 12})


@pytest.mark.parametrize(("token", "expected"), [(9, r"0 to 8 \(model.vocab_size\)"), (-1, "0 to 8")])
def test_a_token_that_the_model_does_not_know_is_named(token, expected):
    tokens = np.arange(13) % 9
    tokens[7] = token
    with pytest.raises(ConfigError, match=f"the data: holds the token {token}: expected {expected}"):
        Stream(TokenWindows(tokens, 4, seed=0, vocab_size=9)).take(3)


def test_the_seed_decides_the_order():
    assert starts(Stream(windows(seed=1)).take(50)) == starts(Stream(windows(seed=1)).take(50))
    assert starts(Stream(windows(seed=1)).take(50)) != starts(Stream(windows(seed=2)).take(50))


def test_a_whole_epoch_comes_in_full_batches_and_padding_counts_nowhere():
    batches = list(epoch_batches(windows(count=10), 4))
    assert [batch.rows for batch in batches] == [4, 4, 4]
    counted = sum(int((batch.targets != IGNORE_INDEX).sum()) for batch in batches)
    assert counted == 40
    assert (batches[-1].segment_ids[2:] == 0).all()


def test_rows_of_any_shape_are_padded():
    class Images:
        def rows(self, epoch):
            return 5

        def read(self, epoch, start, stop):
            rows = stop - start
            return Batch(np.ones((rows, 8, 8, 1), np.float32), np.ones(rows, np.int32), np.ones(rows, np.int32))

    *_, last = epoch_batches(Images(), 4)
    assert last.inputs.shape == (4, 8, 8, 1)
    assert last.inputs.sum(axis=(1, 2, 3)).tolist() == [64, 0, 0, 0]
    assert last.targets.tolist() == [1, IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX]
    assert last.segment_ids.tolist() == [1, 0, 0, 0]


def test_files_that_hold_no_tokens_are_refused(tmp_path):
    for name, content in (("floats", np.zeros(9)), ("table", np.zeros((3, 3), int))):
        np.save(tmp_path / f"{name}.npy", content)
        with pytest.raises(ConfigError, match=rf"{name}\.npy: holds .*: expected a one-dimensional array of integers"):
            TokenWindows.from_file(tmp_path / f"{name}.npy", 2, seed=0)
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(ConfigError, match=r"cannot be read as an \.npy file"):
        TokenWindows.from_file(tmp_path / "text.npy", 2, seed=0)
    with pytest.raises(ConfigError, match=r"none\.npy: no such file; save the tokens there"):
        TokenWindows.from_file(tmp_path / "none.npy", 2, seed=0)
