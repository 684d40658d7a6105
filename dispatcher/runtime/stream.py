"""Batches in an order that the seed decides, from a source whose epochs are known by number.

So the position of a stream is two numbers, the epoch and the row in it, and whoever seeks there reads on exactly as
if nothing had happened. Every process reads the same stream; the mesh says which rows of a batch it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import ConfigError

# The target of a place that counts nowhere: padding.
IGNORED: Final = -1


class Batch(NamedTuple):
    """Rows of tokens, int32[rows, length] each; for a `loss` of one's own, arrays of any shape that begin with rows.

    `targets` are the tokens to predict, IGNORED where there is none. `segments` tells apart the texts that share a
    row, from 1; 0 is padding. An evaluation adds rows that must not count: their targets are IGNORED, and their
    segments and inputs 0.
    """

    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]
    segments: NDArray[np.int32]

    @property
    def rows(self) -> int:
        return len(self.inputs)

    def slice(self, start: int, stop: int) -> Batch:
        """The rows from `start` to before `stop`."""
        return Batch(*(array[start:stop] for array in self))


class Source(Protocol):
    """Rows in epochs: each has all of them, in an order of its own."""

    def rows(self, epoch: int) -> int:
        """How many rows the epoch has: at least one."""

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        """The rows from `start` to before `stop` of the epoch, in its order."""


class Stream:
    """An endless stream of rows from `source`; epochs follow each other without a gap, and no row is dropped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._epoch = 0
        self._row = 0

    def take(self, rows: int) -> Batch:
        """The next `rows` rows."""
        parts = []
        while rows > 0:
            there = self._source.rows(self._epoch)
            stop = min(there, self._row + rows)
            parts.append(self._source.read(self._epoch, self._row, stop))
            rows -= stop - self._row
            self._epoch, self._row = (self._epoch, stop) if stop < there else (self._epoch + 1, 0)
        return concatenate(parts)

    @property
    def position(self) -> dict[str, int]:
        """Where the next batch begins, and how many rows that epoch has."""
        return {"epoch": self._epoch, "row": self._row, "rows": self._source.rows(self._epoch)}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Go to where a stream of the same source stood; ConfigError when this source cannot be the same."""
        epoch, row = int(position["epoch"]), int(position["row"])
        there = self._source.rows(epoch)
        if there != position["rows"]:
            raise ConfigError(
                f"the data has {there} rows in epoch {epoch}, and that of the training that goes on here had "
                f"{position['rows']}: it began with other data, or with rows of another length. For another "
                "training of the same model, load that one's model in start_from"
            )
        self._epoch, self._row = epoch, row


class TokenWindows:
    """Neighbouring tokens of one long text, `length` at a time, each epoch in another order.

    `tokens` is int[count], from 0 to before `vocabulary` where that is known; it may be a memory-mapped file larger
    than the memory. `where` is what a ConfigError calls it.
    """

    def __init__(
        self, tokens: NDArray[Any], length: int, *, seed: int, vocabulary: int | None = None, where: str = "the data"
    ) -> None:
        self._tokens = tokens
        self._vocabulary = vocabulary
        self._where = where
        self._length = length
        self._seed = seed
        self._count = (len(tokens) - 1) // length
        self._order: tuple[int, NDArray[np.int64]] | None = None
        if self._count < 1:
            raise ConfigError(
                f"{where}: {len(tokens)} tokens are too few for one row of {length} and the token after it"
            )

    @classmethod
    def from_file(cls, path: Path, length: int, *, seed: int, vocabulary: int | None = None) -> TokenWindows:
        """The tokens of an .npy file."""
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read as an .npy file of tokens: {error}") from None
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise ConfigError(f"{path}: holds {tokens.dtype}{list(tokens.shape)}: expected whole numbers in one row")
        return cls(tokens, length, seed=seed, vocabulary=vocabulary, where=str(path))

    def rows(self, epoch: int) -> int:
        return self._count

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        windows = self._permutation(epoch)[start:stop]
        text = np.stack([self._tokens[i * self._length : (i + 1) * self._length + 1] for i in windows])
        self._check(text)
        return plain_batch(text.astype(np.int32))

    def _check(self, text: NDArray[Any]) -> None:
        """A token that the model does not know would become a NaN far from here."""
        lowest, highest = int(text.min()), int(text.max())
        if lowest < 0 or (self._vocabulary is not None and highest >= self._vocabulary):
            expected = "0 or more" if self._vocabulary is None else f"0 to {self._vocabulary - 1} (model.vocabulary)"
            raise ConfigError(
                f"{self._where}: holds the token {lowest if lowest < 0 else highest}: expected {expected}"
            )

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._count)
        return self._order[1]


def plain_batch(text: NDArray[np.int32]) -> Batch:
    """Rows that are one text each: int32[rows, length + 1] -> int32[rows, length]."""
    inputs = np.ascontiguousarray(text[:, :-1])
    return Batch(inputs, np.ascontiguousarray(text[:, 1:]), np.ones_like(inputs))


def concatenate(parts: Sequence[Batch]) -> Batch:
    """The rows of all `parts`, in order."""
    return parts[0] if len(parts) == 1 else Batch(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def whole_epoch(source: Source, rows: int) -> Iterator[Batch]:
    """The first epoch in batches of `rows` rows, the last filled up with rows that count nowhere."""
    there = source.rows(0)
    for start in range(0, there, rows):
        yield pad_rows(source.read(0, start, min(start + rows, there)), rows)


def pad_rows(batch: Batch, multiple: int) -> Batch:
    """Add rows that count nowhere, up to a multiple: one compiled program then serves batches of every size."""
    missing = -batch.rows % multiple

    def pad(array: NDArray[Any], value: int) -> NDArray[Any]:
        return np.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1)), constant_values=value)

    return Batch(pad(batch.inputs, 0), pad(batch.targets, IGNORED), pad(batch.segments, 0))
