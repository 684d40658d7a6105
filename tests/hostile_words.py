"""Values that a shell, or careless quoting, would change."""

from __future__ import annotations

from typing import Final

HOSTILE_WORDS: Final = (
    "a b",
    "it's",
    'say "x"',
    "$(touch pwned)",
    "`id`",
    "; rm -rf x",
    "--flag",
    "-",
    "two\nlines",
    "ünï ↦ 字",
    "*",
    "",
    "\\",
    "\t",
    "$HOME",
    "!1",
    "#",
    "~",
    "a=b",
    "&",
)
