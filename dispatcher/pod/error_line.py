"""The line of a job's log that shows what went wrong. Pure.

The last line that looks like an error is used, of several processes that of the one that failed first: what the others
print when they are ended for it is a consequence. If there is none, there is no error line: the last line of a log is
usually progress, which does not explain the failure and looks alike in all jobs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dispatcher.base.lazy import pattern

_LINES: Final = 50
_WIDTH: Final = 300
_TRACEBACK: Final = "Traceback (most recent call last):"
# `error: 0.21` and `MeanSquaredError=0.2` are metrics.
_NO_METRIC: Final = r"(?!s?\s*[:=]?\s*[-+]?\d*\.\d)"
# Spelled as Python, compilers and command-line tools spell errors.
_STRONG: Final = pattern(
    rf"\b[\w.]*(?:Error|Exception|Interrupt)\b{_NO_METRIC}|\b(?:[Ee]rror|ERROR|[Ff]atal|FATAL|[Pp]anic):{_NO_METRIC}"
)
_WEAK: Final = pattern(
    rf"\b(?:error|fatal|panic(?:ked)?|failed|failure|aborted|segmentation fault|core dumped|bus error|terminate called"
    rf"|RESOURCE_EXHAUSTED|out of memory|std::bad_alloc|no space left|command not found|no such file or directory"
    rf"|permission denied|cannot (?:open|execute|find|allocate|load)|undefined symbol|killed)\b{_NO_METRIC}",
    re.I,
)
# What `dispatcher job run` prints of an error that needs no traceback, such as that of a setting; not what a wrapper or
# a node tells of itself.
_OWN: Final = pattern(r"^dispatcher: (?!warning: |note: )")
_OWN_NOTE: Final = pattern(r"^dispatcher: (?:warning|note): ")
# bash adds a second line to its message about what it cannot start, which has no cause: `bash: line 1: x: Success`.
_ECHO: Final = pattern(r": Success$")
# The first end that a launcher of several processes tells of: srun, pbs_nodes.sh and volcano_nodes.sh.
_FIRST_END: Final = pattern(
    r"^(?:srun: error: \S+: tasks? [\d,-]+: |dispatcher: error: (?!setup:)(?:pod \d+|\S+): exit status \d+$)"
)
# SLURM tells every process that it ends so, whatever the cause was; with one it says `DUE TO`.
_ENDED_BY_SLURM: Final = pattern(r"^slurmstepd\S*: error: \*\*\* (?:STEP|JOB) .* CANCELLED AT \S+ \*\*\*$")
_NO_ERROR: Final = pattern(r"\b(?:no|without|0) (?:errors?|failures?)\b", re.I)
# tqdm's bars, and lines that begin with progress: `step 120/1000 loss 2.3`, `[12/300]`, `Epoch 3: ...`.
_PROGRESS: Final = pattern(
    r"\d%\||\d\s?(?:it|steps?|samples|tokens|ex)/s\b|\ds/it\b"
    r"|^\W*(?:(?:train|eval|val|valid|validation|test)\w*\W+)?(?:global_)?(?:step|epoch|iter|iteration|batch|update)s?\b\W*\d"
    r"|^\W*\d+\s*/\s*\d+\b|^\W*\d+(?:\.\d+)?\s?%",
    re.I,
)
# A job in a Python that could not be asked beforehand, such as that of a container.
_NO_PACKAGE: Final = pattern(r"No module named 'dispatcher'\)?$")
_INSTALL: Final = "; install the package dispatcher into the Python that runs the job"


def until_first_end(lines: Sequence[str]) -> Sequence[str]:
    """These lines up to that by which a launcher of several processes tells that the first one has failed; else all."""
    ends = (number for number, line in enumerate(lines, 1) if _FIRST_END.search(line))
    return lines[: next(ends, len(lines))]


def last_error_line(lines: Sequence[str]) -> str | None:
    """The last of these lines that looks like an error, with what to do if that is known; None when none does.

    That of a launcher about the end of a process counts where no other does.
    """
    lines = [line.rstrip() for line in lines if line.strip()][-_LINES:]
    ends = _ends_of_tracebacks(lines)
    for number in range(len(lines) - 1, -1, -1):
        if number in ends or _looks_like_error(lines[number]):
            line = lines[number].strip()[:_WIDTH]
            return f"{line}{_INSTALL}" if _NO_PACKAGE.search(line) else line
    return next((line[:_WIDTH] for line in lines if _FIRST_END.search(line)), None)


def last_line(lines: Sequence[str], but: str = "") -> str | None:
    """The last line of the job that is not blank, and does not begin with `but`."""
    found = (line for line in reversed(lines) if line.strip() and not _OWN_NOTE.search(line))
    return next((line.strip()[:_WIDTH] for line in found if not (but and line.startswith(but))), None)


def _looks_like_error(line: str) -> bool:
    if any(pattern.search(line) for pattern in (_OWN_NOTE, _ECHO, _FIRST_END, _ENDED_BY_SLURM)):
        return False
    if _STRONG.search(line) or _OWN.search(line):
        return True
    return bool(_WEAK.search(line)) and not _PROGRESS.search(line) and not _NO_ERROR.search(line)


def _ends_of_tracebacks(lines: Sequence[str]) -> set[int]:
    """The indices of the lines that end a traceback, such as `KeyError: 0.5`. Prefixes of log lines are allowed."""
    ends = set()
    for begin, line in enumerate(lines):
        prefix, found, _ = line.partition(_TRACEBACK)
        if not found:
            continue
        for number in range(begin + 1, len(lines)):
            rest = lines[number].removeprefix(prefix)
            if rest and not rest[0].isspace():
                ends.add(number)
                break
    return ends
