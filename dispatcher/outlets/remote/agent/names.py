"""Names that the agent shares with the dispatcher, those of contract.py among them (a test compares them)."""

from typing import Any, Dict

ATTEMPT_DIR = "DISPATCHER_ATTEMPT_DIR"
HOST = "DISPATCHER_HOST"
# For the processes of an attempt on several machines.
PROCESS_ID = "DISPATCHER_PROCESS_ID"
NUM_PROCESSES = "DISPATCHER_NUM_PROCESSES"
COORDINATOR = "DISPATCHER_COORDINATOR"
WRAPPER_FILE = "job.sh"
LOG_FILE = "output.log"
EXIT_FILE = "exit.json"
ALIVE_FILE = "alive"
TAKEN_FILE = "taken"
# What `launch` knows of its attempt, and what the wrapper's own shell prints.
LAUNCH_FILE = "launch.json"
LAUNCH_LOG = "launch.log"
# Another directory for the locks of GPUs, where several test hosts are one machine.
GPU_LOCKS = "DISPATCHER_GPU_LOCKS"
Data = Dict[str, Any]


def is_same_place(found: str, other: str) -> bool:
    """Whether two answers to `Confirm` name the same place: the first word that both know (not `-`) decides."""
    for one, another in zip(found.split(), other.split()):
        if "-" not in (one, another):
            return one == another
    return False


class Refusal(Exception):
    """An operation that cannot be done, and why."""
