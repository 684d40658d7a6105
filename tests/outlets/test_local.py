"""Attempts as processes of this host: started, found again, stopped, and told from others."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
from typing import Any

import pytest
from fleet import wait_until
from sessions import kill_session
from trials import KEY, Trial, local_outlet

from dispatcher.base import host
from dispatcher.base.host import host_name
from dispatcher.outlets.base import CANNOT_START, Ended, Orphan, Placement, Report, Running, Slot, Unknown
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.reaping import orphans
from dispatcher.outlets.remote.programs import Program, given
from dispatcher.outlets.wrapper import read_exit
from dispatcher.run_state import liveness

LONG = "echo ready; sleep 600"


def recovered(trial: Trial, **placement: Any) -> Ended:
    """How a pod finds that the attempt of a dead dispatcher has ended."""
    outlet = local_outlet(trial.config)
    orphan = Orphan(key=KEY, pod="dead", placement=Placement(**placement))
    wait_until(lambda: isinstance(outlet.recover([orphan])[KEY].status, Ended), "its end is found")
    found = read_exit(trial.paths.directory)
    assert isinstance(found, Ended)
    return found


def test_running_until_it_has_ended(trial):
    one = trial("echo ready; until [ -e go ]; do sleep 0.02; done; exit 3").start().says("ready")
    placement = Placement(host=host_name(), pid=one.pid)
    assert one.outlet.poll([KEY]) == {KEY: Report(Running(), placement)}
    (one.root / "go").touch()
    (descriptor,) = one.outlet.wait_fds()
    assert select.select([descriptor], [], [], 60)[0], "no descriptor tells that the wrapper has ended"
    assert one.end().exit_code == 3
    assert one.outlet.wait_fds() == []
    assert one.outlet.due_in_s() is None


def test_the_environment_is_the_dispatchers_with_changes(trial, monkeypatch):
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    one = trial('echo "$KEPT $MINE $(printenv CUDA_VISIBLE_DEVICES || echo unset)"', env={"MINE": "mine"})
    one.start().end()
    assert one.output == "kept mine \n", "a CPU slot sees no GPU, whatever its dispatcher was given"


@pytest.mark.parametrize("setup", ["", 'echo "setup: ${LC_ALL-unset}"'])
@pytest.mark.parametrize(
    ("set_here", "of_the_job", "expected"),
    [(None, None, "unset"), ("C.UTF-8", None, "C.UTF-8"), (None, "POSIX", "POSIX")],
)
def test_the_locale_of_a_job_is_not_that_of_its_wrapper(trial, monkeypatch, setup, set_here, of_the_job, expected):
    monkeypatch.delenv("LC_ALL", raising=False)
    if set_here is not None:
        monkeypatch.setenv("LC_ALL", set_here)
    show = 'import os, sys; print(os.environ.get("LC_ALL", "unset"), sys.argv[1] == "\u00e9\u4e2d")'
    env = {"PYTHONUTF8": "1"} | ({"LC_ALL": of_the_job} if of_the_job else {})
    one = trial("", command=("/usr/bin/env", "python3", "-c", show, "\u00e9\u4e2d"), env=env, setup=setup).start()
    assert one.end().exit_code == 0
    assert one.output == (f"setup: {expected}\n" if setup else "") + f"{expected} True\n"


@pytest.mark.parametrize("setup", ["", "true"])
def test_a_locale_that_bash_env_sets_reaches_the_job(trial, monkeypatch, tmp_path, setup):
    monkeypatch.delenv("LC_ALL", raising=False)
    (tmp_path / "profile").write_text("export LC_ALL=POSIX\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "profile"))
    one = trial("", command=("/usr/bin/env", "printenv", "LC_ALL"), setup=setup).start()
    assert one.end().exit_code == 0
    assert one.output == "POSIX\n"


def test_a_job_inherits_no_descriptor_of_the_dispatcher(trial, tmp_path):
    """A lock, or the pipe that somebody reads to its end, would be held for as long as the job runs."""
    with open(tmp_path / "secret", "w") as opened:
        os.set_inheritable(opened.fileno(), True)
        one = trial('for fd in /proc/self/fd/*; do readlink "$fd"; done').start()
        one.end()
    assert f"{one.paths.log}" in one.output
    assert "secret" not in one.output


def test_signals_that_python_ignores_end_a_job_as_usual(trial):
    one = trial("kill -PIPE $$; echo survived").start()
    assert one.end().exit_code == 128 + signal.SIGPIPE
    assert one.output == ""


def test_what_launched_the_dispatcher_did_not_launch_its_jobs(trial, monkeypatch):
    """Each would take itself for one of the processes of one job, and wait for the others."""
    site = (
        "SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TMPDIR", "SLURM_JOB_GPUS", "SBATCH_ACCOUNT", "PBS_SERVER",
        "OMPI_MCA_btl", "PMIX_MCA_gds",
    )  # fmt: skip
    # A framework that takes the id alone for a task dies of what is missing then.
    task = (
        "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_SUBMIT_DIR",
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE",
        "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_TASK_PID", "SLURM_CPUS_PER_TASK", "SLURM_ARRAY_TASK_ID",
        "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess",
        "PBS_TASKNUM", "PBS_JOBID", "PBS_NODEFILE", "VC_WORKER_HOSTS", "VC_WORKER_NUM", "VC_TASK_INDEX",
        "VK_TASK_INDEX",
    )  # fmt: skip
    for name in (*site, *task):
        monkeypatch.setenv(name, "1")
    one = trial("env")
    one.start().end()
    names = {line.partition("=")[0] for line in one.output.splitlines()}
    assert names >= set(site)
    assert not names & set(task)


@pytest.mark.parametrize("pid_is_recorded", [True, False])
def test_found_again_by_another_process_of_the_dispatcher(trial, pid_is_recorded):
    """Also when the dispatcher was killed before it could record the pid."""
    one = trial("echo ready; until [ -e go ]; do sleep 0.02; done; exit 4").start().says("ready")
    later = local_outlet(one.config)
    assert later.adopt({KEY: Placement(pid=one.pid if pid_is_recorded else None)}) == {KEY: Slot()}
    assert later.capacity.is_full
    assert later.poll([KEY]) == {KEY: Report(Running(), Placement(host=host_name(), pid=one.pid))}
    assert len(later.wait_fds()) == 1
    (one.root / "go").touch()
    assert one.end().exit_code == 4
    report = later.poll([KEY])[KEY]
    assert isinstance(report.status, Ended)
    assert report.status.exit_code == 4


def test_strays_of_an_adopted_one_are_stopped(trial):
    one = trial("setsid sleep 600 & " + LONG).start().says("ready")
    wait_until(lambda: one.running("sleep") == 2, "both sleep")
    pid = one.pid
    kill_session(pid)
    later = local_outlet(one.config)
    assert KEY in later.adopt({KEY: Placement(pid=pid)})
    wait_until(lambda: isinstance(later.poll([KEY])[KEY].status, Ended), "the stray is stopped")
    assert one.tree() == []


def test_strays_of_a_dead_dispatchers_attempt_are_stopped(trial):
    one = trial("setsid sleep 600 & " + LONG).start().says("ready")
    wait_until(lambda: one.running("sleep") == 2, "both sleep")
    pid = one.pid
    kill_session(pid)
    assert recovered(one, pid=pid).exit_code is None
    assert one.tree() == []
    assert one.paths.superseded.exists()


@pytest.mark.parametrize("is_unwanted", [False, True])
def test_a_pid_that_is_another_process_now(trial, is_unwanted):
    one = trial("exit 5").start()
    one.end()
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        later = local_outlet(one.config)
        placement = Placement(pid=other.pid)
        assert later.adopt({KEY: placement}) == {}
        orphan = Orphan(key=KEY, pod="dead", placement=placement, is_unwanted=is_unwanted)
        status = later.recover([orphan])[KEY].status
        assert isinstance(status, Ended)
        assert status.exit_code == 5
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_cancel(trial):
    one = trial(LONG).start().says("ready")
    one.outlet.cancel([KEY])
    assert one.end().exit_code == 143


def test_cancel_by_force_ends_the_whole_tree(trial):
    one = trial("trap '' TERM; setsid sleep 600 & echo ready; sleep 600").start().says("ready")
    wait_until(lambda: one.running("sleep") == 2, "both sleep")
    one.outlet.cancel([KEY], force=True)
    # The wrapper may see its job die before it dies itself.
    assert one.end().exit_code in (None, 137)


def test_a_wrapper_that_cannot_be_started(trial, monkeypatch):
    one = trial("true")

    def fail(*_, **__):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", fail)
    one.outlet.submit([one.bundle])
    ended = one.status()
    assert isinstance(ended, Ended)
    assert (ended.exit_code, ended.exit_reason, ended.blames_host) == (None, CANNOT_START, True)
    assert ended.error.startswith("job: /bin/bash cannot be started: Resource temporarily unavailable")
    assert liveness.is_held(one.paths.alive) is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"exit_code": 3, "reason": "", "ended_at": "2026-06-17T22:48:00Z"}\n', Ended(3, "", "2026-06-17T22:48:00Z")),
        ('{"exit_code": 3, "reason": "", "ended_at"', Ended(None)),
        ("", Ended(None)),
        ("[]\n", Ended(None, exit_reason="unreadable exit status")),
        ('{"exit_code": "x", "ended_at": ""}\n', Ended(None, exit_reason="unreadable exit status")),
    ],
)
def test_exit_files(tmp_path, text, expected):
    (tmp_path / "exit.json").write_text(text)
    assert read_exit(tmp_path) == expected


def test_an_exit_file_that_cannot_be_read_says_nothing(tmp_path, monkeypatch):
    """Not that the attempt has ended without one: it would run again."""

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    assert read_exit(tmp_path / "absent") == Ended(None)
    monkeypatch.setattr(os, "open", fail)
    assert isinstance(read_exit(tmp_path), Unknown)


@pytest.mark.parametrize("put", [os.mkdir, os.mkfifo])
def test_something_else_in_the_place_of_the_exit_file(tmp_path, put):
    """It would be there for ever, and so would the slot of the attempt be taken."""
    put(tmp_path / "exit.json")
    found = read_exit(tmp_path)
    assert isinstance(found, Ended)
    assert found.exit_code is None
    assert f"{tmp_path}/exit.json is no file" in found.exit_reason


def test_children_of_a_kernel_that_lists_none(monkeypatch):
    def refuse(path, *_, **__):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    with subprocess.Popen(["sleep", "600"]) as child, subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        listed = processes.children()
        assert {child.pid, ended.pid} <= listed
        monkeypatch.setattr(processes, "open", refuse, raising=False)
        assert processes.children() == listed
        child.kill()


def test_a_python_without_pidfds(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "600"]) as child:
        descriptor = host.open_pidfd(child.pid)
        assert select.select([descriptor], [], [], 0)[0] == []
        child.kill()
        assert select.select([descriptor], [], [], 60)[0] == [descriptor]
        os.close(descriptor)
    assert host.open_pidfd(child.pid) == -1


def test_a_helper_of_the_dispatcher_is_no_orphan():
    """Its process that reads GPUs: for its sake all processes of the host would be looked at whenever a job ends."""
    with subprocess.Popen(["bash", "-c", "read; exit 7"], stdin=subprocess.PIPE, process_group=0) as helper:
        with subprocess.Popen(["sleep", "600"], start_new_session=True) as stray:
            found = orphans(set())
            assert stray.pid in found
            assert helper.pid not in found
            stray.kill()
        helper.stdin.close()
        wait_until(lambda: os.waitid(os.P_PID, helper.pid, os.WEXITED | os.WNOWAIT), "the helper has ended")
        orphans(set())
        assert helper.wait() == 7


def test_a_program_of_another_outlet_is_no_orphan():
    """Its exit status is left to whoever has started it."""
    before = processes.children()
    program = Program(["bash", "-c", "read; exit 7"], limit_s=60, stdin=given(b"\n"))
    (child,) = processes.children() - before
    assert child not in orphans(set())
    wait_until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT), "the program has ended")
    orphans(set())
    finished = wait_until(program.poll, "its end is noticed")
    assert finished.exit_code == 7


def test_what_was_there_before_an_attempt_is_no_orphan_of_it():
    """A shared connection that ssh leaves behind: for its sake too all processes of the host would be looked at."""
    before_s = processes.boot_time_s()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stray:
        assert stray.pid in orphans(set(), before_s)
        assert stray.pid not in orphans(set(), processes.boot_time_s() + 1)
        stray.kill()


def test_a_process_of_another_user_ends_nobody(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)
    processes.send(os.getpid(), signal.SIGTERM)
    host.send_group(os.getpid(), signal.SIGTERM)
