"""`snapshot: true`: attempts run the code as it was when a person queued the job, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import RECORDING, Fleet, fleet_at, shell, wait_until
from repositories import Repository
from sessions import kill_session

CONFIG = "methods: {m: {backoff: 0.1s}}\npoll_interval: 1s\n"
SHOW = "cat code.txt; echo $DISPATCHER_CODE_COMMIT $DISPATCHER_CODE_DIGEST; pwd"


class Lab:
    """A workspace in a git repository, with a file of code that changes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.repository = Repository(fleet.root)
        self.repository.write(".gitignore", "run_state/\nsaid/\nmatrix/submitted.jsonl\n/gate*\n")
        fleet.write_config(CONFIG)
        fleet.write_manifest([])
        self.code("one")
        self.first = self.repository.commit()

    def code(self, text: str) -> None:
        self.repository.write("code.txt", f"{text}\n")

    def queue(self, *jobs: dict[str, Any]) -> None:
        self.fleet.write_manifest([{"snapshot": True, **job} for job in jobs])

    def ran(self, job: str, number: int = 1) -> str:
        """What of the code an attempt has seen."""
        return self.fleet.output(job, number).partition("\n")[0]

    def copies(self) -> list[Path]:
        return sorted(path for path in self.fleet.layout.code_dir.iterdir() if path.is_dir())

    def take_away(self, copy: Path) -> None:
        # Only root moves a directory in which nobody may write.
        copy.chmod(0o755)
        copy.rename(self.fleet.root / "gate.copy")

    def archives(self) -> list[Path]:
        return sorted(self.fleet.layout.code_dir.glob("*.tar"))

    def has_copy(self, job: str) -> bool:
        record = self.fleet.records().get(job)
        return record is not None and record.snapshot is not None


@pytest.fixture
def lab(fleet: Fleet) -> Lab:
    return Lab(fleet)


def gated(gate: str, then: str = "exit 1") -> str:
    """Shows the code, and ends when the workspace has a file of this name."""
    return f'{SHOW}; until [ -e "$DISPATCHER_ROOT/{gate}" ]; do sleep 0.02; done; {then}'


def test_a_retry_runs_the_code_of_the_first_attempt_and_a_requeue_that_of_today(lab: Lab) -> None:
    fleet = lab.fleet
    lab.code("edited")
    lab.queue(shell("a", gated("gate"), retries=1))
    pod = fleet.start("pod", "--until-empty")
    fleet.wait_running("a")
    lab.code("mended")
    lab.repository.commit()
    (fleet.root / "gate").touch()
    assert pod.end() == 1
    assert [lab.ran("a", number) for number in (1, 2)] == ["edited", "edited"]
    record = fleet.record("a")
    assert record.snapshot == record.code
    assert record.code is not None and record.code.startswith(f"{lab.first[:12]}+dirty ")
    _, told, place = fleet.output("a", 2).splitlines()
    (copy,) = lab.copies()
    assert told == f"{lab.first}+dirty {copy.name}" and place == str(copy)
    assert fleet.attempt("a", 2).code.read_text().splitlines()[:2] == [copy.name, f"{lab.first}+dirty"]
    fleet.run("requeue", "a")
    lab.code("too late")
    fleet.run_all()
    assert lab.ran("a", 3) == "mended"


def test_show_and_diff_tell_the_uncommitted_changes_of_a_copy(lab: Lab) -> None:
    fleet = lab.fleet
    fleet.command = RECORDING
    lab.code("edited")
    lab.queue(shell("a", f"{SHOW}; exit 1"))
    fleet.run_all()
    lab.code("mended")
    fleet.run("requeue", "a")
    fleet.run_all()
    assert [lab.ran("a", number) for number in (1, 2)] == ["edited", "mended"]
    # The manifest is tracked, too.
    patch = fleet.run("show", "a", "--code")
    assert "-one\n+mended\n" in patch and "diff --git a/code.txt b/code.txt" in patch
    subprocess.run(["git", "-C", fleet.root, "apply", "--check", "-R", "-"], input=patch.encode(), check=True)
    assert re.search(r"changes +2 files changed, 2 insertions\(\+\), 2 deletions\(-\)", fleet.run("show", "a"))
    differs = fleet.try_("diff", "a:1", "a:2")
    assert differs.returncode == 1, differs.stderr
    assert "changes of code.txt" in differs.stdout and "code: different" in differs.stdout, differs.stdout


