"""The processes of one job find each other: `jax.distributed`, from what whoever launched them says.

The first of these that says anything counts:

- `DISPATCHER_COORDINATOR` (host:port), `DISPATCHER_NUM_PROCESSES`, `DISPATCHER_PROCESS_ID`: said by hand, or by a
  launcher of ours;
- SLURM: the tasks of a step (`srun`), `SLURM_NTASKS`, `SLURM_PROCID`, `SLURM_STEP_NODELIST`, `SLURM_JOB_ID`;
- Volcano: the `svc` plugin's `VC_<TASK>_HOSTS` and the `env` plugin's `VC_TASK_INDEX` (`VK_TASK_INDEX` before 1.6);
- Cloud TPU: `TPU_WORKER_HOSTNAMES` and `TPU_WORKER_ID` of the metadata.

One process, or nothing said: nothing is initialised. What is said in part is an error, never a guess: a process that
runs alone by mistake would train and save as if it were the job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import jax

from dispatcher.errors import ConfigError

COORDINATOR: Final = "DISPATCHER_COORDINATOR"
NUM_PROCESSES: Final = "DISPATCHER_NUM_PROCESSES"
PROCESS_ID: Final = "DISPATCHER_PROCESS_ID"
# How long a process that is gone goes unnoticed by the others, in seconds; JAX's own default is 100.
HEARTBEAT_S: Final = "DISPATCHER_HEARTBEAT_S"

PORT: Final = 8476
# How long the processes wait for each other at the start.
WAIT_S: Final = 300
_SLURM_PORTS: Final = range(20_000, 30_000)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Processes:
    """Which process of how many this is, and where the first one listens (host:port).

    `devices` are those that it takes of the devices that it sees, by number; None: all of them.
    """

    coordinator: str
    count: int
    number: int
    devices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise ConfigError(f"this is process {self.number} of {self.count}: expected 0 to {self.count - 1}")
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"the coordinator is {self.coordinator!r}: expected host:port")


def initialize(environment: Mapping[str, str] | None = None) -> Processes | None:
    """Join the other processes of this job; None when it is alone. To be called before JAX looks for its devices.

    Called again it does nothing. ConfigError when it cannot join. It waits up to five minutes for the others; then the
    process ends with 1, as JAX has no way back from there.
    """
    known = os.environ if environment is None else environment
    found = detect(known)
    if found is None or found.count == 1:
        return None
    if jax.distributed.is_initialized():
        return found
    # JAX's own handler of SIGTERM would take the place of ours, and only take note.
    jax.config.update("jax_enable_preemption_service", False)  # type: ignore[no-untyped-call]
    if found.number == 0:
        _check_port(found)
    _log.info("process %d of %d: waiting for the others at %s", found.number, found.count, found.coordinator)
    with _patience(found):
        try:
            jax.distributed.initialize(
                coordinator_address=found.coordinator,
                num_processes=found.count,
                process_id=found.number,
                local_device_ids=found.devices,
                # Else JAX looks for a launcher itself, and takes one device of many where it finds SLURM.
                cluster_detection_method="deactivate",
                initialization_timeout=2 * WAIT_S,
                heartbeat_timeout_seconds=_whole_number(known, HEARTBEAT_S) if HEARTBEAT_S in known else 100,
            )
        except RuntimeError as error:
            raise ConfigError(_why_not(found, str(error))) from error
    return found


def detect(environment: Mapping[str, str], hostname: str | None = None) -> Processes | None:
    """What `environment` says of the processes of this job; None when it says nothing. ConfigError when it is partial.

    `hostname` is this host's name, by default the real one.
    """
    for look in (_ours, _slurm, lambda said: _volcano(said, hostname or socket.gethostname()), _tpu):
        found = look(environment)
        if found is not None:
            return found
    return None


def first_host(nodelist: str) -> str:
    """The first host of SLURM's list, such as `node[003-007,9],login1`."""
    match = re.match(r"([^,\[]+)(?:\[([0-9]+)[^\]]*\]([^,]*))?", nodelist)
    if match is None:
        raise ConfigError(f"SLURM's list of nodes is {nodelist!r}: expected names such as node[003-007]")
    prefix, number, suffix = match.groups()
    return f"{prefix}{number or ''}{suffix or ''}"


def _ours(said: Mapping[str, str]) -> Processes | None:
    if not {COORDINATOR, NUM_PROCESSES, PROCESS_ID} & said.keys():
        return None
    _need(said, COORDINATOR, NUM_PROCESSES, PROCESS_ID)
    return Processes(said[COORDINATOR], _whole_number(said, NUM_PROCESSES), _whole_number(said, PROCESS_ID))


