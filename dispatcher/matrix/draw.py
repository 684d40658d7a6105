"""Random parameters of a sweep, the same on every machine and in every version of Python.

Each parameter has its own generator, seeded by the sweep's seed and the parameter's name, so another draw or another
parameter changes none of the others. Fractions are rounded to six significant digits, in a narrow range to six digits
of its width: that hides differences between the logarithms of C libraries, keeps the values readable, and leaves the
values of a narrow range apart.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dispatcher.base.values import shown
from dispatcher.errors import nearest

_MOST: Final = 2**53
_DIGITS: Final = 6
# So many tell any two floats apart.
_ALL_DIGITS: Final = 17

Drawer = Callable[[random.Random], Any]


def make_drawer(document: object) -> Drawer:
    """The function that draws a parameter, from `{uniform: [0, 1]}` and the like; ValueError says what was expected."""
    if not isinstance(document, Mapping) or len(document) != 1:
        raise ValueError(f"expected one of {', '.join(_KINDS)}, as in {{uniform: [0, 1]}}")
    ((kind, choices),) = document.items()
    make = _KINDS.get(str(kind).replace("-", "_"))
    if make is None:
        raise ValueError(f"unknown distribution {shown(kind)}{nearest(str(kind), _KINDS)}")
    return make(choices)


def draw(drawer: Drawer, seed: int, name: str, count: int) -> list[Any]:
    """`count` values of the parameter `name`."""
    generator = random.Random(f"{seed}:{name}")
    return [drawer(generator) for _ in range(count)]


def _choice(choices: object) -> Drawer:
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise ValueError("choice: expected a list of values")
    return lambda generator: choices[generator.randrange(len(choices))]


def _uniform(choices: object) -> Drawer:
    low, high = _range("uniform", choices)
    return lambda generator: uniform_at(low, high, generator.random())


def _log_uniform(choices: object) -> Drawer:
    low, high = _range("log_uniform", choices)
    if low <= 0:
        raise ValueError(f"log_uniform: {shown(low)} has no logarithm: expected a lower end above 0")
    return lambda generator: log_uniform_at(low, high, generator.random())


def _integer(choices: object) -> Drawer:
    low, high = _range("integer", choices)
    if type(low) is not int or type(high) is not int:
        raise ValueError(f"integer: expected two whole numbers, both included, not {shown(choices)}")
    if max(abs(low), abs(high)) > _MOST:
        raise ValueError(f"integer: expected ends from -2^53 to 2^53 ({_MOST}), which every program reads exactly")
    return lambda generator: generator.randint(low, high)


def _range(kind: str, choices: object) -> tuple[float, float]:
    numbers = choices if isinstance(choices, (list, tuple)) and len(choices) == 2 else ()
    if not numbers or not all(type(number) in (int, float) and abs(number) <= sys.float_info.max for number in numbers):
        raise ValueError(f"{kind}: expected the two ends of a range, [lowest, highest], not {shown(choices)}")
    low, high = numbers
    if low >= high:
        raise ValueError(f"{kind}: the lower end {shown(low)} is not below the upper end {shown(high)}")
    return low, high


def uniform_at(low: float, high: float, place: float) -> float:
    """The value at a place from 0 to 1 of the range."""
    width = high - low
    # No float is as large as the width of [-1e308, 1e308].
    value = low + width * place if width <= sys.float_info.max else low * (1 - place) + high * place
    return rounded(value, low, high)


def log_uniform_at(low: float, high: float, place: float) -> float:
    """The value at a place from 0 to 1 of the range of logarithms."""
    ratio = high / low
    if ratio <= sys.float_info.max:
        return rounded(low * math.exp(math.log(ratio) * place), low, high)
    # No float is as large as the ratio of [1e-320, 1e308].
    return rounded(math.exp(math.log(low) * (1 - place) + math.log(high) * place), low, high)


def rounded(value: float, low: float, high: float) -> float:
    """Six significant digits, or more where the range is narrower than its values; within the ends."""
    finer = _order(value) - _order(high - low)
    digits = min(max(_DIGITS, _DIGITS + finer), _ALL_DIGITS)
    return min(max(float(f"{value:.{digits}g}"), float(low)), float(high))


def _order(value: float) -> int:
    """The place of the first digit of a number: 0 for 1 to 10."""
    return int(f"{min(abs(value), sys.float_info.max):e}".partition("e")[2])


_KINDS: Final[Mapping[str, Callable[[object], Drawer]]] = {
    "uniform": _uniform,
    "log_uniform": _log_uniform,
    "choice": _choice,
    "integer": _integer,
}
