"""Command lines: a command is split into words before values are filled in, so a value is always one argument.

A command given as text is split like a shell line, and then placeholders are filled. No shell reads the result, so
syntax that needs a shell is refused. `{key}` is a value of the entry, `{script}` the rendered training script,
`{python}` the method's interpreter, `{attempt_dir}` the attempt's directory; a method with its own interpreter also
uses it for a first word `python` or `python3`. `{{key}}` is the literal text `{key}`; braces around anything other than
a key or a plain word are kept, so JSON and awk programs need no escaping.

`{key?text}` is optional: the text, in which `{key}` may stand, where the entry has a value for the key, and nothing
where it has none: no such key, null, false or empty text. `{key?}` is short for `{key?{key}}`. A word of which nothing
is left is left out: `{amp?--amp} {warmup?--warmup} {warmup?}`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from dispatcher.base.outputs import ATTEMPT_DIR, Outputs, filled
from dispatcher.base.values import BadValueError, shown, text_of
from dispatcher.config import Method, interpreter
from dispatcher.errors import TemplateError, nearest
from dispatcher.matrix.entry import Entry
from dispatcher.templates.shell_syntax import shell_syntax

_KEY: Final = r"[A-Za-z_][A-Za-z0-9_.-]*"
# Escaped, optional with its text, a key.
_PLACEHOLDER = re.compile(rf"\{{\{{([^{{}}]+)\}}\}}|\{{({_KEY})\?((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}|\{{([^{{}}]+)\}}")
_UNFINISHED: Final = re.compile(rf"\{{{_KEY}\?[^}}]*\Z")
_WORD = re.compile(_KEY)
# Of these the text is that of no value: YAML's false and null, and Python's None, in any case.
_NO_VALUE: Final = ("", "false", "null", "none")

_PYTHONS: Final = ("python", "python3")
OWN_PLACEHOLDERS: Final = ("script", "python", ATTEMPT_DIR.strip("{}"))

# The command of an entry with `job`. Without -P any file in the workspace's root could shadow a library.
_RUN_JOB: Final = ("{python}", "-P", "-m", "dispatcher.runtime", "attempt")

# MAX_ARG_STRLEN of Linux: 32 pages, for each word with its end.
_LONGEST_WORD: Final = 131_072
# So many characters, of up to four bytes, are never too long.
_SURELY_FITS: Final = 30_000
_BY_FILE: Final = "write the text into a file, and give the command its path"
_WAYS: Final = 'use `setup` or `python` under the method in dispatcher.yaml, or a list: ["bash", "-c", "..."]'


def command_line(
    method: Method, entry: Entry, script: Path, python: str = "", directory: Path = Path("attempt")
) -> list[str]:
    """The arguments that start `entry`; TemplateError names the entry and the word that cannot be filled.

    Text values are passed unchanged, all others as JSON (`true`, `0.5`, `[1, 2]`, `null`). `python` is the interpreter
    where it is not the method's on this host, `directory` that of the attempt.
    """
    _check_command(method, entry)
    python = python or os.fspath(interpreter(method.python))
    own = zip(OWN_PLACEHOLDERS, (os.fspath(script), python, os.fspath(directory)), strict=True)
    known = {**entry.document(), **dict(own)}
    filled = [_filled(word, known, entry) for word in _words(_command(method, entry))]
    if filled[0] is None:
        raise TemplateError(f"{entry.job_id}: the first word of the command is left out: a program cannot be optional")
    line = [word for word in filled if word is not None]
    if method.python is not None and line[0] in _PYTHONS:
        line[0] = python
    return line


def outputs_of(method: Method, entry: Entry) -> Outputs:
    """The files in which the entry's script leaves its result and metrics, by paths in an attempt's directory.

    TemplateError names the entry and the path that cannot be used.
    """
    known = entry.document()
    try:
        return filled(
            Outputs(method.result, method.metrics), lambda path: _filled(path, known, entry, "a file's path") or ""
        )
    except BadValueError as error:
        raise TemplateError(f"{entry.job_id}: `result` or `metrics` of method {method.name}: {error}") from None


def too_long(method: Method, entry: Entry) -> str:
    """Why no Linux starts the entry's command: a word, or all of them together, are too long; empty when one does."""
    values = [value for value in entry.params.values() if isinstance(value, (str, list, dict))]
    if sum(map(len, (*_words(_command(method, entry)), *map(str, values)))) < _SURELY_FITS:
        return ""
    try:
        words = [os.fsencode(word) for word in command_line(method, entry, Path("script"))]
    except (TemplateError, UnicodeEncodeError):
        # What is wrong with it is told by others.
        return ""
    longest = max(map(len, words))
    if longest >= _LONGEST_WORD:
        return f"a word of the command has {longest} bytes, and Linux takes less than {_LONGEST_WORD}: {_BY_FILE}"
    total = sum(map(len, words))
    room = os.sysconf("SC_ARG_MAX") // 2
    return f"the command has {total} bytes, and this host takes about {room}: {_BY_FILE}" if total > room else ""


