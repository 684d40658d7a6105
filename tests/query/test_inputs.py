"""Which jobs are older than what they need, against a model that knows which attempts each was made from."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dispatcher.api import Workspace
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import PREEMPTED, Ended
from dispatcher.pod.outcome import Policy, after
from dispatcher.pod.participants.claims import inputs_at
from dispatcher.pod.placements import CLAIM_UNSETS
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State

NEEDS = {"b": ("a",), "c": ("a", "b"), "d": ("c",), "e": ("a",), "g": ("f", "e")}
JOBS = "abcdefg"
# Exit status, reason, the step of the last checkpoint.
ENDS = [*[(0, "", None)] * 4, (1, "exit 1", 5.0), (75, PREEMPTED, 5.0)]


class Model:
    """Jobs that run, fail, are preempted, and that people change; and what each was made from."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng = rng
        self.entries = {job: Entry(job_id=job, method="m", needs=NEEDS.get(job, ())) for job in JOBS}
        (root / "matrix").mkdir()
        listed = [{"job_id": job, "method": "m", "needs": list(NEEDS.get(job, ()))} for job in JOBS]
        (root / "matrix" / "matrix.json").write_text(json.dumps(listed))
        self.workspace = Workspace(root, by="pod-0")
        # The attempt by which a job was last done, and those of its inputs when it began.
        self.made: dict[str, int] = {}
        self.used: dict[str, dict[str, int | None]] = {}
        self.by_hand: set[str] = set()
        with self.workspace.transaction() as tx:
            for job in JOBS:
                tx.change(job, Event.QUEUED, Change(state=State.QUEUED))

    def state(self, job: str) -> State:
        return self.workspace.store.records[job].state

    def claim(self, job: str) -> None:
        if self.state(job) is not State.QUEUED or any(
            self.state(need) is not State.DONE for need in NEEDS.get(job, ())
        ):
            return
        with self.workspace.transaction() as tx:
            record = tx.record(job)
            assert record is not None
            resumes = record.furthest_checkpoint is not None
            begun = inputs_at(self.entries[job], record, tx.seq, starts_anew=False)
            change = Change(state=State.RUNNING, attempt=record.attempt + 1, ran_with="0" * 16, inputs_at=begun)
            tx.change(job, Event.CLAIMED, CLAIM_UNSETS | change)
        self.by_hand.discard(job)
        if not resumes:
            self.used[job] = {need: self.made.get(need) for need in NEEDS.get(job, ())}

    def end(self, job: str) -> None:
        if self.state(job) is not State.RUNNING:
            return
        exit_code, reason, checkpoint = self.rng.choice(ENDS)
        ended = Ended(exit_code, reason, checkpoint=checkpoint)
        with self.workspace.transaction() as tx:
            record = tx.record(job)
            assert record is not None
            event, change = after(ended, record, Policy(backoff_s=0.0), 0.0)
            tx.change(job, event, change)
        if exit_code == 0:
            self.made[job] = self.workspace.store.records[job].attempt

    def requeue(self, job: str) -> None:
        if self.state(job) is not State.RUNNING:
            self.workspace.requeue(job)

    def retry(self, job: str) -> None:
        if self.state(job) is State.FAILED:
            self.workspace.requeue(job)

    def mark(self, job: str) -> None:
        if self.state(job) in (State.DONE, State.FAILED):
            other = State.FAILED if self.state(job) is State.DONE else State.DONE
            if self.workspace.mark(other, job).changed:
                self.by_hand.add(job)

    def edit(self, job: str) -> None:
        self.workspace.update(job, priority=self.rng.randrange(100))

    def rotate(self, _: str) -> None:
        self.workspace.store.rotate()

    def newer(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for job, used in self.used.items():
            if self.state(job) in (State.DONE, State.FAILED, State.RUNNING) and job not in self.by_hand:
                for need, attempt in used.items():
                    if self.state(need) is State.DONE and self.made.get(need) != attempt:
                        found.setdefault(job, {})[need] = self.workspace.store.records[need].attempt
        return found


@pytest.mark.parametrize("seed", range(10))
def test_a_job_is_older_when_an_input_was_done_again_after_it_began(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    model = Model(tmp_path, rng)
    steps = [model.requeue, model.mark, model.edit, model.rotate]
    reader = Workspace(tmp_path)
    seen = 0
    for number in range(200):
        for job in rng.sample(JOBS, 3):
            model.end(job)
            model.claim(job)
            model.retry(job)
        if number % 4 == 0:
            rng.choice(steps)(rng.choice(JOBS))
        expected = model.newer()
        seen += bool(expected)
        assert reader.snapshot().newer_inputs == expected
        if rng.random() < 0.1:
            fresh = Workspace(tmp_path).snapshot()
            assert fresh.newer_inputs == expected
            half = {job: fresh.records[job] for job in JOBS[1::2]}
            assert fresh.only(half).newer_inputs == {job: needs for job, needs in expected.items() if job in half}
    assert seen, "of no use otherwise"


def test_downstream_is_everything_that_needs_a_job_but_not_through_one_that_was_given_up(tmp_path: Path) -> None:
    workspace = Model(tmp_path, random.Random(0)).workspace
    assert sorted(workspace.snapshot().downstream(["a"])) == ["b", "c", "d", "e", "g"]
    assert sorted(workspace.snapshot().downstream(["b", "c"])) == ["d"]
    assert workspace.snapshot().downstream(["d"]) == []
    workspace.cancel("c")
    assert sorted(workspace.snapshot().downstream(["b"])) == []
