"""A full disk fails the save with a clear message, costs nothing that was committed, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_disks import small_disk_at

from dispatcher.checkpoints.storage import SCRATCH
from dispatcher.errors import CheckpointError, StorageError
from dispatcher.runtime.checkpoint import CheckpointManager, Retention


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own with room for a few megabytes."""
    with small_disk_at(tmp_path / "disk", "size=6m") as place:
        yield place


def tree(step: int, megabytes: float = 2) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(step).random(int(megabytes * 125_000))}


def test_the_last_commit_stands(disk, capfd):
    with CheckpointManager(disk) as checkpoints:
        checkpoints.save(tree(1), 1)
        checkpoints.wait()
        free = disk_free(disk)
        checkpoints.save(tree(2, 5), 2)
        with pytest.raises(StorageError) as caught:
            checkpoints.wait()
        assert str(caught.value) == (
            f"{disk}/step-00000002: step 2 was not saved: No space left on device; "
            "the disk is full: free some space, or keep fewer checkpoints"
        )
        assert disk_free(disk) >= free - 65536, "what the failed save wrote is still there"
        assert np.array_equal(checkpoints.restore(tree(0))["w"], tree(1)["w"])
        checkpoints.save(tree(3), 3)
        assert np.array_equal(checkpoints.restore(tree(0))["w"], tree(3)["w"])
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("left", [0, 200_000])
def test_keeping_fewer_makes_room_when_a_run_goes_on(disk, left):
    with CheckpointManager(disk, retention=Retention(last=3)) as checkpoints:
        for step in (1, 2):
            checkpoints.save(tree(step), step)
        checkpoints.wait()
        (disk / "ballast").write_bytes(b"x" * (disk_free(disk) - left))
        with pytest.raises(StorageError, match="the disk is full: free some space, or keep fewer checkpoints"):
            checkpoints.save(tree(3), 3)
            checkpoints.wait()
    with CheckpointManager(disk, retention=Retention(last=1)) as checkpoints:
        resumed = checkpoints.resume(tree(0))
        assert resumed.ref.step == 2
        assert [each.step for each in checkpoints.checkpoints()] == [2]
        checkpoints.save(tree(3), 3)
        assert np.array_equal(checkpoints.restore(tree(0))["w"], tree(3)["w"])


def test_removing_needs_no_room(tmp_path, monkeypatch):
    with CheckpointManager(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(tree(step), step)
    makedirs = os.makedirs

    def full(path, *words, **options):
        if SCRATCH in Path(path).parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        makedirs(path, *words, **options)

    monkeypatch.setattr("os.makedirs", full)
    with CheckpointManager(tmp_path, retention=Retention(last=1)) as checkpoints:
        assert checkpoints.resume(tree(0)).ref.step == 2
        assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000002"]
        with pytest.raises(StorageError, match="the disk is full"):
            checkpoints.save(tree(3), 3)
        monkeypatch.undo()
        checkpoints.save(tree(3), 3)
        assert np.array_equal(checkpoints.restore(tree(0))["w"], tree(3)["w"])


def test_nothing_stays_of_what_is_written_after_a_failure(tmp_path, monkeypatch):
    """Orbax reports the first array that fails while it is still writing others, into folders that it makes."""

    class Failing:
        def __init__(self, place):
            self.place = place
            self.writer = threading.Thread(target=self.write)
            self.writer.start()

        def write(self):
            for number in range(100):
                # Its parent may go in between.
                with contextlib.suppress(FileNotFoundError):
                    (self.place / str(number)).mkdir(parents=True, exist_ok=True)
                time.sleep(0.005)

        def result(self):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writings = []

    def begin_saving(place, to_write, *, compress):
        writings.append(Failing(place))
        return writings[0]

    monkeypatch.setattr("dispatcher.runtime.checkpoint.arrays.begin_saving", begin_saving)
    with pytest.raises(StorageError, match="the disk is full"), CheckpointManager(tmp_path / "run") as checkpoints:
        checkpoints.save(tree(1), 1)
        checkpoints.wait()
    writings[0].writer.join()
    assert not (tmp_path / "run" / SCRATCH).exists(), list((tmp_path / "run" / SCRATCH).rglob("*"))


def test_a_failure_is_said_once(tmp_path, caplog, child):
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "mine").touch()
    problem = "exists and is not a checkpoint"
    with pytest.raises(CheckpointError, match=problem), CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(tree(1), 1)
    assert problem not in caplog.text, "whoever waits gets it"
    with pytest.raises(KeyError, match="another"), CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(tree(1), 1)
        raise KeyError("another")
    assert caplog.text.count(problem) == 1
    # A process that ends without having waited.
    assert child("ends.py", tmp_path, stderr=True).count(problem) == 1


def test_many_arrays_do_not_bury_what_went_wrong(disk, child):
    said = child("many_arrays.py", disk, stderr=True)
    assert "many_arrays: StorageError" in said and "the disk is full" in said
    assert "Event loop is closed" not in said and len(said.splitlines()) < 20, said


def test_every_size_of_what_is_left(disk):
    """The disk fills up at another place each time: in Orbax's files, in ours, in the manifest."""
    failed = 0
    with CheckpointManager(disk, retention=Retention(last=1)) as checkpoints:
        checkpoints.save(tree(1), 1)
        checkpoints.wait()
        room = disk_free(disk) - 2_000_000
        for left in (0, 4096, 16384, 24576, 32768, 40960, 49152, 65536, 131072, 400_000):
            ballast = disk / "ballast"
            ballast.write_bytes(b"x" * max(0, room - left))
            try:
                checkpoints.save(tree(2), 2)
                checkpoints.wait()
            except StorageError as error:
                failed += 1
                assert "the disk is full" in str(error)
                assert checkpoints.latest().step == 1, left
                assert np.array_equal(checkpoints.restore(tree(0))["w"], tree(1)["w"])
            else:
                assert np.array_equal(checkpoints.restore(tree(0))["w"], tree(2)["w"])
                break
            finally:
                ballast.unlink()
    assert failed, "the disk was never full"


def disk_free(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize
