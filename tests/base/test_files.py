"""Files on a shared directory: replaced atomically, looked for in their directory, errors with advice."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from syncs import noted_syncs

from dispatcher.base import files
from dispatcher.errors import StorageError


def test_a_temporary_name_is_never_used_twice(tmp_path: Path) -> None:
    names = {files.temporary_name(tmp_path / "a") for _ in range(100)}
    assert len(names) == 100, "a later process with the same pid would meet the leftovers of an earlier one"


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_or_unchanged(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a"
    files.replace_file(path, b"old", durable=durable)
    files.replace_file(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    (tmp_path / "b").mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace_file(tmp_path / "b", b"new", durable=durable)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"], "no temporary file is left"


def test_the_name_of_a_replaced_file_is_on_the_disk_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = noted_syncs(monkeypatch)
    files.replace_file(tmp_path / "a", b"new")
    assert syncs[-1] == (tmp_path.name, ["a"])
    files.write_unique(tmp_path / "a", b"other")
    assert syncs[-2:] == [("a.2", []), (tmp_path.name, ["a", "a.2"])]


def test_files_are_put_on_the_disk_in_their_order_and_their_names_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("content")
    syncs = noted_syncs(monkeypatch)
    files.sync_files(tmp_path, ["c", "missing", "a"])
    assert syncs == [("c", []), ("a", []), (tmp_path.name, ["a", "b", "c"])]


def test_a_created_file_is_never_overwritten(tmp_path: Path) -> None:
    files.create_file(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        files.create_file(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert files.write_unique(tmp_path / "a", b"second") == tmp_path / "a.2"


def test_a_missing_file_and_a_missing_directory_are_different(tmp_path: Path) -> None:
    assert not files.exists_fresh(tmp_path / "a")
    (tmp_path / "a").touch()
    assert files.exists_fresh(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        files.exists_fresh(tmp_path / "gone" / "a")


def test_errors_say_what_failed_where_why_and_what_to_do(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StorageError, match=r"^writing /x/a: No space left on device; the disk is full: free some"):
        raise files.storage_error(full, "writing", "/x/a")
    advice = {errno.ENOSPC: "keep fewer"}
    assert str(files.storage_error(full, "not saved", advice=advice)) == (
        "not saved: No space left on device; keep fewer"
    )
    gone = tmp_path / "gone" / "a"
    with pytest.raises(StorageError) as caught, files.storing("not saved"):
        gone.read_bytes()
    assert str(caught.value).startswith(f"not saved: No such file or directory ({gone}); ")


def test_of_a_file_that_a_job_writes_no_more_is_read_than_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 5_000)
    assert files.read_at_once(path, largest=5_000) == b"x" * 5_000
    with pytest.raises(OSError, match=r"4.9 KiB long, more than the 4.9 KiB that are read") as caught:
        files.read_at_once(path, largest=4_999)
    assert caught.value.errno == errno.EFBIG
    status = files.read_at_once("/proc/self/status")
    assert status.startswith(b"Name:"), "a file that says that it is empty"
    with pytest.raises(OSError, match="more than the"):
        files.read_at_once("/proc/self/status", largest=100)


def test_the_servers_clock_is_that_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This host's may be hours ahead; what it would remove as old is younger then."""
    before_s = time.time()
    monkeypatch.setattr(time, "time", lambda: before_s + 6 * 3600)
    assert before_s - 60 < files.server_now_s(tmp_path) < before_s + 600
    assert not os.listdir(tmp_path), "nothing is left"
    assert files.server_now_s(tmp_path / "absent") == before_s + 6 * 3600
