"""Names of different lengths packed into rows of one length, so that little is computed on padding.

A row holds whole names, each as `BOUNDARY c1 c2 ... cn` in the inputs and `c1 c2 ... cn BOUNDARY` in the targets, and
as a segment of its own: the model does not see a name's neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from jobs._vocabulary import BOUNDARY
from numpy.typing import NDArray

from dispatcher.runtime.language.tokens import IGNORE_INDEX, Tokens

SEQ_LEN: Final = 64


class PackedNames:
    """Encoded names as a source of rows, packed once in their order; each name is int32[characters]."""

    def __init__(self, names: Sequence[NDArray[np.int32]]) -> None:
        if not names:
            raise ValueError("there are no names")
        self._packed = pack(names)

    def __len__(self) -> int:
        return len(self._packed.inputs)

    def __getitem__(self, index: int) -> Tokens:
        return Tokens(*(array[index] for array in self._packed))


def pack(names: Sequence[NDArray[np.int32]]) -> Tokens:
    """Pack encoded names in their order, each into the current row or, where it does not fit, into the next one."""
    places: list[tuple[int, int, int]] = []
    row, column, segment = 0, 0, 0
    for name in names:
        needed = len(name) + 1
        if needed > SEQ_LEN:
            raise ValueError(f"a name of {len(name)} characters does not fit into a row of {SEQ_LEN} with its mark")
        if column + needed > SEQ_LEN:
            row, column, segment = row + 1, 0, 0
        segment += 1
        places.append((row, column, segment))
        column += needed

    rows = places[-1][0] + 1 if places else 0
    inputs = np.full((rows, SEQ_LEN), BOUNDARY, dtype=np.int32)
    targets = np.full((rows, SEQ_LEN), IGNORE_INDEX, dtype=np.int32)
    segment_ids = np.zeros((rows, SEQ_LEN), dtype=np.int32)
    for name, (row, column, segment) in zip(names, places, strict=True):
        end = column + len(name)
        inputs[row, column + 1 : end + 1] = name
        targets[row, column:end] = name
        targets[row, end] = BOUNDARY
        segment_ids[row, column : end + 1] = segment
    return Tokens(inputs, targets, segment_ids)
