"""The wrapper of an attempt: what it passes on, what it writes, and what is left of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from fleet import wait_until
from trials import KEY, Trial

from dispatcher import contract
from dispatcher.base.times import parse_time
from dispatcher.outlets.base import CANNOT_START, Ended, Running, Slot
from dispatcher.outlets.wrapper import DID_NOT_BEGIN, DOES_NOT_KNOW
from dispatcher.run_state import liveness

DEAF = "trap '' TERM INT; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("status", [0, 1, 75, 255])
def test_exit_status(trial, status):
    begun_s = time.monotonic()
    one = trial(f"echo out; echo err >&2; exit {status}").start()
    ended = one.end()
    assert ended == Ended(status, "", one.exit["ended_at"], begun_s=ended.begun_s)
    assert parse_time(ended.ended_at) - ended.begun_s == pytest.approx(one.exit["ran_s"], abs=0.002)
    assert 0 <= one.exit["ran_s"] <= time.monotonic() - begun_s + 0.01
    assert one.output == "out\nerr\n"


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "INT"])
def test_a_job_that_a_signal_ends(trial, name):
    ended = trial(f"echo before; kill -{name} $$; sleep 5").start().end()
    assert (ended.exit_code, ended.exit_reason) == (128 + getattr(signal, f"SIG{name}"), "")


@pytest.mark.parametrize(("oom", "reason"), [(1, "out of memory"), (0, "")])
def test_a_job_that_the_kernel_kills_for_its_own_limit_and_for_want_of_memory_on_the_host(trial, tmp_path, oom, reason):
    """The files of a cgroup as the kernel has them then: `oom_kill` counts both."""
    (tmp_path / "memory.events").write_text(f"low 0\nhigh 0\nmax {9 * oom}\noom {oom}\noom_kill 1\n")
    one = trial("kill -KILL $$", slot=Slot(memory_mib=512))
    environment = {**one.bundle.environment, contract.CGROUP: str(tmp_path)}
    one.bundle = msgspec.structs.replace(one.bundle, slot=Slot(), environment=environment)
    ended = one.start().end()
    assert (ended.exit_code, ended.exit_reason) == (137, reason)
    assert ("killed by its memory limit, 512M" in one.output) is bool(oom)
    assert (tmp_path / "cgroup.procs").read_text().strip().isdigit(), "the job has entered it"


def test_a_command_that_is_not_there(trial):
    one = trial("", command=("/nonexistent/program",)).start()
    assert one.end().exit_code == 127
    assert "/nonexistent/program" in one.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_whole_tree(trial, number):
    script = """
        python3 -c "
