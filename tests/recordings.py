"""What real programs printed, as tests/outlets/record_slurm.py has recorded it."""

from __future__ import annotations

import shlex
from pathlib import Path

from dispatcher.outlets.remote.operations import Ran

RECORDED = Path(__file__).parent / "outlets" / "recorded"
_COMMAND, _STDERR, _STATUS = "$ ", "stderr: ", "exit status: "


def written(words: list[str], ran: Ran) -> str:
    """One command and its answer, as text."""
    lines = [_COMMAND + shlex.join(words), *ran.out.splitlines(), *(_STDERR + line for line in ran.err.splitlines())]
    return "\n".join([*lines, f"{_STATUS}{ran.exit_code}", ""])


def answers(kind: str, moment: str) -> list[tuple[list[str], Ran]]:
    """The commands of one file, in order, and what they were answered."""
    found: list[tuple[list[str], Ran]] = []
    words: list[str] = []
    out: list[str] = []
    err: list[str] = []
    for line in (RECORDED / kind / f"{moment}.txt").read_text().splitlines():
        if line.startswith(_COMMAND):
            words, out, err = shlex.split(line.removeprefix(_COMMAND)), [], []
        elif line.startswith(_STATUS):
            texts = ["".join(f"{each}\n" for each in lines) for lines in (out, err)]
            found.append((words, Ran(exit_code=int(line.removeprefix(_STATUS)), out=texts[0], err=texts[1])))
        elif line.startswith(_STDERR):
            err.append(line.removeprefix(_STDERR))
        else:
            out.append(line)
    return found


def moments(kind: str) -> list[str]:
    return sorted(file.stem for file in (RECORDED / kind).glob("*.txt"))
