"""Completion, typed into a real bash on a terminal, and asked for as shells ask."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.matrix.condition import Where, literal
from dispatcher.query import known_words

RC = """
PS1='> '
eval "$(_DISPATCHER_COMPLETE=bash_source dispatcher)"
# In place of the command that was typed: what it would have been given.
show() { printf 'ARGS%s\\n' "$(printf '<%s>' "$@")"; }
bind 'set enable-bracketed-paste off'
"""
_BEGINNING, _END, _TAB = "\x01", "\x05", "\t"


class Bash:
    """An interactive bash, in the workspace."""

    def __init__(self, root: Path, home: Path) -> None:
        programs = home / "bin"
        programs.mkdir()
        program = programs / "dispatcher"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m dispatcher "$@"\n')
        program.chmod(0o755)
        (home / "rc").write_text(RC)
        self._terminal, theirs = pty.openpty()
        path = f"{programs}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": os.fspath(home), "TERM": "dumb", "INPUTRC": "/dev/null"}
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--rcfile", str(home / "rc"), "-i"], cwd=root, env=environment,
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def complete(self, typed: str) -> list[str]:
        """The words of the command after `typed` and a press of the tabulator key."""
        os.write(self._terminal, f"{typed}{_TAB}{_BEGINNING}show {_END}\n".encode())
        found = re.search(r"ARGS(<.*>)\r\n", self._read_until(rb"ARGS<.*>\r\n"))
        assert found is not None
        return found[1][1:-1].split("><")[1:]

    def _read_until(self, pattern: bytes) -> str:
        written, end_s = b"", time.monotonic() + 60
        while not re.search(pattern, written):
            assert time.monotonic() < end_s, written.decode()
            written += os.read(self._terminal, 65536)
        return written.decode()

    def close(self) -> None:
        os.write(self._terminal, b"\x15exit\n")
        self._process.wait(timeout=30)
        os.close(self._terminal)


@pytest.fixture
def bash(lab: Any, tmp_path: Path) -> Iterator[Bash]:
    home = tmp_path / "home"
    home.mkdir()
    made = Bash(lab.root, home)
    yield made
    made.close()


def test_in_bash(lab: Any, bash: Bash) -> None:
    lab.put("base", "done")
    lab.attempt("base", 1, result='{"test_bpc": 1.5}', exit='{"exit_code": 0}')
    lab.put("fft_german_s1", "failed", reason="out of memory")
    expected = {
        "status --where la": ["status", "--where", "lang="],
        "status --where lang=gre": ["status", "--where", "lang=gre"],
        "status --where lang=ge": ["status", "--where", "lang=german"],
        "status --where lang=spanish,ge": ["status", "--where", "lang=spanish,german"],
        "status --where lang!=ge": ["status", "--where", "lang!=german"],
        "status --where 'lang=ge": ["status", "--where", "lang=german"],
        "status --where=lang=ge": ["status", "--where=lang=german"],
        "status --where lang=ge --state fai": ["status", "--where", "lang=ge", "--state", "failed"],
        "requeue --where reason=out": ["requeue", "--where", "reason=out of memory"],
        'requeue --where "reason=out': ["requeue", "--where", "reason=out of memory"],
        "hold --where state=q": ["hold", "--where", "state=queued"],
        "matrix show --where method=lo": ["matrix", "show", "--where", "method=lora"],
        "status --by lang,se": ["status", "--by", "lang,seed"],
        "results --rows la": ["results", "--rows", "lang"],
        "results --value te": ["results", "--value", "test_bpc"],
        "--pod p --methods fft,lo": ["--pod", "p", "--methods", "fft,lora"],
        "--pod p --where lang=sp": ["--pod", "p", "--where", "lang=spanish"],
        "hold fft_spanish_s2": ["hold", "fft_spanish_s2"],
        "pause pre": ["pause", "pretrain"],
    }
    assert {typed: bash.complete(f"dispatcher {typed}") for typed in expected} == expected
    # After a key no space is written: the value follows.
    assert bash.complete("dispatcher status --where la\tsp")[-1] == "lang=spanish"


def asked(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What bash is answered when the last of these words is to be completed."""
    variables = {"COMP_WORDS": "\n".join(["dispatcher", *words]), "COMP_CWORD": str(len(words))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "dispatcher"], cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, **variables, "_DISPATCHER_COMPLETE": "bash_complete"},
    )  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_words_as_other_programs_give_them(lab: Any, shell: str) -> None:
    """In one line; and zsh and fish do not end a word at `=`."""
    variables = {"COMP_WORDS": "dispatcher status --where lang=ge", "COMP_CWORD": "lang=ge" if shell == "fish" else "3"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dispatcher"], cwd=lab.root, capture_output=True, text=True, check=False,
        env={**os.environ, **variables, "_DISPATCHER_COMPLETE": f"{shell}_complete"},
    )  # fmt: skip
    assert "lang=german" in re.split(r"[,\s]", done.stdout)


QUESTIONS = [
    ("status", "--where", ""),
    ("status", "--where", "lang", "=", "g"),
    ("status", "--by", ""),
    ("results", "--value", ""),
    ("--methods", ""),
    ("show", ""),
    ("undrain", ""),
    ("pause", ""),
    ("unpause", ""),
]


@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_errors_are_silent(lab: Any, tmp_path: Path, words: tuple[str, ...]) -> None:
    def break_manifest() -> None:
        lab.layout.default_matrix.write_text('[{"job_id": ')

    def break_status_file() -> None:
        lab.layout.status_file.write_bytes(b"\xff{")

    def break_config() -> None:
        lab.layout.config_file.write_text("lokc: 3\n")

    lab.put("base", "done")
    outside = tmp_path / "outside"
    outside.mkdir()
    assert (asked(outside, *words).stdout.strip(), asked(outside, *words).stderr) == ("", "")
    assert list(outside.iterdir()) == []
    breaks: list[Callable[[], None]] = [break_manifest, break_status_file, break_config]
    for break_it in breaks:
        break_it()
        done = asked(lab.root, *words)
        assert (done.returncode, done.stderr) == (0, "")


def test_words_of_all_files(lab: Any) -> None:
    other = {"x": {"method": "mlp", "width": 3}, "y": {"method": "mlp", "width": [1, 2], "state": "odd"}}
    (lab.layout.matrix_dir / "other.json").write_text(json.dumps(other))
    lab.put("gone", "failed", reason="exit 1")
    config = lab.workspace.config
    assert known_words.keys(config)[:5] == ["method", "lang", "seed", "needs", "width"]
    assert "job_id" not in known_words.keys(config)
    assert known_words.values(config, "width") == ["3", "[1, 2]"]
    assert known_words.values(config, "method") == ["fft", "lora", "mlp", "pretrain"]
    assert known_words.values(config, "reason") == ["exit 1"]
    assert known_words.values(config, "nobody has it") == []
    assert {"base", "gone", "x", "y"} <= set(known_words.job_ids(config))
    assert known_words.result_keys(config) == []


@pytest.mark.parametrize("value", ["greek", "a,b", "[1, 2]", "what?*", "exit 1, signal", "[a", "[", "{", '"a', '"a, b'])
def test_a_completed_value_matches_itself_only(value: str) -> None:
    where = Where.parse([f"key={literal(value)}"])
    assert where.holds(lambda _: value)
    assert not where.holds(lambda _: f"{value}x")