import os, signal, sys, time
def said(number, _): os.write(1, b'child %d\\n' % number); sys.exit(0)
signal.signal(signal.SIGTERM, said); signal.signal(signal.SIGINT, said)
print('ready', flush=True); time.sleep(60)" &
        trap 'echo parent; wait; exit 9' TERM INT
        wait
    """
    one = trial(script).start().says("ready")
    one.send(number)
    assert one.end().exit_code == 9
    assert f"child {int(number)}" in one.output
    assert "parent" in one.output


def test_a_job_can_be_interrupted_as_if_it_were_started_by_hand(trial):
    show = "import signal; print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    one = trial("", command=("python3", "-c", show)).start()
    one.end()
    assert "default_int_handler" in one.output
    assert "True" in one.output


def test_no_signal_is_blocked_or_ignored_in_a_job(trial):
    one = trial("", command=("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")).start()
    one.end()
    assert one.output == f"SigBlk:\t{0:016x}\nSigIgn:\t{0:016x}\n"


def test_a_job_may_take_its_time_to_save(trial):
    one = (
        trial("trap 'sleep 1; echo saved; exit 75' TERM; echo ready; while :; do sleep 0.05; done")
        .start()
        .says("ready")
    )
    one.send(signal.SIGTERM)
    one.send(signal.SIGTERM)
    assert one.end().exit_code == 75
    assert one.output.endswith("saved\n")


@pytest.mark.quiet
def test_kill_after_the_grace_period(trial):
    one = trial(DEAF, grace_s=1.0).start().says("ready")
    begun = time.monotonic()
    one.send(signal.SIGTERM)
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (137, "")
    assert 0.5 < time.monotonic() - begun < 15


def test_time_limit(trial):
    ended = trial("sleep 60", time_limit_s=1.0).start().end()
    assert (ended.exit_code, ended.exit_reason) == (143, "time limit")


def test_time_limit_of_a_job_that_does_not_hear(trial):
    script = "trap 'echo told' TERM; echo ready; while :; do sleep 0.02; done"
    # It looks at its clock every second.
    one = trial(script, time_limit_s=60.0, grace_s=60.0, lost_after_s=4.0, clock_s=1000).start().says("ready")
    one.clock.passes(60)
    one.says("told").clock.passes(60)
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (137, "time limit")


def test_what_the_clock_of_a_wrapper_counts(trial, tmp_path):
    """From the moment in which it began, not from the beginning of that second: a limit is never over too early."""
    one = trial("true", clock_s=12.99)
    text = one.paths.wrapper.read_text()
    function = text[text.index("look_at_clock() {") :].partition("\n}\n")[0]
    counted = []
    for passed_s in (0.98, 0.02, 59):
        one.clock.passes(passed_s)
        script = f"begun_cs=1299\n{function}\n}}\nlook_at_clock; echo $now_cs"
        counted.append(int(subprocess.check_output(["bash", "-c", script], timeout=60)))
    assert counted == [98, 100, 6000]


def test_a_clock_that_jumps_by_a_day_ends_no_job(trial, tmp_path, monkeypatch):
    """As it looks to a bash that counts by the time of day."""
    (tmp_path / "jump").write_text("SECONDS=86400\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "jump"))
    ended = trial("[ $SECONDS -ge 86400 ] && exit 3", time_limit_s=3600.0).start().end()
    assert (ended.exit_code, ended.exit_reason) == (3, "")


@pytest.mark.parametrize("option", ["monitor", "errexit"])
@pytest.mark.parametrize("setup", ["", "true"])
def test_options_that_the_environment_switches_on(trial, monkeypatch, option, setup):
    monkeypatch.setenv("SHELLOPTS", option)
    one = trial("echo ready; sleep 60; exit 7", setup=setup).start().says("ready")
    one.send(signal.SIGTERM)
    assert one.end().exit_code == 143
    two = trial("exit 7", setup=setup, root=one.root.with_name("two")).start()
    assert (two.end().exit_code, two.exit["exit_code"]) == (7, 7)


@pytest.mark.parametrize("setup", ["", "shopt lastpipe || true"])
def test_neither_the_setup_nor_a_job_with_bashopts_is_given_lastpipe(trial, monkeypatch, setup):
    monkeypatch.setenv("BASHOPTS", "")
    one = trial("shopt lastpipe; shopt extquote", setup=setup).start()
    one.end()
    assert one.output.split() == ["lastpipe", "off"] * (1 + bool(setup)) + ["extquote", "on"]


def test_a_bash_without_lastpipe_makes_no_failure_a_success(trial, monkeypatch):
    monkeypatch.setenv("BASH_FUNC_shopt%%", "() {  return 1\n}")
    one = trial("echo ready; exit 7").start().says("ready")
    wait_until(lambda: not one.tree(), "the wrapper has ended")
    assert not one.paths.exit.exists()


def test_a_job_that_ends_well_in_the_grace_period_says_so(trial):
    one = trial("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done", time_limit_s=60.0, clock_s=1000)
    one.start().says("ready").clock.passes(60)
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (0, "time limit")


def test_superseded(trial):
    one = trial("echo ready; sleep 60", lost_after_s=4.0).start().says("ready")
    one.paths.superseded.write_text("other\n")
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (143, "superseded")


@pytest.mark.parametrize("setup", ["", "true"])
def test_a_wrapper_that_is_told_to_stop_while_it_starts_keeps_no_job(trial, tmp_path, setup):
    """However early the signal comes: no job runs on that did not hear of it, until the grace period is over."""
    for number in range(30):
        one = trial("sleep 60", tmp_path / str(number), grace_s=20, setup=setup).start()
        time.sleep(number * 0.0004)
        one.outlet.cancel([KEY])
        assert one.end().exit_code in (None, 143)


def test_what_the_stop_file_says_is_the_reason(trial):
    one = trial("echo ready; sleep 60").start().says("ready")
    one.paths.stop.write_text("preempted\n")
    one.send(signal.SIGTERM)
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (143, "preempted")


def test_a_stop_whose_signal_was_lost(trial):
    """As on SLURM, which sends none to a batch script that it is about to start."""
    one = trial("trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done").start().says("ready")
    one.paths.stop.write_text("\n")
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (0, "", "TERM")
    assert one.output.splitlines().count("told") == 1


def test_what_was_stopped_before_it_began_runs_nothing(trial):
    one = trial("touch ran")
    one.paths.stop.write_text("preempted\n")
    ended = one.start().end()
    assert (ended.exit_code, ended.exit_reason) == (143, "preempted")
    assert not (one.root / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_of_somebody_else_is_told_in_the_exit_status(trial, number):
    """As a scheduler that preempts sends it: the job saves and ends well, which is no success."""
    one = trial("trap 'exit 0' TERM INT; echo ready; while :; do sleep 0.05; done").start().says("ready")
    one.send(number)
    ended = one.end()
    name = number.name.removeprefix("SIG")
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (0, "", name)
    found = one.exit
    assert found.pop("ran_s") >= 0
    assert found == {"exit_code": 0, "reason": "", "ended_at": ended.ended_at, "signal": name}


def test_a_wrapper_that_is_killed_after_it_was_told_to_stop_has_said_so(trial):
    """As a scheduler does that gives a job less time than it would take."""
    one = trial("trap 'echo told' TERM; echo ready; while :; do sleep 0.05; done").start().says("ready")
    one.send(signal.SIGTERM)
    one.says("told")
    one.send(signal.SIGKILL)
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (None, "", "TERM")


@pytest.mark.parametrize(("file", "content", "reason"), [("stop", "", ""), ("stop", "preempted\n", "preempted")])
def test_a_signal_of_the_dispatcher_is_not_somebody_elses(trial, file, content, reason):
    one = trial("echo ready; sleep 60").start().says("ready")
    (one.paths.directory / file).write_text(content)
    one.send(signal.SIGTERM)
    ended = one.end()
    assert (ended.exit_reason, ended.told_by_signal) == (reason, "")
    assert "signal" not in one.exit


def test_a_signal_to_a_superseded_attempt_is_not_somebody_elses(trial):
    one = trial("echo ready; sleep 60").start().says("ready")
    one.paths.superseded.write_text("other\n")
    one.send(signal.SIGTERM)
    assert one.end().told_by_signal == ""


def test_a_signal_after_the_time_limit_is_not_what_stopped_it(trial):
    script = "trap 'echo saving' TERM; echo ready; until [ -e go ]; do sleep 0.02; done; exit 3"
    one = trial(script, time_limit_s=60.0, clock_s=1000).start().says("ready")
    one.clock.passes(60)
    one.says("saving").send(signal.SIGTERM)
    (one.root / "go").touch()
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (3, "time limit", "")


def test_signals_do_not_disturb_the_clock(trial):
    """By a wrong time the job would be killed at once, or hours after its grace period."""
    text = trial("true").paths.wrapper.read_text()
    function = text[text.index("look_at_clock() {") :].partition("\n}\n")[0]
    script = f"""
        set -o posix
        begun_cs=0
        {function}
        }}
        look_at_clock
        begun_cs=$now_cs
        trap look_at_clock TERM
        # Not faster than they are handled: bash nests the handlers.
        (while kill -TERM $$; do for ((n = 0; n < 200; n++)); do :; done; done) &
        for ((i = 0; i < 2000; i++)); do
            look_at_clock
            ((now_cs >= 0 && now_cs < 6000)) || break
        done
        kill -KILL $!
        echo $i
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "2000\n", done.stderr


