"""The GPUs of this host: who uses them, and taking free ones for an attempt by locks."""

import functools
import os
import pwd
import re
import shutil
import stat
from typing import BinaryIO, Dict, List, Optional, Tuple

from dispatcher.outlets.remote.agent.facts import host_name, user_name
from dispatcher.outlets.remote.agent.locks import lock_patiently, try_lock
from dispatcher.outlets.remote.agent.names import GPU_LOCKS, AgentError, Data
from dispatcher.outlets.remote.agent.programs import decoded, run_program

FOREIGN_MIB = 100
# What a desktop may use to draw. nvidia-smi lists only what computes.
DRAWING_MIB = 1024
NVIDIA_SMI_S = 30.0


def list_gpus(_words: Data, _stdin: BinaryIO) -> Data:
    gpus = read_gpus()
    directory = gpu_lock_directory()
    for gpu in gpus:
        gpu["busy"] = gpu_use(gpu) or gpu_holder(directory, gpu["index"])
    return {"gpus": gpus}


def take_gpus(words: Data, held: List[int]) -> Tuple[List[int], str]:
    """The indices of free GPUs, locked by descriptors that are appended to `held`; or why there are too few."""
    count = words["gpus"]
    if not count:
        return [], ""
    directory = gpu_lock_directory()
    # Two that want several GPUs would otherwise each keep some from the other.
    choosing_fd, locked = lock_patiently(os.path.join(directory, "choosing.lock"), tries=200)
    if not locked:
        os.close(choosing_fd)
        return [], "another dispatcher has been choosing GPUs of this host for long"
    taken: List[int] = []
    fds: List[int] = []
    reasons: List[str] = []
    try:
        for gpu in gpus_for(words["only"], words["chip"], words["chips"], read_gpus_once()):
            if len(taken) == count:
                break
            fd, why = None, gpu_use(gpu)
            if not why:
                fd, why = lock_gpu(directory, gpu["index"], words["directory"])
            if fd is None:
                reasons.append(f"GPU {gpu['index']}: {why}")
            else:
                taken.append(gpu["index"])
                fds.append(fd)
    finally:
        os.close(choosing_fd)
        held.extend(fds)
    if len(taken) < count:
        return [], f"{len(taken)} of {count} GPUs are free; {'; '.join(reasons) or 'the host has no more'}"
    return taken, ""


def show_gpus(gpus: List[int], environment: Dict[str, str]) -> None:
    """Let a process see these GPUs and no others, as dispatcher/base/devices.py has it; without any it sees none."""
    for name in ("HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        environment.pop(name, None)
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)
    if not gpus:
        environment["ROCR_VISIBLE_DEVICES"] = ""


def gpus_for(only: Optional[List[int]], chip: str, chips: List[str], gpus: List[Data]) -> List[Data]:
    """Those with an index of `only` (None: any), and of the chip that is asked for where the host has several kinds."""
    usable = [gpu for gpu in gpus if only is None or gpu["index"] in only]
    if not chip or len(chips) < 2:
        return usable
    kinds = [kind_of(gpu["name"], chips) for gpu in usable]
    wanted = chip if chip in kinds else ""
    return [gpu for gpu, kind in zip(usable, kinds) if kind == wanted]


def kind_of(name: str, chips: List[str]) -> str:
    """The configured chip that the driver's name means: of `l40` and `l40s` the longer one that fits."""
    flat = re.sub(r"[^a-z0-9]", "", name.lower())
    fitting = [chip for chip in chips if all(word in flat for word in re.findall(r"[a-z0-9]+", chip.lower()))]
    return max(fitting, key=len) if fitting else ""


def gpu_lock_directory() -> str:
    """A directory of this user and this host, which every dispatcher of this user finds."""
    path = os.environ.get(GPU_LOCKS) or f"/tmp/dispatcher-{os.getuid()}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise AgentError(f"{path}: it must be a directory of {user_name()}, for the locks of GPUs") from None
    return path


def gpu_lock_path(directory: str, index: int) -> str:
    return os.path.join(directory, f"gpu{index}.lock")


