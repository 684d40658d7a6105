"""What the real gcloud does, as seen against the TPU bed: the ground that the outlet for TPU VMs stands on.

A newer gcloud that behaves otherwise fails here first, and the outlet is looked at then. The same gcloud does the same
again: what the tests of the outlet do not need is `long`. All of gcloud's waits take a tenth of their time here
(SLEEP_FACTOR).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from . import tpu_checks as checks
from .bed import wait_for
from .fixtures import SLEEP_FACTOR
from .tpu import VERSION, TpuBed

CREATE = ("create", "vm", "--accelerator-type=v4-8", f"--version={VERSION}")
# Without them ssh waits two minutes for a worker that drops packets, and for ever where one vanishes.
IMPATIENT = [f"--ssh-flag=-o{word}" for word in ("ConnectTimeout=1", "ServerAliveInterval=1", "ServerAliveCountMax=2")]


def start(tpu: TpuBed, *words: str, **popen) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["gcloud", "compute", "tpus", "tpu-vm", *words], env={**os.environ, **tpu.env}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **popen,
    )  # fmt: skip


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory for `--output-directory`, in the place where gcloud 528 writes whatever it was told."""
    folder = tmp_path / "None"
    folder.mkdir()
    return folder


# Logs, streams and statuses of several workers.


@pytest.mark.long
def test_the_output_directory_is_a_folder_None_of_the_current_one(tpu: TpuBed, tmp_path: Path) -> None:
    """So one that is called None in gcloud's working directory serves this gcloud and one without the fault."""
    tpu.create("pod", "v4-16")
    asked = tmp_path / "asked"
    asked.mkdir()
    words = ("ssh", "pod", "--worker=all", "--command=hostname", f"--output-directory={asked}")
    done = tpu.gcloud(*words, cwd=tmp_path)
    assert (done.returncode, list(asked.iterdir())) == (1, [])
    assert "Unable to write file [None/0.log]" in done.stderr


def test_logs_have_both_streams_byte_by_byte(tpu: TpuBed, logs: Path) -> None:
    tpu.create("pod", "v4-16")
    command = r"printf 'a\000\377\r\n'; echo e >&2"
    words = ("ssh", "pod", "--worker=all", f"--command={command}", f"--output-directory={logs}")
    quiet = tpu.gcloud(*words, "--ssh-flag=-oLogLevel=ERROR", cwd=logs.parent, check=True)
    assert quiet.stdout == ""
    assert {file.name: file.read_bytes() for file in logs.iterdir()} == {
        "0.log": b"a\0\xff\r\ne\n",
        "1.log": b"a\0\xff\r\ne\n",
    }
    # ssh's own words are among it, and a second call writes the files anew.
    (tpu.directory / "home/.ssh/google_compute_known_hosts").unlink()
    tpu.gcloud(*words, cwd=logs.parent, check=True)
    log = (logs / "0.log").read_bytes()
    assert re.fullmatch(rb"Warning: Permanently added 'tpu\.\d+-0-.{6}' \(ED25519\).*\r\na\0\xff\r\ne\n", log)


@pytest.mark.long
def test_the_status_is_that_of_the_first_worker_that_failed(tpu: TpuBed) -> None:
    tpu.create("pod", "v4-16")
    command = "case $(hostname) in *-w-0) sleep 1; exit 4;; *) exit 3;; esac"
    done = tpu.gcloud("ssh", "pod", "--worker=all", f"--command={command}")
    assert done.returncode == 4
    for line in ("worker 0 failed with exit status 4.", "worker 1 failed with exit status 3."):
        assert f"##### Command execution on {line}" in done.stderr


@pytest.mark.long
def test_the_status_of_a_worker_from_a_list_is_lost(tpu: TpuBed) -> None:
    tpu.create("pod", "v4-16")
    tpu.set("pod", networkEndpoints=tpu.node("pod")["networkEndpoints"] * 2)
    command = "case $(hostname) in *-w-1) exit 3;; esac"
    # Workers 0 and 3; 3 is the same machine as 1.
    done = tpu.gcloud("ssh", "pod", "--worker=0,3", f"--command={command}")
    assert done.returncode == 0
    assert "IndexError: list assignment index out of range" in done.stderr


