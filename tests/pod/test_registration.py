"""A pod's name: its lock is taken again for as long as the dispatcher runs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dispatcher.base import files, kernel_locks
from dispatcher.errors import StorageError
from dispatcher.pod.registration import Registration
from dispatcher.run_state import liveness, lock
from dispatcher.run_state.lock_choice import hardlink_is_in_force
from dispatcher.run_state.store import Store
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


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_one_error_does_not_change_the_kind_of_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A workspace keeps the hard-link lock for ever."""
    errors = fail_first(monkeypatch, number, times=4)
    made = Registration(Layout(tmp_path), "pod", 1.0)
    assert made.take() is None
    assert not errors
    assert is_held(made)
    made.release()


def test_an_error_that_stays_changes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_locks, "_PROOF_PAUSES_S", (0.0, 0.0))
    fail_first(monkeypatch, errno.EIO, times=1000)
    made = Registration(Layout(tmp_path), "pod", 1.0)
    useless = made.take()
    assert useless is not None and "flock fails with EIO (Input/output error) on " in useless
    assert os.listdir(made._layout.pods_dir) == ["pod.lock"], "nothing is left of the proof"


def test_a_file_that_alone_fails_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(liveness, "take", fail)
    with pytest.raises(StorageError, match=r"pod.lock: flock fails with EIO .* works on other files there"):
        Registration(Layout(tmp_path), "pod", 1.0).take()


@pytest.mark.parametrize("times", [1, 1000])
def test_the_first_lock_of_a_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setattr(kernel_locks, "_PROOF_PAUSES_S", (0.0, 0.0))
    fail_first(monkeypatch, errno.EIO, times=times)
    store = Store(Layout(tmp_path), by="pod")
    assert store.lock_kind == ("flock" if times == 1 else "hardlink")
    store.close()


def test_an_error_does_not_hide_the_hard_link_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one dispatcher would use another lock than the others."""
    layout = Layout(tmp_path)
    layout.run_state.mkdir()

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "stat", fail)
    with pytest.raises(StorageError):
        hardlink_is_in_force(layout)


def fail_first(monkeypatch: pytest.MonkeyPatch, number: int, *, times: int) -> list[OSError]:
    """Let the kernel's lock fail so often; the errors that are left."""
    errors, real = [OSError(number, os.strerror(number)) for _ in range(times)], kernel_locks.try_flock

    def try_flock(fd: int) -> bool:
        if errors:
            raise errors.pop()
        return real(fd)

    for module in (kernel_locks, liveness, lock):
        monkeypatch.setattr(module, "try_flock", try_flock)
    return errors
