"""Records what SLURM's commands print in every situation that the SLURM outlet has to tell apart.

    .venv/bin/python tests/outlets/record_slurm.py [ROW ...]

It brings up clusters of its own (tests/beds/slurm.py: root and Debian's packages) and writes one file per moment to
tests/outlets/recorded/slurm/: for each command that the outlet asks a line `$ COMMAND`, what it printed, and its exit
status; tests/recordings.py reads them. All rows take four minutes.
"""

from __future__ import annotations

import concurrent.futures
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

from beds.bed import wait_for  # noqa: E402 - found through the path above
from beds.slurm import SlurmBed, SlurmSettings  # noqa: E402
from recordings import RECORDED, written  # noqa: E402

from dispatcher.outlets.base import Key  # noqa: E402
from dispatcher.outlets.batch.scheduler import Submitted  # noqa: E402
from dispatcher.outlets.remote.operations import Ran  # noqa: E402
from dispatcher.outlets.slurm import questions  # noqa: E402

DIRECTORY = RECORDED / "slurm"
SLEEP = "#!/bin/bash\nsleep 300\n"
# Takes some seconds to end.
RELUCTANT = "#!/bin/bash\ntrap 'sleep 2; exit 143' TERM\nsleep 300 &\nwait\n"
# Ends well when it is told to stop.
OBEDIENT = "#!/bin/bash\ntrap 'exit 0' TERM\nsleep 300 &\nwait\n"
# A step that ends well when it is told to stop.
OBEDIENT_STEP = "#!/bin/bash\nsrun bash -c 'trap \"exit 0\" TERM; echo up; while :; do sleep 0.1; done'\n"
# Task 0 ends well, task 2 fails, and the others go on.
ARRAY = "#!/bin/bash\ncase $SLURM_ARRAY_TASK_ID in 0) exit 0 ;; 2) exit 5 ;; esac\nsleep 300\n"
TASKS = 10
# What sbatch does not take, each with the same harmless script; the first one it does.
REFUSED = (
    "--test-only --partition=low",
    "--partition=nowhere",
    "--gres=gpu:a100:1",
    "--gres=gpu:h100:9",
    "--nodes=99",
    "--cpus-per-task=999",
    "--mem=999999",
    "--qos=nothing",
    "--account=nobody",
    "--array=0-99999",
    "--time=soon",
    "--no-such-option",
    "--dependency=afterok:999999",
)
SITE = (
    "scontrol show config",
    "sinfo --noheader --Node --format=%N|%P|%t|%c|%m|%G|%O|%C",
    "sinfo --noheader --format=%P|%a|%l|%D|%t|%G|%N|%C",
    "sinfo --noheader --Node --Format=NodeList:40,PartitionName:40,StateLong:20,Gres:60,GresUsed:60",
    "scontrol --oneliner show node",
    "scontrol --oneliner show partition",
    "sacctmgr --noheader --parsable2 show associations user=root format=User,MaxSubmitJobs,GrpSubmitJobs",
    "sbatch --version",
)


