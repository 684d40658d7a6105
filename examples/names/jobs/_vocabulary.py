"""Characters to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

# The mark before and after every name.
BOUNDARY: Final = 0


@dataclass(frozen=True)
class Vocabulary:
    """An alphabet; the character at position i has the id i + 1, and 0 is the boundary mark.

    Unknown characters have no id: with one, the rarest characters of a test text would be the cheapest.
    """

    alphabet: str

    @classmethod
    def of(cls, names: Iterable[str]) -> Vocabulary:
        """The vocabulary of all characters in `names`, in code point order."""
        return cls("".join(sorted(set("".join(names)))))

    @property
    def size(self) -> int:
        """The number of token ids, the boundary mark included."""
        return len(self.alphabet) + 1

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.alphabet, start=1)}

    def encode(self, name: str) -> NDArray[np.int32]:
        """The ids of the characters of `name`, without marks: int32[len(name)]."""
        try:
            return np.array([self._numbers[character] for character in name], dtype=np.int32)
        except KeyError as missing:
            raise ValueError(
                f"{name!r} holds the character {missing.args[0]!r}, which the vocabulary of {len(self.alphabet)} "
                f"characters lacks: train and evaluate with the same text"
            ) from None

    def decode(self, numbers: Iterable[int]) -> str:
        """The characters with the ids `numbers`, without boundary marks."""
        return "".join(self.alphabet[number - 1] for number in numbers if number != BOUNDARY)