def lock_gpu(directory: str, index: int, attempt: str) -> Tuple[Optional[int], str]:
    fd = os.open(gpu_lock_path(directory, index), os.O_RDWR | os.O_CREAT, 0o600)
    if not try_lock(fd):
        holder = read_holder(fd)
        os.close(fd)
        return None, holder
    os.ftruncate(fd, 0)
    os.pwrite(fd, os.fsencode(attempt), 0)
    return fd, ""


def gpu_holder(directory: str, index: int) -> str:
    """The attempt that the GPU was given to; empty when it is free."""
    try:
        fd = os.open(gpu_lock_path(directory, index), os.O_RDWR)
    except FileNotFoundError:
        return ""
    try:
        # Programs that clean /tmp remove files that were not touched for days.
        os.utime(fd)
        return "" if try_lock(fd) else read_holder(fd)
    finally:
        os.close(fd)


def read_holder(fd: int) -> str:
    return f"given to the attempt {decoded(os.pread(fd, 4096, 0)) or 'that takes it now'}"


def gpu_use(gpu: Data) -> str:
    """Who uses 100 MiB of a GPU or more; empty: it is free."""
    known = sum(user["used_mib"] or 0 for user in gpu["users"])
    users = ", ".join(f"pid {user['pid']} ({user['user']}: {user['command']})" for user in gpu["users"][:3])
    sizes = [gpu["used_mib"], *(user["used_mib"] for user in gpu["users"])]
    if users and not known and all(size is None for size in sizes):
        return f"in use by {users}, how much of it is not told"
    # In a container the driver tells the memory of the device, and not whose it is.
    unnamed = FOREIGN_MIB if users or in_container() else DRAWING_MIB
    if known < FOREIGN_MIB and (gpu["used_mib"] or 0) - known < unnamed + (gpu["total_mib"] or 0) // 100:
        return ""
    used_mib = max(known, gpu["used_mib"] or 0)
    return f"{used_mib} MiB used by {users or 'processes that are not shown'}"


def in_container() -> bool:
    """Whether processes of the host may not be seen here: this one is not of the first namespace of pids."""
    try:
        return os.readlink("/proc/self/ns/pid") != "pid:[4026531836]"
    except OSError:
        return True


@functools.lru_cache(maxsize=None)
def read_gpus_once() -> List[Data]:
    """For all launches of one call: what these take is locked, whether or not it is in use already."""
    return read_gpus()


def read_gpus() -> List[Data]:
    """The GPUs of the host by index that this login may use, with the processes on them."""
    rows = nvidia_smi("--query-gpu=index,uuid,name,memory.used,memory.total")
    users: Dict[str, List[Data]] = {}
    for uuid, pid, used in nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory"):
        users.setdefault(uuid, []).append(dict(describe_process(int(pid)), used_mib=whole_number(used)))
    return [
        {
            "index": int(index),
            "name": name,
            "uuid": uuid,
            "used_mib": whole_number(used),
            "total_mib": whole_number(total),
            "users": users.get(uuid, []),
        }
        for index, uuid, name, used, total in rows
        if may_use(index, uuid)
    ]


def may_use(index: str, uuid: str) -> bool:
    """Whether the environment of this login leaves it the GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return True
    words = [word.strip() for word in visible.split(",")]
    return any(word == index or (word.startswith("GPU-") and uuid.startswith(word)) for word in words)


def nvidia_smi(query: str) -> List[List[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise AgentError(f"nvidia-smi is not on PATH of {host_name()}, so its GPUs cannot be counted")
    words = [program, query, "--format=csv,noheader,nounits"]
    status, out, err = run_program(words, b"", dict(os.environ), "/", NVIDIA_SMI_S)
    if status != 0:
        ending = f"gave no answer within {NVIDIA_SMI_S:g} s" if status is None else f"failed with status {status}"
        raise AgentError(f"nvidia-smi on {host_name()} {ending}: {decoded(err + out).strip()}")
    return [[field.strip() for field in line.split(",")] for line in decoded(out).splitlines() if line.strip()]


def whole_number(text: str) -> Optional[int]:
    """None for `[N/A]` and the like."""
    return int(text) if text.isdigit() else None


def describe_process(pid: int) -> Data:
    user = command = ""
    try:
        user = pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(200).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except (OSError, KeyError):
        # It has ended, or belongs to another container.
        pass
    return {"pid": pid, "user": user, "command": "".join(c if c.isprintable() else "?" for c in command)[:60]}