class Recorder:
    """Runs rows on one cluster; each row has a job named after it."""

    def __init__(self, slurm: SlurmBed) -> None:
        self.slurm = slurm

    def submit(self, row: str, script: str, *options: str) -> str:
        return self.slurm.submit(script, f"--job-name=d-{row}", "--mem=100M", *options)

    def start(self, row: str, script: str, *options: str) -> str:
        job = self.submit(row, script, *options)
        self.slurm.wait_for(job, "RUNNING")
        return job

    def wait_reason(self, job: str, reason: str) -> None:
        wait_for(lambda: self.slurm.show(job)["Reason"] == reason, lambda: f"{reason}: {self.slurm.show(job)}")

    def record(self, row: str, job: str, *more: str, moment: str = "", tasks: int = 1) -> None:
        """Write what the outlet's questions about the job are answered now; `more` are further commands."""
        attempts = [
            Submitted(key=Key(f"j{index}", 1), name=f"d-{row}", index=index, directory="/", handle=job)
            for index in range(tasks)
        ]
        asked = [run.words for run in (*questions.query(attempts), *questions.detail(attempts))]
        self.write(f"{row}-{moment}" if moment else row, [*asked, *map(shlex.split, more)])

    def write(self, file: str, commands: Sequence[Sequence[str]], stdin: str | None = None) -> None:
        """All commands at the same time: with the controller down each takes long."""

        def said(words: Sequence[str]) -> str:
            done = self.slurm.run(*words, input=stdin, check=False)
            return written(list(words), Ran(exit_code=done.returncode, out=done.stdout, err=done.stderr))

        with concurrent.futures.ThreadPoolExecutor() as pool:
            text = "".join(pool.map(said, commands))
        for here, recorded in (
            (f"{self.slurm.directory}/work", "/home/ada/lab"),
            (str(self.slurm.directory), "/home/ada"),
            ("AllocNode:Sid=localhost:", "AllocNode:Sid=login:"),
        ):
            text = text.replace(here, recorded)
        (DIRECTORY / f"{file}.txt").write_text(text)

    def accounted(self, row: str, *states: str) -> None:
        """Wait until sacct knows the job in one of these states: it lags behind."""
        command = ["sacct", "-n", "-P", "-X", "--duplicates", f"--name=d-{row}", "--format=State"]

        def found() -> list[str]:
            return self.slurm.run(*command).stdout.split()

        wait_for(lambda: set(states) & set(found()), lambda: f"sacct of {row}: {found()}", every_s=0.2)

    def end(self, row: str, job: str, state: str) -> None:
        """Wait for the end, and record it."""
        self.slurm.wait_for(job, state, 120)
        self.accounted(row, state)
        self.record(row, job)

    # Rows.

    def site(self) -> None:
        self.write("site", [command.split() for command in SITE])

    def ended(self) -> None:
        self.end("exit-0", self.submit("exit-0", "#!/bin/bash\nexit 0\n"), "COMPLETED")
        self.end("exit-3", self.submit("exit-3", "#!/bin/bash\nexit 3\n"), "FAILED")
        self.end("batch-shell-killed", self.submit("batch-shell-killed", "#!/bin/bash\nkill -KILL $$\n"), "FAILED")

    def waiting(self) -> None:
        for row, reason, option in (
            ("held", "JobHeldUser", "--hold"),
            ("begins-later", "BeginTime", "--begin=now+1hour"),
            ("beyond-the-time-limit", "PartitionTimeLimit", "--time=9-00:00:00"),
        ):
            job = self.submit(row, SLEEP, option)
            self.wait_reason(job, reason)
            self.record(row, job)

    def running(self) -> None:
        self.record("running", self.start("running", SLEEP))

    def dependency(self) -> None:
        row = "dependency-never-satisfied"
        first = self.submit(f"{row}-first", "#!/bin/bash\nexit 1\n")
        job = self.submit(row, SLEEP, f"--dependency=afterok:{first}")
        self.wait_reason(job, "DependencyNeverSatisfied")
        self.record(row, job)

    def cancelled(self) -> None:
        # sacct does not show what was never eligible.
        row = "cancelled-held"
        job = self.submit(row, SLEEP, "--hold")
        self.slurm.run("scancel", job)
        self.slurm.wait_for(job, "CANCELLED")
        self.record(row, job)
        row = "cancelled-pending"
        self.start("in-the-way", SLEEP)
        job = self.submit(row, SLEEP, "--exclusive", f"--nodes={len(self.slurm.node_names)}")
        self.wait_reason(job, "Resources")
        self.slurm.run("scancel", job)
        self.end(row, job, "CANCELLED")
        row = "cancelled-running"
        job = self.start(row, RELUCTANT)
        self.slurm.run("scancel", "--full", job)
        self.slurm.wait_for(job, "COMPLETING")
        self.record(row, job, moment="completing")
        self.end(row, job, "CANCELLED")

    def time_limit(self) -> None:
        # SLURM counts minutes.
        self.end("time-limit", self.submit("time-limit", SLEEP, "--time=1"), "TIMEOUT")

    def requeued(self) -> None:
        row = "requeued"
        job = self.start(row, SLEEP, "--requeue")
        self.slurm.run("scontrol", "requeue", job)
        self.wait_reason(job, "BeginTime")
        self.accounted(row, "REQUEUED")
        self.record(row, job, moment="pending")
        self.slurm.wait_for(job, "RUNNING")
        self.record(row, job, moment="running")

    def preempted(self, row: str, script: str, state: str, *options: str) -> None:
        """A job of `low` whose node a job of `high` takes."""
        job = self.start(row, script, "--exclusive", *options)
        output = self.slurm.directory / "work" / f"slurm-{job}.out"
        if script == OBEDIENT_STEP:
            wait_for(lambda: output.exists() and "up" in output.read_text(), f"the step of {row}")
        node = self.slurm.show(job)["NodeList"]
        high = self.submit(f"{row}-high", SLEEP, "--exclusive", "--partition=high", f"--nodelist={node}")
        self.slurm.wait_for(job, state, 60)
        if state == "PENDING":
            self.wait_reason(job, "BeginTime")
        self.accounted(row, "PREEMPTED" if state == "PENDING" else state)
        self.record(row, job)
        self.slurm.run("scancel", high, job)

    def preempted_by_requeue(self) -> None:
        self.preempted("preempted-requeue", SLEEP, "PENDING", "--requeue")
        self.preempted("preempted-no-requeue", SLEEP, "PREEMPTED", "--no-requeue")

    def preempted_by_cancel(self) -> None:
        self.preempted("preempted-cancel", SLEEP, "PREEMPTED")

    def preempted_with_grace(self) -> None:
        self.preempted("preempted-grace-step", OBEDIENT_STEP, "COMPLETED", "--no-requeue")
        self.preempted("preempted-grace-batch", SLEEP, "PREEMPTED", "--no-requeue")

        self.preempted("preempted-grace-obedient", OBEDIENT, "PREEMPTED", "--no-requeue")

    def array(self) -> None:
        row = "array"
        job = self.submit(row, ARRAY, f"--array=0-{TASKS - 1}%4")

        def states() -> list[str]:
            return self.slurm.run("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T").stdout.split()

        def has_begun() -> bool:
            return [states().count(word) for word in ("COMPLETED", "FAILED", "RUNNING")] == [1, 1, 4]

        wait_for(has_begun, lambda: f"the array: {states()}", every_s=0.1)
        self.slurm.run("scancel", f"{job}_{TASKS - 1}")
        self.accounted(row, "FAILED")
        self.record(row, job, tasks=TASKS)

    def lost_node(self) -> None:
        self.slurm.run("scancel", "--user=root")
        failed = self.submit("node-fail", SLEEP, "--no-requeue", "--nodelist=n1")
        requeued = self.submit("node-fail-requeued", SLEEP, "--requeue", "--nodelist=n2")
        for job, node in ((failed, "n1"), (requeued, "n2")):
            self.slurm.wait_for(job, "RUNNING")
            self.slurm.stop_node(node)
        self.end("node-fail", failed, "NODE_FAIL")
        self.slurm.wait_for(requeued, "PENDING", 60)
        self.accounted("node-fail-requeued", "NODE_FAIL", "REQUEUED")
        self.record("node-fail-requeued", requeued)

    def refused(self) -> None:
        self.write("refused", [["sbatch", "--parsable", *each.split()] for each in REFUSED], "#!/bin/bash\n")

    def unknown(self) -> None:
        more = ("squeue --noheader --jobs=999999", "scancel 999999", "scancel --name=nothing")
        self.record("unknown-job", "999999", *more)

    def purged(self) -> None:
        row = "purged"
        job = self.submit(row, "#!/bin/bash\nexit 3\n")
        self.slurm.wait_for(job, "FAILED")
        self.accounted(row, "FAILED")
        wait_for(lambda: not self.slurm.show(job), "the job is purged", limit_s=90, every_s=0.5)
        self.record(row, job, f"squeue --noheader --jobs={job}")

    def controller_down(self) -> None:
        row = "controller-down"
        job = self.submit(row, SLEEP)
        self.slurm.stop_controller(signal.SIGKILL)
        self.record(row, job, "sbatch --parsable --wrap=true", f"scancel {job}")
        self.slurm.start_controller()

    def unaccounted(self) -> None:
        """A site without accounting says so."""
        row = "unaccounted"
        job = self.submit(row, "#!/bin/bash\nexit 3\n")
        self.slurm.wait_for(job, "FAILED")
        self.record(row, job)


