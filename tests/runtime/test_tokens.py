"""Rows of tokens from arrays and files."""

from __future__ import annotations

import numpy as np
import pytest

from dispatcher.errors import ConfigError
from dispatcher.runtime.language.tokens import IGNORE_INDEX, TokenWindows, negative_log_likelihood
from dispatcher.runtime.training.data import read_batch


def windows(count=50, length=4):
    # Token n stands at place n, so that every window is known by its first token.
    return TokenWindows(np.arange(count * length + 1), length)


def test_targets_are_the_next_tokens():
    batch = read_batch(windows(), np.arange(50))
    np.testing.assert_array_equal(batch.targets, batch.inputs + 1)
    assert (batch.inputs[:, 0] // 4).tolist() == list(range(50))
    assert (batch.segment_ids == 1).all()
    assert {array.dtype for array in batch} == {np.dtype(np.int32)}


def test_each_row_has_its_own_loss_and_count():
    targets = np.array([[0, 1, IGNORE_INDEX], [IGNORE_INDEX] * 3])
    losses, counts = negative_log_likelihood(np.zeros((2, 3, 4), np.float32), targets)
    np.testing.assert_allclose(losses, [2 * np.log(4), 0], rtol=1e-6)
    assert counts.tolist() == [2, 0]


@pytest.mark.parametrize(("token", "expected"), [(9, r"0 to 8 \(model.vocab_size\)"), (-1, "0 to 8")])
def test_a_token_that_the_model_does_not_know_is_named(token, expected):
    tokens = np.arange(13) % 9
    tokens[7] = token
    with pytest.raises(ConfigError, match=f"the data: holds the token {token}: expected {expected}"):
        read_batch(TokenWindows(tokens, 4, vocab_size=9), np.arange(3))


def test_files_that_hold_no_tokens_are_refused(tmp_path):
    for name, content in (("floats", np.zeros(9)), ("table", np.zeros((3, 3), int))):
        np.save(tmp_path / f"{name}.npy", content)
        with pytest.raises(ConfigError, match=rf"{name}\.npy: holds .*: expected a one-dimensional array of integers"):
            TokenWindows.from_file(tmp_path / f"{name}.npy", 2)
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(ConfigError, match=r"cannot be read as an \.npy file"):
        TokenWindows.from_file(tmp_path / "text.npy", 2)
    with pytest.raises(ConfigError, match=r"none\.npy: no such file; save the tokens there"):
        TokenWindows.from_file(tmp_path / "none.npy", 2)
