"""Commands of the dispatcher in processes of their own, without a start of the interpreter for each."""

from __future__ import annotations

import atexit
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fork_server

MAIN = "import sys; from dispatcher.cli.main import main; sys.exit(main())"
COMMAND = [sys.executable, "-P", "-c", MAIN]

_starting = threading.Lock()


class Popen(subprocess.Popen):
    """As subprocess.Popen, but a Python program like COMMAND (`python -P -c CODE WORDS`) is forked.

    Everything else is started, and so is a program with other variables of the interpreter (PYTHON*, LC_*, LD_*).
    """

    def _execute_child(self, *values: Any) -> None:
        execute = super()._execute_child
        given = inspect.signature(execute).bind(*values).arguments
        pid = _fork(given)
        if not pid:
            execute(*values)
            return
        self.pid = pid
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[end] for end in ends))


def run(
    command: list[str], *, input: Any = None, capture_output: bool = False, timeout: float | None = None,
    check: bool = False, **options: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """As subprocess.run, with the Popen of this module."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _fork(given: dict[str, Any]) -> int:
    """The pid of a new process; 0 when it is to be started."""
    words = given["args"]
    if not isinstance(words, list) or words[:3] != COMMAND[:3]:
        return 0
    others = ("executable", "preexec_fn", "shell", "gid", "gids", "uid")
    if any(given[name] not in (None, False) for name in others) or not given["close_fds"]:
        return 0
    environment = os.environ if given["env"] is None else given["env"]
    variables = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    server = _server()
    if server.reads != _read_by_interpreter(variables):
        return 0
    ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    descriptors = {number: number if end < 0 else end for number, end in enumerate(ends)}
    descriptors |= {number: number for number in map(int, given["pass_fds"])}
    request = {
        "words": [os.fsdecode(word) for word in words],
        "environment": [f"{name}={value}" for name, value in variables.items()],
        "cwd": os.fsdecode(given["cwd"] or os.getcwd()),
        "umask": given["umask"] if given["umask"] >= 0 else _umask(),
        "process_group": given["process_group"],
        "new_session": bool(given["start_new_session"]),
        "descriptors": list(descriptors),
    }
    return server.fork(json.dumps(request).encode(), list(descriptors.values()))


def _read_by_interpreter(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that count when an interpreter starts. The streams are opened anew in each process."""
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_")) and name != "PYTHONUNBUFFERED"
    }


def _umask() -> int:
    """Read without being set: another thread may create a file."""
    return int(re.search(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1], 8)


class _Server:
    """tests/fork_server.py as a process, which ends with this one."""

    def __init__(self) -> None:
        self.reads = _read_by_interpreter(os.environ)
        self._requests, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with others:
            self._process = subprocess.Popen(
                [sys.executable, "-P", fork_server.__file__, str(others.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[others.fileno()],
            )  # fmt: skip
        atexit.register(self._end)

    def fork(self, request: bytes, descriptors: list[int]) -> int:
        """The pid of a new process; 0 when it is to be started."""
        if len(request) > fork_server.LARGEST_REQUEST or len(descriptors) >= fork_server.MOST_DESCRIPTORS:
            return 0
        reading, writing = os.pipe()
        with open(reading, "rb") as reader:
            try:
                socket.send_fds(self._requests, [request], [*descriptors, writing])
            finally:
                os.close(writing)
            # Ends when the process is set up or has ended.
            answers = [int(word) for word in reader.read().split()]
        pid = max(answers)
        if 0 not in answers:
            return pid
        if pid:
            os.waitpid(pid, 0)
        return 0

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()


@cache
def _the_server() -> _Server:
    return _Server()


def _server() -> _Server:
    # Several threads of a test may be the first.
    with _starting:
        return _the_server()