def test_the_code_is_that_of_the_queueing_also_for_a_job_that_waits_for_others(lab: Lab) -> None:
    lab.queue(shell("a", gated("gate", "true")), shell("b", SHOW, needs=["a"]), shell("c", SHOW))
    pod = lab.fleet.start("pod", "--until-empty")
    wait_until(lambda: lab.has_copy("b") and lab.has_copy("c"), "all jobs have their copy")
    lab.code("two")
    (lab.fleet.root / "gate").touch()
    assert pod.end() == 0
    assert [lab.ran(job) for job in "abc"] == ["one", "one", "one"]
    assert len(lab.copies()) == len(lab.archives()) == 1


def test_an_attempt_that_was_killed_is_repeated_with_the_same_code(lab: Lab) -> None:
    fleet = lab.fleet
    lab.queue(shell("a", gated("gate", "true")))
    pod = fleet.start("pod", "--until-empty")
    pid = fleet.wait_running("a")
    lab.code("two")
    kill_session(pid)
    fleet.wait_running("a", 2)
    (fleet.root / "gate").touch()
    assert pod.end() == 0
    assert [lab.ran("a", number) for number in (1, 2)] == ["one", "one"]


def test_a_hand_edit_that_requeues_takes_a_new_copy(lab: Lab) -> None:
    fleet = lab.fleet
    lab.queue(shell("a", f"{SHOW}; exit 1"))
    fleet.start("pod", poll="1")
    fleet.wait_for("a", "failed")
    lab.code("mended")
    wait_until(lambda: fleet.status()["a"]["state"] == "failed", "the status file shows it")
    status = fleet.status()
    status["a"]["state"] = "queued"
    fleet.layout.status_file.write_text(json.dumps(status))
    fleet.wait_for("a", "failed", attempt=2)
    assert lab.ran("a", 2) == "mended"


def test_a_running_job_that_is_requeued_gets_the_code_of_then(lab: Lab) -> None:
    fleet = lab.fleet
    lab.queue(shell("a", gated("gate", "true")))
    pod = fleet.start("pod", "--until-empty")
    fleet.wait_running("a")
    lab.code("mended")
    fleet.run("requeue", "a")
    fleet.wait_running("a", 2)
    (fleet.root / "gate").touch()
    assert pod.end() == 0
    assert lab.ran("a", 2) == "mended"


def test_submitted_jobs_run_the_code_of_their_submission(lab: Lab) -> None:
    fleet = lab.fleet
    fleet.run("submit", "--snapshot", "--name", "a", "--", "bash", "-c", SHOW)
    fleet.run("submit", "--name", "b", "--", "bash", "-c", SHOW)
    lab.code("two")
    assert fleet.run_all().process.returncode == 0
    assert (lab.ran("a"), lab.ran("b")) == ("one", "two")
    assert fleet.record("b").code is None
    assert fleet.events("a")[0] == "queued" and fleet.history("a")[0].set["snapshot"]


