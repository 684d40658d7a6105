"""The agent: carries out operations on a host, and ends. Sent there with every call, so nothing has to be installed.

It reads one request from stdin (the length of the compressed JSON as a line, the JSON, then the content of the files to
store), and writes one answer: a line with the request's nonce and a length, then so much compressed JSON. Whatever a
login shell prints before or after is skipped by that. What the operations mean stands in operations.py.

This file runs on hosts with Python 3.6, imports nothing but the standard library, and knows the dispatcher only by
the names below: those of contract.py, which a test compares.
"""

import base64
import contextlib
import errno
import fcntl
import functools
import getpass
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
import zlib
from typing import Any, BinaryIO, Dict, List, Optional, Sequence, Set, Tuple

Data = Dict[str, Any]

ATTEMPT_DIR = "DISPATCHER_ATTEMPT_DIR"
HOST = "DISPATCHER_HOST"
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

LONGEST_OUTPUT = 16 << 20
LONGEST_FILE = 1 << 20
LONGEST_PROBE = 4096
CHUNK = 1 << 20
FOREIGN_MIB = 100
# A part of an upload that broke off is removed when it is this old.
OLD_PART_S = 6 * 3600
NVIDIA_SMI_S = 30.0
LOGINCTL_S = 10.0
KILL_PASSES = 10
KILL_PAUSE_S = 0.02
# Membership in a scheduler's job, which what runs here does not have, and options of its programs; what tells these
# programs where their scheduler is stays.
_SCHEDULERS = re.compile(
    r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SACCT|SCANCEL|SCONTROL|PBS)_(?!(CONF|CONF_FILE|SERVER|DEFAULT|EXEC)$)"
)
_CANNOT_LOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO, errno.EINVAL)
_BUSY = (errno.EAGAIN, errno.EACCES)


class Refusal(Exception):
    """An operation that cannot be done, and why."""


# Finding out


def hello(words: Data, _stdin: BinaryIO) -> Data:
    return {
        "host": host_name(),
        "boot_id": boot_id(),
        "user": user_name(),
        "home": os.path.expanduser("~"),
        "python": platform.python_version(),
        "programs": {name: path for name in words["programs"] for path in [shutil.which(name)] if path},
        "directories": {name: os.path.expandvars(os.path.expanduser(d)) for name, d in words["directories"].items()},
        "probe": read_probe(words["probe"]),
    }


def read_probe(path: str) -> Optional[str]:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read(LONGEST_PROBE).decode("utf-8", "replace")
    except OSError:
        # Whatever hides it, this host does not see that workspace.
        return None


def host_name() -> str:
    return os.environ.get(HOST) or socket.gethostname()


def kernel_host_name() -> str:
    with open("/proc/sys/kernel/hostname") as file:
        return file.read().strip()


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return getpass.getuser()


# Running programs


def run(words: Data, _stdin: BinaryIO) -> Data:
    directory = words["directory"]
    status, out, err = run_program(
        words["words"], words["stdin"].encode(), scrubbed(words["environment"]), directory, words["timeout_s"]
    )
    return {"exit_code": status, "out": decoded(out), "err": decoded(err)}


