"""What sweep files and studies name: parameters with their values, each fault with its place.

And what a person should know of its values: those that jobs get in another spelling, or that have another tool's form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from dispatcher.base.schema.faults import PartFault, PartsError
from dispatcher.base.values import BadValueError, text_of
from dispatcher.base.yaml_text import lost_forms, read_value, split_values
from dispatcher.matrix.entry import RESERVED

# Keys that the expansion of a sweep sets.
MADE: Final = frozenset({"job_id", "draw"})
_HYDRA: Final = re.compile(r"(choice|interval)\((.*)\)", re.DOTALL)


def named(
    value: object, read: Callable[[str, Any], Any] = lambda _, one: one, made: Collection[str] = MADE
) -> dict[str, Any]:
    """A mapping from parameters to what `read` makes of their names and values; PartsError with all faults.

    Those in `made` are refused: the expansion sets them itself, so they would be overwritten or lost.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise BadValueError("expected names and their values (quote names that are numbers)")
    why = "is set by the expansion: choose another name"
    wrong = [PartFault(f".{name}", None, why, is_hidden=True) for name in value if name in made]
    found = {}
    for name, one in value.items():
        try:
            found[name] = read(name, one)
        except ValueError as error:
            wrong.append(PartFault(f".{name}", one, str(error)))
    if wrong:
        raise PartsError(wrong)
    return found


def derived_text(_: str, value: object) -> str:
    """A text of `derive`."""
    if not isinstance(value, str):
        raise BadValueError('expected text such as "/checkpoints/{job_id}"')
    return value


def grid_advice(key: str, value: object) -> str:
    """What to write instead of values in the form of W&B or Hydra; empty for what is neither."""
    values, drawn = _values_of(value), _drawn_of(value)
    if values is not None:
        return f"; here {key}: {text_of(values)}"
    return drawn and f"; here random: {{seed: 0, count: 10, draw: {{{key}: {drawn}}}}}"


def draw_advice(key: str, value: object) -> str:
    """As `grid_advice`, for a distribution."""
    values = _values_of(value)
    drawn = _drawn_of(value) if values is None else f"{{choice: {text_of(values)}}}"
    return drawn and f"; here {key}: {drawn}"


def _values_of(value: object) -> list[Any] | None:
    """The values of W&B's `{values: [a, b]}`, and of Hydra's `a,b` and `choice(a,b)`."""
    if isinstance(value, Mapping):
        listed = value.get("values", [value["value"]] if "value" in value else None)
        return listed if isinstance(listed, list) else None
    if not isinstance(value, str):
        return None
    chosen = _HYDRA.fullmatch(value.strip())
    if chosen is not None and chosen[1] != "choice":
        return None
    values = split_values(value if chosen is None else chosen[2])
    return [read_value(one) for one in values] if chosen is not None or len(values) > 1 else None


def _drawn_of(value: object) -> str:
    """The distribution that W&B's `{min: a, max: b}` and Hydra's `interval(a,b)` are; empty for others."""
    if isinstance(value, Mapping) and "min" in value and "max" in value:
        # As W&B takes them where no distribution is given.
        is_whole = type(value["min"]) is int and type(value["max"]) is int
        kind = str(value.get("distribution", "int_uniform" if is_whole else "uniform")).removesuffix("_values")
        kind = "integer" if kind == "int_uniform" else kind.removeprefix("q_")
        return f"{{{kind}: {text_of([value['min'], value['max']])}}}"
    chosen = _HYDRA.fullmatch(value.strip()) if isinstance(value, str) else None
    return f"{{uniform: [{chosen[2]}]}}" if chosen is not None and chosen[1] == "interval" else ""


def respelt(document: bytes) -> Iterator[str]:
    """A line for each parameter of a valid sweep file or study with values that jobs get in another spelling."""
    forms: dict[str, dict[tuple[str, str], int]] = {}
    for lost in lost_forms(document.decode("utf-8-sig")):
        key = _parameter(lost.path)
        if key and key not in RESERVED:
            forms.setdefault(key, {}).setdefault((lost.written, text_of(lost.value)), lost.line)
    for key, lines in forms.items():
        ((written, text), line), *others = lines.items()
        more = f" (and {len(others)} more)" if others else ""
        advice = f'write "{written}" to keep its spelling, or {text}'
        yield f"{key}: {written} in line {line} is read as {text}{more}: {advice}"


def _parameter(path: tuple[str | int, ...]) -> str:
    """The parameter that a value of a sweep file or a study belongs to; empty for bounds, conditions and the like."""
    words = [word for word in path if isinstance(word, str)]
    for place, word in enumerate(words):
        if word in ("defaults", "grid", "zip"):
            return words[place + 1] if place + 1 < len(words) else ""
        if word == "choice" and place:
            return words[place - 1]
    return ""
