"""Dispatchers as people start them on a cluster whose filesystem has the workspace: with `--outlet hpc`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from beds.slurm import ORDINARY, SlurmBed
from fleet import COMMAND, Fleet, shell, wait_until

import dispatcher

# All that a lab writes.
CONFIG = """hosts:
  hpc:
    type: slurm
"""
# Counts to 60, saves every step beside its attempts, and goes on from there.
# What it saves is what it says: one line by one write, which no signal cuts in two.
TRAINING = """
steps=$DISPATCHER_ROOT/steps
trap 'exit 75' TERM
step=$(tail -n 1 "$steps" 2>/dev/null)
echo "from ${step:=0}"
while ((step < 60)); do
    sleep 0.05
    echo $((++step)) >>"$steps"
    [[ $step -lt 20 || -e $DISPATCHER_ROOT/go ]] || sleep 0.5
done
"""
Start = Callable[..., SlurmBed]


@pytest.fixture
def start_lab(start_slurm: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Lab]]:
    labs = []

    def start(user: str | None = None, config: str = CONFIG, **settings: object) -> Lab:
        bed = start_slurm(**settings)
        monkeypatch.setenv("SLURM_CONF", str(bed.conf))
        labs.append(Lab(bed, user, config))
        return labs[-1]

    yield start
    for lab in labs:
        lab.close()


def python_of(bed: SlurmBed, user: str) -> list[str]:
    """A Python with this one's packages that the user can start; this one may be where only root may enter."""
    path = f"{Path(dispatcher.__file__).parent.parent}:{Path(msgspec.__file__).parent.parent}"
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import dispatcher.cli.main'], check=True)"
    for python in (sys.executable, "/usr/bin/python3"):
        words = ["env", f"PYTHONPATH={path}", python]
        if (
            subprocess.run(bed.command(*words, "-c", nested, user=user), capture_output=True, check=False).returncode
            == 0
        ):
            return words
    pytest.skip(f"{user} cannot start a Python that has this one's packages")


class Lab(Fleet):
    """A workspace where nodes see it, whose dispatchers run as `user`."""

    def __init__(self, bed: SlurmBed, user: str | None, config: str) -> None:
        self.bed = bed
        super().__init__(bed.directory / "work" / "a'; echo foo")
        self.write_config(config)
        if user is not None:
            self.command = bed.command(*python_of(bed, user), *COMMAND[1:], user=user)
            for directory in (self.root, self.layout.matrix_dir):
                directory.mkdir(exist_ok=True)
                os.chmod(directory, 0o777)

    def sbatch(self, *words: str) -> int:
        """The exit status of a submission that people make."""
        return self.bed.run("sbatch", *words, "--output=/dev/null", "--wrap=true", check=False).returncode

    def submitted(self) -> list[str]:
        """Ids and names of all jobs that SLURM has had."""
        return self.bed.run("squeue", "--all", "--states=all", "-h", "-o", "%F %j").stdout.splitlines()


@pytest.mark.parametrize("user", [None, ORDINARY])
def test_three_lines_of_configuration(start_lab: Callable[..., Lab], user: str | None) -> None:
    lab = start_lab(user)
    words = 'echo "$HOSTNAME $CUDA_VISIBLE_DEVICES [$A]"'
    entries = [shell(f"cpu{index}", f"{words}; exit {index}", gpus=0) for index in range(4)]
    entries += [shell(f"gpu{index}", words, gpus=2, env={"A": "it's $HOME\n2"}) for index in range(2)]
    lab.write_manifest(entries)
    pod = lab.run_all("--outlet", "hpc", "--slots", "32", poll="0.5")
    expected = {"cpu0": "done", "gpu0": "done", "gpu1": "done"} | {f"cpu{index}": "failed" for index in (1, 2, 3)}
    assert lab.states() == expected, pod.said
    assert lab.record("cpu3").reason == "exit 3"
    gpus = [lab.output(f"gpu{index}").split(" ", 2)[1] for index in range(2)]
    assert all(len(words.split(",")) == 2 for words in gpus)
    assert "[it's $HOME\n2]" in lab.output("gpu0")
    assert lab.record("cpu3").host in lab.bed.node_names
    assert f"dispatcher: note: job {lab.record('cpu3').handle} of SLURM, on " in lab.attempt("cpu3").log.read_text()
    # Equal requests of one claim are one array.
    assert len({line.split()[1] for line in lab.submitted()}) == 2
    if user is not None:
        assert lab.attempt("cpu0").exit.owner() == user


