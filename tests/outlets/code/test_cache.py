"""Archives are made once per content, found again, and removed when nothing needs them."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from repositories import Repository
from small_disks import small_disk_at

from dispatcher.config import CodeMode
from dispatcher.errors import CodeError, StorageError
from dispatcher.outlets.code.cache import CodeCache
from dispatcher.outlets.code.command import read_snapshot, snapshot_words
from dispatcher.outlets.code.ship import ship, ship_dirty
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.workspace import Layout


def archived_at(snapshot: CodeSnapshot) -> int:
    """What tells one file from another of the same name."""
    return os.stat(snapshot.path).st_ino


def test_unchanged_code_is_archived_once(repository: Repository) -> None:
    layout = Layout(repository.root)
    first = ship(layout)
    inode = archived_at(first)
    later = repository.commit(date="2025-01-01T00:00:00Z", message="the same files")
    second = ship(layout)
    assert (second.digest, second.path, archived_at(second)) == (first.digest, first.path, inode)
    assert second.commit == later != first.commit


def test_changed_code_is_another_archive(repository: Repository) -> None:
    layout = Layout(repository.root)
    digests = [ship(layout).digest]
    repository.write("train.py", "print(2)\n")
    digests += [ship(layout).digest, ship_dirty(layout).digest]
    repository.commit()
    digests.append(ship(layout).digest)
    assert digests[0] == digests[1]
    # What was shipped before it was committed is the same code.
    assert digests[2] == digests[3] != digests[0]


@pytest.mark.parametrize("damage", ["removed", "shortened", "other bytes", "unreadable key"])
def test_an_archive_that_is_not_there_in_full_is_made_again(repository: Repository, damage: str) -> None:
    layout = Layout(repository.root)
    snapshot = ship(layout)
    path = Path(snapshot.path)
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    elif damage == "shortened":
        path.write_bytes(content[:100])
    elif damage == "other bytes":
        path.write_bytes(content.replace(b"print", b"PRINT"))
    else:
        next(layout.code_dir.glob("*.json")).write_text("{")
    assert ship(layout) == snapshot
    assert path.read_bytes() == content


def test_many_at_once_make_one_archive(repository: Repository) -> None:
    layout, made = Layout(repository.root), []
    threads = [threading.Thread(target=lambda: made.append(ship(layout))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1
    assert sorted(path.suffix for path in layout.code_dir.iterdir()) == [".json", ".tar"]


def test_a_full_disk_leaves_no_archive(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "disk", "size=1m,nr_inodes=4k") as disk:
        repository = Repository(tmp_path / "elsewhere")
        repository.write("big.bin", os.urandom(3 << 20))
        repository.commit()
        run_state = repository.root / "run_state"
        run_state.symlink_to(disk)
        with pytest.raises(StorageError, match=r"archiving the code in .*the disk is full"):
            ship(Layout(repository.root))
        assert not list((disk / "code").iterdir())


def test_unused_archives_are_removed_after_a_week_but_none_in_flight(repository: Repository) -> None:
    layout = Layout(repository.root)
    kept, removed = ship(layout), []
    for number in range(2):
        repository.write("train.py", f"print('changed {number}')\n")
        removed.append(ship_dirty(layout).digest)
    cache, next_week_s = CodeCache(layout), time.time() + 8 * 86400
    assert cache.remove_unused([], time.time()) == []
    assert sorted(cache.remove_unused([kept.digest[:12]], next_week_s)) == sorted(removed)
    assert [path.name for path in layout.code_dir.glob("*.tar")] == [f"{kept.digest}.tar"]
    # Its key is gone, and it is found again all the same.
    assert ship(layout) == kept
    assert cache.remove_unused([""], next_week_s) == [kept.digest]
    assert not list(layout.code_dir.iterdir())


def test_what_is_used_again_counts_as_new(repository: Repository) -> None:
    layout = Layout(repository.root)
    snapshot = ship(layout)
    os.utime(snapshot.path, (1, 1))
    for path in layout.code_dir.glob("*.json"):
        os.utime(path, (1, 1))
    ship(layout)
    assert CodeCache(layout).remove_unused([]) == []


def test_the_program_makes_the_same_snapshot(repository: Repository) -> None:
    layout = Layout(repository.root)
    repository.write("train.py", "changed\n")
    for mode, expected in ((CodeMode.SHIP, ship(layout)), (CodeMode.DIRTY, ship_dirty(layout))):
        ran = subprocess.run(snapshot_words(layout, mode, ["abc"]), capture_output=True, cwd="/", check=False)
        assert read_snapshot(ran.returncode, ran.stdout, ran.stderr) == expected


def test_the_errors_of_the_program_are_those_of_the_makers(tmp_path: Path) -> None:
    ran = subprocess.run(snapshot_words(Layout(tmp_path), CodeMode.SHIP), capture_output=True, check=False)
    with pytest.raises(CodeError, match=f"^{tmp_path}: not in a git repository: [^\n]*$"):
        read_snapshot(ran.returncode, ran.stdout, ran.stderr)
    with pytest.raises(CodeError, match="took too long"):
        read_snapshot(None, b"")
    with pytest.raises(CodeError, match="printed no snapshot"):
        read_snapshot(0, b"{}")
    with pytest.raises(CodeError, match="ended with status -9"):
        read_snapshot(-9, b"")