def test_without_a_repository_jobs_wait_and_commands_refuse(fleet: Fleet) -> None:
    fleet.write_config(CONFIG)
    fleet.write_manifest([shell("a", "cat code.txt", snapshot=True)])
    (fleet.root / "code.txt").write_text("one\n")
    pod = fleet.start("pod", poll="1")
    pod.says("not in a git repository")
    wait_until(lambda: "no copy of the code (snapshot)" in fleet.run("show", "a"), "show says why it waits")
    status = fleet.run("status")
    assert "not in a git repository" in status and "no copy of the code" in status
    refused = fleet.try_("submit", "--snapshot", "--", "true")
    assert refused.returncode and "nothing was submitted" in refused.stderr
    assert "or do without a copy: no `--snapshot`" in refused.stderr and "code: none" not in refused.stderr
    assert fleet.states() == {"a": "queued"}
    pod.stop()
    ended = fleet.run_all()
    assert ended.process.returncode == 1 and "git init" in ended.said
    repository = Repository(fleet.root)
    repository.git("add", "code.txt")
    repository.git("commit", "-qm", "first")
    assert fleet.run_all().process.returncode == 0
    assert fleet.output("a") == "one\n"


def test_a_requeue_without_a_copy_is_refused_and_the_others_are_not(lab: Lab) -> None:
    fleet = lab.fleet
    fleet.write_manifest([shell("a", "exit 1", snapshot=True), shell("b", "exit 1")])
    fleet.run_all()
    (fleet.root / ".git").rename(fleet.root / "gate.git")
    done = fleet.try_("requeue", "a", "b")
    assert "not in a git repository" in done.stdout + done.stderr
    assert fleet.states() == {"a": "failed", "b": "queued"}


def test_a_script_is_rendered_from_the_template_of_the_copy(lab: Lab) -> None:
    fleet = lab.fleet
    template = "PARAMS = {'lr': 1, 'job_id': ''}\nimport pathlib\nprint('TEXT', PARAMS['lr'])\n"
    lab.repository.write("templates/train_m.py", template.replace("TEXT", "old"))
    lab.repository.commit()
    lab.queue({"job_id": "a", "lr": 5})
    fleet.start("pod", "--slots", "1", poll="1").ready()
    fleet.wait_for("a", "done")
    assert fleet.output("a") == "old 5\n"
    fleet.run("requeue", "a")
    fleet.wait_for("a", "done", attempt=2)
    fleet.run("submit", "--snapshot", "--name", "b", "--method", "m", "--", "{python}", "{script}")
    lab.repository.write("templates/train_m.py", template.replace("TEXT", "new"))
    fleet.wait_for("b", "done")
    assert fleet.output("b") == "old 1\n"


def test_a_copy_is_read_only_and_leads_to_the_run_state(lab: Lab) -> None:
    lab.repository.write("run.sh", "#!/bin/sh\necho ran\n", mode=0o755)
    lab.repository.write("deep/er/file", "x")
    lab.repository.commit()
    lab.queue(shell("a", "./run.sh; test -d run_state/jobs && cat deep/er/file"))
    assert lab.fleet.run_all().process.returncode == 0
    assert lab.fleet.output("a") == "ran\nx"
    (copy,) = lab.copies()
    for directory, _, names in os.walk(copy):
        for path in (Path(directory), *(Path(directory, name) for name in names)):
            assert not stat.S_IMODE(path.lstat().st_mode) & 0o222, path


def test_a_directory_that_was_removed_is_extracted_again(lab: Lab) -> None:
    fleet = lab.fleet
    lab.queue(shell("a", f"{SHOW}; exit 1", retries=1))
    fleet.write_config(CONFIG.replace("0.1s", "3s"))
    pod = fleet.start("pod", "--until-empty")
    fleet.wait_for("a", "queued", attempt=1)
    (copy,) = lab.copies()
    lab.take_away(copy)
    assert pod.end() == 1
    assert lab.ran("a", fleet.record("a").attempt) == "one"
    assert lab.copies() == [copy]


