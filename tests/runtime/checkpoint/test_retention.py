"""Which checkpoints go: the choice by property, and the removal on a disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import UsageError
from dispatcher.runtime.checkpoint import CheckpointManager, CheckpointRef, Retention


def ref(number: int, step: int, loss: float | None, resumable: bool) -> CheckpointRef:
    metrics = {} if loss is None else {"loss": loss}
    return CheckpointRef("/x", f"c{number}", step, (1, 0, number), resumable=resumable, metrics=metrics)


series = st.lists(
    st.tuples(st.integers(0, 40), st.none() | st.floats(-5, 5) | st.just(float("nan")), st.booleans()), max_size=12
).map(lambda rows: [ref(number, *row) for number, row in enumerate(rows)])
policies = st.builds(
    Retention,
    last=st.integers(1, 4),
    every=st.none() | st.integers(1, 10),
    best=st.integers(0, 3),
    mode=st.sampled_from(["min", "max"]),
)


@given(series, policies, st.data())
def test_what_must_stay_stays(checkpoints, policy, data):
    shuffled = data.draw(st.permutations(checkpoints))
    protected = data.draw(st.sets(st.sampled_from([each.name for each in checkpoints] or [""])))
    removed = policy.superfluous(shuffled, protected)
    kept = [each for each in checkpoints if each not in removed]
    resumable = [each for each in checkpoints if each.resumable]

    assert all(each.resumable for each in removed), "what somebody named stays"
    assert not {each.name for each in removed} & protected
    assert set(resumable[-policy.last :]) <= set(kept)
    assert all(each in kept for each in resumable if policy.every and each.step % policy.every == 0)
    assert removed == sorted(removed, key=lambda each: each.order), "the oldest goes first"
    if resumable:
        assert resumable[-1] in kept, "the newest is never removed"

    sign = 1 if policy.mode == "min" else -1
    measured = [each for each in resumable if each.metrics.get("loss") == each.metrics.get("loss", 0)]
    measured = [each for each in measured if "loss" in each.metrics]
    best = sorted(measured, key=lambda each: (sign * each.metrics["loss"], -each.order[2]))[: policy.best]
    assert set(best) <= set(kept)

    needed = len(resumable[-policy.last :]) + len(protected) + len(best)
    needed += sum(1 for each in resumable if policy.every and each.step % policy.every == 0)
    assert sum(each.resumable for each in kept) <= needed, "nothing stays without a reason"


@given(series, policies)
def test_choosing_again_removes_nothing_more(checkpoints, policy):
    removed = policy.superfluous(checkpoints)
    assert policy.superfluous([each for each in checkpoints if each not in removed]) == []


@pytest.mark.parametrize("wrong", [{"last": 0}, {"every": 0}, {"best": -1}, {"mode": "least"}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(UsageError, match=f"retention: {next(iter(wrong))} = "):
        Retention(**wrong)


def test_removal_on_a_disk(tmp_path, state):
    losses = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0]
    with CheckpointManager(tmp_path, retention=Retention(last=2, every=4, best=1)) as checkpoints:
        checkpoints.save(state(0), 0, name="first", resumable=False)
        for step, loss in enumerate(losses):
            checkpoints.save({"x": step}, step, metrics={"loss": loss})
        checkpoints.wait()
        assert [each.step for each in checkpoints.checkpoints()] == [0, 0, 1, 4, 5, 6]
    assert {path.name for path in tmp_path.iterdir()} == {
        "latest", "first", *(f"step-0000000{step}" for step in (0, 1, 4, 5, 6))
    }  # fmt: skip


def test_what_goes_when_a_run_goes_on(tmp_path):
    """What was registered and what was named stay, also where the retention keeps fewer than the run before did."""
    with CheckpointManager(tmp_path) as checkpoints:
        for step in range(5):
            checkpoints.save({"x": step}, step)
        checkpoints.save({"x": 9}, 9, name="best", resumable=False)
        checkpoints.register("step-00000001")
        checkpoints.restore({"x": 0})
        assert [each.step for each in checkpoints.checkpoints()] == [0, 1, 2, 3, 4, 9], "without a retention all stay"
    with CheckpointManager(tmp_path, retention=Retention(last=2)) as checkpoints:
        checkpoints.restore({"x": 0}, checkpoints.find("step-00000003"))
        assert len(checkpoints.checkpoints()) == 6, "one that was asked for is not where the run goes on"
        assert checkpoints.restore({"x": 0}) == {"x": 1}
        assert [each.step for each in checkpoints.checkpoints()] == [1, 3, 4, 9]


def test_a_superseded_attempt_removes_nothing(tmp_path, attempt, caplog):
    directory = attempt(1)
    with CheckpointManager(tmp_path / "run", retention=Retention(last=3)) as checkpoints:
        for step in range(3):
            checkpoints.save({"x": step}, step)
    (directory / "superseded").touch()
    with CheckpointManager(tmp_path / "run", retention=Retention(last=1)) as checkpoints:
        assert checkpoints.restore({"x": 0}) == {"x": 2}
        assert [each.step for each in checkpoints.checkpoints()] == [0, 1, 2]
    assert "older checkpoints are kept: attempt 1 of fft_spanish was superseded" in caplog.text


def test_nothing_goes_while_the_new_one_does_not_look_whole(tmp_path, state, monkeypatch):
    """A disk that loses what it has confirmed must not cost the older checkpoints as well."""
    from dispatcher.checkpoints.directory import DirectoryStorage

    with CheckpointManager(tmp_path, retention=Retention(last=1)) as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.wait()
        publish = DirectoryStorage.publish

        def lossy(self, staged, name, draft, guard):
            manifest = publish(self, staged, name, draft, guard)
            (tmp_path / name / "tree.json").unlink()
            return manifest

        monkeypatch.setattr(DirectoryStorage, "publish", lossy)
        checkpoints.save(state(2), 2)
        checkpoints.wait()
        assert checkpoints.restore(state(0))["step"] == 1