def _check_command(method: Method, entry: Entry) -> None:
    """TemplateError when the entry's command needs a shell; it names the method if the command is the method's."""
    problem = shell_problem(method, entry)
    if problem:
        raise TemplateError(f"{entry.job_id if entry.command is not None else f'method {method.name}'}: {problem}")


def shell_problem(method: Method, entry: Entry) -> str:
    """The part of the entry's command that needs a shell, and what to write instead; empty when nothing does."""
    command = _command(method, entry)
    problem = _shell_syntax(command) if isinstance(command, str) else ""
    return problem and f"command = {shown(command)}: {problem}, and no shell reads it: {_WAYS}"


def unfilled(method: Method, entry: Entry) -> list[str]:
    """The placeholders of the entry's command for which the entry has no value."""
    needed, optional = _keys(_command(method, entry))
    # A command of its own has no word for keys that others have: one that is missing is misspelt.
    keys = needed | optional if entry.command is not None else needed
    return [key for key in sorted(keys) if _WORD.fullmatch(key) and key not in OWN_PLACEHOLDERS and not entry.has(key)]


def unfilled_path(method: Method, entry: Entry) -> str:
    """The first placeholder in the paths of the script's files for which the entry has no value; empty: none."""
    needed, _ = _keys(_paths(method))
    return next((key for key in sorted(needed) if _WORD.fullmatch(key) and not entry.has(key)), "")


def placeholders(method: Method, entry: Entry) -> frozenset[str]:
    """The keys of the placeholders in the entry's command, and in the paths of its script's files."""
    needed, optional = _keys((*_words(_command(method, entry)), *_paths(method)))
    return needed | optional


def uses_script(method: Method, entry: Entry) -> bool:
    """Whether the entry's command runs a rendered training script; otherwise it needs no template."""
    return "script" in placeholders(method, entry)


def runs_python(method: Method) -> bool:
    """Whether the method's command is a script or a module that the method's interpreter runs."""
    first = next(iter(_words(method.command)), "")
    return first == "{python}" or (method.python is not None and first in _PYTHONS)


def _command(method: Method, entry: Entry) -> str | tuple[str, ...]:
    if entry.command is not None:
        return entry.command
    return method.command if entry.job is None else _RUN_JOB


def _paths(method: Method) -> tuple[str, ...]:
    return tuple(Outputs(method.result, method.metrics).names)


_shell_syntax = lru_cache(maxsize=1024)(shell_syntax)


@lru_cache(maxsize=1024)
def _words(command: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(shlex.split(command)) if isinstance(command, str) else command


@lru_cache(maxsize=1024)
def _keys(command: str | tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """The keys of placeholders, and those that are optional."""
    matches = [match for word in _words(command) for match in _PLACEHOLDER.finditer(word)]
    inner = (within[4] for match in matches if match[3] for within in _PLACEHOLDER.finditer(match[3]) if within[4])
    optional = {*(match[2] for match in matches if match[2]), *inner}
    return frozenset(match[4] for match in matches if match[4]), frozenset(optional)


def _filled(word: str, known: Mapping[str, Any], entry: Entry, what: str = "the command's") -> str | None:
    """The word with its placeholders filled; None where it is left out."""
    if _UNFINISHED.search(word):
        raise TemplateError(
            f"{entry.job_id}: {what} {shown(word)} lacks a }}: each word is optional by itself, as in "
            "{name?--name} {name?}"
        )
    is_optional = False

    def fill(match: re.Match[str]) -> str:
        nonlocal is_optional
        escaped, key = match[1], match[2] or match[4]
        if escaped is not None:
            is_ours = escaped in known or _WORD.fullmatch(escaped.partition("?")[0])
            return f"{{{escaped}}}" if is_ours else match[0]
        if match[2] is not None:
            if not _has_value(known.get(key)):
                is_optional = True
                return ""
            return _PLACEHOLDER.sub(fill, match[3] or f"{{{key}}}")
        if key in known:
            return _argument(key, known[key], entry)
        if not _WORD.fullmatch(key):
            return match[0]
        raise TemplateError(
            f"{entry.job_id}: {what} {shown(word)} has {match[0]}, which the entry does not have"
            f"{nearest(key, known)}; {braces_advice(key)}"
        )

    filled = _PLACEHOLDER.sub(fill, word)
    return None if is_optional and not filled else filled


def _has_value(value: object) -> bool:
    return text_of(value).strip().lower() not in _NO_VALUE


def braces_advice(key: str) -> str:
    """What to write where `{key}` is not meant as the value of a parameter: in awk, or in `${key}` of a shell."""
    return f"for the braces themselves write {{{{{key}}}}}"


def _argument(key: str, value: object, entry: Entry) -> str:
    text = text_of(value)
    if "\0" in text:
        raise TemplateError(f"{entry.job_id}: {key} = {shown(value)} holds a NUL character, which no argument can")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        problem = "holds half of a surrogate pair, which no argument can"
        raise TemplateError(f"{entry.job_id}: {key} = {text!a} {problem}") from None
    return text
