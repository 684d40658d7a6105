"""Quoting for bash, and the check that a launcher template keeps that quoting."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable

# A line break would end a comment, so control characters are written as escapes in bash's $'...'.
_CONTROL = re.compile(r"[\x01-\x1f\x7f]")
_HEREDOC = re.compile(r"(?<!<)<<-?\s*([\"'\\]?[A-Za-z_]|$)")
# Unquoted, bash reads these as keywords where a command's name is expected, and `A=b` as an assignment.
_GRAMMAR = frozenset(
    ["if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do", "done", "in"]
) | {"function", "time", "coproc"}
_AT_WORD_START = frozenset(" \t\n;|&(`")

Token = tuple[int, str, str]


def quoted(value: object) -> str:
    """`value` as one quoted word of bash, a list as several; no character in it is special to bash."""
    if isinstance(value, (list, tuple)):
        return " ".join(quoted(member) for member in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float, os.PathLike)):
        raise TypeError(
            f"a value of type {type(value).__name__} ({value!r}) cannot be quoted for a shell: pass text or a list"
        )
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if "\0" in text:
        raise ValueError(f"the value {text!r} holds a NUL character, which no shell word can")
    if text in _GRAMMAR or ("=" in text and shlex.quote(text) == text):
        return f"'{text}'"
    if not _CONTROL.search(text):
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda match: f"\\{ord(match[0]):03o}", escaped) + "'"


def check_template(tokens: Iterable[Token]) -> None:
    """ValueError, with the line, for a launcher with a value inside quotes or with a here-document.

    In `"{{ value }}"` the value's own quotes would become text, and the shell would expand the value. Each file is
    checked by itself, so quotes begin and end in the same file, and none are open where a part is included.
    """
    scanner = _Scanner()
    before, line = "", 1
    for line, kind, text in tokens:
        if kind == "data":
            if _HEREDOC.search(text):
                raise ValueError(f"line {line}: here-documents are not possible in a launcher: use printf or echo")
            scanner.read(text)
        elif kind == "variable_begin":
            if not scanner.takes_a_word():
                problem = "a value inside quotes or after '$' or '\\'"
                raise ValueError(f"line {line}: {problem}: write it without quotes, it is quoted when rendered")
            scanner.previous = "x"
        elif kind == "name" and before == "block_begin":
            _check_block(line, text, scanner)
        if kind != "whitespace":
            before = kind
    if scanner.within not in ("", "#"):
        raise ValueError(f"line {line}: the file ends inside quotes or '$('")


def _check_block(line: int, name: str, scanner: _Scanner) -> None:
    if name == "filter":
        raise ValueError(f"line {line}: filter blocks are not possible in a launcher: they could remove quotes")
    if name in ("extends", "import", "from"):
        raise ValueError(f"line {line}: '{name}' is not possible in a launcher: use include")
    if name == "include" and scanner.within:
        raise ValueError(f"line {line}: include inside quotes or a comment: write it on a line of its own")


class _Scanner:
    """Tracks bash's quoting through a text: the delimiters that enclose the current position, innermost last."""

    def __init__(self) -> None:
        self.enclosing: list[str] = []
        self.previous = "\n"
        self.escaped = False

    @property
    def within(self) -> str:
        return self.enclosing[-1] if self.enclosing else ""

    def takes_a_word(self) -> bool:
        """Whether bash reads a quoted word inserted here as that word."""
        return self.within in ("", ")", "#") and self.previous != "$" and not self.escaped

    def read(self, text: str) -> None:
        for character in text:
            if self.escaped:
                self.escaped = False
            elif character == "\\" and self.within not in ("'", "#"):
                self.escaped = True
            else:
                self._step(character)
            self.previous = character

    def _step(self, character: str) -> None:
        within = self.within
        if within in ("'", "#"):
            if character == ("'" if within == "'" else "\n"):
                self.enclosing.pop()
        elif character == '"' and within == '"':
            self.enclosing.pop()
        elif character in "({" and self.previous == "$":
            self.enclosing.append(")" if character == "(" else "}")
        elif character in ")}" and within == character:
            self.enclosing.pop()
        elif character == "(" and within == ")":
            self.enclosing.append(")")
        elif within == "`" and character == "`":
            self.enclosing.pop()
        elif character in ('"', "`"):
            self.enclosing.append(character)
        elif character == "'" and within != '"':
            self.enclosing.append("'")
        elif character == "#" and within in ("", ")") and self.previous in _AT_WORD_START:
            self.enclosing.append("#")
