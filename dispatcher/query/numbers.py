"""Numbers of several jobs together: mean, deviation, median, and how many there are. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.base.messages import number_text
from dispatcher.base.values import number_of

Numbers = Sequence[float]


def mean(values: Numbers) -> float | None:
    if not values:
        return None
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def std(values: Numbers) -> float | None:
    """The standard deviation of a sample (n - 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = mean(values) or 0.0
    far = [value - middle for value in values]
    try:
        return math.sqrt(math.fsum(one**2 for one in far) / (len(values) - 1))
    except OverflowError:
        # The loss of a diverged training has a square beyond what a float holds.
        scale = max(map(abs, far))
        return scale * math.sqrt(math.fsum((one / scale) ** 2 for one in far) / (len(values) - 1))


def median(values: Numbers) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Spread(msgspec.Struct, frozen=True):
    """Mean and standard deviation of a sample (n - 1) over the `n` of `of` jobs that have a value.

    `mean` is None without any value, `std` for fewer than two.
    """

    mean: float | None
    std: float | None
    n: int
    of: int

    @classmethod
    def over(cls, values: Numbers, of: int) -> Spread:
        return cls(mean(values), std(values), len(values), of)

    def __str__(self) -> str:
        """`0.215 ± 0.012 (3 of 4)`, with as many decimals of the mean as two digits of the deviation have."""
        count = f"({self.n} of {self.of})"
        if self.mean is None or self.std is None or not math.isfinite(self.std):
            return f"{'-' if self.mean is None else number_text(self.mean)} {count}"
        if not self.std:
            return f"{number_text(self.mean)} ± 0 {count}"
        decimals = 1 - math.floor(math.log10(self.std))
        if decimals > 9:
            return f"{number_text(self.mean)} ± {self.std:.2g} {count}"
        return f"{self.mean:.{max(0, decimals)}f} ± {self.std:.{max(0, decimals)}f} {count}"


def finite_number(result: Mapping[str, Any], key: str) -> float | None:
    """The number that a result has for `key`; None without one, and for one that is not finite."""
    value = result.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    number = number_of(value)
    return number if number is not None and math.isfinite(number) else None