@pytest.mark.slow
@pytest.mark.parametrize("grace_s", [0, 20])
def test_a_preempted_training_goes_back_and_ends_as_undisturbed(start_lab: Callable[..., Lab], grace_s: int) -> None:
    """With a grace period it is told at once, which SLURM itself does not do."""
    lab = start_lab(nodes=1, grace_s=grace_s)
    lab.write_manifest([shell("a", TRAINING, gpus=4)])
    pod = lab.start("hpc", "--outlet", "hpc", "--until-empty", poll="0.5")
    steps = lab.root / "steps"
    wait_until(lambda: steps.exists() and len(steps.read_text().split()) >= 20, "it has made steps")
    urgent = lab.bed.submit("#!/bin/sh\nsleep 3", "--partition=high", "--gpus=4")
    (lab.root / "go").touch()
    lab.wait_for("a", "submitted", "running", "done", attempt=2)
    assert pod.end(120) == 0, pod.said
    assert lab.bed.show(urgent)["JobState"] == "COMPLETED"
    assert lab.states() == {"a": "done"}
    record = lab.record("a")
    assert (record.attempt, record.retries) == (2, 0)
    assert lab.output("a", 2).startswith("from ")
    assert lab.output("a", 2) != "from 0\n"
    assert steps.read_text().split() == [str(step) for step in range(1, 61)]
    assert "preempted" in pod.said
    # SLURM did not start it again by itself.
    assert len(lab.submitted()) == 3


