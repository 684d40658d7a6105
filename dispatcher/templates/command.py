"""Command lines: words first, values afterwards, so that a value is always exactly one argument.

A command in text form is split like a shell line and only then are placeholders filled. No shell sees the result, so
text that needs one is refused. `{key}` is a value of the entry, `{script}` the rendered training script, `{python}` the
method's interpreter; with one of its own the method also means that by a first word `python` or `python3`. `{{key}}`
stands for `{key}` itself; braces around anything that is no key and no plain word stay as they are, so that JSON or awk
need no care.
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

OWN_PLACEHOLDERS: Final = ("script", "python")

# What runs an entry with a `job`. Without -P everything in the workspace's root could stand in for a library.
_RUN_JOB: Final = ("{python}", "-P", "-m", "dispatcher.runtime", "attempt")

_WAYS: Final = 'use `setup` or `python` under the method in dispatcher.yaml, or a list: ["bash", "-c", "..."]'


def command_line(method: Method, entry: Entry, script: Path) -> list[str]:
    """The arguments that start `entry`; TemplateError names the entry and the word that cannot be filled.

    Text values arrive as they are, all others as JSON (`true`, `0.5`, `[1, 2]`, `null`).
    """
    check_command(method, entry)
    python = os.fspath(interpreter(method.python))
    known = {**entry.document(), "python": python, "script": os.fspath(script)}
    line = [_filled(word, known, entry) for word in _words(_command(method, entry))]
    if method.python is not None and line[0] in ("python", "python3"):
        line[0] = python
    return line


def check_command(method: Method, entry: Entry) -> None:
    """TemplateError when the entry's command needs a shell; names the method where the command is the method's."""
    problem = shell_problem(method, entry)
    if problem:
        raise TemplateError(f"{entry.job_id if entry.command is not None else f'method {method.name}'}: {problem}")


def shell_problem(method: Method, entry: Entry) -> str:
    """What in the entry's command needs a shell, and what to write instead; empty when nothing does."""
    command = _command(method, entry)
    problem = _shell_syntax(command) if isinstance(command, str) else ""
    return problem and f"command = {shown(command)}: {problem}, and no shell reads it: {_WAYS}"


def unfilled(method: Method, entry: Entry) -> list[str]:
    """The placeholders of the entry's command that the entry does not say."""
    keys = _keys(_command(method, entry))
    return [key for key in sorted(keys) if _WORD.fullmatch(key) and key not in OWN_PLACEHOLDERS and not entry.says(key)]


def placeholders(method: Method, entry: Entry) -> frozenset[str]:
    """The keys that the entry's command names."""
    return _keys(_command(method, entry))


def uses_script(method: Method, entry: Entry) -> bool:
    """Whether the entry's command runs a rendered training script; without one, it needs no template."""
    return "script" in _keys(_command(method, entry))


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
            f"{entry.job_id}: the command's {shown(word)} has {match[0]}, which the entry does not say"
            f"{nearest(match[2], known)}; for the braces themselves write {{{match[0]}}}"
        )

    return _PLACEHOLDER.sub(fill, word)


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
