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
    kind, choices, options = parts_of(document)
    return _KINDS[kind](choices, **options)


def parts_of(document: object) -> tuple[str, Any, Mapping[str, Any]]:
    """The kind of a distribution, its values, and its options (`log`, `step`); ValueError says what was expected."""
    if not isinstance(document, Mapping) or len(document.keys() - _OPTIONS) != 1:
        raise ValueError(f"expected one of {', '.join(_KINDS)}, as in {{uniform: [0, 1]}}")
    (given,) = document.keys() - _OPTIONS
    kind = str(given).replace("-", "_")
    if kind not in _KINDS:
        raise ValueError(f"unknown distribution {shown(given)}{nearest(str(given), _KINDS)}")
    options = {name: document[name] for name in document if name in _OPTIONS}
    allowed = _OPTIONS_OF.get(kind, ())
    if other := [name for name in options if name not in allowed]:
        also = ": log_uniform has logarithms" if (kind, other[0]) == ("uniform", "log") else ""
        raise ValueError(f"{kind}: {other[0]} is not one of its options ({', '.join(allowed) or 'it has none'}){also}")
    return kind, document[given], options


def is_range(value: object) -> bool:
    """Whether a choice is itself a distribution of numbers, as in `{choice: [0, {log_uniform: [1e-5, 1]}]}`."""
    return isinstance(value, Mapping) and any(str(key).replace("-", "_") in _RANGES for key in value)


def draw(drawer: Drawer, seed: int, name: str, count: int) -> list[Any]:
    """`count` values of the parameter `name`."""
    generator = random.Random(f"{seed}:{name}")
    return [drawer(generator) for _ in range(count)]


def _choice(choices: object) -> Drawer:
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise ValueError("choice: expected a list of values")
    drawers = {place: make_drawer(choice) for place, choice in enumerate(choices) if is_range(choice)}

    def drawn(generator: random.Random) -> Any:
        place = generator.randrange(len(choices))
        return drawers[place](generator) if place in drawers else choices[place]

    return drawn


def _uniform(choices: object, step: object = None) -> Drawer:
    low, high = _range("uniform", choices)
    if step is not None:
        if type(step) not in (int, float) or not 0 < step <= high - low:  # type: ignore[operator]  # a number
            raise ValueError(f"uniform: step = {shown(step)}: expected a number above 0, at most {shown(high - low)}")
        count = steps_within(low, high, step)  # type: ignore[arg-type]  # a number
        return lambda generator: at_step(low, high, step, generator.randint(0, count))  # type: ignore[arg-type]  # too
    return lambda generator: uniform_at(low, high, generator.random())


def _log_uniform(choices: object) -> Drawer:
    low, high = _range("log_uniform", choices)
    if low <= 0:
        raise ValueError(f"log_uniform: {shown(low)} has no logarithm: expected a lower end above 0")
    return lambda generator: log_uniform_at(low, high, generator.random())


def _integer(choices: object, log: object = False, step: object = 1) -> Drawer:
    low, high = _range("integer", choices)
    if type(low) is not int or type(high) is not int:
        raise ValueError(f"integer: expected two whole numbers, both included, not {shown(choices)}")
    if max(abs(low), abs(high)) > _MOST:
        raise ValueError(f"integer: expected ends from -2^53 to 2^53 ({_MOST}), which every program reads exactly")
    if type(log) is not bool:
        raise ValueError(f"integer: log = {shown(log)}: expected true or false")
    if type(step) is not int or not 1 <= step <= high - low:
        raise ValueError(f"integer: step = {shown(step)}: expected a whole number from 1 to {high - low}")
    if log and step != 1:
        raise ValueError("integer: expected log or step, not both")
    if log and low < 1:
        raise ValueError(f"integer: {low} has no logarithm: expected a lower end above 0")
    if log:
        return lambda generator: integer_at(low, high, generator.random())
    return lambda generator: low + step * generator.randint(0, (high - low) // step)


def integer_at(low: int, high: int, place: float) -> int:
    """The whole number at a place from 0 to 1 of a logarithmic scale, where each has the part around it."""
    value = (low - 0.5) * math.exp(math.log((high + 0.5) / (low - 0.5)) * place)
    return min(max(round(value), low), high)


def steps_within(low: float, high: float, step: float) -> int:
    """How many steps there are from `low` to at most `high`; 0.3 is three steps of 0.1."""
    return math.floor((high - low) / step + 1e-9)


def at_step(low: float, high: float, step: float, number: int) -> float:
    """The value so many steps above `low`, without what binary fractions add to it."""
    return min(float(f"{low + number * step:.12g}"), float(high))


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


_OPTIONS: Final = frozenset({"log", "step"})
_OPTIONS_OF: Final[Mapping[str, Sequence[str]]] = {"integer": ("log", "step"), "uniform": ("step",)}
_RANGES: Final = frozenset({"uniform", "log_uniform", "integer"})
_KINDS: Final[Mapping[str, Callable[..., Drawer]]] = {
    "uniform": _uniform,
    "log_uniform": _log_uniform,
    "choice": _choice,
    "integer": _integer,
}


def _schema(also: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON schema of parameters with their distributions. In names of these `-` and `_` are the same."""
    keys = {kind: {"type": "array", "minItems": 1} for kind in (*_KINDS, "log-uniform")}
    options = {"log": {"type": "boolean"}, "step": {"type": "number"}, **also}
    one = {"type": "object", "properties": {**keys, **options}, "additionalProperties": False}
    return {"type": "object", "minProperties": 1, "additionalProperties": one}


DISTRIBUTIONS: Final = _schema({})
# In a study a parameter may have conditions.
OF_STUDIES: Final = _schema({"when": {"type": "object", "minProperties": 1}})
