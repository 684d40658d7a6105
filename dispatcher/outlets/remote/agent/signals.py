"""Stopping the processes of an attempt."""

import contextlib
import os
import signal
import time
from typing import BinaryIO, List, Set

from dispatcher.outlets.remote.agent.attempts import check_attempt, is_of_attempt
from dispatcher.outlets.remote.agent.names import Data, Refusal

KILL_PASSES = 10
KILL_PAUSE_S = 0.02


def send_signal(words: Data, _stdin: BinaryIO) -> Data:
    directory = words["directory"]
    state = check_attempt(directory)
    if state["was_launched"] and state["is_alive"] is None:
        raise Refusal(f"{directory}: {state['error']}")
    wrapper = state["pid"]
    if words["force"]:
        return {"count": kill_all(directory)}
    if wrapper and is_of_attempt(wrapper, directory):
        # It passes the signal on. One that was suspended notices nothing until it continues, and nor do its children.
        count = send(wrapper, signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(wrapper, signal.SIGCONT)
        return {"count": count}
    return {"count": sum(send(pid, signal.SIGTERM) for pid in members_of(directory))}


def kill_all(directory: str) -> int:
    """Kill all processes of the attempt, those too that they start meanwhile; how many there were."""
    told: Set[int] = set()
    for _ in range(KILL_PASSES):
        members = members_of(directory)
        if not members:
            break
        told.update(pid for pid in members if send(pid, signal.SIGKILL))
        time.sleep(KILL_PAUSE_S)
    return len(told)


def members_of(directory: str) -> List[int]:
    return [pid for pid in all_pids() if pid != os.getpid() and is_of_attempt(pid, directory)]


def all_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def send(pid: int, number: int) -> int:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return 0
    return 1
