"""When a training saves or leaves: what one process requests, and what all do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from small_trainings import Classification, arrays, made

from dispatcher.runtime.execution import Topology
from dispatcher.runtime.training.compiled import Action
from dispatcher.runtime.training.placement import make_mesh
from dispatcher.runtime.training.policy import Policy

pytestmark = pytest.mark.demo


class World:
    """A clock, a save that may be in progress, and the policy that looks at both."""

    def __init__(self, interval_s: float | None = 60.0) -> None:
        self.now_s = 0.0
        self.saving = False
        mesh = make_mesh(Topology((jax.devices()[0],)), {})
        self.policy = Policy(mesh, interval_s=interval_s, saving=lambda: self.saving, clock=lambda: self.now_s)

    def requested(self) -> Action:
        return Action(int(self.policy.requested.max()))


def test_a_save_by_time_is_requested_when_it_is_due_and_none_is_in_progress() -> None:
    world = World()
    assert world.requested() is Action.CONTINUE
    world.now_s = 60.0
    assert world.requested() is Action.SAVE
    world.saving = True
    assert world.requested() is Action.CONTINUE
    world.saving = False
    world.policy.saved(7)
    assert world.requested() is Action.CONTINUE
    world.now_s = 119.0
    assert world.requested() is Action.CONTINUE
    world.now_s = 120.0
    assert world.requested() is Action.SAVE


def test_no_process_but_one_requests_saves_by_time() -> None:
    world = World(interval_s=None)
    world.now_s = 1e9
    assert world.requested() is Action.CONTINUE


def test_what_was_requested_before_another_save_is_not_saved_twice() -> None:
    policy = World().policy
    save = jnp.int32(Action.SAVE)
    assert policy.after(None) is Action.CONTINUE
    assert policy.after((4, save)) is Action.SAVE
    policy.saved(5)
    # Requested with the block that ended at 5, while the checkpoint of 5 was not begun.
    assert policy.after((5, save)) is Action.CONTINUE
    assert policy.after((6, save)) is Action.SAVE
    assert policy.after((6, jnp.int32(Action.ABORT))) is Action.ABORT


class Often(Classification):
    """Saves by time whenever it may; notes which checkpoints there are when one is begun."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.begun: list[tuple[int, bool]] = []

    def evaluations(self) -> Any:
        return {}

    def save_state(self, **how: Any) -> None:
        self.begun.append((self.steps_done, self.saving))
        super().save_state(**how)


def steps_kept(job: Any) -> list[int]:
    return sorted(ref.step for ref in type(job).checkpoints(job.spec))


def test_checkpoints_by_time_are_temporary_and_those_by_steps_permanent(tmp_path: Path) -> None:
    job = made(tmp_path, cls=Often, steps=40, save_interval=1e-6, save_every=10, keep=1)
    job()
    by_time = [step for step, _ in job.begun if step % 10]
    assert by_time
    assert steps_kept(job) == [10, 20, 30, 40]
    # Only a save by steps waits for one that is in progress.
    assert all(not saving for step, saving in job.begun if step % 10)


class Dies(Classification):
    """Is killed where an evaluation begins, after its step was saved."""

    class Killed(BaseException):
        pass

    def evaluated(self) -> dict[str, float]:
        if self.steps_done == 4:
            self.wait()
            raise self.Killed
        return super().evaluated()


def test_an_evaluation_that_a_kill_prevented_is_made_up(tmp_path: Path) -> None:
    whole = made(tmp_path, "whole", steps=6, eval_every=2)
    whole()
    with pytest.raises(Dies.Killed):
        made(tmp_path, "apart", Dies, steps=6, eval_every=2)()
    evaluated: list[int] = []

    class Notes(Classification):
        def evaluated(self) -> dict[str, float]:
            evaluated.append(self.steps_done)
            return super().evaluated()

    again = made(tmp_path, "apart", Notes, steps=6, eval_every=2)
    again()
    assert evaluated == [4, 6]
    assert (again.best, again.result()) == (whole.best, whole.result())
    assert {name: array.tobytes() for name, array in arrays(again).items()} == {
        name: array.tobytes() for name, array in arrays(whole).items()
    }