def test_stdin_reaches_one_worker_whole_and_several_by_chance(tpu: TpuBed, logs: Path) -> None:
    tpu.create("pod", "v4-16")
    data = bytes(range(256)) * 1000
    (logs.parent / "data").write_bytes(data)
    for worker in ("0", "all"):
        with open(logs.parent / "data", "rb") as stdin:
            words = ("ssh", "pod", f"--worker={worker}", "--command=cat > ~/got; wc -c < ~/got")
            tpu.gcloud(*words, f"--output-directory={logs}", cwd=logs.parent, stdin=stdin, check=True)
        sizes = [int((logs / f"{index}.log").read_bytes().split()[-1]) for index in range(2 if worker == "all" else 1)]
        # Both read from one file position: together they have it once.
        assert sum(sizes) == len(data)
        if worker == "0":
            assert tpu.workers("pod")[0].path("got").read_bytes() == data


@pytest.mark.long
def test_a_command_has_less_than_128_kib(tpu: TpuBed) -> None:
    tpu.create("vm")
    text = "  x\n" * 32_000
    done = tpu.gcloud("ssh", "vm", f"--command=printf %s '{text}' | md5sum; printf %s '{text}' >/dev/null"[:131_000])
    assert done.returncode != 0, "cut within a quotation"
    whole = f"--command=printf '%s' '{text}'"
    assert tpu.gcloud("ssh", "vm", whole).stdout == text
    with pytest.raises(OSError, match="Argument list too long"):
        tpu.gcloud("ssh", "vm", whole + "x" * 4000)


