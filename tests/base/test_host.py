"""The processes of this host: which of them have ended, and what is no proof of it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess

import pytest

from dispatcher.base import host


def test_a_process_that_has_ended_is_gone() -> None:
    child = subprocess.Popen(["sleep", "60"])
    ticks = host.start_ticks(child.pid)
    assert ticks is not None
    assert not host.is_gone(child.pid, ticks)
    assert host.is_gone(child.pid, ticks + 1), "another process with its number"
    child.kill()
    # A zombie until it is waited for.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert host.is_gone(child.pid)
    assert host.start_ticks(child.pid) is None
    child.wait()
    assert host.is_gone(child.pid)


def test_without_a_free_descriptor_no_process_counts_as_ended() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError) as caught:
            host.start_ticks(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE
