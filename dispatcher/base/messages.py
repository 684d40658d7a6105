"""Wording that the messages of all packages share: counts, numbers, lists of faults, and text that is not UTF-8."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def counted(number: int, singular: str, plural: str = "") -> str:
    """`1 job`, `3 jobs`, and `3 entries` with `plural` given."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def first_names(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c`, and `a, b, c, ...` where there are more than `most`."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def first_texts(texts: Sequence[str], most: int = 3, separator: str = "; ") -> str:
    """`a; b; c`, and `a; b; c; and 2 more` where there are more than `most`."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return separator.join([*texts[:most], *more])


def shortened(names: Sequence[str], most: int = 8) -> list[str]:
    """The names for one line: of more than `most` the first ones, how many are left out, and the last two."""
    if len(names) <= most:
        return list(names)
    return [*names[: most - 3], f"... {len(names) - most + 1:,} more ...", *names[-2:]]


def indented(heading: str, lines: Iterable[str], most: int | None = None) -> str:
    """`heading`, then each line indented below it; beyond `most` of them only how many more there are."""
    listed = list(lines)
    left_out = [] if most is None or len(listed) <= most else [f"... and {len(listed) - most} more"]
    return "\n".join([heading, *(f"  {line}" for line in [*listed[:most], *left_out])])


def problems(where: str, faults: Iterable[str], most: int | None = None) -> str:
    """`FILE: 2 problems`, then a line for each, at most so many."""
    listed = list(faults)
    return indented(f"{where}: {counted(len(listed), 'problem')}", listed, most)


def is_utf8(text: str) -> bool:
    """Whether `text`, from a command line, the environment or a directory, can be written into files and messages."""
    return text.isascii() or text == readable(text)


def readable(text: str) -> str:
    """`text` with `\\xff` for each byte that is not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def bytes_text(size: int) -> str:
    """`512 B`, `1.5 KiB`, `12 GiB`."""
    number, units = float(size), iter(("B", "KiB", "MiB", "GiB"))
    for unit in units:
        if number < 1024:
            return f"{number:.1f} {unit}" if unit != "B" and number < 10 else f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def number_text(value: float) -> str:
    """A number with four significant digits."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
