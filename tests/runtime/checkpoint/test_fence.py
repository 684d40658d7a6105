"""Only the current attempt of an entry commits, and what an older one commits late is never taken for the latest."""

from __future__ import annotations

import pytest

from dispatcher import contract
from dispatcher.checkpoints.directory import DirectoryStorage
from dispatcher.errors import CheckpointError, SupersededError
from dispatcher.runtime.checkpoint import CheckpointManager


def steps(checkpoints: CheckpointManager) -> list[int]:
    return [each.step for each in checkpoints.checkpoints()]


def test_a_superseded_attempt_commits_nothing(tmp_path, state, same, attempt):
    directory = attempt(1)
    with CheckpointManager(tmp_path / "run") as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.wait()
        (directory / contract.SUPERSEDED_FILE).touch()
        with pytest.raises(SupersededError, match=r"step 2 was not saved: attempt 1 of fft_spanish was superseded"):
            checkpoints.save(state(2), 2)
        with pytest.raises(SupersededError):
            checkpoints.register("step-00000001")
        same(checkpoints.restore(state(0)), state(1))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["latest", "step-00000001"]


def test_the_fence_is_looked_at_right_before_the_commit(tmp_path, state, attempt, monkeypatch):
    directory = attempt(1)
    publish = DirectoryStorage.publish

    def superseded_meanwhile(self, staged, name, draft, guard):
        (directory / contract.SUPERSEDED_FILE).touch()
        return publish(self, staged, name, draft, guard)

    monkeypatch.setattr(DirectoryStorage, "publish", superseded_meanwhile)
    with CheckpointManager(tmp_path / "run") as checkpoints:
        checkpoints.save(state(1), 1)
        with pytest.raises(SupersededError, match=r"Nothing was committed; this attempt must stop"):
            checkpoints.wait()
        assert checkpoints.latest() is None


def test_an_attempt_whose_directory_is_gone_commits_nothing(tmp_path, state, attempt):
    directory = attempt(1)
    with CheckpointManager(tmp_path / "run") as checkpoints:
        directory.rmdir()
        with pytest.raises(CheckpointError, match=f"attempt's directory {directory} is gone"):
            checkpoints.save(state(1), 1)


def test_a_newer_attempts_checkpoint_stops_the_older_one(tmp_path, state, same, attempt):
    """Also where the older one cannot see its own directory's sign, as on a host that was cut off."""
    attempt(1)
    older = CheckpointManager(tmp_path / "run")
    older.save(state(1), 1)
    older.wait()
    attempt(2)
    with CheckpointManager(tmp_path / "run") as newer:
        newer.save(state(2), 2)
        newer.wait()
        with pytest.raises(SupersededError, match=r"attempt 2 of fft_spanish has saved .*step-00000002 already"):
            older.save(state(3), 3)
        older.close()
        assert steps(newer) == [1, 2]
        same(newer.restore(state(0)), state(2))


def test_what_an_older_attempt_commits_late_is_older(tmp_path, state, same, attempt, monkeypatch):
    """It looked before the newer attempt committed, and renames after: the fence has let it through."""
    attempt(1)
    older = CheckpointManager(tmp_path / "run")
    older.save(state(1), 1)
    older.wait()
    attempt(2)
    newer = CheckpointManager(tmp_path / "run")
    publish = DirectoryStorage.publish

    def too_late(self, staged, name, draft, guard):
        if draft.attempt == 1:
            newer.save(state(2), 2)
            newer.wait()
        return publish(self, staged, name, draft, lambda present: None)

    monkeypatch.setattr(DirectoryStorage, "publish", too_late)
    older.save(state(9), 9)
    older.wait()
    assert steps(newer) == [1, 9, 2]
    assert newer.latest().step == 2
    same(newer.restore(state(0)), state(2))
    newer.save(state(9), 9)
    newer.wait()
    assert steps(newer) == [1, 2, 9]
    same(newer.restore(state(0)), state(9))
    older.close()
    newer.close()


def test_a_late_older_attempt_does_not_overwrite_a_name(tmp_path, state, same, attempt, monkeypatch):
    attempt(1)
    older = CheckpointManager(tmp_path / "run")
    attempt(2)
    newer = CheckpointManager(tmp_path / "run")
    publish = DirectoryStorage.publish

    def too_late(self, staged, name, draft, guard):
        if draft.attempt == 1:
            newer.save(state(2), 2, name="best")
            newer.wait()
        return publish(self, staged, name, draft, lambda present: guard(present) if present else None)

    monkeypatch.setattr(DirectoryStorage, "publish", too_late)
    older.save(state(1), 1, name="best")
    with pytest.raises(SupersededError, match=r"attempt 2 of fft_spanish has saved .*/best already"):
        older.wait()
    same(newer.restore(state(0), newer.find("best")), state(2))
    assert steps(newer) == [2]
    older.close()
    newer.close()


def test_a_name_is_replaced_by_the_newer_one(tmp_path, state, same, attempt):
    with CheckpointManager(tmp_path / "run") as by_hand:
        by_hand.save(state(1), 1, name="best")
    attempt(1)
    with CheckpointManager(tmp_path / "run") as checkpoints:
        checkpoints.save(state(2), 2, name="best")
        same(checkpoints.restore(state(0)), state(2))
        assert steps(checkpoints) == [2]


def test_runs_follow_one_another(tmp_path, attempt, state):
    """By hand, then two attempts, then another entry on the same place, then by hand: each is newer than all before."""
    for step, become in enumerate([None, ("a", 1), ("a", 2), ("b", 1), None, ("a", 3)]):
        if become:
            attempt(become[1], become[0])
        with CheckpointManager(tmp_path / "run") as checkpoints:
            # A smaller step is allowed, too.
            checkpoints.save(state(9 - step), 9 - step)
            checkpoints.wait()
            assert checkpoints.latest().step == 9 - step
    with CheckpointManager(tmp_path / "run") as checkpoints:
        orders = [each.order for each in checkpoints.checkpoints()]
        assert orders == sorted(set(orders))
        assert checkpoints.latest().parent is None
        checkpoints.restore(state(0))
        assert checkpoints.save(state(8), 8).parent == "step-00000004"