def test_a_signal_that_only_the_job_gets_is_its_own_affair(trial):
    ended = trial("kill -TERM $$; sleep 60").start().end()
    assert (ended.exit_code, ended.told_by_signal) == (143, "")


def test_the_last_line_of_the_log_is_the_jobs(trial):
    one = trial("echo last words; kill -9 $$").start()
    one.end()
    assert one.output == "last words\n"


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_wrapper_leaves_no_exit_status(trial):
    one = trial("echo ready; sleep 60").start().says("ready")
    one.send(signal.SIGKILL)
    assert one.end() == Ended(None, error="signal 9 killed its wrapper")


def test_a_killed_subshell_takes_the_job_with_it(trial):
    one = trial("echo ready; sleep 60").start().says("ready")
    (subshell,) = children(one.pid)
    os.kill(subshell, signal.SIGKILL)
    assert one.end() == Ended(None, error="what passes on its exit status was killed")


@pytest.mark.parametrize("setup", ["", "true"])
def test_a_job_that_kills_its_process_group_ends_by_that_signal(trial, setup):
    """As inference engines do when they fail: the wrapper is no member of the group."""
    one = trial("sleep 60 & echo ready; kill -KILL 0", setup=setup).start()
    assert one.end().exit_code == 137
    assert one.exit["exit_code"] == 137