# Each cluster: its settings, and what happens on it, one after the other.
CLUSTERS: tuple[tuple[SlurmSettings, str], ...] = (
    (
        SlurmSettings(nodes=4, accounting=True, kill_wait_s=5),
        "site time_limit ended running waiting dependency cancelled array refused unknown controller_down",
    ),
    (SlurmSettings(nodes=2, accounting=True, slurmd_timeout_s=5), "preempted_by_requeue requeued lost_node"),
    (SlurmSettings(nodes=2, accounting=True, preempt_mode="CANCEL"), "preempted_by_cancel"),
    (SlurmSettings(nodes=2, accounting=True, preempt_mode="CANCEL", grace_s=5), "preempted_with_grace"),
    (SlurmSettings(nodes=1, accounting=True, min_job_age_s=2), "purged"),
    (SlurmSettings(nodes=1), "unaccounted"),
)


def record(settings: SlurmSettings, rows: list[str]) -> None:
    with SlurmBed(settings) as slurm:
        recorder = Recorder(slurm)
        for row in rows:
            began_s = time.monotonic()
            getattr(recorder, row)()
            print(f"{row}: {time.monotonic() - began_s:.1f} s", flush=True)


def main(wanted: list[str]) -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for settings, rows in CLUSTERS:
        if chosen := [row for row in rows.split() if not wanted or row in wanted]:
            record(settings, chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
