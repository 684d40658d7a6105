"""Command lines: a command is split into words before values are filled in, so a value is always one argument.

A command given as text is split like a shell line, and then placeholders are filled. No shell reads the result, so
syntax that needs a shell is refused. `{key}` is a value of the entry, `{script}` the rendered training script,
`{python}` the method's interpreter; a method with its own interpreter also uses it for a first word `python` or
`python3`. `{{key}}` is the literal text `{key}`; braces around anything other than a key or a plain word are kept, so
JSON and awk programs need no escaping.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from dispatcher.base.values import shown, text_of
from dispatcher.config import Method, interpreter
from dispatcher.errors import TemplateError, nearest
from dispatcher.matrix.entry import Entry
from dispatcher.templates.shell_syntax import shell_syntax

_PLACEHOLDER = re.compile(r"\{\{([^{}]+)\}\}|\{([^{}]+)\}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

_PYTHONS: Final = ("python", "python3")
OWN_PLACEHOLDERS: Final = ("script", "python")

# The command of an entry with `job`. Without -P any file in the workspace's root could shadow a library.
_RUN_JOB: Final = ("{python}", "-P", "-m", "dispatcher.runtime", "attempt")

_WAYS: Final = 'use `setup` or `python` under the method in dispatcher.yaml, or a list: ["bash", "-c", "..."]'


def command_line(method: Method, entry: Entry, script: Path, python: str = "") -> list[str]:
    """The arguments that start `entry`; TemplateError names the entry and the word that cannot be filled.

    Text values are passed unchanged, all others as JSON (`true`, `0.5`, `[1, 2]`, `null`). `python` is the interpreter
    where it is not the method's on this host.
    """
    check_command(method, entry)
    python = python or os.fspath(interpreter(method.python))
    known = {**entry.document(), "python": python, "script": os.fspath(script)}
    line = [_filled(word, known, entry) for word in _words(_command(method, entry))]
    if method.python is not None and line[0] in _PYTHONS:
        line[0] = python
    return line


def check_command(method: Method, entry: Entry) -> None:
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
    keys = _keys(_command(method, entry))
    return [key for key in sorted(keys) if _WORD.fullmatch(key) and key not in OWN_PLACEHOLDERS and not entry.has(key)]


def placeholders(method: Method, entry: Entry) -> frozenset[str]:
    """The keys of the placeholders in the entry's command."""
    return _keys(_command(method, entry))


def uses_script(method: Method, entry: Entry) -> bool:
    """Whether the entry's command runs a rendered training script; otherwise it needs no template."""
    return "script" in _keys(_command(method, entry))


def runs_python(method: Method) -> bool:
    """Whether the method's command is a script or a module that the method's interpreter runs."""
    first = next(iter(_words(method.command)), "")
    return first == "{python}" or (method.python is not None and first in _PYTHONS)


def _command(method: Method, entry: Entry) -> str | tuple[str, ...]:
    if entry.command is not None:
        return entry.command
    return method.command if entry.job is None else _RUN_JOB


_shell_syntax = lru_cache(maxsize=1024)(shell_syntax)


@lru_cache(maxsize=1024)
def _words(command: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(shlex.split(command)) if isinstance(command, str) else command


@lru_cache(maxsize=1024)
def _keys(command: str | tuple[str, ...]) -> frozenset[str]:
    return frozenset(match[2] for word in _words(command) for match in _PLACEHOLDER.finditer(word) if match[2])


def _filled(word: str, known: Mapping[str, Any], entry: Entry) -> str:
    def fill(match: re.Match[str]) -> str:
        if match[1] is not None:
            return f"{{{match[1]}}}" if match[1] in known or _WORD.fullmatch(match[1]) else match[0]
        if match[2] in known:
            return _argument(match[2], known[match[2]], entry)
        if not _WORD.fullmatch(match[2]):
            return match[0]
        raise TemplateError(
            f"{entry.job_id}: the command's {shown(word)} has {match[0]}, which the entry does not have"
            f"{nearest(match[2], known)}; {braces_advice(match[2])}"
        )

    return _PLACEHOLDER.sub(fill, word)


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
