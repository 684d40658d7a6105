"""Records what kubectl tells of attempts in several states, for test_recorded.py of Volcano.

    python tests/outlets/record_volcano.py RELEASE          # with tests/ in PYTHONPATH; v1.5.1 or master

writes tests/outlets/volcano/recorded/RELEASE.json: the answers to the scheduler's own questions.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from beds.bed import wait_for
from beds.volcano import VolcanoBed, VolcanoSettings
from volcano_jobs import VolcanoJobs, make_submission

from dispatcher.outlets.base import Request
from dispatcher.outlets.batch.scheduler import Phase, Submitted
from dispatcher.outlets.remote.operations import Run

FOLDER = Path(__file__).parent / "volcano" / "recorded"
WAITS = "echo begun >begun; until [ -e go ]; do sleep 0.1; done"
# By what becomes of it: the attempt's wrapper, and what it asks for.
COMMANDS = {
    "done": "exit 0", "failed": "exit 3", "running": WAITS, "preempted": f"trap 'exit 0' TERM; {WAITS}",
    "evicted": WAITS, "killed": WAITS, "aborted": WAITS, "deleted": WAITS,
}  # fmt: skip
NAMES = list(COMMANDS)


def main(release: str) -> None:
    with tempfile.TemporaryDirectory() as folder, VolcanoBed(VolcanoSettings(release=release)) as bed:
        jobs = VolcanoJobs(bed, Path(folder))
        jobs.submit(*COMMANDS.values(), name="d-0123456789ab-0000000001")
        keys = {name: f"j{index}" for index, name in enumerate(NAMES)}
        for name, command in COMMANDS.items():
            if "begun" in command:
                jobs.wait_for_file("begun", keys[name])
        bed.preempt(jobs.job(keys["preempted"]))
        bed.evict(jobs.pod(0, keys["evicted"]))
        bed.oom_kill(jobs.pod(0, keys["killed"]))
        bed.command("AbortJob", jobs.job(keys["aborted"]))
        jobs.cancel(keys["deleted"], force=True)
        for name in ("preempted", "evicted", "killed", "aborted", "done", "failed"):
            jobs.wait(Phase.ENDED, job=keys[name])
        jobs.wait(None, job=keys["deleted"])
        waiting = make_submission("d-0123456789ab-0000000002", request=Request(gpus=1000))
        jobs.send(waiting)
        wait_for(lambda: bed.unschedulable("d-0123456789ab-0000000002-0"), "the scheduler tells why it waits")
        FOLDER.mkdir(exist_ok=True)
        answers = [
            answer(jobs, one) for one in jobs.scheduler.detail([*jobs.attempts.values(), *followed(jobs, waiting)])
        ]
        # Where Volcano's plugin mounts its keys is no matter here, and looks like a path of somebody's machine.
        text = re.sub(r"(?<!\w)/\w+/\.ssh\b", "/home/user/.ssh", json.dumps(answers))
        (FOLDER / f"{release}.json").write_text(text + "\n")


def followed(jobs: VolcanoJobs, given: Any) -> list[Any]:
    return [Submitted(key=given.bundles[0].key, name=given.name, index=0, directory="/d")]


def answer(jobs: VolcanoJobs, operation: Any) -> dict[str, Any]:
    assert isinstance(operation, Run)
    ran = jobs.carry_out(operation)
    return {"exit_code": ran.exit_code, "out": ran.out, "err": ran.err}


if __name__ == "__main__":
    main(sys.argv[1])
