"""Which attempts are alive as processes of this host, and what is known of their launch."""

import json
import os
from typing import BinaryIO

from dispatcher.outlets.remote.agent.facts import boot_id, host_name, kernel_host_name
from dispatcher.outlets.remote.agent.locks import is_locked
from dispatcher.outlets.remote.agent.names import ALIVE_FILE, ATTEMPT_DIR, EXIT_FILE, LAUNCH_FILE, TAKEN_FILE, Data


def check(words: Data, _stdin: BinaryIO) -> Data:
    return {"attempts": [check_safely(directory) for directory in words["directories"]]}


def check_safely(directory: str) -> Data:
    try:
        return check_attempt(directory)
    except OSError as error:
        return {"is_alive": None, "was_launched": False, "was_taken": False, "error": str(error)}


def check_attempt(directory: str) -> Data:
    """What `Checked` describes."""
    # Before the exit status is looked for: a wrapper that is gone has written it.
    locked = is_locked(os.path.join(directory, ALIVE_FILE))
    record, taken = read_launch(directory), read_taken(directory)
    pid = record.get("pid") or taken.get("pid")
    was_launched = bool(record or taken)
    is_here = record.get("host") == host_name() if record else taken.get("host") == kernel_host_name()
    was_rebooted = bool(record) and is_here and record.get("boot_id") != boot_id()
    is_running = bool(pid and is_here and not was_rebooted and is_of_attempt(pid, directory))
    started_on = record.get("host") or taken.get("host") or ""
    has_exit = is_there(os.path.join(directory, EXIT_FILE))
    is_alive = bool(locked or is_running)
    is_certain = is_alive or is_here or has_exit or not was_launched
    return {
        "is_alive": is_alive if is_certain else None,
        "was_launched": was_launched,
        "was_taken": bool(taken),
        "has_exit": has_exit,
        "was_rebooted": was_rebooted,
        "host": started_on,
        "pid": pid,
        "gpus": record.get("gpus", []),
        "error": "" if is_certain else f"it was started on {started_on}, and this is {host_name()}",
    }


def is_there(path: str) -> bool:
    """Whether there is such a file; OSError where that cannot be told."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_launch(directory: str) -> Data:
    try:
        with open(os.path.join(directory, LAUNCH_FILE)) as file:
            record = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        # Emptied by a host that went down.
        return {"host": host_name()}
    return record if isinstance(record, dict) else {"host": host_name()}


def read_taken(directory: str) -> Data:
    """The host and the pid that the wrapper has written; on a full disk the file may be empty."""
    try:
        with open(os.path.join(directory, TAKEN_FILE)) as file:
            # On a full disk the exit status is in the next line.
            words = file.readline().split()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if len(words) != 2 or not words[1].isdigit():
        return {"host": kernel_host_name()}
    return {"host": words[0], "pid": int(words[1])}


def is_of_attempt(pid: int, directory: str) -> bool:
    """Whether the process's environment names the attempt: proof against a pid that was used again."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    return f"{ATTEMPT_DIR}={directory}".encode("utf-8", "surrogateescape") in variables
