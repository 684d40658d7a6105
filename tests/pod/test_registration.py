"""A pod's name: its lock is taken again for as long as the dispatcher runs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dispatcher.pod.registration import Registration
from dispatcher.run_state import liveness
from dispatcher.workspace import Layout


@pytest.fixture
def registration(tmp_path: Path) -> Registration:
    """A pod on a network filesystem, as far as it knows, whose lock works."""
    made = Registration(Layout(tmp_path), "pod", 1.0)
    made._network = True
    assert made.take() is None
    return made


def lose(registration: Registration) -> None:
    """The file server takes the lock away: what is written under it fails, and nobody holds it."""
    assert registration.fd is not None
    path = registration._layout.pod_lock("pod")
    with open(path, "rb") as unwritable:
        # The same number, so that the registration closes what it has.
        os.dup2(unwritable.fileno(), registration.fd)


def is_held(registration: Registration) -> bool | None:
    return liveness.is_held(registration._layout.pod_lock("pod"))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO, errno.ESTALE])
def test_a_server_that_grants_no_locks_yet_is_asked_again(
    registration: Registration, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failures = []

    def fail(path: Path) -> None:
        failures.append(path)
        raise OSError(number, os.strerror(number))

    lose(registration)
    with monkeypatch.context() as grace:
        grace.setattr(liveness, "take", fail)
        for _ in range(3):
            registration.keep_lock()
    assert len(failures) == 3
    assert is_held(registration) is False
    registration.keep_lock()
    assert is_held(registration) is True
    registration.release()


def test_somebody_who_asks_at_that_moment_does_not_end_it(registration: Registration) -> None:
    lose(registration)
    other = liveness.take(registration._layout.pod_lock("pod"))
    assert other is not None
    registration.keep_lock()
    assert registration.fd is None
    os.close(other)
    registration.keep_lock()
    assert is_held(registration) is True


def test_where_locks_do_not_work_none_is_taken(tmp_path: Path) -> None:
    registration = Registration(Layout(tmp_path), "pod", 1.0)
    registration._network = True
    registration.keep_lock()
    assert registration.fd is None