def test_a_suspended_job_has_not_ended_and_hears_that_it_is_to_stop(trial):
    one = trial("trap 'echo saved; exit 9' TERM; echo ready; kill -STOP $$; sleep 60").start().says("ready")
    wait_until(lambda: any(state(pid) == "T" for pid in one.tree()), "it is suspended")
    assert isinstance(one.status(), Running)
    one.send(signal.SIGTERM)
    assert one.end().exit_code == 9
    assert one.output == "ready\nsaved\n"


def state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def test_a_stray_of_the_same_group_ends_with_the_job(trial):
    one = trial("sleep 60 & echo ready").start()
    assert one.end().exit_code == 0


def test_a_stray_that_ignores_term(trial):
    one = trial("(trap '' TERM; sleep 60) & echo ready").start()
    assert one.end().exit_code == 0


def test_a_daemon_is_found_and_stopped(trial):
    """In a session of its own, its parent gone, with none of the descriptors that it inherited."""
    script = """python3 -c "
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('daemon', os.getpid(), flush=True)
        os.closerange(0, 1024)
        time.sleep(60)
    os._exit(0)
" """
    one = trial(script).start().says("daemon")
    daemon = int(one.output.split()[1])
    assert one.end().exit_code == 0
    assert not Path(f"/proc/{daemon}").exists()


def test_the_life_sign_is_the_trees(trial):
    """Held by whatever of the tree lives, also when all else of it was killed, and free when nothing does."""
    one = trial("setsid sleep 60 & echo ready; sleep 60")
    assert liveness.is_held(one.paths.alive) is False
    one.start().says("ready")
    wait_until(lambda: b"sleep" in b"".join(commands(one.tree())), "sleep has started")
    sleepers = [pid for pid in one.tree() if command(pid).startswith(b"sleep")]
    assert liveness.is_held(one.paths.alive) is True
    for pid in one.tree():
        if pid not in sleepers:
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: sorted(one.tree()) == sorted(sleepers), "only the sleepers live")
    assert liveness.is_held(one.paths.alive) is True
    one.end()


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def commands(pids: list[int]) -> list[bytes]:
    return [command(pid) for pid in pids]


def test_no_second_process_under_one_life_sign(trial):
    one = trial("echo ready; sleep 60").start().says("ready")
    refused = one.by_hand()
    assert refused.returncode == DOES_NOT_KNOW
    assert "running already" in refused.stderr
    assert one.output == "ready\n"
    one.send(signal.SIGTERM)
    one.end()


def test_the_attempt_can_be_run_again_by_hand(trial):
    one = trial("echo $DISPATCHER_JOB_ID in $PWD; exit 3").start()
    one.end()
    assert one.by_hand().returncode == 3
    assert one.output == f"job in {one.root}\n" * 2
    assert one.exit["exit_code"] == 3
    one.paths.stop.write_text("\n")
    assert one.by_hand().returncode == 3


