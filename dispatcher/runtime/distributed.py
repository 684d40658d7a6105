"""Initialize `jax.distributed` for a job of several processes, from the launcher's environment variables.

The first of these launchers whose variables are set is used:

- `DISPATCHER_COORDINATOR` (host:port), `DISPATCHER_NUM_PROCESSES`, `DISPATCHER_PROCESS_ID`: set by hand, or by one of
  our launchers;
- SLURM: the tasks of a step (`srun`), `SLURM_NTASKS`, `SLURM_PROCID`, `SLURM_STEP_NODELIST`, `SLURM_JOB_ID`;
- Volcano: the `svc` plugin's `VC_<TASK>_HOSTS` and the `env` plugin's `VC_TASK_INDEX` (`VK_TASK_INDEX` before 1.6),
  for a Job that was written by hand: our own sets the first three, too;
- Cloud TPU: `TPU_WORKER_HOSTNAMES` and `TPU_WORKER_ID` of the metadata.

On a TPU VM our launcher gives processes the ids of their workers, which are those that JAX would find in the metadata;
which devices belong to which process libtpu decides, whatever the ids.

With one process, or none of these variables, nothing is initialized. Incomplete variables are an error: a process that
ran alone by mistake would train and save as if it were the whole job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import jax

from dispatcher import contract
from dispatcher.errors import ConfigError
from dispatcher.runtime import preemption

COORDINATOR: Final = "DISPATCHER_COORDINATOR"
NUM_PROCESSES: Final = "DISPATCHER_NUM_PROCESSES"
PROCESS_ID: Final = "DISPATCHER_PROCESS_ID"
# Seconds until the processes notice that one of them is gone; JAX's default is 100.
HEARTBEAT_S: Final = "DISPATCHER_HEARTBEAT_S"

# On a TPU VM, where JAX uses the same.
PORT: Final = 8476
# How long the processes wait for each other.
WAIT_S: Final = 300
# How long the name of process 0's host may be unknown: name servers remember for some time that there was none.
NAME_WAIT_S: Final = 60
# Of launchers whose jobs may share hosts; below those from which systems choose ports themselves.
_PORTS: Final = range(20_000, 30_000)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessGroup:
    """This process's id among `num_processes`, and the address of process 0 (host:port).

    `local_device_ids` are the indices of the visible devices that it uses; None: all of them.
    """

    coordinator: str
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.process_id < self.num_processes:
            raise ConfigError(f"process id {self.process_id}: expected 0 to {self.num_processes - 1}")
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"the coordinator is {self.coordinator!r}: expected host:port")


def initialize(environment: Mapping[str, str] | None = None) -> ProcessGroup | None:
    """Join the other processes of this job; None if there are none. Call it before JAX initializes its devices.

    A second call does nothing. ConfigError when it cannot join; that the coordinator's name cannot be resolved is
    logged at once. After five minutes without the other processes it ends the process with exit status 1, because JAX
    cannot recover from that.
    """
    known = os.environ if environment is None else environment
    found = detect(known)
    if found is None or found.num_processes == 1:
        return None
    if jax.distributed.is_initialized():
        return found
    # JAX's SIGTERM handler would replace ours, and would only set a flag.
    jax.config.update("jax_enable_preemption_service", False)  # type: ignore[no-untyped-call]
    if found.process_id == 0:
        _check_port(found)
    _await_name(found)
    which = (found.process_id, found.num_processes, found.coordinator)
    # There is nothing to save, and JAX does not come back to Python while it waits.
    with _join_timeout(found), preemption.notifying(_leave):
        _log.info("process %d of %d: waiting for the others at %s", *which)
        try:
            jax.distributed.initialize(
                coordinator_address=found.coordinator,
                num_processes=found.num_processes,
                process_id=found.process_id,
                local_device_ids=found.local_device_ids,
                # Else JAX detects the launcher itself, and under SLURM uses only one of several devices.
                cluster_detection_method="deactivate",
                initialization_timeout=2 * WAIT_S,
                heartbeat_timeout_seconds=_int(known, HEARTBEAT_S) if HEARTBEAT_S in known else 100,
            )
        except RuntimeError as error:
            raise ConfigError(_failure(found, str(error))) from error
    return found


def detect(environment: Mapping[str, str], hostname: str | None = None) -> ProcessGroup | None:
    """The processes of this job by `environment`; None without variables of a launcher. ConfigError if incomplete.

    `hostname` defaults to this host's name.
    """
    for read in (_dispatcher, _slurm, lambda env: _volcano(env, hostname or socket.gethostname()), _tpu):
        found = read(environment)
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


def _dispatcher(env: Mapping[str, str]) -> ProcessGroup | None:
    if not {COORDINATOR, NUM_PROCESSES, PROCESS_ID} & env.keys():
        return None
    _need(env, COORDINATOR, NUM_PROCESSES, PROCESS_ID)
    return ProcessGroup(env[COORDINATOR], _int(env, NUM_PROCESSES), _int(env, PROCESS_ID))


def _slurm(env: Mapping[str, str]) -> ProcessGroup | None:
    # A batch script is not a task of a step: without srun a process is alone.
    if "SLURM_PROCID" not in env or "SLURM_STEP_NODELIST" not in env:
        return None
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    _need(env, count, "SLURM_JOB_ID")
    # Concurrent steps on one host have different numbers, and so different ports.
    step = _int(env, "SLURM_STEP_ID") if "SLURM_STEP_ID" in env else 0
    port = _PORTS[(_int(env, "SLURM_JOB_ID") + 1009 * step) % len(_PORTS)]
    host = first_host(env["SLURM_STEP_NODELIST"])
    number = _int(env, "SLURM_PROCID")
    return ProcessGroup(f"{host}:{port}", _int(env, count), number, _slurm_devices(env))


def _slurm_devices(env: Mapping[str, str]) -> tuple[int, ...] | None:
    """None (all visible devices), or an equal share of them if several tasks of a host see the same devices."""
    layout = re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = [int(count) for count, times in layout for _ in range(int(times or 1))]
    host = _int(env, "SLURM_NODEID") if "SLURM_NODEID" in env else 0
    here = tasks[host] if host < len(tasks) else 1
    # With GPUs per task a task sees only its own.
    if here == 1 or "SLURM_GPUS_PER_TASK" in env or "SLURM_LOCALID" not in env:
        return None
    seen = env.get("CUDA_VISIBLE_DEVICES", "")
    each = len(seen.split(",")) // here if seen else 1
    first = _int(env, "SLURM_LOCALID") * each
    return tuple(range(first, first + each)) or None


def _volcano(env: Mapping[str, str], hostname: str) -> ProcessGroup | None:
    """All pods of the job, ordered by the name of their task and then by their index."""
    tasks = {
        match.group(1): value.split(",")
        for name, value in sorted(env.items())
        if value and (match := re.fullmatch(r"VC_(.+)_HOSTS", name))
    }
    if not tasks:
        return None
    hosts = [host for pods in tasks.values() for host in pods]
    # svc lists pod.service: the pod's name is the first label.
    here = [number for number, host in enumerate(hosts) if host.split(".")[0] == hostname.split(".", maxsplit=1)[0]]
    if len(here) == 1:
        number = here[0]
    elif len(tasks) == 1:
        index = "VC_TASK_INDEX" if "VC_TASK_INDEX" in env else "VK_TASK_INDEX"
        _need(env, index)
        number = _int(env, index)
    else:
        raise ConfigError(
            f"Volcano lists the hosts {', '.join(hosts)} of several tasks, and {hostname!r} is not one of them"
        )
    # Kubernetes pods with `hostNetwork` share the ports of their node; the names of a Job's pods are its own.
    port = _PORTS[zlib.crc32(hosts[0].encode()) % len(_PORTS)]
    return ProcessGroup(f"{hosts[0]}:{port}", len(hosts), number)


def _tpu(env: Mapping[str, str]) -> ProcessGroup | None:
    hosts = [host for host in env.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if not hosts or hosts == ["localhost"]:
        return None
    _need(env, "TPU_WORKER_ID")
    return ProcessGroup(f"{hosts[0]}:{PORT}", len(hosts), _int(env, "TPU_WORKER_ID"))


def _await_name(found: ProcessGroup) -> None:
    """Wait until the coordinator's name can be resolved, and say at once that it cannot, which JAX does not."""
    host = found.coordinator.rpartition(":")[0].strip("[]")
    ends_s = time.monotonic() + NAME_WAIT_S
    is_told = False
    while True:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            why = _failure(found, f"the name {host} cannot be resolved: {getattr(error, 'strerror', None) or error}")
        else:
            return
        if time.monotonic() >= ends_s:
            raise ConfigError(why)
        if not is_told:
            _log.warning("%s; trying for %d s", why, NAME_WAIT_S)
            is_told = True
        time.sleep(1)


