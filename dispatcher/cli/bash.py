"""Completion in bash, where `=` and `:` end a word: `--where lang=gr` arrives as four words, not as two.

click would complete `gr` as if it stood alone. So the words are joined again, and bash gets only what follows the last
`=` or `:`, because it replaces no more than that. Values with spaces are quoted, and no space follows a key.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, Final

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

# As click's, except that `compopt` keeps bash from adding a space after `key=`.
_SOURCE: Final = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local response completion type value
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
%(complete_var)s=bash_complete $1 2>/dev/null)
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("$value")
            [[ $value != *= ]] || compopt -o nospace
        fi
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_BREAKS: Final = frozenset("=:")


class _JoiningBashComplete(BashComplete):
    """Joins what bash has split."""

    source_template = _SOURCE
    # What bash does not replace of the word, and whether the user has begun it with a quote.
    _kept = ""
    _is_quoted = False

    def get_completion_args(self) -> tuple[list[str], str]:
        cword = int(os.environ["COMP_CWORD"])
        given = os.environ["COMP_WORDS"]
        # On lines of their own as bash has them, else as they were typed.
        written = (given.split("\n") if "\n" in given else split_arg_string(given))[: cword + 1]
        written += [""] * (cword + 1 - len(written))
        words: list[str] = []
        joins = False
        for one in written:
            is_break = bool(one) and _BREAKS.issuperset(one)
            if words and (is_break or joins):
                self._kept = words[-1] + (one if is_break else "")
                words[-1] += one
            else:
                self._kept = ""
                words.append(one)
            joins = is_break
        self._is_quoted = written[-1].startswith(("'", '"'))
        if self._kept.startswith("--"):
            # click completes the value of `--where=lang=gr` alone.
            self._kept = self._kept.partition("=")[2]
        *args, incomplete = (_unquoted(word) for word in words)
        return args[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        value = item.value.removeprefix(self._kept)
        return f"{item.type},{value if self._is_quoted or item.type != 'plain' else shlex.quote(value)}"


def _unquoted(word: str) -> str:
    """A word without its quotes, which may not be closed yet."""
    return "".join(split_arg_string(word))


def use() -> None:
    """Let click complete for bash in this way."""
    add_completion_class(_JoiningBashComplete)
