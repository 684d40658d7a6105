"""Files that are written atomically: those of attempts, and single ones that must not exist yet."""

import base64
import errno
import os
import socket
from typing import BinaryIO

from dispatcher.outlets.remote.agent.names import TAKEN_FILE, Data


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