def test_a_job_whose_copy_is_gone_waits_until_it_is_queued_again(lab: Lab) -> None:
    fleet = lab.fleet
    lab.queue(shell("a", gated("gate"), retries=1))
    pod = fleet.start("pod", poll="0.2")
    fleet.wait_running("a")
    (kept,) = fleet.layout.code_dir.glob("*.kept")
    kept.unlink()
    (fleet.root / "gate").touch()
    wait_until(lambda: "no copy of the code (snapshot)" in fleet.run("show", "a"), "show says why the job waits")
    # The attempt that found it out is the last one.
    assert fleet.record("a").attempt == 2
    fleet.run("requeue", "a")
    fleet.wait_for("a", "queued", "running", "failed", attempt=3)
    fleet.wait_for("a", "failed")
    assert lab.ran("a", 3) == "one"
    assert pod.stop() is not None


def test_an_entry_that_asks_no_more_runs_in_the_workspace(lab: Lab) -> None:
    fleet = lab.fleet
    lab.queue(shell("a", f"{SHOW}; exit 1", retries=1))
    fleet.write_config(CONFIG.replace("0.1s", "2s"))
    pod = fleet.start("pod", "--until-empty", poll="0.2")
    fleet.wait_for("a", "queued", attempt=1)
    lab.code("two")
    fleet.write_manifest([shell("a", f"{SHOW}; exit 1", retries=1)])
    assert pod.end() == 1
    assert lab.ran("a", 2) == "two"
    assert fleet.record("a").snapshot is fleet.record("a").code is None


@pytest.mark.parametrize("at", ["git", "extraction"])
def test_a_dispatcher_that_is_killed_meanwhile_loses_nothing(lab: Lab, tmp_path: Path, at: str) -> None:
    fleet = lab.fleet
    lab.queue(shell("a", f"{SHOW}; ls many | wc -l"))
    lab.repository.write(".gitattributes", "code.txt filter=slow\n")
    for number in range(3000):
        lab.repository.write(f"many/{number}", "x")
    lab.repository.commit()
    if at == "git":
        # It runs while git reads the changed file, and holds it up until the test lets it go on.
        slow = f"touch {tmp_path}/reached; until [ -e {tmp_path}/open ]; do sleep 0.02; done; cat"
        lab.repository.git("config", "filter.slow.clean", slow)
        lab.code("edited")
    pod = fleet.start("pod")

    def is_there() -> bool:
        if at == "git":
            return (tmp_path / "reached").exists()
        code = fleet.layout.code_dir
        return code.is_dir() and any(name.endswith(".tmp") and (code / name).is_dir() for name in os.listdir(code))

    wait_until(is_there, f"the dispatcher is in {at}")
    pod.kill()
    for pid in fleet.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert fleet.record("a").snapshot is None
    assert not fleet.layout.code_dir.is_dir() or [path for path in lab.copies() if path.suffix != ".tmp"] == []
    (tmp_path / "open").touch()
    assert fleet.run_all(pod="next").process.returncode == 0
    assert lab.ran("a") == ("edited" if at == "git" else "one")
    assert fleet.output("a").endswith("3000\n")
    assert len(lab.copies()) == 1, "what the killed one has left stays"


def test_two_pods_make_one_copy_and_each_job_runs_once(lab: Lab) -> None:
    fleet = lab.fleet
    jobs = [f"j{number}" for number in range(30)]
    lab.queue(*(shell(job, SHOW) for job in jobs))
    pods = [fleet.start(name, "--until-empty", "--slots", "3") for name in ("p", "q")]
    assert [pod.end() for pod in pods] == [0, 0]
    assert {lab.ran(job) for job in jobs} == {"one"}
    assert sorted(fleet.claimed()) == sorted(jobs)
    assert [fleet.events(job).count("code_kept") for job in jobs] == [1] * len(jobs)
    assert len(lab.copies()) == len(lab.archives()) == 1
    assert not [name for name in os.listdir(fleet.layout.code_dir) if name.endswith(".tmp")]