def test_by_hand_a_signal_reaches_the_job_too(trial):
    one = trial("echo ready; sleep 60")
    by_hand = subprocess.Popen(["bash", one.paths.wrapper])
    one.says("ready")
    by_hand.send_signal(signal.SIGTERM)
    assert by_hand.wait(30) == 143
    wait_until(lambda: one.tree() == [], "nothing is left")
    assert one.exit["exit_code"] == 143


def test_no_room_for_the_exit_status(trial, small_disk):
    """The status and the liveness lock are kept until there is room."""
    one = trial("echo ready; cat /dev/zero >filler 2>/dev/null; exit 7", root=small_disk).start().says("ready")
    filler = small_disk / "filler"
    wait_until(lambda: command_names(one.tree()) == {b"/bin/bash", b"sleep"}, "the job has ended, the wrapper waits")
    assert liveness.is_held(one.paths.alive) is True
    assert not one.paths.exit.exists() or not one.paths.exit.read_text().endswith("\n")
    filler.unlink()
    assert one.end().exit_code == 7


def command_names(pids: list[int]) -> set[bytes]:
    return {command(pid).split(b"\0")[0] for pid in pids}


def test_no_room_and_a_job_that_does_not_hear(trial, small_disk):
    """It is killed all the same: the job may be what fills the disk."""
    script = "cat /dev/zero >filler 2>/dev/null; trap '' TERM INT; sleep 300"
    one = trial(script, root=small_disk, grace_s=1.0).start()
    wait_until(lambda: one.running("sleep"), "the job has filled the disk")
    one.send(signal.SIGTERM)
    wait_until(lambda: not one.running("cat") and one.running("sleep") == 1, "only the wrapper waits, for room")
    (small_disk / "filler").unlink()
    assert one.end().exit_code == 137


def test_by_hand_a_job_that_does_not_hear_is_killed_too(trial):
    one = trial(DEAF, grace_s=1.0)
    by_hand = subprocess.Popen(["bash", one.paths.wrapper])
    one.says("ready")
    by_hand.send_signal(signal.SIGTERM)
    assert by_hand.wait(60) == 137
    wait_until(lambda: one.tree() == [], "nothing is left")


@pytest.mark.parametrize("put", ["mkdir {0}", "mkfifo {0}", "ln -s /dev/full {0}", "ln -s /absent/x {0}"])
def test_a_job_that_puts_something_else_in_the_place_of_its_exit_status(trial, put):
    one = trial(put.format('"$DISPATCHER_ATTEMPT_DIR/exit.json"') + "; exit 5").start()
    assert one.end().exit_code == 5
    assert one.exit["exit_code"] == 5


@pytest.mark.skipif(os.getuid() != 0, reason="root is needed to become somebody whom permissions keep out")
@pytest.mark.parametrize("spoil", ["chmod 500 .", "echo no >exit.json; chmod 0 exit.json; chmod 0 ."])
def test_a_job_that_takes_away_the_right_to_write_its_exit_status(trial, spoil):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        one = trial(f'cd "$DISPATCHER_ATTEMPT_DIR"; {spoil}; exit 5', root=Path(folder) / "w")
        subprocess.run(["chown", "-R", "65534", folder], check=True)
        wrapper = ["bash", os.fspath(one.paths.wrapper)]
        done = subprocess.run(wrapper, user=65534, group=65534, extra_groups=[], timeout=60, check=False)
        assert done.returncode == 5
        assert one.exit["exit_code"] == 5


WAITS = "echo ready; until [ -e {go} ]; do sleep 0.02; done; exit 7"


def test_a_workspace_that_goes_away_while_a_job_ends_gets_its_exit_status_when_it_is_back(trial, tmp_path):
    """That its directory is missing is believed only where the workspace can be read."""
    go = tmp_path / "go"
    one = trial(WAITS.format(go=go), root=tmp_path / "w").start().says("ready")
    away = one.root.rename(tmp_path / "away")
    go.touch()
    wait_until(lambda: b"sleep\x002\x00" in commands(one.tree()), "the job has ended, the wrapper waits")
    assert liveness.is_held(away / one.paths.alive.relative_to(one.root)) is True
    away.rename(one.root)
    assert one.end().exit_code == 7


