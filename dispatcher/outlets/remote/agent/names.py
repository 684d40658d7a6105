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
# Variables by which a process knows that a launcher (MPI, Volcano) has started it as one of several: what it starts is
# none of them. Frameworks that find a part of them ask for the others. What a site sets for its libraries stays.
LAUNCHERS_VARIABLE = (
    r"PMI2?_.*|PMIX_(?!MCA_).*|PALS_.*|MV2_COMM_WORLD_.*|MPI_LOCAL(RANKID|NRANKS)"
    r"|OMPI_(COMM_WORLD_.*|UNIVERSE_SIZE|MCA_(orte|ess)(_.*)?)|VC_.+_(HOSTS|NUM)|V[CK]_TASK_INDEX"
)
Data = Dict[str, Any]


def is_same_place(found: str, other: str) -> bool:
    """Whether two answers to `Confirm` name the same place: the first word that both know (not `-`) decides."""
    for one, another in zip(found.split(), other.split()):
        if "-" not in (one, another):
            return one == another
    return False


class AgentError(Exception):
    """An operation that cannot be done, and why."""
