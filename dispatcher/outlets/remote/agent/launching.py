"""Launching an attempt as a process of this host that outlives the connection."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from typing import BinaryIO, Dict, List, Optional, Sequence, Tuple

from dispatcher.outlets.remote.agent.attempts import check_attempt, read_launch
from dispatcher.outlets.remote.agent.facts import boot_id, host_name, user_name
from dispatcher.outlets.remote.agent.gpus import show_gpus, take_gpus
from dispatcher.outlets.remote.agent.locks import lock_patiently
from dispatcher.outlets.remote.agent.machine import index_among, process_variables, take_machine
from dispatcher.outlets.remote.agent.names import (
    ALIVE_FILE,
    ATTEMPT_DIR,
    LAUNCH_FILE,
    LAUNCH_LOG,
    LOG_FILE,
    WRAPPER_FILE,
    AgentError,
    Data,
)
from dispatcher.outlets.remote.agent.programs import decoded, run_program, scrubbed
from dispatcher.outlets.remote.agent.writing import create_file, replace_file, replace_link

LOGINCTL_S = 10.0


def launch(words: Data, _stdin: BinaryIO) -> Data:
    directory = words["directory"]
    if not os.path.exists(os.path.join(directory, WRAPPER_FILE)):
        raise AgentError(f"{directory}: the attempt was not delivered to {host_name()}")
    worker = index_among(words["workers"])
    refuse_shared(directory, worker)
    before = check_attempt(directory)
    if before["is_alive"]:
        return launched("alive", before["pid"], before["gpus"])
    if before["was_launched"]:
        return launched("taken", before["pid"], before["gpus"])
    alive_fd, locked = lock_patiently(os.path.join(directory, ALIVE_FILE))
    held = [alive_fd]
    try:
        if locked is False:
            return launched("alive")
        gpus, why = take_room(words, held)
        if why:
            return launched("no_room", why=why)
        if not create_file(os.path.join(directory, LAUNCH_FILE), launch_record(None, gpus, worker)):
            return launched("taken")
        words["environment"].update(process_variables(directory, words["workers"], worker))
        pid = start(words, None if locked is None else alive_fd, gpus, held)
        # It runs, so a full disk is no failure of the launch any more: the wrapper's own file tells its pid too.
        with contextlib.suppress(OSError):
            replace_file(os.path.join(directory, LAUNCH_FILE), launch_record(pid, gpus, worker), 0o666)
        return launched("started", pid, gpus)
    finally:
        # The wrapper has inherited them: from now on its processes alone keep them locked.
        for fd in held:
            os.close(fd)


def take_room(words: Data, held: List[int]) -> Tuple[List[int], str]:
    """The GPUs that the attempt gets, locked as the machine is where it needs all of it; or why there is no room."""
    why = take_machine(words["exclusive"], words["directory"], held)
    return ([], why) if why else take_gpus(words, held)


def refuse_shared(directory: str, worker: Optional[int]) -> None:
    """An attempt on several machines has a directory on each: in a common one only the first of them would start."""
    other = read_launch(directory).get("worker", worker or 0)
    if other != (worker or 0):
        raise AgentError(
            f"{directory}: the machines of the attempt share this directory, and each needs one of its own: set `work` "
            "of the cluster to a local one"
        )


def launched(outcome: str, pid: Optional[int] = None, gpus: Sequence[int] = (), why: str = "") -> Data:
    return {"outcome": outcome, "host": host_name(), "pid": pid, "gpus": list(gpus), "why": why}


def launch_record(pid: Optional[int], gpus: List[int], worker: Optional[int]) -> bytes:
    """Written before the start too, without the pid: an attempt that may have been started is not started again."""
    record = {"host": host_name(), "boot_id": boot_id(), "pid": pid, "gpus": gpus, "worker": worker or 0}
    return (json.dumps(record) + "\n").encode()


def start(words: Data, alive_fd: Optional[int], gpus: List[int], held: List[int]) -> int:
    """Start the wrapper in a session of its own; its pid."""
    directory = words["directory"]
    environment = scrubbed(words["environment"])
    environment[ATTEMPT_DIR] = directory
    show_gpus(gpus, environment)
    try:
        link_log(directory, log_prefix(words["log"], environment), words["needs_shared_log"])
        wrapper = [shutil.which("bash") or "/bin/bash", os.path.join(directory, WRAPPER_FILE)]
        wrapper.append("none" if alive_fd is None else str(alive_fd))
        with open(os.path.join(directory, LAUNCH_LOG), "ab") as printed:
            child = subprocess.Popen(
                logout_guard(environment) + wrapper,
                cwd=words["root"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
                pass_fds=held,
            )
    except (OSError, AgentError):
        # Surely nothing was started.
        os.unlink(os.path.join(directory, LAUNCH_FILE))
        raise
    return child.pid


def log_prefix(configured: str, environment: Dict[str, str]) -> str:
    """Where the log is to be; the host's own environment has the last word on the directory."""
    override = environment.get("DISPATCHER_LOG_OVERRIDE")
    if configured and override:
        configured = os.path.join(override, os.path.basename(configured))
    return os.path.expandvars(os.path.expanduser(configured))


def link_log(directory: str, prefix: str, needs_shared_log: bool) -> None:
    """The log is a file in a directory of the cluster's; `output.log` is a link to it, or the other way round."""
    inside = os.path.join(directory, LOG_FILE)
    if not prefix or os.path.lexists(inside):
        return
    outside = f"{prefix}_{time.strftime('%Y%m%d-%H%M%S')}.log"
    os.makedirs(os.path.dirname(outside), exist_ok=True)
    if needs_shared_log:
        replace_link(outside, inside)
    else:
        os.symlink(outside, inside)


def logout_guard(environment: Dict[str, str]) -> List[str]:
    """The words before a command that must outlive the login, where the host kills what a login has left behind."""
    if os.getuid() == 0 or shutil.which("loginctl") is None:
        return []
    if "KillUserProcesses=yes" not in loginctl("show-session", "-p", "KillUserProcesses"):
        return []
    name = user_name()
    if "Linger=yes" not in loginctl("show-user", name, "-p", "Linger"):
        loginctl("enable-linger", name)
        if "Linger=yes" not in loginctl("show-user", name, "-p", "Linger"):
            raise AgentError(
                f"{host_name()} ends all processes of a user at logout (KillUserProcesses=yes in logind.conf), and "
                f"{name} may not switch on lingering: ask for `loginctl enable-linger {name}`"
            )
    environment.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    return ["systemd-run", "--user", "--scope", "--quiet", "--"]


def loginctl(*words: str) -> str:
    """What it prints, nothing when it fails: the program runs in a container, without a terminal."""
    _, out, _ = run_program(["loginctl", *words], b"", dict(os.environ), "/", LOGINCTL_S)
    return decoded(out)