def test_a_repository_that_changes_all_the_time_is_copied_as_it_was_at_one_moment(lab: Lab) -> None:
    fleet = lab.fleet
    names = [f"f{number}" for number in range(200)]
    for name in names:
        lab.repository.write(f"src/{name}", "0\n")
    lab.repository.commit()
    lab.queue(*(shell(f"j{number}", "sort -u src/f* | wc -l; git --version >/dev/null") for number in range(3)))
    writer = subprocess.Popen(
        ["bash", "-c", "i=0; while :; do i=$((i+1)); for f in src/f*; do echo $i >$f; done; done"], cwd=fleet.root
    )
    try:
        assert fleet.run_all().process.returncode == 0
    finally:
        writer.kill()
        writer.wait()
    # git reads one file after the other, so what it reads is of a few moments, but it is the same for all.
    assert len({fleet.output(f"j{number}") for number in range(3)}) == 1
    assert len(lab.copies()) == 1


def test_a_git_that_hangs_holds_no_other_job_back(lab: Lab, tmp_path: Path) -> None:
    fleet = lab.fleet
    hangs, reached = tmp_path / "hangs", tmp_path / "reached"
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f'#!/bin/sh\n[ ! -e {hangs} ] || {{ : >{reached}; sleep 300; }}\nexec {shutil.which("git")} "$@"\n')
    git.chmod(0o755)
    lab.queue(shell("a", gated("gate"), retries=1))
    pod = fleet.start("pod", poll="0.2", PATH=f"{git.parent}:{os.environ['PATH']}")
    fleet.wait_running("a")
    (copy,) = lab.copies()
    lab.take_away(copy)
    hangs.touch()
    lab.queue(shell("a", gated("gate"), retries=1), shell("b", SHOW))
    wait_until(reached.exists, "git hangs")
    (fleet.root / "gate").touch()
    fleet.wait_for("a", "failed")
    assert lab.copies() == [copy] and lab.ran("a", fleet.record("a").attempt) == "one"
    assert fleet.record("b").snapshot is None
    # Nothing of git is left: the fleet looks for that.
    pod.stop()
    wait_until(lambda: not fleet.pids(), "git has ended with its pod")


@pytest.fixture
def small(small_disk: Path, tmp_path: Path) -> Iterator[Lab]:
    with fleet_at(small_disk / "w", tmp_path / "said") as made:
        yield Lab(made)


def test_on_a_full_disk_jobs_wait_and_go_on_when_there_is_room(small: Lab) -> None:
    fleet = small.fleet
    small.repository.write("large", os.urandom(60_000))
    small.repository.commit()
    small.queue(shell("a", SHOW))
    room = os.statvfs(fleet.root)
    filler = fleet.root / "gate.filler"
    filler.write_bytes(bytes(room.f_bavail * room.f_frsize - 100_000))
    pod = fleet.start("pod", "--slots", "1", poll="1")
    pod.says("jobs wait for a copy of the code")
    assert "the disk is full: free some space" in pod.said
    assert fleet.states() == {"a": "queued"}
    assert fleet.claimed() == []
    filler.unlink()
    fleet.wait_for("a", "done")
    assert small.ran("a") == "one"
    assert not [name for name in os.listdir(fleet.layout.code_dir) if name.endswith(".tmp")]


def test_a_submission_on_a_full_disk_says_that_nothing_was_submitted(small: Lab) -> None:
    fleet = small.fleet
    small.repository.write("large", os.urandom(60_000))
    small.repository.commit()
    room = os.statvfs(fleet.root)
    (fleet.root / "gate.filler").write_bytes(bytes(room.f_bavail * room.f_frsize - 30_000))
    refused = fleet.try_("submit", "--snapshot", "--", "true")
    assert refused.returncode and "nothing was submitted: archiving the code in" in refused.stderr, refused.stderr
    assert "the disk is full: free some space, then submit again" in refused.stderr
    assert "by themselves" not in refused.stderr
    assert not fleet.records()
