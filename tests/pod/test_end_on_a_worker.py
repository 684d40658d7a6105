"""How an attempt ended that ran on several machines: the log of the one that failed tells why."""

from __future__ import annotations

from pathlib import Path

from dispatcher.outlets.base import Ended
from dispatcher.outlets.wrapper import read_exit
from dispatcher.pod.outcome import judge
from dispatcher.workspace import AttemptPaths


def test_the_log_of_the_worker_that_failed_tells_why(tmp_path: Path) -> None:
    (tmp_path / "exit.json").write_text('{"exit_code": 3, "reason": "", "ended_at": "x", "worker": 2}\n')
    (tmp_path / "output.log").write_text("RuntimeError: the others are gone\n")
    (tmp_path / "output.2.log").write_text("Traceback (most recent call last):\nValueError: bad batch\n")
    ended = read_exit(tmp_path)
    assert isinstance(ended, Ended)
    judged = judge(ended, AttemptPaths(tmp_path))
    assert (judged.exit_reason, judged.error) == ("exit 3", "worker 2: ValueError: bad batch")


def test_a_worker_without_a_log_is_named_all_the_same(tmp_path: Path) -> None:
    assert judge(Ended(3, worker=1), AttemptPaths(tmp_path)).error == "worker 1: no error in its log"


def test_a_preemption_has_no_error(tmp_path: Path) -> None:
    assert judge(Ended(75, worker=1), AttemptPaths(tmp_path)).error is None


def test_out_of_memory_on_one_worker(tmp_path: Path) -> None:
    (tmp_path / "output.1.log").write_text("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: HBM\n")
    assert judge(Ended(1, worker=1), AttemptPaths(tmp_path)).exit_reason == "out of memory"
