"""Stopping the processes of an attempt."""

import contextlib
import os
import signal
import time
from typing import BinaryIO, List, Set

from dispatcher.outlets.remote.agent.attempts import check_attempt, is_of_attempt
from dispatcher.outlets.remote.agent.names import AgentError, Data

KILL_PASSES = 20
# A process that forks and ends while the list is read is missed with its child: so nothing must be there so many times.
EMPTY_PASSES = 3
KILL_PAUSE_S = 0.02


def send_signal(words: Data, _stdin: BinaryIO) -> Data:
    directory = words["directory"]
    state = check_attempt(directory)
    if state["was_launched"] and state["is_alive"] is None:
        raise AgentError(f"{directory}: {state['error']}")
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
    told = set(members_of(directory))
    # Each of its groups at once: one that forks and ends would be gone before it is read from the list.
    for group in told & groups_of(told):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    empty = 0
    for _ in range(KILL_PASSES):
        found = kill_members(directory)
        told.update(found)
        empty = 0 if found else empty + 1
        if empty == EMPTY_PASSES:
            break
        if found:
            time.sleep(KILL_PAUSE_S)
    return len(told)


def groups_of(pids: Set[int]) -> Set[int]:
    groups = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            groups.add(os.getpgid(pid))
    return groups


def kill_members(directory: str) -> List[int]:
    """The newest first, each as soon as it is found: what forks and ends has not been there for long."""
    return [pid for pid in sorted(all_pids(), reverse=True) if is_other(pid, directory) and send(pid, signal.SIGKILL)]


def members_of(directory: str) -> List[int]:
    return [pid for pid in all_pids() if is_other(pid, directory)]


def is_other(pid: int, directory: str) -> bool:
    """Whether it is a process of the attempt, and not this one."""
    return pid != os.getpid() and is_of_attempt(pid, directory)


def all_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def send(pid: int, number: int) -> int:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return 0
    return 1