def _slurm(said: Mapping[str, str]) -> Processes | None:
    # A batch script has a job but is no task of a step: what it runs without srun runs alone.
    if "SLURM_PROCID" not in said or "SLURM_STEP_NODELIST" not in said:
        return None
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in said else "SLURM_NTASKS"
    _need(said, count, "SLURM_JOB_ID")
    # Steps that run at one time on one host have different numbers, and so different ports.
    step = _whole_number(said, "SLURM_STEP_ID") if "SLURM_STEP_ID" in said else 0
    port = _SLURM_PORTS[(_whole_number(said, "SLURM_JOB_ID") + 1009 * step) % len(_SLURM_PORTS)]
    host = first_host(said["SLURM_STEP_NODELIST"])
    number = _whole_number(said, "SLURM_PROCID")
    return Processes(f"{host}:{port}", _whole_number(said, count), number, _slurm_devices(said))


def _slurm_devices(said: Mapping[str, str]) -> tuple[int, ...] | None:
    """All devices that the task sees, unless it shares them with other tasks of its host: then as many for each."""
    layout = re.findall(r"(\d+)(?:\(x(\d+)\))?", said.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = [int(count) for count, times in layout for _ in range(int(times or 1))]
    host = _whole_number(said, "SLURM_NODEID") if "SLURM_NODEID" in said else 0
    here = tasks[host] if host < len(tasks) else 1
    # GPUs that SLURM gives to each task are all that the task sees.
    if here == 1 or "SLURM_GPUS_PER_TASK" in said or "SLURM_LOCALID" not in said:
        return None
    seen = said.get("CUDA_VISIBLE_DEVICES", "")
    each = len(seen.split(",")) // here if seen else 1
    first = _whole_number(said, "SLURM_LOCALID") * each
    return tuple(range(first, first + each)) or None


def _volcano(said: Mapping[str, str], hostname: str) -> Processes | None:
    """All tasks of the job, in the order of their names; within a task in the order of its pods."""
    tasks = {
        match.group(1): value.split(",")
        for name, value in sorted(said.items())
        if value and (match := re.fullmatch(r"VC_(.+)_HOSTS", name))
    }
    if not tasks:
        return None
    hosts = [host for pods in tasks.values() for host in pods]
    # A pod's name is its first label: svc lists pod.service names.
    here = [number for number, host in enumerate(hosts) if host.split(".")[0] == hostname.split(".", maxsplit=1)[0]]
    if len(here) == 1:
        number = here[0]
    elif len(tasks) == 1:
        index = "VC_TASK_INDEX" if "VC_TASK_INDEX" in said else "VK_TASK_INDEX"
        _need(said, index)
        number = _whole_number(said, index)
    else:
        raise ConfigError(
            f"Volcano lists the hosts {', '.join(hosts)} of several tasks, and {hostname!r} is not one of them"
        )
    return Processes(f"{hosts[0]}:{PORT}", len(hosts), number)


def _tpu(said: Mapping[str, str]) -> Processes | None:
    hosts = [host for host in said.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if not hosts or hosts == ["localhost"]:
        return None
    _need(said, "TPU_WORKER_ID")
    return Processes(f"{hosts[0]}:{PORT}", len(hosts), _whole_number(said, "TPU_WORKER_ID"))


@contextlib.contextmanager
def _patience(found: Processes) -> Iterator[None]:
    """End the process with a message when the block takes too long: JAX would abort it with a stack trace."""

    def give_up() -> None:
        said = _why_not(found, f"not all of them have come within {WAIT_S} s")
        os.write(2, f"dispatcher: {said}; are all started, and can each of them reach that host and port?\n".encode())
        os._exit(1)

    timer = threading.Timer(WAIT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_port(found: Processes) -> None:
    """ConfigError when the port cannot be listened on: JAX would not live to say so."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(
            ("", int(found.coordinator.rpartition(":")[2])), family=family, dualstack_ipv6=both
        ).close()
    except OSError as error:
        raise ConfigError(_why_not(found, f"this host's port cannot be used: {error.strerror}")) from None


def _why_not(found: Processes, why: str) -> str:
    if "before any JAX" in why:
        why = "JAX was used before: compute nothing while a module is imported, nor before the job is made"
    return f"process {found.number} of {found.count} cannot join the others at {found.coordinator}: {why}"


def _need(said: Mapping[str, str], *names: str) -> None:
    missing = [name for name in names if not said.get(name)]
    if missing:
        given = ", ".join(name for name in names if said.get(name)) or "others of this launcher"
        raise ConfigError(f"{', '.join(missing)}: not set, although {given} is: a process cannot find the others")


def _whole_number(said: Mapping[str, str], name: str) -> int:
    if not said[name].isdigit():
        raise ConfigError(f"{name} = {said[name]!r}: expected a whole number")
    return int(said[name])