def run_program(
    words: List[str], given: bytes, environment: Dict[str, str], directory: str, timeout_s: float
) -> Tuple[Optional[int], bytes, bytes]:
    """Exit status (None: it was killed when its time was over), output and errors."""
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=directory,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(given, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        return None, out, err
    return child.returncode, out, err


def scrubbed(changes: Dict[str, Optional[str]]) -> Dict[str, str]:
    """The environment of this login without the variables of a scheduler's job, and with these changes."""
    environment = {name: value for name, value in os.environ.items() if not _SCHEDULERS.match(name)}
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def decoded(output: bytes) -> str:
    return output[:LONGEST_OUTPUT].decode("utf-8", "replace")


# Writing files


def deliver(words: Data, _stdin: BinaryIO) -> Data:
    directory = words["directory"]
    os.umask(words["umask"])
    os.makedirs(directory, exist_ok=True)
    # A network filesystem may show the file as missing until the directory is opened.
    if TAKEN_FILE in os.listdir(directory):
        return {"was_taken": True}
    executable = words["executable"]
    for path, content in sorted(words["shared"].items()):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace_file(path, base64.b64decode(content), 0o777 if os.path.basename(path) in executable else 0o666)
    for name, target in sorted(words["links"].items()):
        replace_link(os.path.join(directory, name), target)
    # The wrapper comes last: without it nothing is launched of a delivery that has failed.
    for name, content in sorted(words["files"].items(), key=lambda item: item[0] in executable):
        replace_file(os.path.join(directory, name), base64.b64decode(content), 0o777 if name in executable else 0o666)
    return {"was_taken": False}


def write(words: Data, _stdin: BinaryIO) -> Data:
    path = words["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return {"existed": not create_file(path, base64.b64decode(words["content"]))}


def temporary_name(path: str) -> str:
    directory, name = os.path.split(path)
    return f"{directory}/.{name[:150]}.{socket.gethostname()}.{os.getpid()}.tmp"


def replace_file(path: str, content: bytes, mode: int) -> None:
    """Write a file atomically: a reader sees the old content or the new one."""
    temporary = write_temporary(path, content, mode)
    try:
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def create_file(path: str, content: bytes, mode: int = 0o666) -> bool:
    """Create a file atomically with all its content; False when there is one already, which stays as it is."""
    temporary = write_temporary(path, content, mode)
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        # A filesystem without hard links.
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return create_without_links(path, content, mode)
    finally:
        os.unlink(temporary)


def create_without_links(path: str, content: bytes, mode: int) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return False
    with open(fd, "wb") as file:
        file.write(content)
    return True


def write_temporary(path: str, content: bytes, mode: int) -> str:
    temporary = temporary_name(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with open(fd, "wb") as file:
            file.write(content)
    except OSError as error:
        os.unlink(temporary)
        raise OSError(error.errno, error.strerror, path) from error
    return temporary


def replace_link(path: str, target: str) -> None:
    try:
        if os.readlink(path) == target:
            return
    except OSError:
        pass
    temporary = temporary_name(path)
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(target, temporary)
    os.rename(temporary, path)


# Large files


def has(words: Data, _stdin: BinaryIO) -> Data:
    sizes = [size_of(path) for path in words["paths"]]
    for path, size in zip(words["paths"], sizes):
        if size is not None:
            touch(path)
    return {"sizes": sizes}


def touch(path: str) -> None:
    """Show that the file is used."""
    # It may be another person's, or have been removed just now: then it is sent again.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        os.utime(path)


def size_of(path: str) -> Optional[int]:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def store(words: Data, stdin: BinaryIO) -> Data:
    """The content is read from stdin whatever happens: behind it comes that of the next operation."""
    rest = [words["size"]]
    try:
        return store_from(words, stdin, rest)
    finally:
        while rest[0] and take_chunk(stdin, rest):
            pass


def store_from(words: Data, stdin: BinaryIO, rest: List[int]) -> Data:
    path = words["path"]
    if size_of(path) == words["size"]:
        return {"existed": True}
    os.umask(words["umask"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    remove_old_parts(path)
    part = f"{path}.{socket.gethostname()}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            digest = copy_hashed(stdin, rest, file)
            file.flush()
            os.fsync(file.fileno())
        if rest[0]:
            raise Refusal(f"{path}: the upload broke off, {rest[0]} bytes are missing")
        if digest != words["sha256"]:
            raise Refusal(f"{path}: what arrived has another checksum than what was sent")
        os.rename(part, path)
    except (OSError, Refusal):
        if os.path.exists(part):
            os.unlink(part)
        raise
    if words["unused_s"] is not None:
        remove_unused(path, words["unused_s"])
    return {"existed": False}


def copy_hashed(stdin: BinaryIO, rest: List[int], file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while rest[0]:
        chunk = take_chunk(stdin, rest)
        if not chunk:
            break
        digest.update(chunk)
        file.write(chunk)
    return digest.hexdigest()


def take_chunk(stdin: BinaryIO, rest: List[int]) -> bytes:
    chunk = stdin.read(min(CHUNK, rest[0]))
    rest[0] -= len(chunk)
    return chunk


def remove_unused(path: str, unused_s: float) -> None:
    """Files like this one that nobody has used for so long."""
    directory, name = os.path.split(path)
    ending = os.path.splitext(name)[1]
    for other in os.listdir(directory):
        if other != name and other.endswith(ending):
            file = os.path.join(directory, other)
            try:
                if time.time() - os.stat(file).st_mtime > unused_s:
                    os.unlink(file)
            except (FileNotFoundError, PermissionError):
                # Another agent has removed it, or it is another person's.
                continue


def remove_old_parts(path: str) -> None:
    """Those of uploads whose agent was killed."""
    directory, name = os.path.split(path)
    for other in os.listdir(directory):
        if other.startswith(name + ".") and other.endswith(".part"):
            part = os.path.join(directory, other)
            try:
                if time.time() - os.stat(part).st_mtime > OLD_PART_S:
                    os.unlink(part)
            except FileNotFoundError:
                # Another agent has removed it.
                continue


# Reading what attempts have written


def read(words: Data, _stdin: BinaryIO) -> Data:
    budget = [words["most_bytes"]]
    return {"seen": [look(wanted, words["names"], budget) for wanted in words["looks"]]}


def look(wanted: Data, names: List[str], budget: List[int]) -> Data:
    directory = wanted["directory"]
    # Of a log that is not there, or cannot be read, there is nothing new.
    known = {"log_at": wanted["log_at"] or 0, "log_size": wanted["log_at"] or 0}
    seen: Data = dict(known, exists=True, files={}, stamps={}, error="")
    try:
        # Also fetches the names anew where a network filesystem would show old ones.
        present = set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return dict(known, exists=False, is_alive=False)
    except OSError as error:
        return dict(seen, error=str(error))
    try:
        # Before the files are read: a wrapper that is gone has written its exit status.
        seen["is_alive"] = is_locked(os.path.join(directory, ALIVE_FILE))
        if not seen["is_alive"]:
            present = set(os.listdir(directory))
        for name in names:
            if name in present:
                look_at_file(directory, name, wanted["have"].get(name), seen)
        if wanted["log_at"] is not None and LOG_FILE in present:
            look_at_log(os.path.join(directory, LOG_FILE), wanted["log_at"], seen, budget)
    except OSError as error:
        # All of it or nothing: an exit status without the rest of the log would be taken for the end.
        return dict(known, exists=True, error=str(error))
    return seen


def look_at_file(directory: str, name: str, had: Optional[List[int]], seen: Data) -> None:
    opened = open_regular(os.path.join(directory, name))
    if opened is None:
        return
    with opened as file:
        found = os.fstat(file.fileno())
        stamp = [found.st_mtime_ns, found.st_size]
        if stamp == had or found.st_size > LONGEST_FILE:
            return
        seen["files"][name] = encoded(file.read(LONGEST_FILE))
        seen["stamps"][name] = stamp


def look_at_log(path: str, log_at: int, seen: Data, budget: List[int]) -> None:
    opened = open_regular(path)
    if opened is None:
        return
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        seen["log_size"] = size
        # It has become shorter: the job has begun its log anew.
        seen["log_at"] = log_at = 0 if size < log_at else log_at
        file.seek(log_at)
        content = file.read(min(budget[0], size - log_at))
        budget[0] -= len(content)
        seen["log"] = encoded(content)


def open_regular(path: str) -> Optional[BinaryIO]:
    """The file, opened to read; None when there is none, or when the job has put something else in its place."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its other end.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.ELOOP):
            return None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return open(fd, "rb")


def tail(words: Data, _stdin: BinaryIO) -> Data:
    opened = open_regular(words["path"])
    if opened is None:
        return {"content": None}
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - words["most_bytes"]))
        return {"content": encoded(file.read(words["most_bytes"]))}


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


# Locks


def try_lock(fd: int) -> Optional[bool]:
    """Whether the exclusive lock was taken; None where locks do not work."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno in _CANNOT_LOCK:
            return None
        raise
    return True


def is_locked(path: str) -> Optional[bool]:
    """Whether a process holds the lock; None where locks do not work."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # A shared lock for a moment, so that tests do not disturb each other.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return True
        if error.errno in _CANNOT_LOCK:
            return None
        raise
    finally:
        os.close(fd)
    return False


def lock_patiently(path: str, tries: int = 20, pause_s: float = 0.05) -> Tuple[int, Optional[bool]]:
    """The descriptor of the locked file, and whether it is locked: a test of the lock takes it for a moment."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    for number in range(tries):
        locked = try_lock(fd)
        if locked is not False:
            return fd, locked
        if number + 1 < tries:
            time.sleep(pause_s)
    return fd, False


# Attempts as processes of this host


def launch(words: Data, _stdin: BinaryIO) -> Data:
    directory = words["directory"]
    if not os.path.exists(os.path.join(directory, WRAPPER_FILE)):
        raise Refusal(f"{directory}: the attempt was not delivered to {host_name()}")
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
        gpus, why = take_gpus(words, held)
        if why:
            return launched("no_room", why=why)
        if not create_file(os.path.join(directory, LAUNCH_FILE), launch_record(None, gpus)):
            return launched("taken")
        pid = start(words, None if locked is None else alive_fd, gpus, held)
        # It runs, so a full disk is no failure of the launch any more: the wrapper's own file tells its pid too.
        with contextlib.suppress(OSError):
            replace_file(os.path.join(directory, LAUNCH_FILE), launch_record(pid, gpus), 0o666)
        return launched("started", pid, gpus)
    finally:
        # The wrapper has inherited them: from now on its processes alone keep them locked.
        for fd in held:
            os.close(fd)


def launched(outcome: str, pid: Optional[int] = None, gpus: Sequence[int] = (), why: str = "") -> Data:
    return {"outcome": outcome, "host": host_name(), "pid": pid, "gpus": list(gpus), "why": why}


def launch_record(pid: Optional[int], gpus: List[int]) -> bytes:
    """Written before the start too, without the pid: an attempt that may have been started is not started again."""
    record = {"host": host_name(), "boot_id": boot_id(), "pid": pid, "gpus": gpus}
    return (json.dumps(record) + "\n").encode()


def start(words: Data, alive_fd: Optional[int], gpus: List[int], held: List[int]) -> int:
    """Start the wrapper in a session of its own; its pid."""
    directory = words["directory"]
    environment = scrubbed(words["environment"])
    environment[ATTEMPT_DIR] = directory
    if words["gpus"]:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)
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
    except (OSError, Refusal):
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
            raise Refusal(
                f"{host_name()} ends all processes of a user at logout (KillUserProcesses=yes in logind.conf), and "
                f"{name} may not switch on lingering: ask for `loginctl enable-linger {name}`"
            )
    environment.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    return ["systemd-run", "--user", "--scope", "--quiet", "--"]


def loginctl(*words: str) -> str:
    """What it prints, nothing when it fails: a container has the program, and nobody to answer it."""
    _, out, _ = run_program(["loginctl", *words], b"", dict(os.environ), "/", LOGINCTL_S)
    return decoded(out)


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
    has_exit = os.path.exists(os.path.join(directory, EXIT_FILE))
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
            words = file.read().split()
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


# GPUs


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
            raise Refusal(f"{path}: it must be a directory of {user_name()}, for the locks of GPUs") from None
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
        # Those who tidy up /tmp take what was not touched for days.
        os.utime(fd)
        return "" if try_lock(fd) else read_holder(fd)
    finally:
        os.close(fd)


def read_holder(fd: int) -> str:
    return f"given to the attempt {decoded(os.pread(fd, 4096, 0)) or 'that takes it now'}"


def gpu_use(gpu: Data) -> str:
    """Who uses 100 MiB of a GPU or more; empty when nobody does."""
    known = sum(user["used_mib"] or 0 for user in gpu["users"])
    # In a container the driver tells the memory of the device, and not whose it is.
    if known < FOREIGN_MIB and (gpu["used_mib"] or 0) - known < FOREIGN_MIB + (gpu["total_mib"] or 0) // 100:
        return ""
    users = [f"pid {user['pid']} ({user['user']}: {user['command']})" for user in gpu["users"][:3]]
    used_mib = max(known, gpu["used_mib"] or 0)
    return f"{used_mib} MiB used by {', '.join(users) or 'processes that are not shown'}"


@functools.lru_cache(maxsize=None)
def read_gpus_once() -> List[Data]:
    """For all launches of one call: what these take is locked, whether or not it is in use already."""
    return read_gpus()


def read_gpus() -> List[Data]:
    """All GPUs of the host by index, with the processes on them."""
    rows = nvidia_smi("--query-gpu=index,uuid,name,memory.used,memory.total")
    users: Dict[str, List[Data]] = {}
    for uuid, pid, used in nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory"):
        users.setdefault(uuid, []).append(dict(describe_process(int(pid)), used_mib=mebibytes(used)))
    return [
        {
            "index": int(index),
            "name": name,
            "uuid": uuid,
            "used_mib": mebibytes(used),
            "total_mib": mebibytes(total),
            "users": users.get(uuid, []),
        }
        for index, uuid, name, used, total in rows
    ]


def nvidia_smi(query: str) -> List[List[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Refusal(f"nvidia-smi is not on PATH of {host_name()}, so its GPUs cannot be counted")
    words = [program, query, "--format=csv,noheader,nounits"]
    status, out, err = run_program(words, b"", dict(os.environ), "/", NVIDIA_SMI_S)
    if status != 0:
        ending = f"gave no answer within {NVIDIA_SMI_S:g} s" if status is None else f"failed with status {status}"
        raise Refusal(f"nvidia-smi on {host_name()} {ending}: {decoded(err + out).strip()}")
    return [[field.strip() for field in line.split(",")] for line in decoded(out).splitlines() if line.strip()]


def mebibytes(text: str) -> Optional[int]:
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


OPERATIONS = {
    "Hello": hello,
    "Run": run,
    "Deliver": deliver,
    "Write": write,
    "Read": read,
    "Tail": tail,
    "Launch": launch,
    "Check": check,
    "Signal": send_signal,
    "ListGpus": list_gpus,
    "Has": has,
    "Store": store,
}


def perform(words: Data, stdin: BinaryIO) -> List[Any]:
    """`["done", answer]`, or `["failed", why]`: no operation spoils another."""
    try:
        return ["done", OPERATIONS[words["type"]](words, stdin)]
    except OSError as error:
        # Of a renaming, the name that was wanted.
        named = error.filename2 or error.filename
        where = f"{named}: " if named else ""
        return ["failed", {"error": where + (error.strerror or str(error)), "errno": error.errno or 0}]
    except Refusal as error:
        return ["failed", {"error": str(error), "errno": 0}]
    except Exception as error:  # noqa: BLE001 -- a program that prints what nobody expected must not hide the rest
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{words['type']}: {type(error).__name__}: {error} (agent, line {place.lineno}, in {place.name})"
        return ["failed", {"error": why, "errno": 0}]


def find_pbs() -> None:
    """Put PBS's programs on PATH. PBS does so in /etc/profile.d, which a command that comes by ssh does not read."""
    try:
        with open(os.environ.get("PBS_CONF_FILE") or "/etc/pbs.conf", encoding="utf-8", errors="replace") as file:
            settings = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return
    if settings.get("PBS_EXEC"):
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), settings["PBS_EXEC"] + "/bin"])


def main() -> None:
    find_pbs()
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    request = json.loads(zlib.decompress(stdin.read(int(stdin.readline()))).decode())
    # Nobody waits for it any longer by then.
    signal.setitimer(signal.ITIMER_REAL, request["limit_s"])
    umask = os.umask(0o022)
    os.umask(umask)
    answers: List[List[Any]] = []
    for words in request["operations"]:
        before = words.pop("only_after")
        if before and any(word == "failed" for word, _ in answers[-before:]):
            answers.append(["failed", {"error": "not done, because what comes before it has failed", "errno": 0}])
            continue
        answers.append(perform(words, stdin))
        os.umask(umask)
    answer = zlib.compress(json.dumps(answers).encode())
    stdout.write(b"\n%s %d\n" % (request["nonce"].encode(), len(answer)) + answer)
    stdout.flush()


if __name__ == "__main__":
    main()