@pytest.mark.long
def test_batches_of_workers_are_only_in_alpha(tpu: TpuBed) -> None:
    tpu.create("pod", "v4-16")
    command = "--command=date +%s%N; sleep 1; date +%s%N"
    words = ("tpus", "tpu-vm", "ssh", "pod", "--worker=all", "--batch-size=1", command)
    env = {**os.environ, **tpu.env}
    tracks = [
        subprocess.run(
            ["gcloud", *track, "compute", *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False,
        )
        for track in ((), ("alpha",))
    ]  # fmt: skip
    assert (tracks[0].returncode, "--batch-size" in tracks[0].stderr) == (2, True)
    assert tracks[1].returncode == 0, tracks[1].stderr
    times = [int(word) for word in tracks[1].stdout.split()]
    # One worker after the other.
    assert times == sorted(times)


@pytest.mark.long
def test_words_of_a_worker_that_is_not_there(tpu: TpuBed) -> None:
    tpu.create("pod", "v4-16")
    done = tpu.gcloud("ssh", "pod", "--worker=2", "--command=true")
    assert (done.returncode, "worker index 2 is larger than the valid worker indexes" in done.stderr) == (1, True)


# Connections that fail, and what gcloud makes of them.


@pytest.mark.slow
@pytest.mark.long
def test_what_fails_with_255_is_tried_ten_times_in_a_minute(tpu: TpuBed, tmp_path: Path) -> None:
    """Also a remote command that ended so, and every scp that failed, for whatever reason."""
    for name in ("remote", "down", "scp", "keys"):
        tpu.create(name, "v4-16")
    tpu.gcloud("ssh", "keys", "--worker=all", "--command=true", check=True)
    tpu.workers("down")[1].stop_sshd()
    tpu.refuse("nodes.getGuestAttributes", "PERMISSION_DENIED", times=1)
    small = tmp_path / "small"
    small.write_text("x")
    began = time.monotonic()
    # The first one is the one whose guest attributes are refused, as where a policy forbids them: gcloud then
    # knows the host under another name, and refuses its key.
    keys = start(tpu, "ssh", "keys", "--worker=all", "--command=true")
    wait_for(lambda: tpu.requests("nodes.getGuestAttributes")[1:], "the refused request")
    calls = {
        "remote": start(tpu, "ssh", "remote", "--worker=all", "--command=echo ran >> ~/ran; exit 255"),
        "down": start(tpu, "ssh", "down", "--worker=all", "--command=echo ran >> ~/ran"),
        "scp": start(tpu, "scp", str(small), "scp:missing/small", "--worker=all"),
        "keys": keys,
    }
    errors = {}
    for name, call in calls.items():
        errors[name] = call.communicate(timeout=250)[1]
        assert call.returncode == 255, (name, errors[name])
    assert time.monotonic() - began > 44 * SLEEP_FACTOR
    for name, attempts in (("remote", 20), ("down", 11), ("scp", 20), ("keys", 20)):
        assert errors[name].count("Attempting to connect to worker") == attempts, errors[name]
    assert tpu.workers("remote")[0].path("ran").read_text() == "ran\n" * 10
    # The other worker's command ran once, and was done long before gcloud ended.
    assert tpu.workers("down")[0].path("ran").read_text() == "ran\n"
    assert "[/usr/bin/scp] exited with return code [1]" in errors["scp"]
    assert "No ED25519 host key is known for tpu." in errors["keys"]


@pytest.mark.long
def test_without_guest_attributes_keys_need_not_be_known(tpu: TpuBed) -> None:
    """The way out of what `keys` is above."""
    tpu.create("pod", "v4-16")
    tpu.gcloud("ssh", "pod", "--worker=all", "--command=true", check=True)
    tpu.refuse("nodes.getGuestAttributes", "PERMISSION_DENIED", times=9)
    words = ("ssh", "pod", "--worker=all", "--strict-host-key-checking=no", "--command=echo in")
    assert tpu.gcloud(*words, check=True).stdout == "in\nin\n"


@pytest.mark.slow
@pytest.mark.long
def test_a_vanished_worker_is_noticed_by_keepalives_and_tried_again(tpu: TpuBed) -> None:
    workers = tpu.create("pod", "v4-16", spot=True)
    call = start(tpu, "ssh", "pod", "--worker=all", "--command=echo begun; sleep 300", *IMPATIENT)
    wait_for(lambda: all(each.processes("sleep") for each in workers), "the command runs")
    tpu.preempt("pod")
    began = time.monotonic()
    out, error = call.communicate(timeout=250)
    # Nine times more, each after a wait of five seconds and with one second to connect.
    assert time.monotonic() - began > 9 * (1 + 5 * SLEEP_FACTOR)
    assert (call.returncode, out) == (255, "begun\nbegun\n")
    assert "Connection timed out" in error


def test_a_broken_connection_runs_the_command_again_into_the_same_log(tpu: TpuBed, logs: Path) -> None:
    _, second = tpu.create("pod", "v4-16")
    command = "--command=echo begun; until test -e ~/go; do sleep 0.1; done; echo ended"
    call = start(tpu, "ssh", "pod", "--worker=all", command, f"--output-directory={logs}", cwd=logs.parent)
    wait_for(lambda: all(each.processes("sleep") for each in tpu.workers("pod")), "the command runs")
    second.stop_sshd()
    for worker in tpu.workers("pod"):
        worker.path("go").touch()
    second.start_sshd()
    call.communicate(timeout=60)
    assert call.returncode == 0
    assert (logs / "0.log").read_text().endswith("hosts.\nbegun\nended\n")
    assert re.search(r"begun\n.*closed by remote host\.\s+begun\nended\n$", (logs / "1.log").read_text(), re.DOTALL)


@pytest.mark.long
def test_remote_commands_go_on_when_gcloud_is_killed(start_tpu: Callable[..., TpuBed]) -> None:
    tpu = start_tpu(is_warm=False)
    workers = tpu.create("pod", "v4-16")
    for count, number in enumerate((signal.SIGTERM, signal.SIGKILL), 1):
        call = start(tpu, "ssh", "pod", "--worker=all", "--command=exec sleep 300")
        wait_for(lambda count=count: all(len(each.processes("sleep")) == count for each in workers), "it runs")
        call.send_signal(number)
        assert call.wait(10) == -number
        # Its ssh, in the same process group, lives on as well (with one worker, SIGTERM ends it: 255 at once).
        os.killpg(call.pid, signal.SIGKILL)
        call.communicate()
        assert all(len(each.processes("sleep")) == count for each in workers)


@pytest.mark.long
def test_ssh_to_a_vm_that_is_not_up_is_refused_by_gcloud(tpu: TpuBed) -> None:
    tpu.create("vm")
    for state, message in (
        ("PREEMPTED", 'This TPU has terminal state "PREEMPTED", so it cannot be used anymore.'),
        ("TERMINATED", 'This TPU has terminal state "TERMINATED", so it cannot be used anymore.'),
        ("STOPPED", 'This TPU has state "STOPPED", so it cannot be currently connected to.'),
        ("DELETING", 'This TPU has state "DELETING", so it cannot be currently connected to.'),
    ):
        tpu.set("vm", state=state)
        done = tpu.gcloud("ssh", "vm", "--command=true")
        assert (done.returncode, message in done.stderr) == (1, True), state


@pytest.mark.long
def test_ssh_in_other_states_is_tried(tpu: TpuBed) -> None:
    tpu.create("vm")
    # Its key is there; else it would be refused to bring one now.
    tpu.gcloud("ssh", "vm", "--command=true", check=True)
    for state, health, warning in (
        ("REPAIRING", "HEALTHY", 'is in state "REPAIRING", therefore the TPU may not be available'),
        ("READY", "UNHEALTHY_MAINTENANCE", "This TPU is going through a maintenance event"),
        ("DEFROSTING", "HEALTHY", ""),
    ):
        tpu.set("vm", state=state, health=health)
        done = tpu.gcloud("ssh", "vm", "--command=echo in")
        assert (done.returncode, done.stdout, warning in done.stderr) == (0, "in\n", True), done.stderr


# Keys.


@pytest.mark.long
def test_the_first_use_makes_a_key_and_says_so_on_stdout(start_tpu: Callable[..., TpuBed]) -> None:
    tpu = start_tpu(has_key=False)
    tpu.create("vm")
    done = tpu.gcloud("ssh", "vm", "--command=echo mine", check=True)
    assert done.stdout.startswith("Generating public/private rsa key pair.")
    assert done.stdout.endswith("mine\n")
    (patch,) = tpu.requests("nodes.patch")
    assert patch.body["metadata"]["ssh-keys"].startswith("\nroot:ssh-rsa ")
    again = tpu.gcloud("ssh", "vm", "--command=echo mine", check=True)
    assert again.stdout == "mine\n"
    assert tpu.requests("nodes.patch") == [patch]


@pytest.mark.long
def test_a_key_of_the_whole_project_is_not_brought_again(tpu: TpuBed) -> None:
    public = (tpu.directory / "home/.ssh/google_compute_engine.pub").read_text().split()
    user = tpu.settings.user
    tpu.cloud.project_metadata["ssh-keys"] = f"{user}:{public[0]} {public[1]} {user}\n"
    tpu.create("vm")
    done = tpu.gcloud("ssh", "vm", "--command=echo in", check=True)
    assert done.stdout == "in\n"
    assert tpu.requests("nodes.patch") == []


@pytest.mark.long
def test_keys_that_several_bring_at_once_conflict_without_harm(tpu: TpuBed) -> None:
    tpu.create("vm")
    tpu.cloud.update_s = 2
    with ThreadPoolExecutor() as pool:
        calls = list(pool.map(lambda _: tpu.gcloud("ssh", "vm", "--command=echo in"), range(2)))
    assert [call.returncode for call in calls] == [0, 0], [call.stderr for call in calls]
    assert len(tpu.requests("nodes.patch")) == 2


@pytest.mark.long
def test_scp_to_all_wants_its_key_in_the_agent_if_there_is_one(tpu: TpuBed, tmp_path: Path) -> None:
    tpu.create("pod", "v4-16")
    data = tmp_path / "data"
    data.write_bytes(os.urandom(20_000_000))
    copy = ("gcloud", "compute", "tpus", "tpu-vm", "scp", str(data), "pod:data", "--worker=all")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    script = f"ssh-add -q {shlex.quote(str(tmp_path / 'other'))} && exec {shlex.join(copy)}"
    env = {**os.environ, **tpu.env}
    refused = subprocess.run(
        ["ssh-agent", "sh", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (refused.returncode, "SSH Key is not present in the SSH agent" in refused.stderr) == (1, True)
    env.pop("SSH_AUTH_SOCK", None)
    done = subprocess.run(copy, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for worker in tpu.workers("pod"):
        assert worker.path("data").read_bytes() == data.read_bytes()


# Errors of the API.


@pytest.mark.long
def test_wrong_words_are_status_2_before_any_request(tpu: TpuBed) -> None:
    for words in (CREATE[:-1], (*CREATE, "--no-such-flag"), (*CREATE, "--labels=A")):
        done = tpu.gcloud(*words)
        assert done.returncode == 2
        assert done.stderr.startswith("ERROR: (gcloud.compute.tpus.tpu-vm.create) ")
    assert tpu.requests() == []


@pytest.mark.long
def test_refusals_are_not_tried_again(tpu: TpuBed) -> None:
    for count, status in enumerate(("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "ABORTED", "INVALID_ARGUMENT"), 1):
        tpu.refuse("nodes.create", status, checks.QUOTA)
        done = tpu.gcloud(*CREATE)
        assert done.returncode == 1
        assert done.stderr.startswith(f"ERROR: (gcloud.compute.tpus.tpu-vm.create) {status}: {checks.QUOTA}")
        assert len(tpu.requests("nodes.create")) == count
    assert tpu.names() == []


@pytest.mark.slow
@pytest.mark.long
def test_errors_of_the_server_are_tried_five_times_in_half_a_minute(tpu: TpuBed) -> None:
    tpu.refuse("nodes.get", "INTERNAL", times=9)
    tpu.refuse("nodes.list", "UNAVAILABLE", times=9)
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(tpu.gcloud, *words) for words in (("describe", "vm"), ("list",))]
    for call, kind, code in zip(calls, ("nodes.get", "nodes.list"), (500, 503), strict=True):
        done = call.result()
        assert done.returncode == 1
        assert "HttpError accessing <http://" in done.stderr
        assert f'"code": {code}' in done.stderr
        assert len(tpu.requests(kind)) == 5
    tpu.api.faults.clear()
    tpu.refuse("nodes.get", "UNAVAILABLE")
    tpu.create("vm")
    assert tpu.gcloud("describe", "vm").returncode == 0


@pytest.mark.long
def test_an_operation_that_fails_is_shown_as_json(tpu: TpuBed) -> None:
    for ending in (checks.NO_CAPACITY, checks.NO_RESERVATION):
        tpu.no_capacity(ending)
        done = tpu.gcloud(*CREATE)
        assert done.returncode == 1
        assert f'ERROR: (gcloud.compute.tpus.tpu-vm.create) {{\n  "code": {ending[0]},\n  "message": "' in done.stderr


@pytest.mark.long
def test_a_vm_that_is_preempted_while_it_is_created_stays(tpu: TpuBed) -> None:
    tpu.cloud.create_s = 3
    call = start(tpu, *CREATE, "--spot")
    tpu.wait_for("vm", "CREATING")
    tpu.preempt("vm")
    error = call.communicate(timeout=60)[1]
    assert call.returncode == 1
    assert "update is not supported while in state PREEMPTED" in error
    assert tpu.node("vm")["state"] == "PREEMPTED"


def test_create_reports_its_own_node_as_existing_when_the_answer_was_lost(tpu: TpuBed) -> None:
    tpu.lose_answer("nodes.create")
    done = tpu.gcloud(*CREATE)
    assert done.returncode == 1
    assert "ALREADY_EXISTS: Resource " in done.stderr
    assert len(tpu.requests("nodes.create")) == 2
    tpu.wait_for("vm", "READY")


@pytest.mark.long
def test_create_does_not_wait_when_told_so(tpu: TpuBed) -> None:
    tpu.cloud.create_s = 60
    done = tpu.gcloud(*CREATE, "--async")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.search(r"Check operation \[projects/lab-project/.*/operations/operation-\d+\] for status\.", done.stderr)
    assert tpu.node("vm")["state"] == "CREATING"
