"""This machine as a whole: one attempt at a time, and its place among the machines that run an attempt together."""

import contextlib
import os
import zlib
from typing import Dict, Iterator, List, Optional, Sequence

from dispatcher.outlets.remote.agent.locks import try_lock_patiently
from dispatcher.outlets.remote.agent.names import ALIVE_FILE, COORDINATOR, NUM_PROCESSES, PROCESS_ID, AgentError
from dispatcher.outlets.remote.agent.programs import decoded
from dispatcher.outlets.remote.agent.signals import all_pids

# Below the ports that kernels give to connections, and away from those of the TPU runtime.
FIRST_PORT = 10000
PORTS = 20000
# With these libtpu keeps a second process off the chips. One that is killed leaves them, which blocks all others.
LIBTPU_LOCKS = ("/tmp/libtpu_lockfile", "/tmp/libtpu.so_lockfile")
_CHIPS = ("/dev/accel", "/dev/vfio/")


def take_machine(directory: str, attempt: str, held: List[int]) -> str:
    """Lock the file `alive` in `directory` by a descriptor that is appended to `held`; why not, empty when it is.

    The directory is shared by all users of the machine, so the one who makes it lets all others in.
    """
    if not directory:
        return ""
    make_for_all(directory)
    fd = open_for_all(os.path.join(directory, ALIVE_FILE))
    if try_lock_patiently(fd) is False:
        holder = decoded(os.pread(fd, 4096, 0))
        os.close(fd)
        return f"the attempt {holder or 'that begins now'} runs there"
    held.append(fd)
    os.ftruncate(fd, 0)
    os.pwrite(fd, os.fsencode(attempt), 0)
    remove_left_locks(LIBTPU_LOCKS)
    return ""


def remove_left_locks(paths: Sequence[str]) -> None:
    """Remove those lock files of this user that a killed process has left.

    They stay while a process that this user may look at has one of them, or a chip, open: a person uses it by hand.
    """
    left = [path for path in paths if is_own_file(path)]
    if not left or any(path in left or path.startswith(_CHIPS) for path in open_files()):
        return
    for path in left:
        with contextlib.suppress(OSError):
            os.unlink(path)


def is_own_file(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:
        return False


def open_files() -> Iterator[str]:
    """The paths that processes have open, as far as this user may see them."""
    for pid in all_pids():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    yield os.readlink(f"/proc/{pid}/fd/{name}")


def make_for_all(directory: str) -> None:
    try:
        os.mkdir(directory)
    except FileExistsError:
        return
    os.chmod(directory, 0o1777)


def open_for_all(path: str) -> int:
    # Without O_CREAT first: kernels refuse that for another user's file in such a directory.
    for _ in range(2):
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        os.fchmod(fd, 0o666)
        return fd
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW)


def index_among(workers: Sequence[Sequence[str]]) -> Optional[int]:
    """The place of this machine among several, by the address at which ssh has reached it; None for one alone.

    That is its internal one, also where it has an external one by translation of addresses, as on Google's cloud.
    """
    if len(workers) < 2:
        return None
    words = os.environ.get("SSH_CONNECTION", "").split()
    address = words[2] if len(words) == 4 else ""
    for index, addresses in enumerate(workers):
        if address in addresses:
            return index
    raise AgentError(
        f"ssh has reached this machine at {address or 'no address'}, which is none of those that are to run the "
        f"attempt: {', '.join(addresses[0] for addresses in workers)}"
    )


def process_variables(directory: str, workers: Sequence[Sequence[str]], index: Optional[int]) -> Dict[str, str]:
    """What tells the processes of an attempt on several machines of each other; the same port on all of them."""
    if index is None:
        return {}
    port = FIRST_PORT + zlib.crc32(os.fsencode(directory)) % PORTS
    address = workers[0][0]
    host = f"[{address}]" if ":" in address else address
    return {PROCESS_ID: str(index), NUM_PROCESSES: str(len(workers)), COORDINATOR: f"{host}:{port}"}
