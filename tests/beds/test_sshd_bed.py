"""The sshd bed does what tests of remote hosts take for granted."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from .bed import wait_for
from .computer import seen_in_tmp
from .fixtures import skip_without
from .slurm import ORDINARY
from .sshd import SshBed


def test_hosts_look_like_machines_of_their_own(ssh: SshBed) -> None:
    answers = {}
    for name in ("h1", "h2"):
        done = ssh.ssh(name, "hostname; cat /proc/sys/kernel/random/boot_id; echo $HOME; echo mine > ~/file; ls /tmp")
        assert done.returncode == 0, done.stderr
        answers[name] = done.stdout.splitlines()
    assert (answers["h1"][0], answers["h2"][0]) == ("h1", "h2")
    assert answers["h1"][1] != answers["h2"][1]
    # /tmp holds what the bed itself needs, and of the test nothing.
    assert set(answers["h1"][3:]) == seen_in_tmp(ssh.directory)
    beside = set(ssh.ssh("h1", f"ls {ssh.directory.parent}").stdout.splitlines())
    assert beside - seen_in_tmp(ssh.directory) <= {ssh.directory.name}
    ssh["h2"].path("file").unlink()
    assert ssh["h1"].path("file").read_text() == "mine\n"


def test_hosts_see_a_directory_only_when_it_is_shared(start_ssh, tmp_path: Path) -> None:
    shared, private = tmp_path / "shared 'one'", tmp_path / "private"
    for directory in (shared, private):
        directory.mkdir()
        (directory / "nonce").write_text("here")
    ssh = start_ssh(["h1"], shared=[shared])
    assert ssh["h1"].run("cat", str(shared / "nonce")) == "here"
    assert ssh["h1"].run("ls", str(private), check=False) == ""


def test_an_ordinary_user_logs_in(start_ssh) -> None:
    ssh = start_ssh(["h1"], user=ORDINARY)
    done = ssh.ssh("h1", "id -un; echo $HOME; touch ~/mine && echo written; touch /etc/other || exit 7")
    assert done.stdout.split() == [ORDINARY, f"/home/{ORDINARY}", "written"]
    assert done.returncode == 7


def test_a_host_is_away_and_its_detached_jobs_go_on(ssh: SshBed) -> None:
    host = ssh["h1"]
    assert ssh.ssh("h1", "setsid -f sleep 300 </dev/null >/dev/null 2>&1").returncode == 0
    with host.away():
        assert ssh.ssh("h1", "true").returncode == 255
        assert len(host.processes("sleep")) == 1
        assert ssh.ssh("h2", "true").returncode == 0
    assert ssh.ssh("h1", "true").returncode == 0
    host.stop_sshd()
    assert ssh.ssh("h1", "true").returncode == 255
    assert len(host.processes("sleep")) == 1
    host.start_sshd()
    assert ssh.ssh("h1", "pgrep -c sleep").stdout == "1\n"


def test_a_power_cut_ends_jobs_and_changes_the_boot_id(ssh: SshBed) -> None:
    host = ssh["h1"]
    show = "cat /proc/sys/kernel/random/boot_id; pgrep -c sleep; cat ~/kept"
    ssh.ssh("h1", "setsid -f sleep 300 </dev/null >/dev/null 2>&1; echo still-here > ~/kept")
    before = ssh.ssh("h1", show).stdout.split()
    host.power_cut()
    assert ssh.ssh("h1", "true").returncode == 255
    host.boot()
    after = ssh.ssh("h1", show).stdout.split()
    assert before[0] != after[0]
    assert (before[1:], after[1:]) == (["1", "still-here"], ["0", "still-here"])


def test_a_changed_host_key_is_refused_until_it_is_known(ssh: SshBed) -> None:
    ssh["h1"].replace_key()
    refused = ssh.ssh("h1", "echo in")
    assert (refused.returncode, refused.stdout) == (255, "")
    assert "Host key verification failed" in refused.stderr
    ssh["h1"].trust_key()
    assert ssh.ssh("h1", "echo in").stdout == "in\n"


def test_a_slow_host_takes_its_time(ssh: SshBed) -> None:
    def takes_s() -> float:
        began = time.monotonic()
        assert ssh.ssh("h1", "true").returncode == 0
        return time.monotonic() - began

    with ssh["h1"].slow(0.1):
        # A login needs more than five round trips.
        assert takes_s() > 1


@pytest.mark.parametrize("way", ["silent", "hanging"])
def test_a_host_that_hangs_answers_nothing_and_recovers(ssh: SshBed, way: str) -> None:
    with getattr(ssh["h1"], way)():
        done = ssh.ssh("-o", "ConnectTimeout=1", "h1", "true")
        assert done.returncode == 255
        assert "timed out" in done.stderr
    wait_for(lambda: ssh.ssh("h1", "true").returncode == 0, "the host answers again")


def test_a_full_disk_refuses_one_more_byte(start_ssh) -> None:
    ssh = start_ssh(["h1"], disk_mib=1)
    with ssh["h1"].full_disk():
        done = ssh.ssh("h1", "echo x > ~/more")
        assert done.returncode != 0
        assert "No space left on device" in done.stderr
    assert ssh.ssh("h1", "echo x > ~/more").returncode == 0


def test_a_noisy_login_comes_before_what_a_command_prints(ssh: SshBed) -> None:
    ssh["h1"].greet("Welcome to 'the' cluster")
    done = ssh.ssh("h1", "echo mine")
    assert done.stdout == "Welcome to 'the' cluster\nmine\n"
    assert done.stderr == "Welcome to 'the' cluster\n"


def test_sessions_of_one_connection_are_limited(start_ssh, tmp_path: Path) -> None:
    ssh = start_ssh(["h1"], max_sessions=1)
    control = f"ControlPath={ssh.directory}/control"
    words = ["ssh", "-F", str(ssh.config), "-o", "ControlMaster=yes", "-o", control, "h1", "echo up; sleep 60"]
    first = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "up\n"
    # With `ProxyCommand=false`, what the shared connection refuses does not get one of its own.
    second = ssh.ssh("-o", control, "-o", "ProxyCommand=false", "h1", "true")
    assert second.returncode == 255
    first.terminate()
    first.wait(10)
    first.stdout.close()


def test_programs_and_variables_of_a_host_are_its_own(start_ssh) -> None:
    ssh = start_ssh(env={"SLURM_CONF": "/some where/slurm.conf"})
    ssh["h1"].install("nvidia-smi", "#!/bin/sh\necho fake\n")
    assert ssh.ssh("h1", 'nvidia-smi; echo "$SLURM_CONF"').stdout == "fake\n/some where/slurm.conf\n"
    assert "fake" not in ssh.ssh("h2", "nvidia-smi").stdout


def test_a_login_node_submits_and_does_not_see_the_workspace(start_slurm, start_ssh, tmp_path: Path) -> None:
    slurm = start_slurm()
    ssh = start_ssh(["login"], user=ORDINARY, shared=[slurm.directory], env=slurm.env)
    done = ssh.ssh("login", f"test ! -e '{tmp_path}' && sbatch --parsable --wrap='exit 3' --output=/dev/null")
    assert done.returncode == 0, done.stderr
    slurm.wait_for(done.stdout.strip(), "FAILED")


def test_nothing_is_left_of_the_hosts() -> None:
    skip_without("sshd")
    with SshBed() as ssh:
        ssh.ssh("h1", "setsid -f sh -c 'trap \"\" TERM HUP; sleep 300' </dev/null >/dev/null 2>&1")
        wait_for(lambda: ssh["h1"].processes("sleep"), "the detached job")
        running = [pid for host in ssh.hosts.values() for pid in host.processes()]
    assert not [pid for pid in running if os.path.exists(f"/proc/{pid}")]
    assert not ssh.directory.exists()