def _leave() -> None:
    """End the process, which is preempted while it joins the others."""
    os.write(2, b"preempted: the processes have not joined yet: exiting at once\n")
    os._exit(contract.EXIT_PREEMPTED)


@contextlib.contextmanager
def _join_timeout(found: ProcessGroup) -> Iterator[None]:
    """End the process with a message when the block takes too long: JAX would abort with a stack trace."""

    def give_up() -> None:
        why = _failure(found, f"not all processes have joined within {WAIT_S} s")
        os.write(2, f"dispatcher: {why}; are all started, and can each of them reach that host and port?\n".encode())
        os._exit(1)

    timer = threading.Timer(WAIT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_port(found: ProcessGroup) -> None:
    """ConfigError when the coordinator cannot listen on its port: JAX would abort without a message."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(
            ("", int(found.coordinator.rpartition(":")[2])), family=family, dualstack_ipv6=both
        ).close()
    except OSError as error:
        raise ConfigError(_failure(found, f"this host's port cannot be used: {error.strerror}")) from None


def _failure(found: ProcessGroup, why: str) -> str:
    if "before any JAX" in why:
        why = "JAX was initialized before: do not compute while a module is imported, or before the job is made"
    return f"process {found.process_id} of {found.num_processes} cannot join the others at {found.coordinator}: {why}"


def _need(env: Mapping[str, str], *names: str) -> None:
    missing = [name for name in names if not env.get(name)]
    if missing:
        given = ", ".join(name for name in names if env.get(name)) or "others of this launcher"
        raise ConfigError(f"{', '.join(missing)}: not set, although {given} is: a process needs all to join the others")


def _int(env: Mapping[str, str], name: str) -> int:
    if not env[name].isdigit():
        raise ConfigError(f"{name} = {env[name]!r}: expected a whole number")
    return int(env[name])
