"""Forks dispatchers for `commands.Popen`: a fork takes a tenth of the processor time of a start of the interpreter.

Run as a program, by the process that runs the tests, with a socket as its argument. It has one thread, and it has
imported what commands and pods import. A request is a JSON object with the descriptors of a new process and a pipe, on
which its pid is answered. The pipe is closed once the process is set up; if it cannot be, the answer is a pid and a 0.

A new process is a child of the process that runs the tests, as one of `subprocess.Popen` is, and /proc shows the
command line and the environment that it was given. It starts with what this process has imported, and nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
import time
import types
from typing import Any, NoReturn

CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x00008000, 0x00200000, 0x01000000
SYS_CLONE3 = 435  # on all architectures
PR_SET_MM, PR_SET_MM_MAP, PR_GET_TID_ADDRESS = 35, 14, 40
# More than a process has open when it begins.
MOST_DESCRIPTORS = 64
LARGEST_REQUEST = 100_000
# What a process of a test may use; not what only some commands need and takes long to import (optuna, pandas).
PACKAGES = (
    "base", "checkpoints", "cleaning", "cli", "doctor", "hosts", "matrix", "notify", "outlets", "pod", "provenance",
    "query", "run_state", "templates", "web",
)  # fmt: skip
LIBRARIES = ("filelock", "jinja2", "portalocker", "psutil", "starlette", "uvicorn", "yaml")

libc = ctypes.PyDLL(None, use_errno=True)


class CloneArguments(ctypes.Structure):
    """`struct clone_args`, see clone(2)."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    ]


class MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map`, see PR_SET_MM in prctl(2)."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
                         "arg_start", "arg_end", "env_start", "env_end", "auxv")
        ),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]  # fmt: skip


def serve(requests: socket.socket) -> str:
    """Answer requests until the other side has gone; in a new process: what it is to run."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, MOST_DESCRIPTORS)
        if not data:
            sys.exit()
        pid = fork()
        if pid == 0:
            # The object would close its descriptor, which may be another's by then.
            requests.detach()
            return set_up(json.loads(data), descriptors)
        with contextlib.suppress(BrokenPipeError):
            os.write(descriptors[-1], b" %d " % pid if pid > 0 else b" 0 0 ")
        for descriptor in descriptors:
            os.close(descriptor)


def fork() -> int:
    """As os.fork, but the new process is a child of this one's parent; negative when the kernel cannot."""
    # libc's own record of the thread's id is where the kernel clears it when the thread ends.
    own_tid = ctypes.c_uint64()
    if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(own_tid), 0, 0, 0):
        return -1
    flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    arguments = CloneArguments(flags=flags, child_tid=own_tid.value)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(libc.syscall(SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def set_up(given: dict[str, Any], descriptors: list[int]) -> str:
    """Make this new process one that was started with what is given; what it is to run."""
    words = [os.fsencode(word) for word in given["words"]]
    variables = [os.fsencode(variable) for variable in given["environment"]]
    try:
        show(words, variables)
        begin_group(given["process_group"], given["new_session"])
        os.umask(given["umask"])
        os.chdir(given["cwd"])
    except OSError:
        os.write(descriptors[-1], b" 0 ")
        os._exit(1)
    os.environb.clear()  # type: ignore[attr-defined]
    os.environb.update(variable.split(b"=", 1) for variable in variables)  # type: ignore[attr-defined]
    time.tzset()
    place(descriptors[:-1], given["descriptors"], keep=descriptors[-1])
    open_streams()
    sys.argv[:] = ["-c", *given["words"][4:]]
    sys.orig_argv[:] = given["words"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    return str(given["words"][3])


def show(words: list[bytes], variables: list[bytes]) -> None:
    """Have /proc show this command line and this environment."""
    shown = [b"".join(word + b"\0" for word in some) for some in (words, variables)]
    text = ctypes.create_string_buffer(b"".join(shown))
    # Whoever looks when the interpreter has cleaned up finds it there.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
    with open("/proc/self/stat", "rb") as file:
        # Fields are counted as in proc(5), behind the name, which may contain anything.
        field = dict(enumerate(map(int, file.read().rpartition(b") ")[2].split()[1:]), 4))
    begin = ctypes.addressof(text)
    libc.sbrk.restype = ctypes.c_void_p
    memory = MemoryMap(
        start_code=field[26], end_code=field[27], start_stack=field[28], start_data=field[45], end_data=field[46],
        start_brk=field[47], arg_start=begin, arg_end=begin + len(shown[0]), env_start=begin + len(shown[0]),
        env_end=begin + len(shown[0]) + len(shown[1]), exe_fd=0xFFFFFFFF,
    )  # fmt: skip
    memory.brk = libc.sbrk(0)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(memory), ctypes.sizeof(memory), 0):
        raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")


def begin_group(process_group: int, new_session: bool) -> None:
    if new_session:
        os.setsid()
    if process_group >= 0:
        os.setpgid(0, process_group)


def place(descriptors: list[int], wanted: list[int], keep: int) -> None:
    """Give the descriptors the numbers that are wanted, and close all others."""
    beyond = max(*wanted, *descriptors, keep) + 1
    moved = [os.dup2(descriptor, beyond + number) for number, descriptor in enumerate((*descriptors, keep))]
    for descriptor, number in zip(moved, wanted, strict=False):
        os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (*wanted, moved[-1]):
            with contextlib.suppress(OSError):
                os.close(int(name))
    os.close(moved[-1])


def open_streams() -> None:
    """The standard streams, as the interpreter opens them."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        writes = number > 0
        binary = open(number, "wb" if writes else "rb", 0 if unbuffered and writes else -1, closefd=False)  # noqa: SIM115
        lines = writes and not unbuffered and (number == 2 or binary.isatty())
        stream = io.TextIOWrapper(
            binary, old.encoding, old.errors, newline="\n", line_buffering=lines, write_through=unbuffered
        )
        stream.mode = "w" if writes else "r"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def preload() -> None:
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    for package in PACKAGES:
        found = importlib.import_module(f"dispatcher.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def run(code: str) -> NoReturn:
    """Run a program and end as the interpreter would, but leave the memory to the kernel.

    To clean it up would touch, and so copy, most of what this process shares with the server: half of the time of a
    short command.
    """
    status: Any = 0
    killed = False
    try:
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as ended:
        status = ended.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
        killed = isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        sys.excepthook(type(error), error, None)
        status = 120
    if killed:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    # Ctrl-C is for the tests. A new process takes its own only once it is set up.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    preload()
    gc.collect()
    gc.freeze()
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