def test_many_that_a_person_cancels_in_slurm_do_not_pause_their_method(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab()
    lab.write_manifest([shell(f"job{number}", "sleep 600", gpus=0) for number in range(6)])
    pod = lab.start("hpc", "--slots", "6", "--outlet", "hpc", "--until-empty", poll="0.5")
    wait_until(lambda: list(lab.states().values()) == ["running"] * 6, "all run")
    lab.bed.run("scancel", "--user=root")
    pod.end()
    assert list(lab.states().values()) == ["failed"] * 6
    assert {record.reason for record in lab.records().values()} == {"cancelled"}
    assert "paused" not in pod.said


@pytest.mark.parametrize("pack", [1, 2])
def test_a_job_that_removes_its_own_directory_is_lost(start_lab: Callable[..., Lab], pack: int) -> None:
    """It counts as a requeue, also in a pack: it would come back for ever otherwise."""
    lab = start_lab(config=CONFIG + f"max_requeues: 1\nmethods: {{train: {{pack: {pack}}}}}\n")
    words = 'sleep 0.5; rm -rf "$DISPATCHER_ATTEMPT_DIR"; echo >>"$DISPATCHER_ROOT/starts"; sleep 0.5'
    lab.write_manifest([shell("a", words, gpus=0), shell("b", "true", gpus=0)])
    lab.run_all("--outlet", "hpc", "--slots", "2", poll="0.5")
    assert lab.states() == {"a": "failed", "b": "done"}
    assert lab.record("a").reason == "lost 2 times"
    assert len((lab.root / "starts").read_text()) == 2


def test_what_sbatch_refuses(start_lab: Callable[..., Lab]) -> None:
    """Its own words stand in the record, and the job waits for somebody to mend it."""
    lab = start_lab(config=CONFIG + "    partitions: [nowhere]\n")
    lab.write_manifest([shell("a", "true", gpus=0)])
    pod = lab.start("hpc", "--outlet", "hpc", poll="0.5")
    pod.says("invalid partition specified: nowhere")
    assert lab.record("a").state in ("queued", "submitted", "failed")


def test_a_start_up_failure_shows_what_the_batch_script_printed(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab()
    (lab.root / "templates").mkdir()
    (lab.root / "templates" / "sbatch.sh.j2").write_text(
        "#!/bin/bash\n# {{ directories }} {{ groups }}\necho 'the scratch disk is full' >&2\nexit 12\n"
    )
    lab.write_manifest([shell("a", "true", gpus=0)])
    pod = lab.start("hpc", "--outlet", "hpc", poll="0.5")
    pod.says("the scratch disk is full")


def test_arguments_that_contradict_stop_the_dispatcher(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab(config=CONFIG + "    sbatch_args: [--gpus=2]\n")
    lab.write_manifest([shell("a", "true", gpus=0)])
    pod = lab.start("hpc", "--outlet", "hpc")
    assert pod.end() != 0
    assert (
        "sbatch_args: --gpus=2 is not taken, as the dispatcher sets --gpus itself: use `gpus` of the entry" in pod.said
    )


def test_arguments_that_contradict_some_jobs_leave_these_queued(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab(config=CONFIG + "    sbatch_args: [--mem-per-cpu=100M]\n")
    lab.write_manifest(
        [
            shell("a", "true", gpus=0, outlet="hpc", resources={"memory": "200M"}),
            shell("b", "true", gpus=0, outlet="hpc"),
        ]
    )
    pod = lab.start("hpc", "--outlet", "hpc", "--until-empty", poll="0.5")
    assert pod.end() == 1
    assert {job: record.state.value for job, record in lab.records().items()} == {"a": "queued", "b": "done"}
    assert lab.record("a").attempt == 0
    why = "sbatch_args: --mem-per-cpu=100M contradicts --mem=200M, which is generated: use `mem`"
    assert why in pod.said and why in lab.run("status", "--json")


def test_an_entry_that_names_no_partition_of_the_cluster_holds_up_nobody(start_lab: Callable[..., Lab]) -> None:
    """It has failed by what it says itself; the outlet goes on, although that came several times in a row."""
    lab = start_lab()
    wrong = [shell(f"wrong{n}", "true", gpus=0, priority=1, slurm={"partition": f"gone{n}"}) for n in range(4)]
    lab.write_manifest([*wrong, shell("right", "true", gpus=0)])
    pod = lab.start("hpc", "--outlet", "hpc:1", "--until-empty", poll="0.5")
    pod.end()
    assert lab.states() == {**{f"wrong{n}": "failed" for n in range(4)}, "right": "done"}
    record = lab.record("wrong0")
    assert record.reason == "cannot start" and "invalid partition specified: gone0" in (record.error or "")
    assert "tried again in" not in pod.said


@pytest.mark.slow
def test_the_limits_of_a_user_are_kept_to(start_lab: Callable[..., Lab]) -> None:
    """Two jobs at a time, and arrays of two: nothing is refused."""
    lab = start_lab(accounting=True, max_array_size=2, lines="AccountingStorageEnforce=associations,limits")
    lab.bed.run("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=2")
    assert [lab.sbatch("--hold") for _ in range(3)] == [0, 0, 1], "SLURM enforces it"
    lab.bed.run("scancel", "--user=root")
    lab.write_manifest([shell(f"j{index}", "sleep 0.2", gpus=0) for index in range(7)])
    pod = lab.run_all("--outlet", "hpc", "--slots", "32", poll="0.5")
    assert set(lab.states().values()) == {"done"}, pod.said
    assert "warning" not in pod.said
    assert {record.attempt for record in lab.records().values()} == {1}


def test_what_a_start_that_failed_has_said(start_lab: Callable[..., Lab]) -> None:
    """The end of what the batch script has printed, before it came to the attempt."""
    lab = start_lab()
    template = lab.root / "templates" / "sbatch.sh.j2"
    template.parent.mkdir(exist_ok=True)
    template.write_text("#!/bin/bash\necho 'scratch: not mounted' >&2\nexit 3\n")
    lab.write_manifest([shell("a", "true", gpus=0, retries=0)])
    pod = lab.start("hpc", "--outlet", "hpc:1", poll="0.5")
    wait_until(lambda: "auto_requeued" in lab.events("a"), "its end is recorded")
    ended = next(line.set for line in lab.history("a") if line.set.get("error"))
    assert ended["reason"] == "cannot start" and "scratch: not mounted" in ended["error"]
    lab.run("cancel", "a")
    pod.stop()


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_that_is_killed_by_command(start_lab: Callable[..., Lab], nodes: int) -> None:
    """SLURM itself would wait for KillWait, on each node."""
    lab = start_lab(config=f"kill_grace: 1h\n{CONFIG}", kill_wait_s=600)
    script = "trap '' TERM; echo begun; while :; do sleep 0.05; done"
    lab.write_manifest([shell("a", script, gpus=0, resources={"nodes": nodes, "cpus": 1})])
    pod = lab.start("hpc", "--outlet", "hpc:2", "--until-empty", poll="0.5")
    wait_until(lambda: lab.attempt("a").log.exists() and lab.output("a").count("begun") == nodes, "it runs")
    lab.run("cancel", "a")
    lab.run("cancel", "--force", "a")
    pod.end()
    assert lab.states() == {"a": "abandoned"}
    assert lab.bed.processes("sleep") == []


@pytest.mark.parametrize("other", ["sleep 600", "trap 'exit 75' TERM; while :; do sleep 0.05; done"])
@pytest.mark.parametrize(("fails", "exit_code"), [("exit 9", 9), ("kill -9 $PPID $(pgrep -P $PPID)", 137)])
def test_the_task_that_fails_first(start_lab: Callable[..., Lab], other: str, fails: str, exit_code: int) -> None:
    """It failed by itself, or was killed with all that is around it; how the others leave then does not count."""
    lab = start_lab()
    script = f"[ $SLURM_PROCID = 0 ] && {{ touch there; {other}; }}; until [ -e there ]; do sleep 0.05; done"
    script += f"; echo 'Error: no luck'; {fails}"
    lab.write_manifest([shell("a", script, gpus=0, resources={"nodes": 2, "cpus": 2})])
    lab.start("hpc", "--outlet", "hpc:2", "--until-empty", poll="0.5").end()
    ended = lab.exit_file("a")
    assert (ended["exit_code"], ended.get("signal")) == (exit_code, None)
    record = json.loads(lab.run("show", "a", "--json"))
    assert (record["state"], record["reason"]) == ("failed", "exit 9" if exit_code == 9 else "signal 9")
    assert exit_code != 9 or record["error"] == "Error: no luck"
    assert not list(lab.attempt("a").directory.glob("node.*[!h]"))


def test_several_nodes(start_lab: Callable[..., Lab]) -> None:
    """One task on each. What stops the attempt stops all of them, and each has time to save, also after the first."""
    lab = start_lab()
    # Then SLURM sets it to /tmp.
    lab.variables = {**lab.variables, "TMPDIR": ""}
    words = 'echo "task $SLURM_PROCID of $SLURM_NTASKS with $CUDA_VISIBLE_DEVICES"; [[ $TMPDIR == /tmp/?* ]] || exit'
    patient = "trap 'sleep $((2 * SLURM_PROCID)); echo saved; exit $((9 - SLURM_PROCID))' TERM"
    # Each process of a task is signalled in its turn: the end of a child must not be taken for the task's.
    loop = "while :; do sleep 0.05; done"
    asked = {"gpus": 4, "resources": {"nodes": 2, "cpus": 2}}
    lab.write_manifest([shell("a", words, **asked), shell("b", f"{patient}; {words}; {loop}", **asked)])
    pod = lab.start("hpc", "--outlet", "hpc:2", "--until-empty", poll="0.5")
    lab.wait_for("a", "done")
    assert sorted(lab.output("a").splitlines()) == ["task 0 of 2 with 0,1", "task 1 of 2 with 0,1"]
    wait_until(lambda: lab.attempt("b").log.exists() and lab.output("b").count("of 2") == 2, "both tasks of b run")
    lab.run("cancel", "b")
    pod.end()
    assert lab.states()["b"] == "abandoned"
    assert lab.exit_file("b")["exit_code"] == 9
    assert lab.output("b").count("saved") == 2
    assert lab.bed.processes("sleep") == []
