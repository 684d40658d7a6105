"""Pages of the documentation, as a reader follows them: every file is laid where its name says, every command is run.

A block of code is the file that the line above it names (`jobs/one.py`:). In a `console` block a line that begins
with `$ ` is a command, and what follows is what it prints; a `pycon` block is a session of Python. A command that is
not shown to fail must not.

In what is printed `...` stands for anything; a number with a decimal point stands for one of its size; a date, a time
of day, a duration, hours of slots, a rate, a progress (`23% 46/200`) and a pid of five digits or more for any other.
The reader's home is HOME, and the reader is READER.

A block that cannot be run here has a comment above it, which readers of the page do not see, with one of the reasons in
REASONS: `<!-- not run: another host -->`. It is parsed nevertheless, and a dispatcher.yaml among them is checked.
"""

from __future__ import annotations

import ast
import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fleet import MAIN, processes_with

from dispatcher.base import yaml_text
from dispatcher.base.users import user_name
from dispatcher.config import load_config
from dispatcher.errors import ConfigError
from dispatcher.workspace import Layout

# Why a block is not run.
REASONS = {
    "another host": "needs further hosts, or ssh, a scheduler or a cloud",
    "installs": "downloads packages",
    "terminal": "needs a person at a terminal, or goes on until it is interrupted",
    "GPUs": "needs GPUs",
    "elsewhere": "is run by a test of its own, or on another page",
    "form": "shows the form of something: not a whole file, not what a command prints",
}
ROOT = Path(__file__).parent.parent
HOME = "/home/ada"
READER = "ada"
LIMIT_S = 240
# What begins the line of an error that the page means to show.
ERROR = "dispatcher: "
# Every process that a reader starts has this in its environment.
MARK = "READER_OF_A_PAGE"

_FENCE = re.compile(r" *```(\w*)$")
_FILE = re.compile(r"(?:.*\s)?`([\w./-]+)`:$")
_COMMENT = re.compile(r"<!-- not run: (.+) -->$")
# Of two runs on two machines; what is to be seen must not depend on more.
TOLERANCE = 0.25
_FLOAT = r"-?[0-9]+\.[0-9]*(?:e[-+]?[0-9]+)?"
_DURATION = r"\b(?:[0-9]+(?:\.[0-9]+)? ?(?:ms|s|min|m|h|d)){1,2}\b"
# Of attempts that were as long as their processes.
_HOURS = r"\b[0-9.,]+ (?:slot-hours|wall time)"
_PROGRESS = r"\b[0-9]+% [0-9]+/[0-9]+"
_RATE = r"\b[0-9.,]+ jobs/h"
_TIME = r"\b(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[T ])?[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?Z?\b"
# What stands for others of its kind, and a pattern for these; the rest stands for itself.
_KINDS = {
    "anything": (r"\.\.\.", "(?s:.*)"),
    "time": (_TIME, _TIME),
    "progress": (_PROGRESS, _PROGRESS),
    "rate": (_RATE, _RATE),
    "duration": (_DURATION, _DURATION),
    "hours": (_HOURS, _HOURS),
    "number": (_FLOAT, f"({_FLOAT})"),
    "pid": (r"(?<=pid) +[0-9]+|\b[0-9]{5,7}\b", " *[0-9]+"),
    "rule": ("--+", "--+"),
    "gap": (" +", " +"),
}
_PIECES = re.compile("|".join(f"(?P<{kind}>{wanted})" for kind, (wanted, _) in _KINDS.items()))
# Runs what stands in the file, a list of statements, and says after each of them that it has ended.
_SESSION = """
import json, sys
names = {}
for source in json.load(open(sys.argv[1])):
    exec(compile(source, "<session>", "single"), names)
    print(sys.argv[2], flush=True)
"""
_ENDED = "--- ended ---\n"


@dataclass(frozen=True)
class Block:
    """Lines between fences, from `line` of the page on; `file` is the one that they are, if they are one.

    `not_run` is the reason why it is not run, if it is not.
    """

    kind: str
    line: int
    file: str | None
    not_run: str | None
    text: str


def blocks(page: str) -> Iterator[Block]:
    lines = page.splitlines()
    start = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence and start is None:
            start, kind = number, fence[1]
            above = [text for text in lines[max(0, number - 5) : number] if text.strip()]
            comment = _COMMENT.match(above[-1]) if above else None
            if comment:
                above.pop()
            named = _FILE.match(above[-1]) if above else None
        elif fence and start is not None:
            indent = len(lines[start]) - len(lines[start].lstrip())
            text = "".join(f"{one[indent:]}\n" for one in lines[start + 1 : number])
            yield Block(kind, start + 2, named[1] if named else None, comment[1] if comment else None, text)
            start = None
    assert start is None, f"the block that begins in line {start} does not end"


def class_of_page(page: Path, name: str, **names: Any) -> Any:
    """The class `name` as `page` writes it, in a module that has `names`."""
    (block,) = [each for each in blocks(page.read_text(encoding="utf-8")) if f"class {name}(" in each.text]
    exec(block.text, names)
    return names[name]


