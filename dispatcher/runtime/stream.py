"""Batches from a data source, in an order that depends only on the seed and the epoch.

The position of a stream is two numbers, the epoch and the row in it: after a seek the same batches follow. Every
process reads the same stream; the mesh determines which rows of a batch each device computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import ConfigError

# The target of a position that has no loss: padding.
IGNORE_INDEX: Final = -1


class Batch(NamedTuple):
    """Rows of tokens, each int32[batch, seq_len]; with a custom `loss`, any arrays whose first axis is the batch.

    `targets` are the tokens to predict, or IGNORE_INDEX. `segment_ids` number the texts that are packed into one row,
    from 1; 0 is padding. The last batch of an evaluation is padded with rows that must not count: their targets are
    IGNORE_INDEX, their segment ids and inputs 0.
    """

    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]
    segment_ids: NDArray[np.int32]

    @property
    def rows(self) -> int:
        return len(self.inputs)

    def slice(self, start: int, stop: int) -> Batch:
        """The rows `start` to `stop` (exclusive)."""
        return Batch(*(array[start:stop] for array in self))


class DataSource(Protocol):
    """Rows by epoch: every epoch has all rows, in its own order."""

    def rows(self, epoch: int) -> int:
        """The number of rows in the epoch, at least 1."""

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        """The rows `start` to `stop` (exclusive) of the epoch, in its order."""


class Stream:
    """An endless stream of rows from `source`: a batch may span two epochs, and no row is dropped."""

    def __init__(self, source: DataSource) -> None:
        self._source = source
        self._epoch = 0
        self._row = 0

    def take(self, rows: int) -> Batch:
        """The next `rows` rows."""
        pieces = []
        while rows > 0:
            epoch_rows = self._source.rows(self._epoch)
            stop = min(epoch_rows, self._row + rows)
            pieces.append(self._source.read(self._epoch, self._row, stop))
            rows -= stop - self._row
            self._epoch, self._row = (self._epoch, stop) if stop < epoch_rows else (self._epoch + 1, 0)
        return concatenate(pieces)

    @property
    def position(self) -> dict[str, int]:
        """Epoch and row of the next batch, and the number of rows in that epoch."""
        return {"epoch": self._epoch, "row": self._row, "rows": self._source.rows(self._epoch)}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Continue at the position of another stream; ConfigError when its source had a different number of rows."""
        epoch, row = int(position["epoch"]), int(position["row"])
        epoch_rows = self._source.rows(epoch)
        if epoch_rows != position["rows"]:
            raise ConfigError(
                f"the data has {epoch_rows} rows in epoch {epoch}, but the training that is resumed had "
                f"{position['rows']}: it used other data or another seq_len. To start a new training from its model, "
                "load that model in start_from"
            )
        self._epoch, self._row = epoch, row


class TokenWindows:
    """Consecutive windows of `seq_len` tokens of one long text, shuffled anew in each epoch.

    `tokens` is int[count], each below `vocab_size` if that is given; it may be a memory-mapped file larger than the
    memory. `where` names the data in a ConfigError.
    """

    def __init__(
        self, tokens: NDArray[Any], seq_len: int, *, seed: int, vocab_size: int | None = None, where: str = "the data"
    ) -> None:
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._where = where
        self._seq_len = seq_len
        self._seed = seed
        self._count = (len(tokens) - 1) // seq_len
        self._order: tuple[int, NDArray[np.int64]] | None = None
        if self._count < 1:
            raise ConfigError(
                f"{where}: holds {len(tokens)} tokens: expected at least {seq_len + 1}, a row and the token after it"
            )

    @classmethod
    def from_file(cls, path: Path, seq_len: int, *, seed: int, vocab_size: int | None = None) -> TokenWindows:
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
        return cls(tokens, seq_len, seed=seed, vocab_size=vocab_size, where=str(path))

    def rows(self, epoch: int) -> int:
        return self._count

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        windows = self._permutation(epoch)[start:stop]
        text = np.stack([self._tokens[i * self._seq_len : (i + 1) * self._seq_len + 1] for i in windows])
        self._check(text)
        return next_token_batch(text.astype(np.int32))

    def _check(self, text: NDArray[Any]) -> None:
        """A token outside the vocabulary would become a NaN far from here."""
        lowest, highest = int(text.min()), int(text.max())
        if lowest < 0 or (self._vocab_size is not None and highest >= self._vocab_size):
            expected = "0 or more" if self._vocab_size is None else f"0 to {self._vocab_size - 1} (model.vocab_size)"
            raise ConfigError(
                f"{self._where}: holds the token {lowest if lowest < 0 else highest}: expected {expected}"
            )

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._count)
        return self._order[1]


def next_token_batch(text: NDArray[np.int32]) -> Batch:
    """Inputs, and targets that are one token ahead: int32[batch, seq_len + 1] -> int32[batch, seq_len]."""
    inputs = np.ascontiguousarray(text[:, :-1])
    return Batch(inputs, np.ascontiguousarray(text[:, 1:]), np.ones_like(inputs))


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The rows of all `batches`, in order."""
    if len(batches) == 1:
        return batches[0]
    return Batch(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))


def epoch_batches(source: DataSource, rows: int) -> Iterator[Batch]:
    """The first epoch in batches of `rows` rows; the last one is padded with rows that do not count."""
    epoch_rows = source.rows(0)
    for start in range(0, epoch_rows, rows):
        yield pad_batch(source.read(0, start, min(start + rows, epoch_rows)), rows)


def pad_batch(batch: Batch, multiple: int) -> Batch:
    """Pad with rows that do not count to a multiple, so that batches of any size share one compiled step."""
    missing = -batch.rows % multiple

    def pad(array: NDArray[Any], value: int) -> NDArray[Any]:
        return np.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1)), constant_values=value)

    return Batch(pad(batch.inputs, 0), pad(batch.targets, IGNORE_INDEX), pad(batch.segment_ids, 0))
