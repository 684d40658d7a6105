"""This machine as a whole: one attempt at a time, and its place among the machines that run an attempt together."""

import os
import zlib
from typing import Dict, List, Optional, Sequence

from dispatcher.outlets.remote.agent.locks import try_lock_patiently
from dispatcher.outlets.remote.agent.names import ALIVE_FILE, COORDINATOR, NUM_PROCESSES, PROCESS_ID, Refusal
from dispatcher.outlets.remote.agent.programs import decoded

# Below the ports that kernels give to connections, and away from those of the TPU runtime.
FIRST_PORT = 10000
PORTS = 20000


def take_machine(directory: str, attempt: str, held: List[int]) -> str:
    """Lock the file `alive` in `directory` by a descriptor that is appended to `held`; why not, empty when it is.

    The directory is shared by all users of the machine, so whoever makes it lets everybody in.
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
    return ""


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
    raise Refusal(
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
