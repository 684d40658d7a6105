"""Rows of tokens for models that predict the next one, and their loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from dispatcher.errors import ConfigError

# The target of a position that has no loss: padding.
IGNORE_INDEX: Final = -1
_MOST_TOKEN: Final = 2**31 - 1


class Tokens(NamedTuple):
    """A row of tokens, each int32[seq_len], or a batch of rows, int32[batch, seq_len].

    `targets` are the tokens to predict, or IGNORE_INDEX. `segment_ids` number the texts that are packed into one row,
    from 1; 0 is padding.
    """

    inputs: Any
    targets: Any
    segment_ids: Any


class TokenWindows:
    """Consecutive windows of `seq_len` tokens of one long text: a Source.

    `tokens` is int[count], each below `vocab_size` if that is given; it may be a memory-mapped file larger than the
    memory. `where` names the data in a ConfigError.
    """

    def __init__(
        self, tokens: NDArray[Any], seq_len: int, *, vocab_size: int | None = None, where: str = "the data"
    ) -> None:
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._where = where
        self._seq_len = seq_len
        self._count = (len(tokens) - 1) // seq_len
        if self._count < 1:
            raise ConfigError(
                f"{where}: holds {len(tokens)} tokens: expected at least {seq_len + 1}, a row and the token after it"
            )

    @classmethod
    def from_file(cls, path: Path, seq_len: int, *, vocab_size: int | None = None) -> TokenWindows:
        """The tokens of an .npy file."""
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            advice = "save the tokens there with numpy.save, or correct data.train or data.eval"
            raise ConfigError(f"{path}: no such file; {advice}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read as an .npy file of tokens: {error}") from None
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise ConfigError(
                f"{path}: holds {tokens.dtype}{list(tokens.shape)}: expected a one-dimensional array of integers"
            )
        return cls(tokens, seq_len, vocab_size=vocab_size, where=str(path))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tokens:
        if not 0 <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        text = np.asarray(self._tokens[index * self._seq_len : (index + 1) * self._seq_len + 1])
        self._check(text)
        return _next_tokens(text.astype(np.int32))

    def _check(self, text: NDArray[Any]) -> None:
        """A token outside the vocabulary would become a NaN far from here, one beyond int32 another token."""
        lowest, highest = int(text.min()), int(text.max())
        most = _MOST_TOKEN if self._vocab_size is None else self._vocab_size - 1
        if lowest < 0 or highest > most:
            expected = f"0 to {most}" + ("" if self._vocab_size is None else " (model.vocab_size)")
            raise ConfigError(
                f"{self._where}: holds the token {lowest if lowest < 0 else highest}: expected {expected}"
            )


def _next_tokens(text: NDArray[np.int32]) -> Tokens:
    """A row with targets that are one token ahead of the inputs: int32[seq_len + 1] -> int32[seq_len] each."""
    inputs = np.ascontiguousarray(text[:-1])
    return Tokens(inputs, np.ascontiguousarray(text[1:]), np.ones_like(inputs))


def negative_log_likelihood(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss of each row in nats, summed over its targets that are not IGNORE_INDEX, and the number of these.

    float32[batch, seq_len, vocab_size], int32[batch, seq_len] -> float32[batch], int32[batch]
    """
    counted = targets != IGNORE_INDEX
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counted, targets, 0))
    return jnp.sum(losses, axis=1, where=counted), jnp.sum(counted, axis=1)
