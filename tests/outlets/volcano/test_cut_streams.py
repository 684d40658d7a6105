"""Streams of `kubectl exec` that are cut off although kubectl ends well, by a stand-in around the real one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from outlets.remote.calls import ask, unreached
from outlets.volcano.helpers import MOUNT, Site, archive

from dispatcher.outlets.remote.asking import carry_out
from dispatcher.outlets.remote.connection import Lane
from dispatcher.outlets.remote.operations import Hello, Run, Stored
from dispatcher.outlets.remote.programs import Program

pytestmark = pytest.mark.slow

# Cuts the output or the input of the next calls of exec; every other call is the real one's.
CUTTING = """#!/bin/bash
real={real}
left=$(cat {cuts})
if [[ " $* " != *" exec "* || $left == 0 ]]; then exec "$real" "$@"; fi
echo "$((left - 1))" > {cuts}
{cut}
exit 0
"""
OUTPUT = '"$real" "$@" | head -c 20'
INPUT = 'head -c 300000 | "$real" "$@"'


class Cutter:
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._real = shutil.which("kubectl")
        directory.mkdir()
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")

    def cut(self, what: str, times: int) -> None:
        (self._directory / "cuts").write_text(str(times))
        program = self._directory / "kubectl"
        program.write_text(CUTTING.format(real=self._real, cuts=self._directory / "cuts", cut=what))
        program.chmod(0o755)

    @property
    def left(self) -> int:
        return int((self._directory / "cuts").read_text())


@pytest.fixture
def cutter(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cutter:
    return Cutter(tmp_path / "shims", monkeypatch)


def test_an_answer_that_is_cut_off_is_asked_for_again(site: Site, cutter: Cutter) -> None:
    connection = site.connect()
    ask(connection, Hello())
    cutter.cut(OUTPUT, 1)
    assert ask(connection, Run(words=["echo", "yes"])).out == "yes\n"
    assert cutter.left == 0


def test_answers_that_are_always_cut_off_are_none(site: Site, cutter: Cutter) -> None:
    connection = site.connect()
    cutter.cut(OUTPUT, 2)
    assert "the stream ended before the answer was complete" in unreached(connection, [Hello()])
    assert site.jobs() == []
    ask(connection, Hello())


def test_half_of_an_archive_is_never_stored(site: Site, cutter: Cutter, tmp_path: Path) -> None:
    connection = site.connect()
    store = archive(tmp_path, 2)
    cutter.cut(INPUT, 1)
    failed = ask(connection, store, lane=Lane.TRANSFER)
    assert "the upload broke off" in failed.error
    assert list((site.volume / "code").iterdir()) == []
    assert ask(connection, store, lane=Lane.TRANSFER) == Stored()


def test_the_rest_of_a_log_is_whole_only_when_its_command_says_so(site: Site, cutter: Cutter) -> None:
    (site.volume / "a").mkdir()
    (site.volume / "a/output.log").write_bytes(b"line\n" * 100)
    transport = site.transport("logs")
    carry_out(transport.reach(60))
    cutter.cut(OUTPUT, 1)
    codes = []
    for expected in (b"line\n" * 4, b"line\n" * 100):
        program = Program(transport.rest_words(f"{MOUNT}/a", 0), limit_s=30)
        while (finished := program.poll()) is None:
            os.sched_yield()
        codes.append(finished.exit_code == 0)
        assert finished.out == expected
    assert codes == [False, True]
    transport.close()