@pytest.mark.skipif(os.getuid() != 0, reason="root is needed to become somebody whom permissions keep out")
def test_a_directory_that_cannot_be_reached_while_a_job_ends_gets_its_exit_status_later(trial):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        one = trial(WAITS.format(go=f"{folder}/go"), root=Path(folder) / "w")
        subprocess.run(["chown", "-R", "65534", folder], check=True)
        wrapper = ["bash", os.fspath(one.paths.wrapper)]
        process = subprocess.Popen(wrapper, user=65534, group=65534, extra_groups=[])
        one.says("ready")
        jobs = one.paths.directory.parent.parent
        jobs.chmod(0)
        (Path(folder) / "go").touch()
        wait_until(lambda: b"sleep\x002\x00" in commands(one.tree()), "the job has ended, the wrapper waits")
        jobs.chmod(0o755)
        assert process.wait(60) == 7
        assert one.exit["exit_code"] == 7


def test_what_is_told_to_stop_when_its_job_has_ended_is_done(trial, small_disk):
    """Its wrapper waits for room for the exit status; a pod that ends then changes nothing of how the job has ended."""
    one = trial("echo ready; cat /dev/zero >filler 2>/dev/null; exit 0", root=small_disk).start().says("ready")
    wait_until(lambda: b"sleep\x002\x00" in commands(one.tree()), "the job has ended, the wrapper waits")
    one.outlet.cancel([KEY], reason="preempted")
    (small_disk / "filler").unlink()
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason, ended.told_by_signal) == (0, "", "")


def test_a_job_that_removes_its_own_attempt_leaves_no_wrapper(trial):
    one = trial('rm -r "$DISPATCHER_ATTEMPT_DIR"; exit 5').start()
    assert one.end() == Ended(None, error="its wrapper ended with status 5")


@pytest.mark.parametrize("put", ["mkdir {0}", "ln -s /absent/x {0}", "ln -s /dev/full/x {0}"])
def test_a_job_whose_log_cannot_be_opened_does_not_begin(trial, put):
    one = trial("echo ran >>ran; exit 0")
    subprocess.run(["bash", "-c", put.format(shlex.quote(str(one.paths.log)))], check=True)
    ended = one.start().end()
    assert (ended.exit_code, ended.exit_reason, ended.blames_host) == (None, CANNOT_START, True)
    assert "output.log cannot be opened: " in ended.error
    assert not (one.root / "ran").exists()


def test_a_job_that_finds_no_inode_for_its_log_does_not_begin_and_says_so(trial, small_disk):
    one = trial("true", root=small_disk)
    # The liveness lock needs one.
    with contextlib.suppress(OSError):
        for number in range(10_000):
            (small_disk / f"filler{number}").touch()
    (small_disk / "filler0").unlink()
    ended = one.start().end()
    assert (ended.exit_code, ended.exit_reason, ended.is_passing) == (None, CANNOT_START, True)
    assert "no inodes are left" in ended.error


def test_a_workspace_that_cannot_be_entered_begins_no_job(trial, tmp_path):
    one = trial("true", root=tmp_path / "w")
    text = one.paths.wrapper.read_text()
    one.paths.wrapper.write_text(text.replace(f"cd -- {tmp_path}/w", f"cd -- {tmp_path}/gone"))
    assert one.by_hand().returncode == DID_NOT_BEGIN
    assert one.exit["exit_code"] is None
    assert "No such file or directory" in one.exit["error"]


@pytest.mark.parametrize(
    ("script", "is_done"),
    [
        ("exit 0", False),
        ('echo "{}" >"$DISPATCHER_ATTEMPT_DIR/result.json"; exit 0', True),
        (f"exit {contract.EXIT_COMPLETE}", True),
    ],
)
def test_what_was_told_to_stop_is_done_when_it_proves_that(trial, script, is_done):
    one = trial(f"trap '{script}' TERM; echo ready; while :; do sleep 0.05; done").start().says("ready")
    one.send(signal.SIGTERM)
    assert one.end().is_done is is_done


