"""Kernel locks: who is refused, who inherits, and which errors come through."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from portalocker.portalocker import FlockLocker

from dispatcher.base import kernel_locks

TAKE = {"flock": kernel_locks.try_flock, "range": kernel_locks.try_range}
RELEASE = {"flock": kernel_locks.release_flock, "range": kernel_locks.release_range}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Opens the same file again at each call."""
    descriptors = []

    def open_again() -> int:
        descriptors.append(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
        return descriptors[-1]

    yield open_again
    for fd in descriptors:
        os.close(fd)


@pytest.mark.parametrize("kind", TAKE)
def test_one_open_file_at_a_time(opened: Callable[[], int], kind: str) -> None:
    one, other = opened(), opened()
    assert TAKE[kind](one)
    assert TAKE[kind](one), "what holds it may take it again"
    assert not TAKE[kind](other), "also in the same process"
    RELEASE[kind](one)
    assert TAKE[kind](other)


@pytest.mark.parametrize("kind", TAKE)
def test_closing_an_unrelated_descriptor_releases_nothing(opened: Callable[[], int], tmp_path: Path, kind: str) -> None:
    assert TAKE[kind](opened())
    os.close(os.open(tmp_path / "file", os.O_RDWR))
    assert not TAKE[kind](opened())


@pytest.mark.parametrize("kind", TAKE)
def test_a_child_that_inherits_the_descriptor_keeps_the_lock(
    tmp_path: Path, opened: Callable[[], int], kind: str
) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert TAKE[kind](fd)
    with subprocess.Popen(["sleep", "600"], pass_fds=[fd]) as child:
        os.close(fd)
        other = opened()
        assert not TAKE[kind](other)
        child.kill()
        child.wait()
        assert TAKE[kind](other)


def test_ranges_that_do_not_overlap(opened: Callable[[], int]) -> None:
    one, other = opened(), opened()
    assert kernel_locks.try_range(one, 0, 512)
    assert kernel_locks.try_range(other, 512, 1)
    assert not kernel_locks.try_range(one, 512, 1)
    assert not kernel_locks.try_range(other), "a range without a length goes to the end of the file"


def test_whether_a_lock_is_held_and_by_which_process(opened: Callable[[], int]) -> None:
    one, other = opened(), opened()
    assert not kernel_locks.is_flocked(one)
    kernel_locks.release_flock(one)
    assert kernel_locks.flock_holder(one) is None
    assert kernel_locks.try_flock(one)
    assert kernel_locks.is_flocked(other)
    assert kernel_locks.flock_holder(other) == os.getpid()


@pytest.mark.parametrize("number", sorted(kernel_locks.CANNOT_LOCK))
def test_the_errors_of_the_kernel_come_through(
    opened: Callable[[], int], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FlockLocker, "_locker", staticmethod(fail))
    for call in (kernel_locks.try_flock, kernel_locks.wait_for_flock, kernel_locks.release_flock):
        with pytest.raises(OSError) as caught:
            call(opened())
        assert caught.value.errno == number


def test_a_descriptor_that_is_not_open() -> None:
    for call in (*TAKE.values(), *RELEASE.values(), kernel_locks.is_flocked, kernel_locks.wait_for_flock):
        with pytest.raises(OSError) as caught:
            call(1_000_000)
        assert caught.value.errno == errno.EBADF


def test_waiting_ends_when_the_lock_is_released(tmp_path: Path) -> None:
    path = tmp_path / "file"
    holder = (
        "import os, sys; from dispatcher.base import kernel_locks; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "kernel_locks.wait_for_flock(fd); print(1, flush=True); input()"
    )
    waiter = holder.replace("; input()", "")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", holder, path], **pipes) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"1\n"
        with subprocess.Popen([sys.executable, "-c", waiter, path], **pipes) as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(1)
            first.communicate(b"\n", timeout=60)
            assert second.communicate(timeout=60)[0] == b"1\n"


def test_testing_a_lock_does_not_import_portalocker(tmp_path: Path) -> None:
    code = (
        "import os, sys; from dispatcher.base import kernel_locks; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "kernel_locks.is_flocked(fd); print('portalocker' in sys.modules); "
        "kernel_locks.try_flock(fd); print('portalocker' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "file"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
