"""The checks of one host: what they return, and what becomes of one that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.base import kernel_locks
from dispatcher.base.files import error_name
from dispatcher.config import load_config
from dispatcher.doctor import checks, lock_test
from dispatcher.doctor.checks import CHECKS, check_host
from dispatcher.doctor.context import Context
from dispatcher.doctor.findings import OK, WRONG, Finding
from dispatcher.doctor.lock_test import LOCK_NAMES, LockTest
from dispatcher.errors import ConfigError
from dispatcher.workspace import Layout


@pytest.fixture
def context(tmp_path: Path) -> Context:
    layout = Layout(tmp_path)
    return Context(layout, load_config(layout))


def test_every_check_reports_under_its_name(context: Context) -> None:
    found = [finding.check for finding in check_host(context)]
    assert [name for name, _ in CHECKS if name in found] == [name for name, _ in CHECKS]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ConfigError("dispatcher.yaml: wrong")])
def test_a_check_that_fails_is_a_finding_and_the_others_go_on(
    context: Context, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: Context) -> Iterator[Finding]:
        yield Finding("half", OK, "before it fails")
        raise error

    def work(_: Context) -> Iterator[Finding]:
        yield Finding("other", OK, "it works")

    monkeypatch.setattr(checks, "CHECKS", (("half", fail), ("other", work)))
    found = check_host(context)
    assert [(finding.check, finding.verdict) for finding in found][-2:] == [("half", WRONG), ("other", OK)]
    assert str(error).rpartition("] ")[2] in found[-2].what


@pytest.mark.parametrize("kind", LOCK_NAMES)
def test_locks_that_exclude(tmp_path: Path, kind: str) -> None:
    assert LockTest(tmp_path).failure(kind) is None
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("kind", "function"), [("flock", "try_flock"), ("lockf", "try_range")])
def test_locks_that_are_granted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, function: str
) -> None:
    monkeypatch.setattr(lock_test, function, lambda fd: True)
    assert LockTest(tmp_path).failure(kind) == f"{kind} is granted twice"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", sorted(kernel_locks.CANNOT_LOCK))
def test_locks_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    error = OSError(number, os.strerror(number))

    def fail(fd: int) -> bool:
        raise error

    monkeypatch.setattr(lock_test, "try_flock", fail)
    assert LockTest(tmp_path).failure("flock") == f"flock fails with {error_name(error)} ({error.strerror})"
    assert os.listdir(tmp_path) == []
