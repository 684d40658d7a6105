"""Names of different lengths packed into rows of one length, so that little computing is spent on padding.

A row holds whole names, each as `BOUNDARY c1 c2 ... cn` in the inputs and `c1 c2 ... cn BOUNDARY` in the targets.
The model forgets what came before at every boundary, so the neighbours of a name in its row do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.runtime.vocabulary import BOUNDARY

ROW_LENGTH: Final = 64
# The target of a padded place: not a character, counts nowhere.
IGNORED: Final = -1


class Batch(NamedTuple):
    """Rows of packed names: inputs and targets are int32[rows, ROW_LENGTH]."""

    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]


def pack(names: Sequence[NDArray[np.int32]]) -> Batch:
    """Pack encoded names in their order, each into the current row or, where it does not fit, into the next one."""
    places: list[tuple[int, int]] = []
    row, column = 0, 0
    for name in names:
        needed = len(name) + 1
        if needed > ROW_LENGTH:
            raise ValueError(f"a name of {len(name)} characters does not fit into a row of {ROW_LENGTH} with its mark")
        if column + needed > ROW_LENGTH:
            row, column = row + 1, 0
        places.append((row, column))
        column += needed

    rows = places[-1][0] + 1 if places else 0
    inputs = np.full((rows, ROW_LENGTH), BOUNDARY, dtype=np.int32)
    targets = np.full((rows, ROW_LENGTH), IGNORED, dtype=np.int32)
    for name, (row, column) in zip(names, places, strict=True):
        end = column + len(name)
        inputs[row, column + 1 : end + 1] = name
        targets[row, column:end] = name
        targets[row, end] = BOUNDARY
    return Batch(inputs, targets)


def pad_rows(batch: Batch, multiple: int) -> Batch:
    """Add rows that count nowhere, up to a multiple: one compiled program then serves texts of every size."""
    missing = -len(batch.inputs) % multiple
    return Batch(
        np.pad(batch.inputs, ((0, missing), (0, 0)), constant_values=BOUNDARY),
        np.pad(batch.targets, ((0, missing), (0, 0)), constant_values=IGNORED),
    )


def training_batches(names: Sequence[NDArray[np.int32]], rows: int, generator: np.random.Generator) -> Iterator[Batch]:
    """Batches of `rows` rows without end; every epoch packs the names in a new order, and no row is dropped."""
    if not names:
        raise ValueError("there are no names to train on")
    inputs = targets = np.empty((0, ROW_LENGTH), dtype=np.int32)
    while True:
        while len(inputs) < rows:
            epoch = pack([names[i] for i in generator.permutation(len(names))])
            inputs, targets = np.concatenate([inputs, epoch.inputs]), np.concatenate([targets, epoch.targets])
        yield Batch(inputs[:rows], targets[:rows])
        inputs, targets = inputs[rows:], targets[rows:]
