"""What is recorded of real repositories and attempts, for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from dispatcher.provenance.code import Code, CodeReader
from dispatcher.provenance.collector import Collector
from dispatcher.provenance.origin import Origin
from dispatcher.provenance.read import read_provenance
from dispatcher.provenance.record import GitState, HostFacts, Provenance
from dispatcher.workspace import Layout

DEADLINE_S = 30.0


def look(layout: Layout) -> Code:
    """The code as a new reader finds it."""
    return CodeReader(layout).read(DEADLINE_S)


def state(layout: Layout) -> GitState:
    """The code, of which something must be known."""
    code = look(layout)
    assert code.state is not None, code.problems
    return code.state


def an_origin(layout: Layout, job: str, number: int, **words: object) -> Origin:
    """An attempt on this host, whose directory is there."""
    directory = layout.attempt(job, number).directory
    directory.mkdir(parents=True, exist_ok=True)
    plain = Origin(directory=os.fspath(directory), command=("true",), host=HostFacts(host="here"), path="/usr/bin:/bin")
    return msgspec.structs.replace(plain, **words)


def recorded(layout: Layout, **words: object) -> Provenance | None:
    """What a collector of its own records of an attempt of `a`."""
    origin = an_origin(layout, "a", 1, **words)
    collector = Collector(layout)
    collector.note([origin])
    collector.close(60)
    return read_provenance(layout, "a", 1)


def counting_git(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a git on PATH that notes what it is asked and asks the real one; the file with its notes."""
    real, notes = subprocess.check_output(["which", "git"], text=True).strip(), directory / "calls"
    folder = directory / "bin"
    folder.mkdir()
    script = '#!/bin/bash\nwords=("$@"); while [[ $1 == -c ]]; do shift 2; done\n'
    script += f'[[ $1 != -C ]] || shift 2\necho "$1" >>{notes}\nexec {real} "${{words[@]}}"\n'
    (folder / "git").write_text(script)
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    notes.touch()
    return notes
