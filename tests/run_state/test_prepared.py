"""Claims whose folder and claimant's file were made before the lock was taken, and those where that has failed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from dispatcher.base import files, host
from dispatcher.base.mounts import Mount
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def claim(store: Store, job: str, attempt: int = 1) -> str:
    with store.transaction() as tx:
        paths = tx.make_attempt(job, attempt)
    assert paths is not None
    assert os.listdir(paths.directory) == [paths.claimant.name]
    return paths.claimant.read_text()


@pytest.fixture
def store(layout: Layout) -> Store:
    store = Store(layout, by="pod")
    with store.transaction():
        pass
    return store


def test_a_prepared_claim_makes_one_directory_under_the_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.prepare_claims(["a"], 1)
    made: list[str] = []
    real_mkdir = os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda path, *rest: (made.append(os.fspath(path)), real_mkdir(path, *rest))[1])
    monkeypatch.delattr(files, "write_new")
    assert claim(store, "a") == f"pod\n{host.here()}\n"
    assert made == [os.fspath(store.layout.attempt("a", 1).directory)]
    assert os.listdir(store.layout.prepared_dir) == []


def test_each_attempt_has_a_file_of_its_own(store: Store) -> None:
    """Its lock is that of one attempt."""
    store.prepare_claims(["a", "b"], 2)
    for job in ("a", "b", "c"):
        claim(store, job)
    inodes = {store.layout.attempt(job, 1).alive.stat().st_ino for job in ("a", "b", "c")}
    assert len(inodes) == 3


def test_what_was_prepared_may_be_gone(store: Store) -> None:
    store.prepare_claims(["a"], 1)
    for name in os.listdir(store.layout.prepared_dir):
        os.unlink(store.layout.prepared_dir / name)
    os.rmdir(store.layout.job_dir("a"))
    assert claim(store, "a") == f"pod\n{host.here()}\n"


def test_what_cannot_be_prepared_is_left_to_the_claim(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves nothing behind that looks like a claimant's file."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        store.prepare_claims(["a"], 1)
    assert os.listdir(store.layout.prepared_dir) == []
    assert claim(store, "a") == f"pod\n{host.here()}\n"


def test_a_job_on_another_disk_is_claimed_as_well(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be renamed into its folder; after one try nothing is prepared any more."""
    elsewhere = Path(tempfile.mkdtemp(dir="/dev/shm"))
    assert elsewhere.stat().st_dev != store.layout.root.stat().st_dev
    try:
        for job in ("a", "b"):
            (elsewhere / job).mkdir()
            store.layout.job_dir(job).symlink_to(elsewhere / job)
        store.prepare_claims([], 3)
        assert claim(store, "a") == f"pod\n{host.here()}\n"
        assert os.listdir(store.layout.prepared_dir) == []
        store.prepare_claims([], 3)
        assert os.listdir(store.layout.prepared_dir) == []
        assert claim(store, "b") == f"pod\n{host.here()}\n"
    finally:
        shutil.rmtree(elsewhere)


def test_jobs_on_another_disk_are_prepared_there(store: Store) -> None:
    elsewhere = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        store.layout.jobs_dir.rmdir()
        store.layout.jobs_dir.symlink_to(elsewhere)
        store.prepare_claims(["a"], 1)
        assert len(os.listdir(elsewhere / ".prepared")) == 1
        assert claim(store, "a") == f"pod\n{host.here()}\n"
        assert os.listdir(elsewhere / ".prepared") == []
    finally:
        shutil.rmtree(elsewhere)


def test_twice_as_many_are_written_each_time_that_they_were_used_up(store: Store) -> None:
    """A local disk syncs several new files at once as fast as one."""
    written = []
    for number in range(40):
        before = len(waiting(store))
        store.prepare_claims([], 1)
        written.append(len(waiting(store)) - before)
        claim(store, f"job-{number}")
    assert [count for count in written if count] == [1, 2, 4, 8, 16, 16]


def test_a_server_is_sent_no_more_than_what_the_next_claims_need(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mount, "is_network", True)
    store = Store(layout, by="pod")
    store.prepare()
    for number in range(5):
        store.prepare_claims([f"job-{number}"], 1)
        assert len(waiting(store)) == 1
        claim(store, f"job-{number}")
        assert waiting(store) == []


def waiting(store: Store) -> list[str]:
    folder = store.layout.prepared_dir
    return os.listdir(folder) if folder.exists() else []


def test_closing_removes_what_no_claim_has_used(store: Store) -> None:
    store.prepare_claims([], 3)
    assert len(files.leftovers(store.layout.prepared_dir)) == 0, "this process is alive"
    assert len(os.listdir(store.layout.prepared_dir)) == 3
    store.close()
    assert os.listdir(store.layout.prepared_dir) == []
