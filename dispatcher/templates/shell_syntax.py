"""Shell syntax in a command's text. No shell reads commands, so a command that needs one is refused.

Text in single quotes is literal, and so is a character after a backslash outside quotes.
"""

from __future__ import annotations

import shlex
from typing import Final

from dispatcher.base.lazy import pattern

_OPERATOR: Final = pattern(r"&&|\|\||;;|<<<|<<|>>|&>|[<>]&|[;&|<>()]|\$['\"]")
_EXPANSION: Final = pattern(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[^}]*\}?|\(|[0-9@*#?!$-])|`")
_ASSIGNMENT: Final = pattern(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_LINE_BREAK: Final = "a line break ends a command in a shell: write it on one line (in YAML after `command: >-`)"
_HOME: Final = pattern(r"~[A-Za-z0-9_.-]*(?=[/:=\s]|$)")
# Bash expands `~` also in an argument that looks like an assignment: `name=~`, `name=/a:~`.
_BEFORE_HOME: Final = pattern(
    r"(?:^|\s)[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?\+?=(?:(?:'[^']*'|\"[^\"]*\"|[^\s'\"])*:)?$"
)
# Builtins and keywords of the shell; programs of these names, which some systems have, do nothing useful.
_SHELL_WORD: Final = pattern(
    r"[.:!{}]|\[\[|source|cd|pushd|popd|export|unset|set|shopt|eval|exec|command|builtin|alias|unalias|declare|typeset|local"
    r"|readonly|let|shift|read|trap|wait|return|exit|ulimit|umask|hash|type|jobs|fg|bg|disown|history|enable|mapfile"
    r"|if|then|for|while|until|case|select|function|coproc|do|done"
)


def shell_syntax(command: str) -> str:
    """The first part of `command` that needs a shell, and why, as the end of a sentence; empty when there is none."""
    if found := _ASSIGNMENT.match(command.lstrip()):
        return f"{found[0]} before a program sets a variable only in a shell: write it under `env`"
    if found_inside := _outside_quotes(command):
        return found_inside
    words = shlex.split(command)
    if words and _SHELL_WORD.fullmatch(words[0]):
        return f"{words[0]} exists only in a shell"
    return ""


def _outside_quotes(text: str) -> str:
    place = 0
    quote = ""
    while place < len(text):
        character = text[place]
        if quote == "'":
            quote = "" if character == "'" else quote
        elif quote == '"' and character == '"':
            quote = ""
        elif expansion := _EXPANSION.match(text, place):
            return f"{expansion[0]} is expanded only by a shell (in single quotes it is text)"
        elif character == "\\":
            following = text[place + 1 : place + 2]
            if following == "\n" and not quote:
                return _LINE_BREAK
            if quote and following in ("$", "`", "\n"):
                return f"a backslash before {following!r} in double quotes counts only for a shell"
            # In double quotes shlex removes a backslash only before these two.
            place += not quote or following in ('"', "\\")
        elif quote:
            pass
        elif character in "'\"":
            quote = character
        elif problem := _bare(text, place):
            return problem
        place += 1
    return ""


def _bare(text: str, place: int) -> str:
    """The fault of the character at `place`, outside quotes; empty when there is none."""
    if operator := _OPERATOR.match(text, place):
        return f"{operator[0]} needs a shell"
    if text[place] == "\n" and text[:place].strip() and text[place:].strip():
        return _LINE_BREAK
    if text[place] == "*":
        return "* matches file names only in a shell (in single quotes it is text)"
    begins_word = place == 0 or text[place - 1].isspace()
    home = _HOME.match(text, place)
    if home and (begins_word or _BEFORE_HOME.search(text[:place])):
        return f"{home[0]} is expanded only by a shell: write the path in full"
    if begins_word and text[place] == "#":
        return "# begins a comment only in a shell"
    return ""