class Reader:
    """Somebody who does what a page says, in a home of their own."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.place = home
        self._home = home
        programs = home / "bin"
        programs.mkdir(parents=True)
        for name, words in (("dispatcher", ["-P", "-c", MAIN]), ("python", [])):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
            program.chmod(0o755)
        self._environment = {
            **environment,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            MARK: str(home),
        }

    def follow(self, page: Path) -> None:
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.name}, line {block.line}"
            if block.not_run is not None:
                assert block.not_run in REASONS, f"{where}: not run: {block.not_run}: expected one of {list(REASONS)}"
                check_syntax(block, where)
                self._install(block.text)
            elif block.file is not None:
                path = self.place / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.kind == "console":
                self._type(block.text, where)
            elif block.kind == "pycon":
                self._talk(block.text, where)
            else:
                raise AssertionError(f"{where}: a block that is no file, no commands and no session")

    def _install(self, text: str) -> None:
        """Make the environments that a block installs into, with this checkout in them: a download may fail."""
        for pip in re.findall(r"(\S+)/bin/pip install", text):
            self._run([sys.executable, "-m", "venv", "--without-pip", pip])
            for packages in (self.place / pip).glob("lib/python*/site-packages"):
                (packages / "checkout.pth").write_text(f"{ROOT}\n")

    def running(self) -> list[int]:
        """The pids of what the page has started and not ended."""
        return [*processes_with(MARK, str(self._home))]

    def _type(self, text: str, where: str) -> None:
        assert text.startswith("$ "), f"{where}: expected a line that begins with `$ `"
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            lines = part.splitlines(keepends=True)
            last = next(number for number, line in enumerate(lines) if not line.endswith("\\\n"))
            command, wanted = "".join(lines[: last + 1]), "".join(lines[last + 1 :])
            place = self._home / "place"
            done = self._run(["bash", "-c", f"{command}\nstatus=$?\npwd > {shlex.quote(str(place))}\nexit $status"])
            self.place = Path(place.read_text().rstrip("\n"))
            self._expect(wanted, done.stdout, f"{where}: {command}")
            self._expect_status(wanted, done, f"{where}: {command}")

    def _expect(self, wanted: str, output: str, where: str) -> None:
        printed = output.replace(str(self._home), HOME)
        # In JSON, in a line of its own, and as the last column of a table.
        me = rf'^(user +|.*"user": "|.*  ){re.escape(user_name())}(?="|$)'
        printed = re.sub(me, rf"\1{READER}", printed, flags=re.MULTILINE)
        assert alike(wanted, printed), f"{where}\n--- it says\n{wanted}--- it printed\n{printed}"

    def _expect_status(self, wanted: str, done: subprocess.CompletedProcess[str], where: str) -> None:
        meant = any(line.startswith(ERROR) for line in wanted.splitlines())
        assert (done.returncode != 0) == meant, f"{where}: exit status {done.returncode}\n{done.stdout}"

    def _talk(self, text: str, where: str) -> None:
        examples = doctest.DocTestParser().get_examples(text)
        session = self._home / "session.json"
        session.write_text(json.dumps([example.source for example in examples]), encoding="utf-8")
        done = self._run([sys.executable, "-c", _SESSION, str(session), _ENDED.strip()], stderr=subprocess.PIPE)
        assert done.returncode == 0, f"{where}:\n{done.stdout}{done.stderr}"
        for example, got in zip(examples, done.stdout.split(_ENDED)[:-1], strict=True):
            self._expect(example.want, got, f"{where}: {example.source}")

    def _run(self, command: list[str], stderr: int = subprocess.STDOUT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.place, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=stderr, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip


def first_column(page: str, after: str) -> set[str]:
    """What stands between backticks in the first column of the table that follows `after` in the text of a page."""
    rest = page.partition(after)[2]
    assert rest, f"the page has no {after!r}"
    table = re.search(r"^\|.*?(?=^[^|])", rest, re.DOTALL | re.MULTILINE)
    assert table
    cells = [row.split("|")[1] for row in table[0].splitlines()[2:]]
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


def check_syntax(block: Block, where: str) -> None:
    """Fail unless a block that is not run can be read in its language, and a dispatcher.yaml by the dispatcher."""
    try:
        if block.kind == "python":
            ast.parse(block.text)
        elif block.kind == "json":
            json.loads(block.text)
        elif block.kind == "yaml":
            document = yaml_text.load(block.text)
            if isinstance(document, dict) and {"hosts", "clusters"} & document.keys():
                check_config(block.text)
        elif block.kind in ("sh", "console"):
            commands = re.findall(r"^\$ (.*)$", block.text, re.MULTILINE) if block.kind == "console" else [block.text]
            subprocess.run(["bash", "-n"], input="\n".join(commands), check=True, text=True, capture_output=True)
    except (SyntaxError, ValueError, ConfigError, subprocess.CalledProcessError) as error:
        raise AssertionError(f"{where}: {error}\n{getattr(error, 'stderr', '')}") from None


def check_config(text: str) -> None:
    """Raise ConfigError unless the text can be a workspace's dispatcher.yaml."""
    with tempfile.TemporaryDirectory() as directory:
        layout = Layout(directory)
        layout.config_file.write_text(text, encoding="utf-8")
        load_config(layout)


def alike(wanted: str, got: str) -> bool:
    """Whether `got` is what `wanted` says; a table may have wider or narrower columns."""
    wanted, got = ("".join(f"{line.rstrip()}\n" for line in text.splitlines()) for text in (wanted, got))
    numbers: list[float] = []
    pattern, end = "", 0
    for piece in _PIECES.finditer(wanted):
        kind = str(piece.lastgroup)
        pattern += re.escape(wanted[end : piece.start()]) + _KINDS[kind][1]
        numbers += [float(piece[0])] if kind == "number" else []
        end = piece.end()
    found = re.fullmatch(pattern + re.escape(wanted[end:]), got)
    return found is not None and [*map(float, found.groups())] == pytest.approx(numbers, rel=TOLERANCE)
