"""The tutorials, as a reader follows them: every file is laid where its name says, every command is run.

A block of code is the file that the line above it names (`jobs/one.py`:). In a `console` block a line that begins
with `$ ` is a command, and what follows is what it prints; a `pycon` block is a session of Python. `...` stands for
anything, and a number with a decimal point for one of its size. A command that is not shown to fail must not.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet import MAIN
from tiny_runs import environment

import dispatcher.runtime

TUTORIALS = Path(dispatcher.runtime.__file__).parent / "tutorials"
README = Path(__file__).parents[2] / "README.md"
# In whose workspace a tutorial goes on.
AFTER = {"3-analyse.md": "2-train-and-restore.md"}
LIMIT_S = 240
# What begins the line of an error that the page means to show.
ERROR = "dispatcher: "

_FENCE = re.compile(r"```(\w*)$")
_FILE = re.compile(r"`([\w./-]+)`:$")
# Of two runs on two machines; what is to be seen must not depend on more.
TOLERANCE = 0.25
_FLOAT = r"-?[0-9]+\.[0-9]*(?:e[-+]?[0-9]+)?"
_PIECES = re.compile(rf"(?P<anything>\.\.\.)|(?P<number>{_FLOAT})|(?P<rule>--+)|(?P<gap> +)")
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
    """Lines between fences, from `line` of the page on; `file` is the one that they are, if they are one."""

    kind: str
    line: int
    file: str | None
    text: str


def blocks(page: str) -> Iterator[Block]:
    lines = page.splitlines()
    start = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence and start is None:
            start, kind = number, fence[1]
            above = next((text for text in reversed(lines[:number]) if text.strip()), "")
            named = _FILE.match(above)
        elif fence and start is not None:
            yield Block(kind, start + 2, named[1] if named else None, "\n".join(lines[start + 1 : number]) + "\n")
            start = None
    assert start is None, f"the block that begins in line {start} does not end"


class Reader:
    """Somebody who does what a page says, in a folder of their own."""

    def __init__(self, home: Path, cache: Path) -> None:
        self.place = home
        self._home = home
        programs = home / "bin"
        programs.mkdir(parents=True)
        for name, words in (("dispatcher", ["-P", "-c", MAIN]), ("python", [])):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
            program.chmod(0o755)
        self._environment = environment(cache, PATH=f"{programs}:{os.environ['PATH']}", PYTHONUNBUFFERED="1")

    def follow(self, page: Path) -> None:
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.name}, line {block.line}"
            if block.file is not None:
                path = self.place / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.kind == "console":
                self._type(block.text, where)
            elif block.kind == "pycon":
                self._talk(block.text, where)
            else:
                raise AssertionError(f"{where}: a block that is no file, no commands and no session")

    def _type(self, text: str, where: str) -> None:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, wanted = part.partition("\n")
            place = self._home / "place"
            done = self._run(["bash", "-c", f"{command}\nstatus=$?\npwd > {shlex.quote(str(place))}\nexit $status"])
            self.place = Path(place.read_text().rstrip("\n"))
            assert _alike(wanted, done.stdout), (
                f"{where}: {command}\n--- it says\n{wanted}--- it printed\n{done.stdout}"
            )
            meant = any(line.startswith(ERROR) for line in wanted.splitlines())
            assert (done.returncode != 0) == meant, f"{where}: {command}: exit status {done.returncode}\n{done.stdout}"

    def _talk(self, text: str, where: str) -> None:
        examples = doctest.DocTestParser().get_examples(text)
        session = self._home / "session.json"
        session.write_text(json.dumps([example.source for example in examples]), encoding="utf-8")
        done = self._run([sys.executable, "-c", _SESSION, str(session), _ENDED.strip()], stderr=subprocess.PIPE)
        assert done.returncode == 0, f"{where}:\n{done.stdout}{done.stderr}"
        for example, got in zip(examples, done.stdout.split(_ENDED)[:-1], strict=True):
            assert _alike(example.want, got), (
                f"{where}: {example.source}--- it says\n{example.want}--- it printed\n{got}"
            )

    def _run(self, command: list[str], stderr: int = subprocess.STDOUT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.place, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=stderr, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip


def _alike(wanted: str, got: str) -> bool:
    """Whether `got` is what `wanted` says; a table may have wider or narrower columns."""
    wanted, got = ("".join(f"{line.rstrip()}\n" for line in text.splitlines()) for text in (wanted, got))
    patterns = {"anything": "(?s:.*)", "number": f"({_FLOAT})", "rule": "--+", "gap": " +"}
    numbers: list[float] = []
    pattern, end = "", 0
    for piece in _PIECES.finditer(wanted):
        kind = str(piece.lastgroup)
        pattern += re.escape(wanted[end : piece.start()]) + patterns[kind]
        numbers += [float(piece[0])] if kind == "number" else []
        end = piece.end()
    found = re.fullmatch(pattern + re.escape(wanted[end:]), got)
    return found is not None and [*map(float, found.groups())] == pytest.approx(numbers, rel=TOLERANCE)


class Readers:
    """One reader for each workspace; a page is followed once."""

    def __init__(self, root: Path, cache: Path) -> None:
        self._root = root
        self._cache = cache
        self._followed: dict[str, Reader] = {}

    def follow(self, name: str) -> Reader:
        if name not in self._followed:
            before = AFTER.get(name)
            reader = self.follow(before) if before else Reader(self._root / Path(name).stem, self._cache)
            reader.follow(TUTORIALS / name)
            self._followed[name] = reader
        return self._followed[name]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory, jax_cache: Path) -> Readers:
    return Readers(tmp_path_factory.mktemp("tutorials"), jax_cache)


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.name for path in TUTORIALS.glob("*.md")))
def test_a_tutorial_does_what_it_says(name: str, readers: Readers) -> None:
    readers.follow(name)


def test_the_readme_shows_what_the_tutorials_do() -> None:
    text = README.read_text(encoding="utf-8")
    section = text.partition("\n## Jobs in JAX\n")[2].partition("\n## ")[0]
    pages = {path.name: path.read_text(encoding="utf-8") for path in TUTORIALS.glob("*.md")}
    assert len(pages) >= 3
    for name in pages:
        assert f"(dispatcher/runtime/tutorials/{name})" in section, f"README.md does not lead to {name}"
    shown = list(blocks(section))
    assert shown
    for block in shown:
        assert any(block.text in page for page in pages.values()), f"no tutorial has this block:\n{block.text}"


@pytest.mark.parametrize(
    ("wanted", "got", "alike"),
    [
        ("a\n...c\n", "a \nb\nc\n", True),
        ("a\n", "a\nb\n", False),
        ("...\n", "\n", True),
        ("", "x\n", False),
        ("n   loss\n--  -----\n1   0.512\n", "n   loss\n--  ----\n1   0.46\n", True),
        ("n   loss\n--  -----\n1   0.512\n", "n   loss\n--  ----\n2   0.46\n", False),
        ("loss 0.512\n", "loss 0.8\n", False),
        ("[-1.5, 3.1e-05]\n", "[-1.51, 3.0e-05]\n", True),
    ],
)
def test_output_is_compared(wanted: str, got: str, alike: bool) -> None:
    assert _alike(wanted, got) is alike
