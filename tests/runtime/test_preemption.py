"""Signals to a process that trains: what it does on the first, the second, and when it cannot do anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from dispatcher.runtime.preemption import Preemption

PATIENCE_S = 30.0
# No test waits so long: the bound holds beyond the block.
LONG_S = 3600.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.001)


@pytest.fixture
def left() -> list[int]:
    """The exit statuses with which the process would have ended at once."""
    return []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_the_first_signal_is_a_request(number: int, left: list[int]) -> None:
    with Preemption(exit_process=left.append) as preempted:
        preempted.defer_exit(LONG_S)
        assert not preempted.requested
        os.kill(os.getpid(), number)
        wait_until(lambda: preempted.requested, "the signal was not noticed")
    assert left == []


def test_a_second_sigterm_leaves_at_once(left: list[int]) -> None:
    with Preemption(exit_process=left.append, repeat_s=0.0) as preempted:
        preempted.defer_exit(LONG_S)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: preempted.requested, "the first was not noticed")
        assert left == []
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: left, "the second was not noticed")
    assert left == [75]


def test_a_signal_that_arrives_twice_counts_once(left: list[int]) -> None:
    with Preemption(exit_process=left.append, repeat_s=PATIENCE_S) as preempted:
        preempted.defer_exit(LONG_S)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: preempted.requested, "the first was not noticed")
        os.kill(os.getpid(), signal.SIGTERM)
    # The watching thread has read everything by now.
    assert left == []


def test_the_sigterm_after_a_warning_is_the_first(left: list[int]) -> None:
    with Preemption(exit_process=left.append, repeat_s=0.0) as preempted:
        preempted.defer_exit(LONG_S)
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: preempted.requested, "the warning was not noticed")
        os.kill(os.getpid(), signal.SIGTERM)
    assert left == []


def test_as_long_as_there_is_nothing_to_save_it_leaves_at_once(left: list[int]) -> None:
    tidied: list[str] = []
    with pytest.raises(SystemExit) as caught, Preemption(exit_process=left.append):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(PATIENCE_S)
        finally:
            # Whoever signals again does not interrupt this.
            os.kill(os.getpid(), signal.SIGTERM)
            tidied.append("yes")
    assert (caught.value.code, tidied, left) == (75, ["yes"], [75])


def test_the_bound_holds_for_what_comes_after_the_block(left: list[int]) -> None:
    with Preemption(exit_process=left.append) as preempted:
        preempted.defer_exit(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: preempted.requested, "the signal was not noticed")
    assert left == []
    wait_until(lambda: left, "it stayed")


def test_the_wrapper_does_not_kill_sooner(
    left: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DISPATCHER_KILL_GRACE_S", "1")
    with Preemption(exit_process=left.append) as preempted:
        preempted.defer_exit(LONG_S)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: left, "it stayed")
    assert "a preemption has 0.8 s to save, not 3600: kill_grace in dispatcher.yaml is 1 s" in caplog.text


def test_a_bound_that_no_timer_can_wait_for_is_the_longest_that_one_can(
    left: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    with Preemption(exit_process=left.append) as preempted:
        preempted.defer_exit(1e30)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: preempted.requested, "the signal was not noticed")
    assert f"within {threading.TIMEOUT_MAX:g} s" in capfd.readouterr().err


def test_somebody_elses_handler_counts(left: list[int]) -> None:
    heard: list[int] = []
    with Preemption(exit_process=left.append) as preempted:
        signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: heard, "the handler was not called")
        # The watching thread reads one signal after the other.
        preempted.defer_exit(LONG_S)
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: preempted.requested, "the warning was not noticed")
    assert left == []


def test_when_time_is_over_it_leaves(left: list[int], capfd: pytest.CaptureFixture[str]) -> None:
    with Preemption(exit_process=left.append) as preempted:
        preempted.defer_exit(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: left, "it stayed")
    assert left == [75]
    said = capfd.readouterr().err
    assert "SIGTERM: finishing the step, saving, exiting within 0.05 s" in said
    assert "not saved within 0.05 s: exiting; the last committed checkpoint counts" in said


def test_a_main_thread_that_hangs_in_c_code_does_not_keep_it_from_leaving() -> None:
    code = (
        "import ctypes; from dispatcher.runtime.preemption import Preemption\n"
        "with Preemption() as preempted:\n"
        "  preempted.defer_exit(0.2); print('ready', flush=True)\n"
        "  libc = ctypes.CDLL(None); [libc.sleep(60) for _ in range(9)]"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 75


FORKING = """
import multiprocessing, os, signal, sys, time
from dispatcher.runtime.preemption import Preemption

with Preemption() as preempted:
    if sys.argv[1] == "held":
        preempted.defer_exit(3600)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    child.start()
    child.terminate()
    child.join()
    print(child.exitcode, preempted.requested)
    preempted.defer_exit(3600)
    os.kill(os.getpid(), signal.SIGUSR1)
    while not preempted.requested:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("held", ["held", "free"])
def test_signals_of_a_forked_child_are_its_own(held: str) -> None:
    """As those that a pool of processes ends its workers with."""
    command = [sys.executable, "-c", FORKING, held]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    # The pipe is read in its order: what the child had written would have been heard first.
    assert (done.returncode, done.stdout) == (0, "-15 False\n"), done.stderr
    assert "SIGTERM" not in done.stderr


def test_afterwards_signals_are_what_they_were() -> None:
    def handler(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGUSR1, handler)
    threads = threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))
    try:
        with Preemption():
            assert signal.getsignal(signal.SIGUSR1) is not handler
        assert signal.getsignal(signal.SIGUSR1) is handler
        assert signal.set_wakeup_fd(-1) == -1
        assert threading.active_count() == threads
        assert len(os.listdir("/proc/self/fd")) == descriptors
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_another_thread_it_does_nothing() -> None:
    found: list[bool] = []

    def enter() -> None:
        with Preemption() as preempted:
            found.append(preempted.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False]
    assert signal.set_wakeup_fd(-1) == -1