def test_a_host_without_dev_fd(trial, without_dev_fd):
    one = trial("read -t 1 || echo no input; exit 6")
    done = subprocess.run([*without_dev_fd, "bash", os.fspath(one.paths.wrapper)], timeout=60, check=False)
    assert done.returncode == 6
    assert one.output == "no input\n"
    assert one.exit["exit_code"] == 6


def test_the_job_gets_no_descriptor_of_the_wrapper_but_the_life_sign(trial):
    one = trial("readlink /proc/$$/fd/*").start()
    one.end()
    others = [path for path in one.output.split("\n") if path and path != os.devnull]
    assert sorted(others) == sorted([os.fspath(one.paths.log), os.fspath(one.paths.log), os.fspath(one.paths.alive)])


def start_wrapper(one: Trial) -> subprocess.Popen[str]:
    """As an outlet does where kernel locks do not work."""
    words, environment = ["bash", os.fspath(one.paths.wrapper), "none"], {**os.environ, **one.bundle.environment}
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_of_two_wrappers_that_start_at_once_one_runs(trial, tmp_path):
    for number in range(20):
        one = trial("echo ran; exit 3", root=tmp_path / f"{number}'; echo foo")
        wrappers = [start_wrapper(one), start_wrapper(one)]
        errors = [wrapper.communicate(timeout=60)[1] for wrapper in wrappers]
        assert sorted(wrapper.returncode for wrapper in wrappers) == [3, DOES_NOT_KNOW]
        assert one.output == "ran\n"
        assert one.exit["exit_code"] == 3
        winner = next(wrapper for wrapper in wrappers if wrapper.returncode == 3)
        (line,) = "".join(errors).splitlines()
        assert "not started again" in line
        assert one.paths.taken.read_text() == f"{os.uname().nodename} {winner.pid}\n"


def test_a_twin_that_starts_later_runs_nothing(trial):
    one = trial("echo ready; until [ -e go ]; do sleep 0.02; done; exit 5")
    first = start_wrapper(one)
    one.says("ready")
    assert start_wrapper(one).wait(60) == DOES_NOT_KNOW
    assert not one.paths.exit.exists()
    (one.root / "go").touch()
    assert first.wait(60) == 5
    written = one.paths.exit.read_text()
    assert start_wrapper(one).wait(60) == DOES_NOT_KNOW
    assert (one.paths.exit.read_text(), one.output) == (written, "ready\n")


def test_a_full_disk_makes_no_twin(trial, small_disk):
    """The file is created and stays empty: the attempt is taken all the same."""
    one = trial("exit 7", root=small_disk)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    wrapper = start_wrapper(one)
    wait_until(lambda: one.running("sleep"), "the job has ended, the wrapper waits for room")
    assert one.paths.taken.read_text() == ""
    filler.unlink()
    assert wrapper.wait(60) == 7
    assert one.exit["exit_code"] == 7


def test_an_attempt_that_cannot_be_taken_runs(trial):
    one = trial("exit 4")
    one.paths.taken.symlink_to("/absent/taken")
    assert start_wrapper(one).wait(60) == 4
    assert one.exit["exit_code"] == 4


def test_what_a_person_has_run_by_hand_is_not_started_again(trial):
    one = trial("echo ran; exit 3")
    assert one.by_hand().returncode == 3
    assert start_wrapper(one).wait(60) == DOES_NOT_KNOW
    assert one.by_hand().returncode == 3
    assert one.output == "ran\nran\n"


def test_a_test_of_the_lock_does_not_keep_an_attempt_from_starting(trial):
    """A dispatcher elsewhere looks at that very moment whether the attempt is alive."""
    one = trial("echo began")
    one.paths.alive.touch()
    with open(one.paths.alive, "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        wrapper = subprocess.Popen(["bash", os.fspath(one.paths.wrapper)])
        wait_until(lambda: any(b"flock" in command(pid) for pid in children(wrapper.pid)), "it waits for the lock")
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert wrapper.wait() == 0
    assert one.paths.log.read_text() == "began\n"
