"""What this host is: its name, its user, its directories and programs."""

import getpass
import os
import platform
import pwd
import shutil
import socket
from typing import BinaryIO, Optional

from dispatcher.outlets.remote.agent.names import HOST, Data

LONGEST_PROBE = 4096


def hello(words: Data, _stdin: BinaryIO) -> Data:
    return {
        "host": host_name(),
        "boot_id": boot_id(),
        "user": user_name(),
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
    return _readable(os.environ.get(HOST) or socket.gethostname())


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
        return _readable(getpass.getuser())


def _readable(name: str) -> str:
    # The dispatcher's own name for the same host: dispatcher/base/messages.py. Answers are UTF-8.
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
