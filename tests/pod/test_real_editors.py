"""People who edit matrix_status.json in vim and nano while jobs end ten times a second: every save lands."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from beds.fixtures import skip_without
from editors import Terminal, terminal
from fleet import Dispatcher, Fleet, fleet_at, wait_until

from dispatcher.run_state.states import State

pytestmark = [pytest.mark.slow, pytest.mark.quiet]

NAME = "matrix_status.json"
EDITS = 5
# More than end while a test runs, however long a busy machine takes over it.
JOBS = 6_000
VIM = ["vim", "-u", "NONE", "-i", "NONE", "-N", NAME]
NANO = ["nano", "--ignorercfiles", NAME]


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Fleet, Dispatcher]]:
    """A dispatcher whose jobs end all the time, and some jobs that are never their turn."""
    skip_without("editors")
    with fleet_at(tmp_path) as fleet:
        last = [{"job_id": f"z{number}", "command": "true", "priority": -1} for number in range(EDITS)]
        fleet.write_manifest([{"job_id": f"a{number:05d}", "command": "true"} for number in range(JOBS)] + last)
        pod = fleet.start("pod", "--slots", "4").ready()
        wait_until(lambda: ended(fleet) > 20, "jobs end")
        yield fleet, pod


@pytest.fixture
def socket() -> Iterator[Path]:
    # The path of a socket may not be long.
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "tmux"


def ended(fleet: Fleet) -> int:
    return sum(record.state is State.DONE for record in fleet.records().values())


def shown(fleet: Fleet) -> int:
    """How many jobs the status file shows as done."""
    return sum(line["state"] == "done" for line in fleet.status().values())


def wait_until_more_end(fleet: Fleet) -> None:
    before = ended(fleet)
    wait_until(lambda: ended(fleet) >= before + 20, "more jobs end")


def vim_command(vim: Terminal, command: str) -> None:
    vim.press("Escape")
    vim.type(f":{command}")
    vim.press("Enter")


def check_nothing_was_lost(fleet: Fleet, pod: Dispatcher) -> None:
    """Each edit counted once, the file is current again, and no job ran twice."""
    wait_until(lambda: shown(fleet) > 0 and fleet.status()["z0"].get("note") == "edit 0", "the projection goes on")
    wait_until_more_end(fleet)
    before = ended(fleet)
    wait_until(lambda: shown(fleet) >= before, "the file shows what has ended")
    pod.stop()
    assert "refused" not in fleet.try_("status").stderr
    assert "warning" not in pod.said
    for number in range(EDITS):
        record = fleet.record(f"z{number}")
        assert (record.state, record.extra) == (State.HELD, {"note": f"edit {number}"})
        assert [line.event for line in fleet.history(f"z{number}")] == ["queued", "held"]
    claimed = fleet.claimed()
    assert len(claimed) == len(set(claimed))
    assert {job: line["state"] for job, line in fleet.status().items()} == fleet.states()


def test_vim_wins(busy: tuple[Fleet, Dispatcher], socket: Path) -> None:
    fleet, pod = busy
    with terminal(socket, VIM, fleet.layout.run_state) as vim:
        vim.shows(r'"a00000"')
        for number in range(EDITS):
            wait_until_more_end(fleet)
            old, new = f'"z{number}": {{"state": "queued"', f'"z{number}": {{"state": "held", "note": "edit {number}"'
            vim_command(vim, f"%s/{old}/{new}/ | echo 'changed' {number} + 7000")
            vim.shows(f"changed {number + 7000}")
            vim_command(vim, "w")
            # W12 (the file has changed since it was read), E949 (while it was written), or all is well.
            answer = vim.shows(r"WARNING|E\d+:|written")
            if answer == "WARNING" and number == 0:
                # The file was replaced in the very moment in which vim read it.
                vim.type("y")
                answer = vim.shows(r"E\d+:|written")
            assert answer == "written"
            record = fleet.wait_for(f"z{number}", "held")
            assert record.extra == {"note": f"edit {number}"}
            vim_command(vim, "echo 6000 + 66")
            vim.shows("6066")
        # It has been open all the time, and nobody has written the file but vim.
        assert (fleet.layout.run_state / f".{NAME}.swp").exists()
        # On a busy machine it is some time until the next save that would replace the file.
        wait_until(lambda: ".swp" in pod.said, "the pod says that vim has the file open")
        assert "open in an editor" in fleet.try_("status").stderr
        vim_command(vim, "q")
        wait_until(vim.is_over, "vim is closed")
    check_nothing_was_lost(fleet, pod)


@pytest.mark.parametrize("locking", [True, False], ids=["set locking", "as it comes"])
def test_nano_wins(busy: tuple[Fleet, Dispatcher], socket: Path, locking: bool) -> None:
    """Without a lock file nano asks whether to save a file that has changed; with one it need not."""
    fleet, pod = busy
    command = [*NANO, "--locking"] if locking else NANO
    with terminal(socket, command, fleet.layout.run_state) as nano:
        nano.shows(r'"a00000"')
        for number in range(EDITS):
            wait_until_more_end(fleet)
            nano.press("C-\\")
            nano.shows(r"Search \(to replace\)")
            nano.type(f'"z{number}": {{"state": "queued"')
            nano.press("Enter")
            nano.shows("Replace with")
            nano.type(f'"z{number}": {{"state": "held", "note": "edit {number}"')
            nano.press("Enter")
            nano.shows("Replace this instance")
            nano.type("a")
            nano.shows("Replaced 1 occurrence")
            nano.press("C-o")
            nano.shows("File Name to Write")
            nano.press("Enter")
            answer = nano.shows(r"Wrote \d+ lines|modified since you opened it|(?i:file on disk has changed)")
            if not answer.startswith("Wrote"):
                assert not locking
                nano.type("y")
                nano.shows(r"Wrote \d+ lines")
            fleet.wait_for(f"z{number}", "held")
            nano.press("C-c")
            nano.shows(r"line +\d+/\d+")
        assert (fleet.layout.run_state / f".{NAME}.swp").exists() == locking
        if locking:
            wait_until(lambda: ".swp" in pod.said, "the pod says that nano has the file open")
        else:
            assert ".swp" not in pod.said
        nano.press("C-x")
        wait_until(nano.is_over, "nano is closed")
    check_nothing_was_lost(fleet, pod)
