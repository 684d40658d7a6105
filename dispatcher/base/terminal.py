"""Text in the columns of a terminal: how many it takes, and how it is shortened to fit. Pure.

Letters are counted as terminals draw them: Chinese, Japanese and Korean ones take two columns, combining marks none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_SPACES: Final = re.compile(r"(\s+)")
# Ends of lines, tabs and colours: what a terminal may obey of what is not printable.
_HARMLESS: Final = re.compile(r"(\r?\n|\t|\x1b\[[0-9;:]*m)")
# Sequences that move the cursor, erase and the like.
_CONTROL: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# What may be the beginning of either.
_UNFINISHED: Final = re.compile(r"(\r|\x1b(\[[0-?]{0,60})?)\Z")
_ELLIPSIS: Final = "…"


def one_line(text: str) -> str:
    """`text` without control characters, which a terminal would obey: values come from jobs."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def cleaned(text: str) -> tuple[str, str]:
    """`text` with nothing that a terminal would obey but ends of lines, tabs and colours, and its unfinished end."""
    unfinished = _UNFINISHED.search(text)
    text, rest = (text[: unfinished.start()], unfinished[0]) if unfinished else (text, "")
    parts = enumerate(_HARMLESS.split(text))
    return "".join(part if place % 2 else one_line(_CONTROL.sub("", part)) for place, part in parts), rest


def width_of(text: str) -> int:
    """The number of terminal columns that the text takes."""
    return len(text) if text.isascii() else sum(map(_letter_width, text))


def clip(text: str, width: int) -> str:
    """`text` in at most `width` columns; what is too long ends with an ellipsis."""
    if width_of(text) <= width:
        return text
    return _first(text, width - 1) + _ELLIPSIS if width > 0 else ""


def clip_middle(text: str, width: int, tail: float = 0.4) -> str:
    """As `clip`, but leaves out the middle: ids of jobs differ at both ends (`fft_gre…_main`).

    `tail` is how much of what is left is the end. The beginning tells more: method and language stand there.
    """
    if width_of(text) <= width:
        return text
    if width <= 2:
        return clip(text, width)
    end = "".join(reversed(_first(text[::-1], int((width - 1) * tail))))
    return _first(text, width - 1 - width_of(end)) + _ELLIPSIS + end


def wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` columns, broken between words; longer words are broken anywhere."""
    lines, space = [""], ""
    for part in _SPACES.split(text):
        if part.isspace():
            space = part
            continue
        if width_of(lines[-1] + space + part) <= width:
            lines[-1] += space + part
        else:
            # The spaces at which a line is broken are left out, all others stay.
            lines += _pieces(part, width)
        space = ""
    return lines if lines[0] or len(lines) == 1 else lines[1:]


def indented(texts: Iterable[str], width: int | None, first: str = "", rest: str = "") -> list[str]:
    """The texts wrapped to `width` (None: not at all): lines that begin with `first`, further ones with `rest`."""
    lines = []
    for text in texts:
        wrapped = [text] if width is None else wrap(text, max(1, width - max(width_of(first), width_of(rest))))
        lines += [(rest if number else first) + line for number, line in enumerate(wrapped)]
    return lines


def _pieces(word: str, width: int) -> Iterator[str]:
    """A word in pieces that fit."""
    while width_of(word) > width:
        # At least one letter, also where a wide one does not fit.
        start = _first(word, width) or word[0]
        yield start
        word = word[len(start) :]
    if word:
        yield word


def _first(text: str, width: int) -> str:
    """As much of the beginning as fits into `width` columns."""
    if text.isascii():
        return text[:width]
    used = 0
    for place, letter in enumerate(text):
        used += _letter_width(letter)
        if used > width:
            return text[:place]
    return text


def _letter_width(letter: str) -> int:
    if letter.isascii():
        return 1
    from unicodedata import category, east_asian_width

    if category(letter) in ("Mn", "Me"):
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1
