"""Standard streams that are closed, full or read by nobody."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import commands
import pytest
from fleet import COMMAND

from dispatcher.errors import StorageError
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.states import State

_POD = ("--pod", "p", "--slots", "1", "--until-empty")


def _run(root: Path, *arguments: str, shell: str = "", **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, "--root", str(root), *arguments]
    if shell:
        command = ["bash", "-c", f'exec "$@" {shell}', "bash", *command]
    return commands.run(command, stderr=subprocess.PIPE, timeout=60, check=False, **options)


@pytest.fixture
def small(lab: Any) -> Any:
    lab.write_manifest([{"job_id": f"job{n}", "method": "m", "command": "true"} for n in range(2)])
    return lab


def _states(lab: Any) -> set[State]:
    return {record.state for record in lab.workspace.snapshot().records.values()}


def test_a_pod_whose_log_does_not_fit_on_the_disk_goes_on(small: Any) -> None:
    with open("/dev/full", "wb") as full:
        ended = _run(small.root, *_POD, stdout=full)
    assert _states(small) == {State.DONE}
    assert b"Traceback" not in ended.stderr


def test_a_pod_whose_reader_has_gone_goes_on(small: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as nobody_reads:
        ended = _run(small.root, *_POD, stdout=nobody_reads)
    assert _states(small) == {State.DONE}
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_good_as_dev_null(small: Any, closed: str) -> None:
    ended = _run(small.root, *_POD, shell=closed)
    assert _states(small) == {State.DONE}
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert _run(small.root, "status", shell=closed).returncode == 0


def test_output_that_does_not_fit_on_the_disk_is_an_error(small: Any) -> None:
    with open("/dev/full", "wb") as full:
        ended = _run(small.root, "status", stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == b"dispatcher: cannot write the output: No space left on device\n"


def test_a_change_that_only_the_status_file_lacks_is_said_to_be_made(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Projector, **_options: bool) -> None:
        raise StorageError("no space")

    monkeypatch.setattr(Projector, "write", fail)
    held = small.run("hold", "job0")
    assert (held.code, held.err) == (
        0,
        "note: the change is recorded, but the status file does not show it yet: no space\n",
    )
    assert small.workspace.snapshot().records["job0"].state is State.HELD


def test_what_a_terminal_may_obey_is_found_across_writes():
    from dispatcher.base.terminal import cleaned

    assert cleaned("a\x1b[1;31mb\x1b[0m\t\r\n") == ("a\x1b[1;31mb\x1b[0m\t\r\n", "")
    assert cleaned("a\x1b[2J\x1b[?25lb\x07\x9b\u202e\rc\x00") == ("ab??? c?", "")
    for text in ("\x1b", "\x1b[", "\x1b[1;3", "\r"):
        assert cleaned(f"a{text}") == ("a", text)
