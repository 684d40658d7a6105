"""Child processes that nobody waits for."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest
from fleet import PATIENCE_S, wait_until

from dispatcher.base import programs as base_programs
from dispatcher.base.programs import Finished, Program
from dispatcher.errors import OutletError
from dispatcher.outlets.remote import programs
from dispatcher.outlets.remote.programs import given


def wait(program: Program) -> Finished:
    """Its end, woken by its descriptors and its own time alone."""
    end_s = time.monotonic() + PATIENCE_S
    while (finished := program.poll()) is None:
        assert time.monotonic() < end_s
        select.select(program.wait_fds(), [], [], program.due_in_s())
    assert program.wait_fds() == []
    assert program.due_in_s() is None
    return finished


def is_gone(pid: int) -> bool:
    """Also where nobody has asked for its exit status yet: this process may adopt children of others."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize(("script", "status"), [("echo a; echo b >&2", 0), ("exit 255", 255), ("kill -9 $$", -9)])
def test_how_one_ends(script: str, status: int) -> None:
    finished = wait(Program(["sh", "-c", script], limit_s=PATIENCE_S))
    assert (finished.exit_code, finished.killed_because) == (status, "")
    if not status:
        assert (finished.out, finished.err) == (b"a\n", b"b\n")


def test_megabytes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds, from an open file: nobody here has to feed it."""
    monkeypatch.setattr(base_programs, "_MOST_ERROR_BYTES", 1000)
    content = os.urandom(5 << 20)
    finished = wait(Program(["tee", "/dev/stderr"], stdin=given(content), limit_s=PATIENCE_S))
    assert finished.out == content
    assert finished.err == content[:1000] + b"\n[...]\n" + content[-1000:]


def test_nothing_waits() -> None:
    program = Program(["sleep", "600"], limit_s=600)
    # It would be known how it ended.
    assert program.poll() is None
    program.close()
    assert program.poll() == Finished(exit_code=-signal.SIGTERM, out=b"", err=b"")


def test_the_time_limit_ends_its_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"sleep 600 & echo $! >'{tmp_path}/pid'; echo said; : >'{tmp_path}/said'; exec sleep 600"
    program = Program(["sh", "-c", script], limit_s=500)
    wait_until((tmp_path / "said").exists, "it runs")
    now_s = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now_s() + 500)
    finished = wait(program)
    assert finished.killed_because == "no answer within 500 s"
    assert (finished.exit_code, finished.out) == (-signal.SIGKILL, b"said\n")
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: is_gone(child), "its child is gone too")


def test_one_that_prints_without_end() -> None:
    finished = wait(Program(["yes"], limit_s=PATIENCE_S, most_bytes=1 << 20))
    assert finished.killed_because == "yes printed more than 1 MiB"


def test_one_that_closes_its_pipes_has_not_ended() -> None:
    program = Program(["bash", "-c", "exec >&- 2>&-; read -t 0.3 <> <(:); exit 7"], limit_s=PATIENCE_S)
    assert wait(program).exit_code == 7


def test_one_whose_pipes_another_process_keeps_open_has_ended(tmp_path: Path) -> None:
    """As the process that keeps a shared connection of ssh does."""
    program = Program(["sh", "-c", f"sleep 600 & echo $! >'{tmp_path}/pid'; echo said"], limit_s=PATIENCE_S)
    finished = wait(program)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (finished.exit_code, finished.out) == (0, b"said\n")


def test_it_does_not_get_what_the_terminal_sends() -> None:
    words = ["sh", "-c", "ps -o pgid=,sid= -p $$"]
    group, session = (int(word) for word in wait(Program(words, limit_s=PATIENCE_S)).out.split())
    assert group != os.getpgrp() and session == os.getsid(0)
    group, session = (int(word) for word in wait(programs.Program(words, limit_s=PATIENCE_S)).out.split())
    assert group == session != os.getsid(0)


def test_close_gives_it_time_to_end() -> None:
    program = Program(["sh", "-c", "sleep 0.2; echo done"], limit_s=PATIENCE_S)
    program.close(within_s=PATIENCE_S)
    finished = program.poll()
    assert finished is not None
    assert finished.out == b"done\n"


def test_what_it_has_to_clean_up_is_not_cut_short(tmp_path: Path) -> None:
    """As by an agent, which ends what it has started."""
    script = (
        f"trap 'sleep 1.5; touch {tmp_path}/cleaned; exit' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    )
    program = Program(["bash", "-c", script], limit_s=PATIENCE_S)
    wait_until((tmp_path / "ready").exists, "it can be told")
    program.close()
    assert (tmp_path / "cleaned").exists()


def test_one_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        Program(["/none/such"], limit_s=1)
    with pytest.raises(OutletError, match="/none/such cannot be started: No such file"):
        programs.Program(["/none/such"], limit_s=1)


def test_what_it_prints_is_passed_on_and_not_kept() -> None:
    pieces: list[bytes] = []
    finished = Program(["sh", "-c", "echo a; echo b >&2"], limit_s=PATIENCE_S, take=pieces.append).wait()
    assert (b"".join(pieces), finished.out, finished.err) == (b"a\n", b"", b"b\n")


def test_one_that_prints_nothing_for_too_long_is_killed() -> None:
    script = "for i in 1 2 3 4; do sleep 0.3; echo $i; done; sleep 600"
    finished = Program(["sh", "-c", script], limit_s=None, silent_s=1.0).wait()
    assert finished.killed_because == "printed nothing for 1 s"
    assert finished.out == b"1\n2\n3\n4\n"


def test_a_kill_also_ends_what_is_left_of_its_group(tmp_path: Path) -> None:
    program = Program(["sh", "-c", f"sleep 600 & echo $! >'{tmp_path}/pid'"], limit_s=PATIENCE_S)
    program.wait()
    program.kill()
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: is_gone(child), "its child is gone too")
